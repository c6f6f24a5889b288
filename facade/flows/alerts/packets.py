"""Alert packets: an alert and its attachments in Avro, the form in which LSST sends 136 KB with two images.

A packet is one Avro datum in single-object encoding (Avro specification 1.12): C3 01, the fingerprint
of its writer's schema, and the datum. So a packet of a schema that is not known here is never read by guess.
The alert that is made of it is small: of each attachment it has size and digest, and where it is.
"""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from facade.bus.port import Reader, Record
from facade.clock import Clock
from facade.codec.decode import Reason
from facade.errors import BusError
from facade.flows.alerts.flow import LARGEST
from facade.flows.alerts.messages import PACKETS, Alert, Attachment, decode_alert, encode
from facade.flows.alerts.packet_schemas import AvroSchema, PacketSchema, TooManyError, other_schemas, own_schema
from facade.icd.load import load
from facade.icd.model import Icd
from facade.outcome import TOMBSTONE, RecordRejected, Suppressed, Unused
from facade.printable import printable

MARKER = b"\xc3\x01"
"""How a datum in single-object encoding begins."""
_HEAD = len(MARKER) + 8
_FRAME = 5
"""Length of the frame that clients of a schema registry write before a datum: a zero byte and the id of its schema."""
_FIELDS = tuple(name for name in Alert.__struct_fields__ if name != "attachments")
_PLACE = re.compile(r"(\d{1,9})/(\d{1,18})")


class PacketReason(StrEnum):
    """Why a packet was not used; what the JSON AvroSchema of the alert forbids has the reasons of `facade.codec`."""

    TOO_LARGE = "too-large"
    """The packet, or the alert that it makes, is larger than its topic takes."""
    NOT_AVRO = "not-avro"
    """No datum in single-object encoding, or one that breaks off, or goes on."""
    UNKNOWN_SCHEMA = "unknown-schema"
    """A datum of some other schema, or of a version that is not known here."""
    ATTACHMENT = "attachment"
    """Two attachments have one name, so that neither can be asked for."""


class PacketContent(msgspec.Struct, frozen=True):
    """An attachment of an alert."""

    name: str
    """Unique in its packet, such as ``difference.fits``."""
    content_type: str
    """Media type, such as ``application/fits``."""
    content: bytes


class Packet(msgspec.Struct, frozen=True):
    """A packet as it was sent: nothing in it has been checked but its form."""

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
        """By how a packet of each begins."""
        self.head = MARKER + self._own.fingerprint
        """How every packet that is written here begins."""
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
        except Exception as error:  # the bytes may be anything, and so is what the library raises
            what = f"broken off or broken at byte {source.tell()}: {type(error).__name__}: {error!s:.100}"
            return _refuse(PacketReason.NOT_AVRO, what)
        if left := len(value) - source.tell():
            return _refuse(PacketReason.NOT_AVRO, f"expected nothing after the packet, got {left} bytes")
        return Packet(Alert(**datum), contents)

    def alert(self, value: bytes | None, place: str) -> tuple[Alert, bytes] | Unused:
        """Return the alert of a packet and its bytes, or the reason why there is none.

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
    """Return what an alert says of an attachment."""
    return Attachment(
        name=content.name,
        content_type=content.content_type,
        size=len(content.content),
        sha256=hashlib.sha256(content.content).hexdigest(),
        packet=place,
    )


class OpensReaders(Protocol):
    """As much of a bus as is needed to fetch a packet."""

    def open_reader(self, topics: Mapping[str, Sequence[int] | None], start: Mapping[str, Mapping[int, int]]) -> Reader:
        """Read some partitions of topics from given offsets on."""


def fetch(bus: OpensReaders, place: str, clock: Clock, *, timeout: float = 10.0) -> Record:
    """Return the record of a packet from where an alert says that it is.

    Raises
    ------
    BusError
        The place is none, nothing is there any more or yet, or no broker answers.
    """
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
    """Name the form of bytes that are no datum in single-object encoding."""
    if value.startswith(b"Obj\x01"):
        return "an Avro object container file"
    if value.startswith(b"\x00") and len(value) > _FRAME:
        return f"a datum in the framing of a schema registry, with schema id {int.from_bytes(value[1:_FRAME])}"
    return value[:_HEAD].hex(" ")


def _refuse(reason: PacketReason, detail: str) -> RecordRejected:
    return RecordRejected(reason, "$", printable(detail))
