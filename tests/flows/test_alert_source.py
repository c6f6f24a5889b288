"""The SDK of sources: what it counts and remembers, what it refuses, and that it waits for the bus."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from facade.flows.alerts.messages import decode_alert
from facade.flows.alerts.packets import PacketCodec, PacketContent
from facade.flows.alerts.source import AlertSource
from facade.kernel import tracing
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load
from tests.support.alerting import Bench
from tests.support.simulated_bus import MemoryBroker, MemoryBus

ICD = load()


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def bus(bench: Bench) -> MemoryBus:
    return MemoryBus(bench.broker)


def source(bench: Bench, bus: MemoryBus, **options) -> AlertSource:
    return AlertSource("receive/1", bus, bench.clock, icd=ICD, **options)


def on_bus(broker: MemoryBroker) -> list:
    return [decode_alert(record.value) for record in broker.read("alerts")]


def test_a_source_counts_its_alerts_and_says_since_when(bench, bus):
    """Escalation and clearing name the same beginning; the next occurrence has its own."""
    alerts = source(bench, bus)
    began = bench.now_us
    alerts.raise_alert("receiveOverrun", "WARNING", "some", {"dropped": 3})
    bench.clock.sleep(1)
    alerts.raise_alert("receiveOverrun", "ALARM", "more")
    alerts.raise_alert("storageLow", "INFO", "full")
    bench.clock.sleep(1)
    alerts.clear("receiveOverrun", "none")
    alerts.raise_alert("receiveOverrun", "INFO", "again")
    found = on_bus(bench.broker)
    assert [one.sequence for one in found] == [1, 2, 3, 4, 5]
    assert [one.raised_at - began for one in found] == [0, 0, 1_000_000, 0, 2_000_000]
    assert [one.severity for one in found] == ["WARNING", "ALARM", "INFO", "ALARM", "INFO"]
    assert found[0].values == {"dropped": 3.0}
    assert {record.key for record in bench.broker.read("alerts")} == {b"receiveOverrun", b"storageLow"}


def test_the_device_server_takes_them(bench, bus):
    """What the SDK sends is what the alarms are folded from; after a restart of the source as well."""
    server = bench.server()
    alerts = source(bench, bus)
    alerts.raise_alert("receiveOverrun", "ALARM", "too fast")
    server.cycle()
    assert server.state() == "UNACK"
    again = source(bench, bus)  # knows nothing of what was raised
    again.clear("receiveOverrun", "looked at after a restart")
    server.cycle()
    assert server.state() == "RTNUN"
    assert bench.letters() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("no blanks", "ALARM", "text"), r"'no blanks': \$.condition"),
        (("receiveOverrun", "BAD", "text"), r"\$.severity"),
        (("receiveOverrun", "ALARM", "x" * 2001), r"\$.text"),
        (("receiveOverrun", "ALARM", "text", {"a": float("nan")}), r"\$.values"),
        (("receiveOverrun", "ALARM", "text", {"x" * 70_000: 1.0}), "expected at most 65536 bytes"),
    ],
    ids=["condition", "severity", "text", "nan", "too large"],
)
@pytest.mark.parametrize("packets", [False, True], ids=["alerts", "packets"])
def test_what_nobody_could_use_is_refused_and_not_counted(bench, bus, arguments, says, packets):
    alerts = source(bench, bus, packets=PacketCodec(ICD) if packets else None)
    with pytest.raises(ValueError, match=says):
        alerts.raise_alert(*arguments)
    assert bench.broker.read("alerts") == bench.broker.read("alert-packets") == []
    assert alerts.raise_alert("receiveOverrun", "INFO", "fine").sequence == 1


def test_a_bus_that_does_not_confirm_is_an_error_and_shows_as_a_gap(bench, bus):
    alerts = source(bench, bus)
    bus.away = True
    first = bench.now_us
    with pytest.raises(BusError):
        alerts.raise_alert("receiveOverrun", "ALARM", "too fast")
    bus.away = False
    bench.clock.sleep(5)
    again = alerts.raise_alert("receiveOverrun", "ALARM", "too fast")
    assert (again.sequence, again.raised_at) == (2, first)


def test_a_queued_alert_does_not_raise(bench, bus):
    alerts = source(bench, bus, timeout=None)
    bus.away = True
    alerts.raise_alert("receiveOverrun", "ALARM", "too fast")
    assert bus.failures("alerts") == 1
    bus.away = False
    alerts.clear("receiveOverrun", "fine")
    assert [one.sequence for one in on_bus(bench.broker)] == [2]


def test_a_clear_that_failed_can_be_said_again(bench, bus):
    alerts = source(bench, bus)
    since = alerts.raise_alert("receiveOverrun", "ALARM", "too fast").raised_at
    bus.away = True
    with pytest.raises(BusError):
        alerts.clear("receiveOverrun", "fine")
    bus.away = False
    bench.clock.sleep(1)
    assert alerts.clear("receiveOverrun", "fine").raised_at == since


def test_the_trace_goes_along(bench, bus, monkeypatch):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    monkeypatch.setattr(tracing, "current", lambda: (("traceparent", parent.encode()), ("tracestate", b"a=1")))
    assert source(bench, bus).raise_alert("receiveOverrun", "ALARM", "x").traceparent == parent


def test_packets_carry_the_attachments_and_keep_the_order_of_their_source(bench, bus):
    codec = PacketCodec(ICD)
    alerts = source(bench, bus, packets=codec)
    image = PacketContent("difference", "application/fits", b"\x00" * 68_000)
    alerts.raise_alert("transientDetected", "INFO", "5 sigma", with_attachments=[image])
    alerts.clear("transientDetected", "gone")
    assert bench.broker.read("alerts") == []
    first, second = (codec.decode(record.value) for record in bench.broker.read("alert-packets"))
    assert first.contents == [image]
    assert (first.alert.sequence, second.alert.sequence, second.alert.state) == (1, 2, "CLEARED")
    assert {record.key for record in bench.broker.read("alert-packets")} == {b"receive/1"}


def test_attachments_that_cannot_be_taken_are_refused(bench, bus):
    image = PacketContent("difference", "application/fits", b"")
    with pytest.raises(ValueError, match="PacketCodec"):
        source(bench, bus).raise_alert("transientDetected", "INFO", "x", with_attachments=[image])
    packets = source(bench, bus, packets=PacketCodec(ICD))
    with pytest.raises(ValueError, match="different names"):
        packets.raise_alert("transientDetected", "INFO", "x", with_attachments=[image, image])
    many = [PacketContent(str(number), "text/plain", b"") for number in range(17)]
    with pytest.raises(ValueError, match="attachments"):
        packets.raise_alert("transientDetected", "INFO", "x", with_attachments=many)
    with pytest.raises(ValueError, match="bytes"):
        packets.raise_alert(
            "transientDetected", "INFO", "x", with_attachments=[PacketContent("a", "b", b"x" * 9_000_000)]
        )


@pytest.mark.needs("sdp_facade_sdk")
def test_the_guide_runs_as_it_stands(bench, monkeypatch, tmp_path):
    """Its Python on the simulation's brokers, and its JSON against the schema."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "raise-alerts.md").read_text()
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "localhost:1")
    monkeypatch.setattr("facade.kernel.bus.kafka.opening.KafkaBus", lambda connection, client: MemoryBus(bench.broker))
    monkeypatch.chdir(tmp_path)
    names = {}
    for name in ("difference", "template"):
        Path(f"{name}.fits").write_bytes(name[:1].encode())
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, names)
    assert [one.state for one in on_bus(bench.broker)] == ["ACTIVE", "ACTIVE", "CLEARED"]
    (packet,) = bench.broker.read("alert-packets")
    assert [content.content for content in PacketCodec(ICD).decode(packet.value).contents] == [b"d", b"t"]
    (example,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    jsonschema.validate(json.loads(example), ICD.messages["alert"])
    assert PacketCodec(ICD).head[2:].hex(" ").upper() in text
