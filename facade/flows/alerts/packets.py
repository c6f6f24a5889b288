"""Alert packets: an alert and its attachments in Avro, the form in which LSST sends 136 KB with two images.

A packet is one Avro datum in single-object encoding (Avro specification 1.12): C3 01, the fingerprint of its writer's
schema, and the datum. So a packet of an unknown schema is never read by guess. The alert of a packet is small: it has
the size, digest and packet of each attachment. The intake worker writes it; see `facade.kernel.runtime.worker`.

Schemas of other versions are compatible if common fields have the same types, and each other field has a default. A
field that only the writer has is skipped; a field that only our schema has gets its default.
"""

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, cast

import msgspec

from facade.admin.redrive import FIRST, FROM
from facade.flows.alerts.flow import LARGEST
from facade.flows.alerts.messages import (
    ALERTS,
    PACKET,
    PACKETS,
    Alert,
    Attachment,
    decode_alert,
    decode_alert_or_action,
    encode,
)
from facade.kernel.bus.port import Reader, Record, TransactionalLog
from facade.kernel.clock import Clock
from facade.kernel.codec.decode import Reason
from facade.kernel.config import Settings
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import TOMBSTONE, USED, Outcome, RecordRejected, Suppressed, Unused
from facade.kernel.printable import printable
from facade.kernel.resources import resource
from facade.kernel.runtime.readers import Bus
from facade.kernel.runtime.worker import RecordBatching, TransactionalWorker, record_worker

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
"""Types whose datum takes at least a byte."""


class TooManyError(Exception):
    """There are more attachments than an alert may have."""


def own_schema() -> AvroSchema:
    """Return the schema of packets written here."""
    return _load(f"{_NAME}.avsc")


def other_schemas() -> dict[str, AvroSchema]:
    """Return the schemas of other versions, by the names of their files: ``alert-packet-VERSION.avsc``."""
    return {path.name: _load(path.name) for path in sorted(resource("schemas", "messages").glob(f"{_NAME}-*.avsc"))}


