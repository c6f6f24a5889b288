"""Decodes batches of records: the good ones at the speed of C, the bad ones as results.

One bad record never hides its neighbours, and nothing that a record holds raises here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec.structs import fields

from facade.outcome import TOMBSTONE, Rejected, Unused

_LONGEST_DETAIL = 500
_VERSION_FIELD = "schema"
_FAILURES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)

Message = TypeVar("Message", bound=msgspec.Struct)


class Reason(StrEnum):
    """Why a record was rejected."""

    EMPTY = "empty"
    """A value of no bytes."""
    NOT_JSON = "not-json"
    """No JSON text, or not in UTF-8."""
    VERSION = "version"
    """JSON, but its ``schema`` is missing or names another message or major version."""
    SCHEMA = "schema"
    """JSON of our version that the schema forbids."""
    TOO_DEEP = "too-deep"
    """Nested deeper than any reader should follow."""


@dataclass(frozen=True, slots=True)
class Decoded(Generic[Message]):
    """What became of a batch: every record is in exactly one of the two."""

    items: list[Message]
    """The good records in their order, without gaps for the others."""
    unused: dict[int, Unused]
    """Why the others are of no use, by position in the batch and in their order."""


class _Version(msgspec.Struct):
    """As much of a message as tells its version."""

    schema: Any = None


class BatchDecoder(Generic[Message]):
    """Decodes the records of one message type.

    Parameters
    ----------
    struct_type
        From `facade.codec.json_schema.compile_message`.
    """

    def __init__(self, struct_type: type[Message]) -> None:
        # Declared to take None, which raises TypeError: that is how a tombstone comes to light.
        self._decode: Callable[[bytes | None], Message] = cast(Any, msgspec.json.Decoder(struct_type).decode)
        self._decode_version = msgspec.json.Decoder(_Version).decode
        self._version = _version_of(struct_type)

    def decode_one(self, value: bytes | None) -> Message | Unused:
        """Decode a record; a bad one is a result and never an exception."""
        try:
            return self._decode(value)
        except _FAILURES as error:
            return self._judge(value, error)

    def decode(self, values: Sequence[bytes | None]) -> Decoded[Message]:
        """Decode a batch; a bad record is a result and never an exception."""
        items: list[Message] = []
        unused: dict[int, Unused] = {}
        # No Python code runs per record. When one is bad, `extend` has kept what came before and
        # the iterator stands behind it, so that the next `extend` goes on with its neighbour.
        remaining = map(self._decode, values)
        while True:
            try:
                items.extend(remaining)
            except _FAILURES as error:
                index = len(items) + len(unused)
                unused[index] = self._judge(values[index], error)
            else:
                return Decoded(items, unused)

    def _judge(self, value: bytes | None, error: Exception) -> Unused:
        if value is None:
            return TOMBSTONE
        if isinstance(error, TypeError):
            raise error
        if not value:
            return Rejected(Reason.EMPTY, "$", "the value has no bytes")
        if isinstance(error, RecursionError):
            return Rejected(Reason.TOO_DEEP, "$", "nested too deeply")
        if not isinstance(error, msgspec.ValidationError):
            return Rejected(Reason.NOT_JSON, "$", printable(str(error)))
        return self._refuse(value, str(error))

    def _refuse(self, value: bytes, complaint: str) -> Rejected:
        """Tell a wrong version and broken JSON from a breach of the schema.

        The decoder stops at the first breach, so it may have met neither the version nor the place
        where the JSON is broken; the reason must not depend on the order of the keys.
        """
        detail, path = _split(complaint)
        try:
            version = self._decode_version(value).schema
        except msgspec.ValidationError:
            return Rejected(Reason.SCHEMA, path, detail)
        except RecursionError:
            return Rejected(Reason.TOO_DEEP, "$", "nested too deeply")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Rejected(Reason.NOT_JSON, "$", printable(str(error)))
        if self._version is not None and version != self._version:
            what = f"expected {self._version!r}, got {version!r:.80}"
            return Rejected(Reason.VERSION, f"$.{_VERSION_FIELD}", printable(what))
        return Rejected(Reason.SCHEMA, path, detail)


def _version_of(struct_type: type[msgspec.Struct]) -> str | None:
    for field in fields(struct_type):
        if field.name == _VERSION_FIELD and get_origin(field.type) is Literal:
            return str(get_args(field.type)[0])
    return None


def _split(complaint: str) -> tuple[str, str]:
    """Split msgspec's text, such as "Expected `int`, got `str` - at `$.node`", into detail and path."""
    detail, found, path = complaint.rpartition(" - at `$")
    if not found:
        return printable(complaint), "$"
    return printable(detail), printable(f"${path.rstrip('`')}")


def printable(text: str) -> str:
    """Bound what a hostile record can make us write into headers and logs."""
    text = text[:_LONGEST_DETAIL]
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)
