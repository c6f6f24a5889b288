"""Alert packets: what goes in comes out, and whatever else the bytes are, the answer is a reason."""

import hashlib
import io
import json
import random

import fastavro
import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facade.flows.alerts import packets
from facade.flows.alerts.messages import Alert, decode_alert
from facade.flows.alerts.packets import Packet, PacketCodec, PacketContent, fetch
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.load import load
from facade.kernel.outcome import RecordRejected
from facade.kernel.resources import resource
from tests.support.simulated_bus import MemoryBroker, MemoryBus

ICD = load()
CODEC = PacketCodec(ICD)
HEAD = bytes.fromhex("c301 4cf9ce0d0f478c20")
"""What programs in other languages are told to begin a packet with."""
ALERT = Alert(
    condition="transientDetected", source="lsst/001", severity="INFO", state="ACTIVE", text="5 sigma", raised_at=10**15,
    sequence=7, values={"snr": 7.5}, traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
)  # fmt: skip
IMAGES = [
    PacketContent("difference", "application/fits", bytes(range(256)) * 4),
    PacketContent("template", "image/png", b""),
]


def changed(**fields) -> bytes:
    return CODEC.encode(Alert(**{**{name: getattr(ALERT, name) for name in ALERT.__struct_fields__}, **fields}), IMAGES)


def crc_64_avro(text: bytes) -> bytes:
    """The fingerprint of the Avro specification, by its own words."""
    empty = 0xC15D213AA4D7A795
    value = empty
    for byte in text:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (empty if value & 1 else 0)
    return value.to_bytes(8, "little")


def test_the_avro_schema_has_the_fields_of_the_json_schema():
    """The same message in two forms: a field that is added to one must be added to the other."""
    avro = json.loads(resource("schemas", "messages", "alert-packet.avsc").read_bytes())
    assert {field["name"] for field in avro["fields"]} == set(ICD.messages["alert"]["properties"]) - {"schema"}
    assert avro["fields"][-1]["name"] == "attachments"


def test_the_alert_of_a_packet_is_small_and_says_where_the_attachments_are():
    alert, text = CODEC.alert(CODEC.encode(ALERT, IMAGES), "3/1724")
    assert decode_alert(text) == alert
    jsonschema.validate(json.loads(text), ICD.messages["alert"])
    assert [one.size for one in alert.attachments] == [1024, 0]
    assert alert.attachments[0].sha256 == hashlib.sha256(IMAGES[0].content).hexdigest()
    assert {one.packet for one in alert.attachments} == {"3/1724"}
    assert len(text) < 1000


TEXT = st.text(st.characters(codec="utf-8"), max_size=200)
NAMES = st.text(st.characters(codec="utf-8"), max_size=200)


@given(
    st.builds(
        Alert,
        condition=st.from_regex(r"\A[A-Za-z][A-Za-z0-9_.-]{0,99}\Z"),
        source=st.text(st.characters(codec="utf-8"), min_size=1, max_size=200),
        severity=st.sampled_from(["INFO", "WARNING", "ALARM", "CRITICAL"]),
        state=st.sampled_from(["ACTIVE", "CLEARED"]),
        text=st.text(st.characters(codec="utf-8"), max_size=2000),
        raised_at=st.integers(0, 2**53 - 1),
        sequence=st.integers(0, 2**53 - 1),
        values=st.dictionaries(TEXT, st.floats(allow_nan=False, allow_infinity=False), max_size=20),
        traceparent=st.text(st.characters(codec="utf-8"), max_size=55),
    ),
    st.lists(
        st.builds(PacketContent, NAMES, NAMES, st.binary(max_size=3000)),
        max_size=16,
        unique_by=lambda content: content.name,
    ),
)
def test_any_alert_with_any_attachments_comes_out_as_it_went_in(alert, contents):
    value = CODEC.encode(alert, contents)
    assert CODEC.decode(value) == Packet(alert, contents)
    made, text = CODEC.alert(value, "0/0")
    assert [(a.name, a.content_type, a.size) for a in made.attachments] == [
        (content.name, content.content_type, len(content.content)) for content in contents
    ]
    assert decode_alert(text) == made