class PacketSchema:
    """Reads and writes the datum of a packet by a writer's schema; the result has the fields of our schema.

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
        """Write a datum, without the head of the packet."""
        fastavro.schemaless_writer(out, self._whole, datum)

    def read(self, source: io.BytesIO) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the fields of a datum, and its attachments.

        Raises
        ------
        TooManyError
            It has more attachments than an alert may have.
        Exception
            The bytes are arbitrary, and so is the library's error.
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
    return parts[0], None if _canonical_form(written) == _canonical_form(own) else parts[1]


def _read(source: io.BytesIO, pair: _Pair) -> dict[str, Any]:
    return cast("dict[str, Any]", fastavro.schemaless_reader(source, *pair))


def _count(source: io.BytesIO) -> Iterator[None]:
    """Iterate over an array item by item, as an empty item takes a hundred times its three bytes in memory."""

    def number() -> int:
        return cast(int, fastavro.schemaless_reader(source, "long", None))

    so_far = 0
    while block := number():
        if block < 0:
            number()  # bytes of the block
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
            if name != _ATTACHMENTS and _canonical_form([mine]) != _canonical_form([other]):
                raise ConfigError(f"{where}: {name}: expected type {mine['type']}, got {other['type']}")
        elif "default" not in (one := mine or other or {}):
            only = "this schema" if other else "ours"
            raise ConfigError(f"{where}: {name}: expected a default of a field that only {only} has, got none")
        elif mine is None and not _is_passed_over(one["type"]):
            raise ConfigError(
                f"{where}: {name}: expected a primitive type, a map, array or union of them, got {one['type']}"
            )


def _is_passed_over(kind: Any) -> bool:
    """Return whether the time to skip data of a type is bounded by their bytes."""
    if isinstance(kind, list):
        return all(map(_is_passed_over, kind))
    if isinstance(kind, dict):
        if kind["type"] == "array":
            return kind["items"] in _WITH_BYTES  # a few bytes can claim any number of nulls
        return _is_passed_over(kind["values"] if kind["type"] == "map" else kind["type"])
    return kind == "null" or kind in _WITH_BYTES


def _canonical_form(fields: list[AvroSchema]) -> str:
    """Return fields without documentation and defaults."""
    return to_parsing_canonical_form({"type": "record", "name": "Part", "fields": fields})


def _load(name: str) -> AvroSchema:
    return cast(AvroSchema, json.loads(resource("schemas", "messages").joinpath(name).read_bytes()))


MARKER = b"\xc3\x01"
"""Begin of a datum in single-object encoding."""
_HEAD = len(MARKER) + 8
_FRAME = 5
"""Length of the frame that clients of a schema registry write before a datum: a zero byte and the id of its schema."""
_FIELDS = tuple(name for name in Alert.__struct_fields__ if name != "attachments")
_PLACE = re.compile(r"(\d{1,9})/(\d{1,18})")


class PacketReason(StrEnum):
    """Reasons why a packet is refused.

    Violations of the alert's JSON Schema have the reasons of `facade.kernel.codec`.
    """

    TOO_LARGE = "too-large"
    """The packet, or its alert, is larger than its topic allows."""
    NOT_AVRO = "not-avro"
    """No datum in single-object encoding, or a truncated one, or one with trailing bytes."""
    UNKNOWN_SCHEMA = "unknown-schema"
    """A datum of another schema, or of an unknown version."""
    ATTACHMENT = "attachment"
    """Two attachments have the same name, so that neither can be requested."""


class PacketContent(msgspec.Struct, frozen=True):
    """An attachment of an alert."""

    name: str
    """Unique in its packet, such as ``difference.fits``."""
    content_type: str
    """Media type, such as ``application/fits``."""
    content: bytes


class Packet(msgspec.Struct, frozen=True):
    """A packet as it was sent: only its form has been checked."""

    alert: Alert
    contents: list[PacketContent]


class PacketCodec:
    """Writes and reads alert packets, and makes alerts from them.

    Parameters
    ----------
    icd
        The interface; by default the shipped one.
    others
        Schemas of other versions by name, for reading. By default the shipped ones.

    Raises
    ------
    ConfigError
        The Avro library is not installed, or a schema is not compatible.

    Examples
    --------
    >>> detections = AlertSource("transients/beam-17", packets=PacketCodec())
    >>> image = PacketContent("cutoutDifference", "application/fits", b"SIMPLE  = ...")
    >>> alert = detections.raise_alert("transientDetected", "INFO", "7.5 sigma", {"snr": 7.5}, with_attachments=[image])
    >>> detections.close()
    """

    def __init__(self, icd: Icd | None = None, others: Mapping[str, AvroSchema] | None = None) -> None:
        own = own_schema()
        named = {"alert-packet.avsc": own, **(other_schemas() if others is None else others)}
        schemas = [PacketSchema(name, written, own) for name, written in named.items()]
        self._own = schemas[0]
        self._known = {MARKER + schema.fingerprint: schema for schema in schemas}
        """By the first bytes of packets."""
        self.head = MARKER + self._own.fingerprint
        """First bytes of every packet written here."""
        self._most_packet = (icd or load()).topics[PACKETS].max_bytes

    def encode(self, alert: Alert, contents: Sequence[PacketContent] = ()) -> bytes:
        """Return the bytes of a packet.

        Raises
        ------
        ValueError
            A value has a type that the schema does not allow.
        """
        out = io.BytesIO()
        out.write(self.head)
        datum = {name: getattr(alert, name) for name in _FIELDS}
        datum["attachments"] = [msgspec.structs.asdict(content) for content in contents]
        try:
            self._own.write(out, datum)
        except (TypeError, OverflowError, AttributeError) as error:
            raise ValueError(f"packet of {alert.condition} by {alert.source}: {error}") from error
        return out.getvalue()

    def decode(self, value: bytes | None) -> Packet | Unused:
        """Return the packet, or the reason why the bytes are not one. It raises no exception."""
        if value is None:
            return TOMBSTONE
        if not value:
            return RecordRejected(Reason.EMPTY, "$", "the value has no bytes")
        if len(value) > self._most_packet:
            return _refuse(PacketReason.TOO_LARGE, f"expected at most {self._most_packet} bytes, got {len(value)}")
        if not value.startswith(MARKER) or len(value) < _HEAD:
            what = f"expected C3 01, the fingerprint {self.head[len(MARKER) :].hex()} and the bare datum, got "
            return _refuse(PacketReason.NOT_AVRO, what + _form(value))
        if (schema := self._known.get(value[:_HEAD])) is None:
            known = " or ".join(head[len(MARKER) :].hex() for head in self._known)
            what = f"expected the fingerprint {known}, got {value[len(MARKER) : _HEAD].hex()}"
            return _refuse(PacketReason.UNKNOWN_SCHEMA, what)
        source = io.BytesIO(value)  # shares the bytes: an attachment is copied once, when it is read
        source.seek(_HEAD)
        try:
            datum, attachments = schema.read(source)
            contents = [PacketContent(**attachment) for attachment in attachments]
        except TooManyError as error:
            return RecordRejected(Reason.SCHEMA, "$.attachments", str(error))
        except Exception as error:  # the bytes are arbitrary, and so is the library's error
            what = f"broken off or broken at byte {source.tell()}: {type(error).__name__}: {error!s:.100}"
            return _refuse(PacketReason.NOT_AVRO, what)
        if left := len(value) - source.tell():
            return _refuse(PacketReason.NOT_AVRO, f"expected nothing after the packet, got {left} bytes")
        return Packet(Alert(**datum), contents)

    def alert(self, value: bytes | None, place: str) -> tuple[Alert, bytes] | Unused:
        """Return the alert of a packet and its bytes, or a reason.

        The alert has the size and digest of each attachment, not its content.

        Parameters
        ----------
        value
            The bytes of the packet.
        place
            Partition and offset of the packet, such as ``3/1724``.
        """
        packet = self.decode(value)
        if not isinstance(packet, Packet):
            return packet
        names = [content.name for content in packet.contents]
        if len(set(names)) < len(names):
            return RecordRejected(
                PacketReason.ATTACHMENT, "$.attachments", f"expected different names, got {names!r:.200}"
            )
        attachments = [reference(content, place) for content in packet.contents]
        alert = msgspec.structs.replace(packet.alert, attachments=attachments)
        text = encode(alert)
        if isinstance(checked := decode_alert(text), Suppressed | RecordRejected):
            return checked
        if len(text) > LARGEST:
            what = f"expected at most {LARGEST} bytes without the attachments, got {len(text)}"
            return _refuse(PacketReason.TOO_LARGE, what)
        return alert, text


def reference(content: PacketContent, place: str) -> Attachment:
    """Return the description of an attachment in an alert."""
    return Attachment(
        name=content.name,
        content_type=content.content_type,
        size=len(content.content),
        sha256=hashlib.sha256(content.content).hexdigest(),
        packet=place,
    )


def fetch(bus: Bus, place: str, clock: Clock, *, timeout: float = 10.0) -> Record:
    """Return the record of a packet by the position in its alert."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise BusError(f"packet: expected partition/offset, as alerts name it, such as 3/1724, got {place!r:.100}")
    partition, offset = map(int, found.groups())
    reader = bus.open_reader({PACKETS: [partition]}, {PACKETS: {partition: offset}})
    try:
        return _read_one(reader, place, offset, clock, clock.monotonic() + timeout)
    finally:
        reader.close()


