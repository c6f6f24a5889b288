"""Decodes batches of records: the good ones at the speed of C, the bad ones as results.

One bad record never hides its neighbours, and nothing that a record holds raises here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec.structs import fields

_LONGEST_DETAIL = 500
_VERSION_FIELD = "schema"

Message = TypeVar("Message", bound=msgspec.Struct)


class Reason(StrEnum):
    """Why a record was not used."""

    TOMBSTONE = "tombstone"
    """No value at all: legal, and says nothing."""
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
class Rejected:
    """A record that could not be used."""

    index: int
    """Position in the batch."""
    reason: Reason
    path: str
    """Where in the document, such as ``$.latency``."""
    detail: str
    """What was expected and got, in words; short and printable, whatever the record holds."""


@dataclass(frozen=True, slots=True)
class Decoded(Generic[Message]):
    """What became of a batch: every record is in exactly one of the lists."""

    items: list[Message]
    """The good records in their order, without gaps for the bad ones."""
    rejected: list[Rejected]
    """The bad records in their order."""


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

    def decode(self, values: Sequence[bytes | None]) -> Decoded[Message]:
        """Decode a batch; a bad record is a result and never an exception."""
        items: list[Message] = []
        rejected: list[Rejected] = []
        # No Python code runs per record. When one is bad, `extend` has kept what came before and
        # the iterator stands behind it, so that the next `extend` goes on with its neighbour.
        remaining = map(self._decode, values)
        while True:
            try:
                items.extend(remaining)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
                index = len(items) + len(rejected)
                rejected.append(self._reject(index, values[index], error))
            else:
                return Decoded(items, rejected)

    def _reject(self, index: int, value: bytes | None, error: Exception) -> Rejected:
        if value is None:
            return Rejected(index, Reason.TOMBSTONE, "$", "the record has no value")
        if isinstance(error, TypeError):
            raise error
        if not value:
            return Rejected(index, Reason.EMPTY, "$", "the value has no bytes")
        if isinstance(error, RecursionError):
            return Rejected(index, Reason.TOO_DEEP, "$", "nested too deeply")
        if not isinstance(error, msgspec.ValidationError):
            return Rejected(index, Reason.NOT_JSON, "$", printable(str(error)))
        return self._refuse(index, value, str(error))

    def _refuse(self, index: int, value: bytes, complaint: str) -> Rejected:
        """Tell a wrong version and broken JSON from a breach of the schema.

        The decoder stops at the first breach, so it may have met neither the version nor the place
        where the JSON is broken; the reason must not depend on the order of the keys.
        """
        detail, path = _split(complaint)
        try:
            version = self._decode_version(value).schema
        except msgspec.ValidationError:
            return Rejected(index, Reason.SCHEMA, path, detail)
        except RecursionError:
            return Rejected(index, Reason.TOO_DEEP, "$", "nested too deeply")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Rejected(index, Reason.NOT_JSON, "$", printable(str(error)))
        if self._version is not None and version != self._version:
            what = f"expected {self._version!r}, got {version!r:.80}"
            return Rejected(index, Reason.VERSION, f"$.{_VERSION_FIELD}", printable(what))
        return Rejected(index, Reason.SCHEMA, path, detail)


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
