"""Unusable records, and the expected outcome of each: one table for the simulator and for tests.

Every maker spoils one thing of a valid notification.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from facade.flows.telemetry.simulator.faults import HIGHEST_NODE
from facade.kernel.codec.decode import Reason
from facade.kernel.outcome import TOMBSTONE


@dataclass(frozen=True, slots=True)
class Garbage:
    """One kind of unusable record."""

    name: str
    make: Callable[[bytes], bytes | None]
    """Makes the unusable record from a valid record's value."""
    outcome: Literal["suppressed", "dead-lettered"]
    reason: str
    judge: Literal["codec", "reduce"] = "codec"
    """The part that refuses it."""


def _always(value: bytes | None) -> Callable[[bytes], bytes | None]:
    return lambda valid: value


def _with(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda valid: _dump({**json.loads(valid), **changes})


def _without(key: str) -> Callable[[bytes], bytes]:
    return lambda valid: _dump({name: value for name, value in json.loads(valid).items() if name != key})


def _literal(key: str, text: bytes) -> Callable[[bytes], bytes]:
    def make(valid: bytes) -> bytes:
        marked = _dump({**json.loads(valid), key: "\0"})
        return marked.replace(rb'"\u0000"', text)

    return make


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _bad(name: str, make: Callable[[bytes], bytes | None], reason: str) -> Garbage:
    return Garbage(name, make, "dead-lettered", reason)


GARBAGE: tuple[Garbage, ...] = (
    Garbage("tombstone", _always(None), "suppressed", TOMBSTONE.reason),
    _bad("empty", _always(b""), Reason.EMPTY),
    _bad("not-json", _always(b"this is no JSON"), Reason.NOT_JSON),
    _bad("truncated", lambda valid: valid[: len(valid) // 2], Reason.NOT_JSON),
    _bad("long-and-not-json", _always(b"x" * 100_000), Reason.NOT_JSON),
    _bad("trailing-text", lambda valid: valid + b"}", Reason.NOT_JSON),
    _bad("zero-bytes", lambda valid: bytes(len(valid)), Reason.NOT_JSON),
    _bad("utf-16", lambda valid: valid.decode().encode("utf-16"), Reason.NOT_JSON),
    _bad("byte-order-mark", lambda valid: b"\xef\xbb\xbf" + valid, Reason.NOT_JSON),
    _bad("invalid-utf-8", _literal("schema", b'"heap/\xff\xfe"'), Reason.NOT_JSON),
    _bad("nan", _literal("latency", b"NaN"), Reason.NOT_JSON),
    _bad("infinity", _literal("latency", b"Infinity"), Reason.NOT_JSON),
    _bad("leading-zero", _literal("seq", b"007"), Reason.NOT_JSON),
    _bad("too-large-for-a-double", _literal("latency", b"1e400"), Reason.SCHEMA),
    _bad("null", _always(b"null"), Reason.SCHEMA),
    _bad("array", lambda valid: b"[" + valid + b"]", Reason.SCHEMA),
    _bad("string", _always(b'"heap/1"'), Reason.SCHEMA),
    _bad("no-members", _always(b"{}"), Reason.VERSION),
    _bad("no-version", _without("schema"), Reason.VERSION),
    _bad("next-version", _with(schema="heap/2"), Reason.VERSION),
    _bad("other-message", _with(schema="ingest-summary/1"), Reason.VERSION),
    _bad("version-as-number", _with(schema=1), Reason.VERSION),
    _bad("missing-key", _without("latency"), Reason.SCHEMA),
    _bad("number-as-string", _with(received="512"), Reason.SCHEMA),
    _bad("boolean", _with(lost=True), Reason.SCHEMA),
    _bad("null-member", _with(late=None), Reason.SCHEMA),
    _bad("object-as-number", _with(node={"number": 1}), Reason.SCHEMA),
    _bad("fraction-for-an-integer", _with(received=511.5), Reason.SCHEMA),
    _bad("negative", _with(seq=-1), Reason.SCHEMA),
    _bad("above-the-range", _with(flagged_fraction=1.0001), Reason.SCHEMA),
    _bad("below-the-range", _with(latency=-0.001), Reason.SCHEMA),
    _bad("beyond-2^53", _with(seq=2**53 + 2), Reason.SCHEMA),
    _bad("beyond-64-bits", _with(seq=10**30), Reason.SCHEMA),
    _bad("node-beyond-the-range", _with(node=HIGHEST_NODE + 1), Reason.SCHEMA),
    _bad("deep-nesting", lambda valid: b"[" * 20_000 + b"]" * 20_000, Reason.SCHEMA),
    _bad("deep-member", _literal("unknown", b"[" * 20_000 + b"]" * 20_000), Reason.TOO_DEEP),
    Garbage("unknown-node", _with(node=HIGHEST_NODE), "dead-lettered", "unknown-node", "reduce"),
)
"""The corpus; the simulator repeats it in order."""