def _read_one(reader: Reader, place: str, offset: int, clock: Clock, deadline: float) -> Record:
    while clock.monotonic() < deadline:
        for record in reader.take(1, 0.2):
            if record.offset == offset:
                return record
            raise BusError(f"packet {place} is not on {PACKETS} any more, or never was; the next is at {record.offset}")
        if reader.caught_up(PACKETS):
            raise BusError(f"packet {place} is behind the newest on {PACKETS}")
    raise BusError(f"packet {place} was not read from {PACKETS} in time")


def _form(value: bytes) -> str:
    """Name the form of bytes without a datum in single-object encoding."""
    if value.startswith(b"Obj\x01"):
        return "an Avro object container file"
    if value.startswith(b"\x00") and len(value) > _FRAME:
        return f"a datum in the framing of a schema registry, with schema id {int.from_bytes(value[1:_FRAME])}"
    return value[:_HEAD].hex(" ")


def _refuse(reason: PacketReason, detail: str) -> RecordRejected:
    return RecordRejected(reason, "$", printable(detail))


def intake_worker(
    log: TransactionalLog, icd: Icd, *, slot: str, clock: Clock, batching: RecordBatching | None = None
) -> TransactionalWorker:
    """Return one slot of the group that processes alert packets.

    Parameters
    ----------
    slot
        Name of the slot; each running worker has its own.

    Raises
    ------
    ConfigError
        The Avro library is not installed.
    """
    codec = PacketCodec(icd)

    def convert(record: Record) -> Sequence[Record] | Unused:
        """Return the record of a packet's alert; its header names the packet."""
        place = f"{record.partition}/{record.offset}"
        made = codec.alert(record.value, place)
        if isinstance(made, Unused):
            return made
        alert, text = made
        redriven = (header for header in record.headers if header[0] in (FROM, FIRST))
        packet = f"{log.ranges()[record.topic, record.partition].log}/{place}"
        headers = ((PACKET, packet.encode()), *redriven)
        return [Record(topic=ALERTS, key=alert.condition.encode(), value=text, headers=headers)]

    return record_worker(log, PACKETS, convert, name=f"alerts-intake-{slot}", clock=clock, batching=batching)


def trials(icd: Icd, settings: Settings) -> Mapping[str, Callable[[Record], Outcome]]:
    """Return the trial of one packet, alert or action; see `facade.kernel.manifest.Manifest.trials`."""
    codec = PacketCodec(icd)

    def packet(record: Record) -> Outcome:
        made = codec.alert(record.value, f"{record.partition}/{record.offset}")
        return made if isinstance(made, Unused) else USED

    def alert(record: Record) -> Outcome:
        made = decode_alert_or_action(record.value)
        return made if isinstance(made, Unused) else USED

    return {PACKETS: packet, ALERTS: alert}