GOOD = CODEC.encode(ALERT, IMAGES)
_MANY = [PacketContent(str(number), "", b"") for number in range(17)]
BAD = {
    "empty": (b"", "empty", "no bytes"),
    "larger than its topic takes": (HEAD + bytes(8_388_608), "too-large", "at most 8388608 bytes, got 8388618"),
    "text": (b"hello", "not-avro", f"expected C3 01, the fingerprint {HEAD[2:].hex()} and the bare datum, got 68"),
    "marker only": (b"\xc3\x01", "not-avro", "fingerprint"),
    "an alert in JSON": (b'{"schema": "alert/1"}', "not-avro", "C3 01"),
    "the registry's wire form": (b"\0\0\0\1\7" + GOOD[10:], "not-avro", "schema registry, with schema id 263"),
    "an object container file": (b"Obj\x01\x04\x14avro.codec", "not-avro", "an Avro object container file"),
    "another schema": (b"\xc3\x01" + crc_64_avro(b'"null"'), "unknown-schema", "20, got 8a8f25cce724dd63"),
    "head only": (HEAD, "not-avro", "EOFError"),
    "broken off": (GOOD[:-1], "not-avro", "EOFError"),
    "broken off in an image": (GOOD[:600], "not-avro", "EOFError"),
    "something after it": (GOOD + b"more", "not-avro", "nothing after the packet, got 4 bytes"),
    "text that is not UTF-8": (GOOD.replace(b"5 sigma", b"\xff sigma"), "not-avro", "UnicodeDecodeError"),
    "length below 0": (HEAD + b"\x01", "not-avro", "broken"),
    "length beyond all": (HEAD + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "not-avro", "broken"),
    "number without end": (HEAD + b"\xff" * 100, "not-avro", "broken"),
    "condition with a blank": (changed(condition="no blanks"), "schema", "regex"),
    "no condition": (changed(condition=""), "schema", "regex"),
    "no source": (changed(source=""), "schema", "length"),
    "unknown severity": (changed(severity="BAD"), "schema", "BAD"),
    "unknown state": (changed(state="active"), "schema", "active"),
    "oversized text": (changed(text="x" * 2001), "schema", "2000"),
    "time below 0": (changed(raised_at=-1), "schema", ">= 0"),
    "sequence beyond what JSON can say": (changed(sequence=2**53), "schema", "9007199254740991"),
    "not a number": (changed(values={"a": float("nan")}), "schema", "null"),
    "oversized values": (changed(values={"x" * 65_000: 1.0}), "too-large", "65536 bytes without the attachments"),
    "17 attachments": (CODEC.encode(ALERT, _MANY), "schema", "16"),
    "attachment with a long name": (CODEC.encode(ALERT, [PacketContent("x" * 201, "", b"")]), "schema", "200"),
    "two attachments of one name": (CODEC.encode(ALERT, [IMAGES[0], IMAGES[0]]), "attachment", "different names"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_packet_is_a_result_with_a_reason(name):
    value, reason, detail = BAD[name]
    made = CODEC.alert(value, "0/0")
    assert isinstance(made, RecordRejected)
    assert made.reason == reason
    assert made.path.startswith("$")
    assert detail in made.detail
    assert made.detail.isprintable()
    assert len(made.detail) < 500


def test_damaged_packets_never_raise():
    """Bits turned over, parts cut out and put in twice: a result each time."""
    dice = random.Random(8)
    outcomes = set()
    for _ in range(5000):
        value = bytearray(GOOD)
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(10, min(len(value), 220))
            kind = dice.randrange(3)
            if kind == 0:
                value[at] ^= 1 << dice.randrange(8)
            elif kind == 1:
                del value[at : at + dice.randrange(1, 9)]
            else:
                value[at:at] = value[at : at + dice.randrange(1, 9)]
        made = CODEC.alert(bytes(value), "0/0")
        outcomes.add(str(made.reason) if isinstance(made, RecordRejected) else "used")
    assert {"not-avro", "schema"} <= outcomes


def without(fields, *names):
    return [field for field in fields if field["name"] not in names]


def schema(change) -> dict:
    """Return our schema with its fields changed."""
    own = packets.own_schema()
    return {**own, "fields": change(own["fields"])}


def with_size(fields):
    """Give each attachment a further field, in the middle of the others."""
    items = fields[-1]["type"]["items"]
    size = {"name": "size", "type": "long", "default": 0}
    items["fields"].insert(1, size)
    return fields


FACILITY = {"name": "facility", "type": ["null", "string"], "default": None}
TAGS = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}
APART = {
    "a field less": schema(lambda fields: without(fields, "traceparent")),
    "two fields less": schema(lambda fields: without(fields, "traceparent", "values")),
    "a field more, at the end": schema(lambda fields: [*fields, TAGS]),
    "fields more, before all": schema(lambda fields: [FACILITY, TAGS, *fields]),
    "other order": schema(lambda fields: fields[::-1]),
    "attachments with a field more": schema(with_size),
    "no attachments": schema(lambda fields: without(fields, "attachments")),
}
"""Schemas of writers that are one compatible version apart."""


def written_by(name: str) -> bytes:
    """Return a packet as a writer of another version makes it, with a library of its own."""
    out = io.BytesIO(b"\xc3\x01" + crc_64_avro(packets.to_parsing_canonical_form(APART[name]).encode()))
    out.seek(10)
    datum = msgspec.structs.asdict(ALERT) | {"facility": "Rubin", "tags": ["a", "b"]}
    datum["attachments"] = [msgspec.structs.asdict(image) | {"size": 5} for image in IMAGES]
    fastavro.schemaless_writer(out, fastavro.parse_schema(APART[name]), datum)
    return out.getvalue()


@pytest.mark.parametrize("name", APART)
def test_packets_of_writers_one_compatible_version_apart_are_read(name):
    fields = {field["name"] for field in APART[name]["fields"]}
    left_out = {key: value for key, value in {"traceparent": "", "values": {}}.items() if key not in fields}
    expected = Packet(msgspec.structs.replace(ALERT, **left_out), IMAGES if "attachments" in fields else [])
    assert PacketCodec(ICD, APART).decode(written_by(name)) == expected
    refused = CODEC.decode(written_by(name))
    assert (refused.reason, refused.detail.count("expected the fingerprint 4cf9ce0d0f478c20, got ")) == (
        "unknown-schema",
        1,
    )
    assert PacketCodec(ICD, APART).head == HEAD


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda fields: without(fields, "text"), "text: expected a default of a field that only ours has"),
        (lambda fields: [*fields, {"name": "new", "type": "int"}], "new: expected a default of a field that only this"),
        (lambda fields: [{**fields[0], "type": "bytes"}, *fields[1:]], "condition: expected type string, got bytes"),
        (
            lambda fields: [*fields, TAGS | {"type": {"type": "array", "items": "null"}}],
            "tags: expected a primitive type",
        ),
        (lambda fields: [*fields, TAGS | {"type": "AlertPacket"}], "tags: expected a primitive type"),
        (lambda fields: [*fields, TAGS | {"type": "nothing"}], "an Avro schema of alert packets"),
        (lambda fields: [*fields, {}], "an Avro schema of alert packets"),
    ],
)
def test_a_schema_that_is_not_compatible_is_refused(change, says):
    with pytest.raises(ConfigError, match=says):
        PacketCodec(ICD, {"x.avsc": schema(change)})


