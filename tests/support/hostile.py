"""Records that harm a reader that trusts what it reads: one set, for all topics and all readers.

Each is a good record of its topic in which one thing is wrong. A header's name that is not UTF-8 has surrogates; see
`tests.support.foreign_headers`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from facade.kernel.bus.dead_letters import dead_letter
from facade.kernel.bus.port import Headers, Record
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import RecordRejected
from sdp_facade_lab.fault_runs.fuzz_records import documents, example, packet, record

FOREIGN: Final = "n\udcff\udcfe"
"""The name of a header that is not UTF-8."""
LARGE: Final = 8_000_000
"""Of a value, where the topic takes it [bytes]."""
_SPACE = 10_000
"""What a record may have beside its value [bytes]."""
_PLAIN: Final[Mapping[str, bytes]] = {
    "logs": b"<34>1 2026-11-28T22:14:15.003Z r01n7 receive - - - a line",
    "metrics": b"# TYPE load gauge\nload 1.0\n",
    "telescope.streaming": b"[1795282467.8, 181.2245, 45.0012]",
}

Form = Callable[[Record], Record]


def goods(icd: Icd, now_us: int) -> Iterator[Record]:
    """Return a good record of each message of each topic."""
    known = documents(now_us, 1)
    for name, topic in icd.topics.items():
        if name == "dead-letters":
            why = RecordRejected("schema", "$.node", "expected 0 to 3, got 7")
            of = Record(topic="ingest.heaps", key=b"7", value=b'{"node":7}', headers=(("a", b"b"),), partition=0)
            yield dead_letter(replace(of, offset=3, timestamp_us=now_us), why, by="hostile")
        elif name == "alert-packets":
            made = packet({**known["alert"], "attachments": []})
            yield Record(topic=name, key=made.key, value=made.value)
        elif name in _PLAIN:
            yield Record(topic=name, key=b"r01/n7", value=_PLAIN[name])
        else:
            messages = [topic.message, *topic.also] if topic.header is None else [topic.header.message]
            for message in messages:
                document = _whole(known.get(message or "", {}), icd.messages[message or ""], message or "")
                good = record(name, message or "", document)
                yield Record(topic=name, key=good.key or b"hostile", value=good.value, headers=good.headers)


def _whole(document: Mapping[str, Any], schema: Mapping[str, Any], message: str) -> dict[str, Any]:
    """Return a document with all keys of its schema."""
    shown = {"schema": f"{message}/1", **next(iter(schema.get("examples", ())), {}), **document}
    more = {key: one for key, one in schema["properties"].items() if key not in shown}
    return {**shown, **{key: example(one) if {"type", "enum"} & one.keys() else "any" for key, one in more.items()}}


def _key(raw: bytes | None) -> Form:
    return lambda one: replace(one, key=raw)


def _value(raw: bytes | None) -> Form:
    return lambda one: replace(one, value=raw)


def _headers(change: Callable[[Headers], Headers]) -> Form:
    return lambda one: replace(one, headers=change(one.headers))


def _text(change: Callable[[bytes], bytes]) -> Form:
    """Change the JSON of a record, which is its first header if it has one."""

    def form(one: Record) -> Record:
        if one.topic == "dead-letters" or not one.headers:
            return replace(one, value=change(one.value or b""))
        (name, text), *more = one.headers
        return replace(one, headers=((name, change(text)), *more))

    return form


def _scalars(raw: str, *kinds: type) -> Form:
    """Put a piece of JSON at the place of all scalars of some kinds, but for the name of the schema."""

    def changed(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: changed(one, key) for key, one in value.items()}
        if isinstance(value, list):
            return [changed(one) for one in value]
        return _HERE if type(value) in kinds and name != "schema" else value

    def change(text: bytes) -> bytes:
        try:
            return json.dumps(changed(json.loads(text))).replace(f'"{_HERE}"', raw).encode(errors="surrogatepass")
        except ValueError:  # no JSON
            return raw.encode(errors="surrogatepass")

    return _text(change)


_HERE = "@here@"
_NUMBERS = (int, float)
FORMS: Final[Mapping[str, Form]] = {
    "good": lambda one: one,
    "a header name that is not UTF-8": _headers(lambda found: (*found, (FOREIGN, b"v"))),
    "header names of which some are not UTF-8": _headers(
        lambda found: ((FOREIGN, b""), *found, ("\udcc3(", b"1"), ("a", b"2"), ("\udced\udca0\udc80", b"\xff"))
    ),
    "an empty header name": _headers(lambda found: (*found, ("", b""))),
    "a header name of control characters": _headers(lambda found: (*found, ("\x1b[2J\r\n[red]\u202e", b"\x1b[31m"))),
    "a header name like ours": _headers(lambda found: (*found, ("dl.topic", b"\xff"), ("redriven.from", b"\xff"))),
    "headers by the hundred": _headers(lambda found: (*found, *((f"h{number}", b"v") for number in range(500)))),
    "a header twice": _headers(lambda found: (*found, *found, ("a", b"1"), ("a", b"2"))),
    "no headers": _headers(lambda found: ()),
    "no key": _key(None),
    "an empty key": _key(b""),
    "a key that is not UTF-8": _key(b"\xff\xfe/\xc3("),
    "a key of control characters": _key(b"\x1b[2J\x00\r\n[red]"),
    "a key of 100,000 bytes": _key(b"k" * 100_000),
    "a tombstone": _value(None),
    "a tombstone with headers": lambda one: replace(one, value=None, headers=((FOREIGN, b"v"), ("a", b"b"))),
    "neither key nor value": lambda one: replace(one, key=None, value=None, headers=()),
    "no bytes": _value(b""),
    "a value that is not UTF-8": _value(b"\xff\xfe\xc3("),
    "bytes of no meaning": _value(bytes(range(256)) * 4),
    "a large value": _value(b"x" * LARGE),
    "JSON and then a large value": lambda one: replace(one, value=(one.value or b"") + b" " * 500_000),
    "deep lists": _text(lambda _: b"[" * 100_000 + b"]" * 100_000),
    "deep objects": _text(lambda _: b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "half of the text": _text(lambda text: text[: len(text) // 2]),
    "each key twice": _text(lambda text: b"{" + text[1:-1] + b"," + text[1:] if text[:1] == b"{" else text * 2),
    "another schema": _text(lambda text: text.replace(b'/1"', b'/9"', 1)),
    "the schema of another message": _text(lambda text: b'{"schema":"heap/1",' + text[text.find(b",") + 1 :]),
    "no schema": _text(lambda text: text.replace(b'"schema"', b'"scheme"', 1)),
    "numbers of 400 digits": _scalars("1" + "0" * 400, *_NUMBERS),
    "negative numbers": _scalars("-1", *_NUMBERS),
    "the largest numbers": _scalars("9223372036854775807", *_NUMBERS),
    "numbers beyond all": _scalars("1e400", *_NUMBERS),
    "no numbers": _scalars("NaN", *_NUMBERS),
    "infinity": _scalars("-Infinity", *_NUMBERS),
    "numbers as texts": _scalars('"1"', *_NUMBERS),
    "null": _scalars("null", *_NUMBERS, str, bool),
    "lists": _scalars("[[]]", *_NUMBERS, str, bool),
    "empty texts": _scalars('""', str),
    "control characters": _scalars('"\\u001b[2J\\u0000\\r\\n[red]\\u202e\\u009b31m"', str),
    "half of a character": _scalars('"\\ud83d"', str),
    "half of a character in bytes": _scalars('"\ud83d"', str),
    "long texts": _scalars('"' + "a" * 100_000 + '"', str),
}
"""What is wrong, and the function that makes it so."""


def hostile(icd: Icd, now_us: int, form: str) -> Iterator[Record]:
    """Return a record of each message of each topic with one thing wrong, none larger than its topic takes."""
    for good in goods(icd, now_us):
        made = FORMS[form](good)
        most = icd.topics[good.topic].max_bytes - _SPACE - len(made.key or b"")
        yield replace(made, value=None if made.value is None else made.value[:most])
