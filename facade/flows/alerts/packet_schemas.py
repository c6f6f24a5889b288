"""The Avro schemas of alert packets: our own, and those of writers that are one compatible version apart.

Compatible are schemas of which each field that only one of them has, has a default there, and of which the others
have the same types. A field that only the writer has is passed over; one that only we have gets its default.
"""

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from facade.errors import ConfigError
from facade.resources import resource

try:
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType, fingerprint, to_parsing_canonical_form
except ImportError:  # an extra: pip install 'sdp-tango-facade[alerts]'
    fastavro = None  # type: ignore[assignment]


AvroSchema = dict[str, Any]
_NAME: Final = "alert-packet"
_ATTACHMENTS: Final = "attachments"
_MOST_ATTACHMENTS: Final = 16
_WITH_BYTES: Final = ("boolean", "int", "long", "float", "double", "bytes", "string")
"""Types of which each datum takes at least a byte."""


class TooManyError(Exception):
    """There are more attachments than an alert has."""


def own_schema() -> AvroSchema:
    """Return the schema by which packets are written here."""
    return _load(f"{_NAME}.avsc")


def other_schemas() -> dict[str, AvroSchema]:
    """Return the schemas of other versions, by the names of their files: ``alert-packet-VERSION.avsc``."""
    return {path.name: _load(path.name) for path in sorted(resource("schemas", "messages").glob(f"{_NAME}-*.avsc"))}


class PacketSchema:
    """Reads and writes the datum of a packet by a writer's schema; what is read has the fields of ours.

    A packet is read in three parts, so that attachments are counted before they take memory: the fields before
    the attachments, each attachment, and the fields after them.

    Parameters
    ----------
    name
        For messages.

    Raises
    ------
    ConfigError
        The Avro library is not installed, or the schema is not compatible with ours.
    """

    def __init__(self, name: str, written: AvroSchema, own: AvroSchema) -> None:
        if fastavro is None:
            raise ConfigError("alert packets need fastavro: pip install 'sdp-tango-facade[alerts]'")
        try:
            self._whole = fastavro.parse_schema(written)
            _require_compatible(name, own["fields"], written["fields"])
            before, items, after = _parts(written["fields"])
            own_before, own_items, own_after = _parts(own["fields"])
            later = {field["name"] for field in after}
            ours = [*own_before, *own_after]
            self._before = _pair(before, [field for field in ours if field["name"] not in later])
            self._after = _pair(after, [field for field in ours if field["name"] in later]) if after else None
            if items and own_items:
                _require_compatible(f"{name}: {_ATTACHMENTS}", own_items["fields"], items["fields"])
            self._attachment = _pair((items or own_items)["fields"], own_items["fields"]) if items else None
            self.fingerprint = bytes.fromhex(fingerprint(to_parsing_canonical_form(written), "CRC-64-AVRO"))
        except (SchemaParseException, UnknownType, KeyError, TypeError) as error:
            raise ConfigError(f"{name}: expected an Avro schema of alert packets, got: {error!r:.200}") from error

    def write(self, out: io.BytesIO, datum: Mapping[str, Any]) -> None:
        """Write a datum, without what comes before it."""
        fastavro.schemaless_writer(out, self._whole, datum)

    def read(self, source: io.BytesIO) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the fields of a datum, and its attachments.

        Raises
        ------
        TooManyError
            It has more attachments than an alert may have.
        Exception
            The bytes may be anything, and so is what the library raises.
        """
        datum = _read(source, self._before)
        attachments = [_read(source, self._attachment) for _ in _count(source)] if self._attachment else []
        if self._after:
            datum |= _read(source, self._after)
        return datum, attachments


_Pair = tuple[Any, Any]
"""A part of the writer's schema, and the same part of ours; None: it is the same."""


def _pair(written: list[AvroSchema], own: list[AvroSchema]) -> _Pair:
    parts = [fastavro.parse_schema({"type": "record", "name": "Part", "fields": part}) for part in (written, own)]
    return parts[0], None if _form(written) == _form(own) else parts[1]


def _read(source: io.BytesIO, pair: _Pair) -> dict[str, Any]:
    return cast("dict[str, Any]", fastavro.schemaless_reader(source, *pair))


def _count(source: io.BytesIO) -> Iterator[None]:
    """Go through an array; its items are to be read one by one: an empty one takes a hundred times its three bytes."""

    def number() -> int:
        return cast(int, fastavro.schemaless_reader(source, "long", None))

    so_far = 0
    while block := number():
        if block < 0:
            number()  # bytes of the block, for those who pass over it
        so_far += abs(block)
        if so_far > _MOST_ATTACHMENTS:
            raise TooManyError(f"expected at most {_MOST_ATTACHMENTS} attachments, got {so_far} or more")
        yield from (None for _ in range(abs(block)))


def _parts(fields: list[AvroSchema]) -> tuple[list[AvroSchema], AvroSchema, list[AvroSchema]]:
    """Return the fields before the attachments, the schema of one (empty: none), and the fields after them."""
    at = next((at for at, field in enumerate(fields) if field["name"] == _ATTACHMENTS), len(fields))
    return fields[:at], fields[at]["type"]["items"] if at < len(fields) else {}, fields[at + 1 :]


def _require_compatible(where: str, own: list[AvroSchema], written: list[AvroSchema]) -> None:
    ours, theirs = ({field["name"]: field for field in fields} for fields in (own, written))
    for name in ours | theirs:
        mine, other = ours.get(name), theirs.get(name)
        if mine and other:
            if name != _ATTACHMENTS and _form([mine]) != _form([other]):
                raise ConfigError(f"{where}: {name}: expected type {mine['type']}, got {other['type']}")
        elif "default" not in (one := mine or other or {}):
            only = "this schema" if other else "ours"
            raise ConfigError(f"{where}: {name}: expected a default of a field that only {only} has, got none")
        elif mine is None and not _is_passed_over(one["type"]):
            raise ConfigError(
                f"{where}: {name}: expected a primitive type, a map, array or union of them, got {one['type']}"
            )


def _is_passed_over(kind: Any) -> bool:
    """Return whether data of a type, whatever they claim, are passed over in a time that their bytes bound."""
    if isinstance(kind, list):
        return all(map(_is_passed_over, kind))
    if isinstance(kind, dict):
        if kind["type"] == "array":
            return kind["items"] in _WITH_BYTES  # a few bytes can claim any number of nulls
        return _is_passed_over(kind["values"] if kind["type"] == "map" else kind["type"])
    return kind == "null" or kind in _WITH_BYTES


def _form(fields: list[AvroSchema]) -> str:
    """Return what identifies fields: without texts and defaults."""
    return to_parsing_canonical_form({"type": "record", "name": "Part", "fields": fields})


def _load(name: str) -> AvroSchema:
    return cast(AvroSchema, json.loads(resource("schemas", "messages").joinpath(name).read_bytes()))
