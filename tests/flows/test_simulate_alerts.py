"""The simulator of alerts: what it says it sent is what it sent, and what is to be bad is refused for that reason."""

from collections import Counter
from functools import partial

import pytest
from typer.testing import CliRunner

from facade.flows.alerts.messages import decode_alert
from facade.flows.alerts.packets import PacketCodec
from facade.flows.alerts.simulator.stream import (
    BAD_ALERTS,
    AlertMixture,
    AlertReport,
    AlertStream,
    alert_report,
    alert_shape,
    bad_packets,
)
from facade.kernel.bus.port import Record
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock
from facade.kernel.icd.load import load
from facade.kernel.outcome import RecordRejected
from facade.simulate import sender, sending
from facade.simulate.sender import Stop, StreamSender
from tests.support.alerting import Bench

ICD = load()
CODEC = PacketCodec(ICD)
CONDITIONS = tuple(ICD.conditions)
NOW_US = 1_800_000_000_000_000


class Outlet:
    """Takes everything; confirms it when flushed, or what it is told to."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes, bytes | None]] = []
        self.queued = self.failed = self.backlog = 0
        self.flushes = True

    @property
    def delivered(self) -> int:
        return self.queued - self.backlog - self.failed

    def send_many(self, topic, keys, values):
        self.records += [(topic, key, value) for key, value in zip(keys, values, strict=True)]
        self.queued += len(values)

    def poll(self, timeout=0.0):
        self.backlog = max(self.backlog - 1000, 0) if self.flushes else self.backlog

    def flush(self, timeout):
        self.backlog = 0 if self.flushes else self.backlog
        return self.backlog == 0

    def abandon(self):
        self.failed, self.backlog = self.failed + self.backlog, 0


def stream(codec=None, **options) -> AlertStream:
    return AlertStream(AlertMixture(**{"conditions": CONDITIONS, **options}), codec)


def taken(one: AlertStream, count: int, now_us: int = NOW_US) -> list:
    return [decode_alert(value) for value in one.take(count, now_us)[1]]


@pytest.mark.parametrize(
    "options",
    [{}, {"flood": True}, {"chatter": True}, {"flood": True, "chatter": True}, {"unknown": 0.3}],
    ids=str,
)
def test_the_account_is_what_was_given_out(options):
    """Counted again from the records: per source, and the last state of each alarm; a clear names its beginning."""
    one, counts, states, began = stream(**options), Counter(), {}, {}
    cleared = set()
    for number in range(50):
        for alert in taken(one, 100, NOW_US + number):
            counts[alert.source] += 1
            assert alert.sequence == counts[alert.source]
            if states.get(alert.key, "CLEARED") == "CLEARED":
                assert alert.state == "ACTIVE"
                began[alert.key] = alert.raised_at
            assert alert.raised_at == began[alert.key]
            states[alert.key] = alert.state
            if alert.state == "CLEARED":
                cleared.add(alert.key)
    account = one.account
    assert account.alerts == 5000
    assert {name: source.count for name, source in account.sources.items()} == counts
    assert {name: source.last_sequence for name, source in account.sources.items()} == counts
    assert account.alarms == {f"{condition}@{source}": state for (condition, source), state in states.items()}
    if options.get("flood"):
        assert len(cleared) == options.get("chatter", 0), "in a flood, only what chatters clears"
    else:
        assert set(states.values()) == {"ACTIVE", "CLEARED"}


def test_the_device_server_finds_what_the_account_says():
    """Through the real flow: each alert numbered, each bad record set aside as foretold, each state right."""
    bench = Bench()
    server = bench.server()
    one = stream(sources=5, unknown=0.1, garbage=0.1, chatter=True)
    for _ in range(20):
        keys, values = one.take(50, bench.now_us)
        for key, value in zip(keys, values, strict=True):
            bench.broker.append(Record(topic="alerts", key=key, value=value))
        server.cycle()
    bench.clock.sleep(max(one.on_delay for one in ICD.conditions.values()) + 1)
    server.cycle()
    account = one.account
    assert Counter(letter.partition(":")[0] for letter in bench.letters()) == account.dead_letters
    assert set(account.garbage) == set(BAD_ALERTS)
    assert server.flow.alerts == account.alerts
    assert len(server.events()) == account.alerts
    for name, state in account.alarms.items():
        condition, _, source = name.partition("@")
        alarm = server.ledger.get((condition, source))
        assert (alarm is not None and alarm.state in ("UNACK", "ACKED")) == (state == "ACTIVE")


@pytest.mark.parametrize("kind", bad_packets(CODEC.encode(decode_alert(stream().take(1, NOW_US)[1][0]))))
def test_each_bad_packet_is_refused_for_the_reason_foretold(kind):
    value, reason = bad_packets(stream(CODEC, packet_size=1000).take(1, NOW_US)[1][0])[kind]
    refused = CODEC.alert(value, "0/0")
    assert isinstance(refused, RecordRejected)
    assert refused.reason == reason


def simulator(
    one: AlertStream, outlet: Outlet, clock: ManualClock, reports: list, **options
) -> StreamSender[AlertReport]:
    more = {"clock": clock, "topic_name": "t.alerts", "each_second": reports.append}
    return StreamSender(one, alert_shape(one, **options), partial(alert_report, one), outlet, **more)


def test_what_was_not_confirmed_is_said():
    clock, outlet, reports = ManualClock(), Outlet(), []
    one = simulator(stream(), outlet, clock, reports, bursts=(100, 1.0))
    outlet.backlog, outlet.queued, outlet.flushes = 30, 30, False
    one.stop()
    one.stop()
    assert one.run(Stop()).undelivered == 30


def test_a_run_without_a_broker_says_so_at_its_begin_and_at_its_end(monkeypatch):
    monkeypatch.setattr(sending, "_BROKER_WAIT", 0.1)
    monkeypatch.setattr(sender, "PATIENCE", -10.0)  # gives up at once
    done = CliRunner().invoke(
        app, ["simulate", "alerts", "--count", "1", "--rate", "1000", "--bootstrap", "127.0.0.1:1"]
    )
    assert done.exit_code == 1
    assert "no Kafka broker answers at 127.0.0.1:1. The records wait for one" in done.stderr
    assert "KAFKA_BOOTSTRAP" in done.stderr
    assert done.stderr.splitlines()[-1] == "undelivered: 1  no Kafka broker answers at 127.0.0.1:1"