def test_the_shipped_schemas_of_other_versions_are_beside_our_own(tmp_path, monkeypatch):
    (tmp_path / "alert-packet.avsc").write_text(json.dumps(packets.own_schema()))
    monkeypatch.setattr(packets, "resource", lambda *parts: tmp_path.joinpath(*parts[2:]))
    (tmp_path / "alert-packet-1.avsc").write_text(json.dumps(APART["a field less"]))
    assert isinstance(PacketCodec(ICD).decode(written_by("a field less")), Packet)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(packets, "fastavro", None)
    with pytest.raises(ConfigError, match=r"pip install 'sdp-tango-facade\[alerts\]'"):
        PacketCodec(ICD)


@pytest.fixture
def bus() -> MemoryBus:
    broker = MemoryBroker(ManualClock(), {"alert-packets": 10})
    for number in range(3):
        broker.append(Record(topic="alert-packets", key=b"x", value=b"%d" % number, partition=3))
    bus = MemoryBus(broker)
    bus.waits = True
    return bus


def test_a_packet_is_fetched_by_its_place(bus):
    assert fetch(bus, "3/1", ManualClock()).value == b"1"


@pytest.mark.parametrize(
    ("place", "says"),
    [("3/3", "behind the newest"), ("3", "expected partition/offset"), ("3/-1", "expected"), ("../3/1", "expected")],
)
def test_a_place_without_a_packet_is_an_error_that_says_so(bus, place, says):
    with pytest.raises(BusError, match=says):
        fetch(bus, place, ManualClock())


def test_a_packet_that_is_gone_is_not_taken_for_the_next_one(bus, monkeypatch):
    """The broker gives the next record that it still has."""
    found = bus.read_all("alert-packets")
    opened = bus.open_reader({"alert-packets": [3]}, {"alert-packets": {3: 0}})
    monkeypatch.setattr(opened, "take", lambda limit, timeout: found[2:])
    monkeypatch.setattr(bus, "open_reader", lambda topics, start: opened)
    with pytest.raises(BusError, match=r"3/1 is not on alert-packets any more.*the next is at 2"):
        fetch(bus, "3/1", ManualClock())
