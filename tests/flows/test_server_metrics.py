"""What Prometheus gets from device servers: State and health, outcomes of commands, streams, alarms."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from facade.flows.alerts.messages import Alert, alert_record
from facade.flows.commands.messages import AckMessage, CommandMessage, ack_record, command_record
from facade.kernel.bus.port import Record
from facade.kernel.clock import SECOND
from facade.kernel.runtime import metrics
from facade.kernel.runtime.accounts import ACCOUNTS, AccountEntry
from facade.kernel.runtime.metrics import MetricFamily
from tests.support.server_in_memory import Served, serve

HEAPS = "ingest.heaps"
DEVICE = "mid-sdp/subarray/01"


def account(served: Served, begins: int, ends: int, newest: int) -> Record:
    """Make the entry of a worker that has taken records up to `ends` of a partition that ends at `newest`."""
    count = ends - begins
    entry = AccountEntry(
        worker="0",
        stream=HEAPS,
        partition=0,
        time=served.clock.now_us(),
        offset_from=begins,
        offset_to=ends,
        high_watermark=newest,
        consumed=count,
        used=count,
        late=0,
        suppressed=0,
        dead_lettered=0,
        in_flight=0,
        reasons={},
        log="id",
    )
    return Record(topic=ACCOUNTS, key=b"0", value=msgspec.json.encode(entry), timestamp_us=served.clock.now_us())


def test_each_device_has_its_state_and_health() -> None:
    control = serve("control")
    control.run(5)
    (bus, master) = sorted(control.metric("sdp_device_state"))
    assert bus[:2] == ("SdpBus", "mid-sdp/bus/0")
    assert master[:2] == ("SdpMaster", "mid-sdp/control/0")
    (health,) = control.metric("sdp_device_health")
    shown = control.server.publisher.last["mid-sdp/control/0"]
    assert health == ("SdpMaster", "mid-sdp/control/0", shown["healthState"].value)
    assert master[2] == shown["State"].value


def test_ingest_nodes_whose_state_is_a_column_have_it_too() -> None:
    ingest = serve("ingest-00")
    ingest.run(5)
    assert {labels[:2] for labels in ingest.metric("sdp_device_state")} == {("SdpIngestNode", "mid-sdp/ingest/0000")}


def test_streams_have_lag_and_silence_until_their_readers_are_silent() -> None:
    control = serve("control")
    control.run(2)
    assert (HEAPS,) not in control.metric("sdp_stream_lag_records")
    control.run(1, [account(control, 0, 10, newest=10)])
    control.run(1, [account(control, 10, 10, newest=30)])
    assert control.metric("sdp_stream_lag_records")[(HEAPS,)] == 20
    assert control.metric("sdp_stream_lag_seconds")[(HEAPS,)] > 0
    for _ in range(4):
        control.run(1, [account(control, 10, 10, newest=30)])
    silence = control.metric("sdp_stream_silence_seconds")[(HEAPS,)]
    assert 4 <= silence <= 6, "entries without records do not end it"
    control.run(2, [account(control, 10, 30, newest=30)])
    assert control.metric("sdp_stream_silence_seconds")[(HEAPS,)] < silence
    control.run(60)
    assert (HEAPS,) not in control.metric("sdp_stream_lag_records"), "nobody knows it any more"
    assert control.metric("sdp_stream_silence_seconds")[(HEAPS,)] > 50


def command(served: Served, number: int) -> tuple[CommandMessage, Record]:
    now = served.clock.now_us()
    one = CommandMessage(
        id=f"{now}_{number}_On",
        device=DEVICE,
        command="On",
        argument=None,
        transaction_id=f"txn-{number}",
        issued=now,
        not_after=now + 5 * SECOND,
        deadline=now + 10 * SECOND,
        ceiling=now + 60 * SECOND,
        repeatable=False,
        origin="server",
    )
    return one, replace(command_record(one), timestamp_us=now)


def ack(served: Served, one: CommandMessage, status: str) -> Record:
    now = served.clock.now_us()
    message = AckMessage(id=one.id, device=DEVICE, command="On", status=status, time=now, origin="controller")
    return replace(ack_record(message), timestamp_us=now)


def test_outcomes_of_commands_are_counted_once_and_not_those_of_an_earlier_run() -> None:
    subarray = serve("subarray")
    old, record = command(subarray, 0)
    subarray.run(20, [record, ack(subarray, old, "COMPLETED")])
    counts = subarray.metric("sdp_command_outcomes")
    assert counts["SdpSubarray", "COMPLETED"] == 0.0, "Prometheus would take a start for many commands"
    assert counts["SdpSubarray", "TIMED_OUT"] == 0.0
    new, record = command(subarray, 1)
    subarray.run(2, [record, ack(subarray, new, "COMPLETED"), ack(subarray, new, "FAILED")])
    _, record = command(subarray, 2)
    subarray.run(30, [record])
    counts = subarray.metric("sdp_command_outcomes")
    assert {labels: count for labels, count in counts.items() if count} == {
        ("SdpSubarray", "COMPLETED"): 1.0,
        ("SdpSubarray", "TIMED_OUT"): 1.0,
    }


def test_a_label_of_any_text_is_read_as_it_was() -> None:
    """Labels were written by the rules of JSON, and Prometheus refused all figures for the name of one source."""
    name, registry = 'r\u00e9cepteur/3\t"\\\n', CollectorRegistry()

    class Sources(Collector):
        def collect(self) -> Iterator[Metric]:
            return metrics._samples({}, [MetricFamily("sdp_sources", "About.", ("source",), lambda: {(name,): 1.0})])

    registry.register(Sources())
    read = text_string_to_metric_families(generate_latest(registry).decode())
    assert [[one.labels for one in each.samples] for each in read][-1] == [{"source": name}]


def test_alarms_are_counted_by_condition_severity_and_state() -> None:
    alerts = serve("alerts")
    alerts.run(2)
    raised = [
        Alert(
            condition=condition,
            source=source,
            sequence=1,
            raised_at=alerts.clock.now_us(),
            severity="CRITICAL",
            text="",
            state="ACTIVE",
        )
        for condition, source in (("storageLow", "storage/0"), ("storageLow", "storage/1"), ("ours", "a"))
    ]
    alerts.run(2, [replace(alert_record(one), timestamp_us=alerts.clock.now_us()) for one in raised])
    assert alerts.metric("sdp_alarms") == {("storageLow", "CRITICAL", "UNACK"): 2, ("", "CRITICAL", "UNACK"): 1}
