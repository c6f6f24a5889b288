"""Decodes batches of records: good ones at the speed of C, bad ones as results.

A bad record never hides its neighbours, and no content of a record raises here.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
import msgspec.inspect
from msgspec.structs import fields

from facade.kernel.outcome import TOMBSTONE, RecordRejected, Unused
from facade.kernel.printable import excerpt

_VERSION_FIELD = "schema"
_FAILURES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)

_PART = re.compile(r"\.?([^.\[\]$]+|\[[^\]]*\])")
"""A step of a path in msgspec's text, such as ``$.states[...].value``."""

MessageType = TypeVar("MessageType", bound=msgspec.Struct)


class Reason(StrEnum):
    """Reason for a rejection."""

    EMPTY = "empty"
    """An empty value."""
    NOT_JSON = "not-json"
    """Not JSON, or not UTF-8."""
    VERSION = "version"
    """JSON whose ``schema`` is missing, or names another message or major version."""
    SCHEMA = "schema"
    """JSON of our version that violates the schema."""
    TOO_DEEP = "too-deep"
    """Deeper nested than allowed."""


UNREADABLE = frozenset(Reason)
"""Reasons for which no reader of a topic can read a record."""


@dataclass(frozen=True, slots=True)
class Decoded(Generic[MessageType]):
    """A decoded batch: every record is in exactly one of the two."""

    items: list[MessageType]
    """The good records in order, without gaps."""
    unused: dict[int, Unused]
    """Reasons for the unused ones, by position in the batch and in order."""


class _Version(msgspec.Struct):
    """The part of a message that has its version."""

    schema: Any = None


class _Nothing(msgspec.Struct, tag_field=_VERSION_FIELD, tag=""):
    """An empty alternative: among several structs msgspec requires the tag, which a single one may lack."""

    never: Annotated[int, msgspec.Meta(gt=0, lt=1)]


class BatchDecoder(Generic[MessageType]):
    """Decodes the records of a topic, each in one pass, into the struct of its message.

    Parameters
    ----------
    struct_types
        Of `facade.kernel.messages`, or one from `facade.kernel.codec.json_schema.compile_message`. With several, the
        version in the record decides.
    """

    def __init__(self, *struct_types: type[MessageType]) -> None:
        self._types = struct_types
        self._versions = [version for one in struct_types if (version := _version_of(one)) is not None]
        wanted: Any = Union[struct_types]  # noqa: UP007 - made at run time
        if any(one.__struct_config__.tag for one in struct_types):
            wanted |= _Nothing
        # Declared to accept None, which raises TypeError: this detects a tombstone.
        self._decode: Callable[[bytes | None], MessageType] = cast(Any, msgspec.json.Decoder(wanted).decode)
        self._decode_version = msgspec.json.Decoder(_Version).decode

    def decode_one(self, value: bytes | None) -> MessageType | Unused:
        """Decode a record; a bad one is a result, not an exception."""
        try:
            return self._decode(value)
        except _FAILURES as error:
            return self._judge(value, error)

    def decode_header(self, headers: Iterable[tuple[str, bytes]], name: str) -> MessageType | RecordRejected:
        """Decode the message in a header of a record; a bad one is a result, not an exception."""
        raw = next((raw for found, raw in headers if found == name), None)
        if raw is None:
            return RecordRejected("no-header", "headers", f"expected a header {name!r} that says what it is, got none")
        try:
            return self._decode(raw)
        except _FAILURES as error:
            rejected = self._reject(raw, error)
            return replace(rejected, path=f"headers.{name}{rejected.path[1:]}")

    def decode(self, values: Sequence[bytes | None]) -> Decoded[MessageType]:
        """Decode a batch; a bad record is a result, not an exception."""
        items: list[MessageType] = []
        unused: dict[int, Unused] = {}
        # No Python code runs per record. After a bad one, `extend` has kept the earlier ones and the iterator is behind
        # it, so the next `extend` continues with its neighbour.
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
        return TOMBSTONE if value is None else self._reject(value, error)

    def _reject(self, value: bytes, error: Exception) -> RecordRejected:
        if isinstance(error, TypeError):
            raise error
        if not value:
            return RecordRejected(Reason.EMPTY, "$", "the value has no bytes")
        if isinstance(error, RecursionError):
            return RecordRejected(Reason.TOO_DEEP, "$", "nested too deeply")
        if not isinstance(error, msgspec.ValidationError):
            return RecordRejected(Reason.NOT_JSON, "$", excerpt(str(error)))
        return self._refuse(value, str(error))

    def _refuse(self, value: bytes, complaint: str) -> RecordRejected:
        """Distinguish a wrong version and broken JSON from a violation of the schema.

        The decoder stops at the first violation, so it may have reached neither the version nor the broken place; the
        reason must not depend on the order of the keys.
        """
        detail, path = _split(complaint)
        try:
            version = self._decode_version(value).schema
        except msgspec.ValidationError:
            return RecordRejected(Reason.SCHEMA, path, detail)
        except RecursionError:
            return RecordRejected(Reason.TOO_DEEP, "$", "nested too deeply")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return RecordRejected(Reason.NOT_JSON, "$", excerpt(str(error)))
        if self._versions and version not in self._versions:
            what = f"expected {' or '.join(map(repr, self._versions))}, got {version!r:.80}"
            return RecordRejected(Reason.VERSION, f"$.{_VERSION_FIELD}", excerpt(what))
        if detail.startswith("Invalid enum value") and (labels := _labels(self._types, path)):
            detail = excerpt(f"{detail}, expected one of {', '.join(labels)}")
        return RecordRejected(Reason.SCHEMA, path, detail)


def _labels(struct_types: Iterable[type[msgspec.Struct]], path: str) -> list[str]:
    """Return the values that a field of one of some structs may have, if they are enumerated."""
    for one in struct_types:
        found: Any = msgspec.inspect.type_info(one)
        for part in _PART.findall(path):
            found = _inner(found, part)
        if isinstance(found, msgspec.inspect.LiteralType):
            return [str(value) for value in found.values]
    return []


def _inner(outer: Any, part: str) -> Any:
    if isinstance(outer, msgspec.inspect.StructType):
        return next((field.type for field in outer.fields if field.encode_name == part), None)
    return getattr(outer, "item_type", None) or getattr(outer, "value_type", None)


def _version_of(struct_type: type[msgspec.Struct]) -> str | None:
    if struct_type.__struct_config__.tag is not None:
        return str(struct_type.__struct_config__.tag)
    for field in fields(struct_type):
        if field.name == _VERSION_FIELD and get_origin(field.type) is Literal:
            return str(get_args(field.type)[0])
    return None


def _split(complaint: str) -> tuple[str, str]:
    """Split msgspec's text, such as "Expected `int`, got `str` - at `$.node`", into detail and path."""
    detail, found, path = complaint.rpartition(" - at `$")
    if not found:
        return excerpt(complaint), "$"
    return excerpt(detail), excerpt(f"${path.rstrip('`')}")
