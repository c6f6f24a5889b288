"""A table that never gets complete is an alert: once, never lost, cleared by a newer one, after restarts too."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from facade.flows.alerts.messages import decode_alert
from facade.flows.tables import cli
from facade.flows.tables.composition import TABLE_LOST
from facade.flows.tables.fetch import newest_tables
from facade.kernel.bus.port import Record
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.runtime.composition import Server
from tests.support.commanding import Sink
from tests.support.heaps import BASE_US
from tests.support.simulated_bus import MemoryBroker, MemoryBus
from tests.support.tables import Desk, cut

ICD = load()
DEVICES = {
    # Together with another that raises alerts: each must leave the other's alone.
    "calibration": {"SdpCalibration": ["mid-sdp/calibration/01"], "SdpQuality": ["mid-sdp/quality/01"]},
    "alerts": {"SdpAlerts": ["mid-sdp/alerts/0"]},
}
GAINS = "subarray/01/gains"


class Bench:
    """The device servers of the tables and of the alerts; either may be away."""

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        clock = ManualClock(BASE_US / 1e6)
        self.broker = broker or MemoryBroker(clock, {name: one.partitions for name, one in ICD.topics.items()})
        self.clock = self.broker.clock
        self.servers: dict[str, Any] = {}
        self.buses: dict[str, MemoryBus] = {}
        for name in DEVICES:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a device server, as after a kill."""
        self.buses[name] = MemoryBus(self.broker)
        service = Server(
            ICD,
            Settings(),
            DEVICES[name],
            Sink(),
            self.buses[name],
            instance=name,
            clock=self.clock,
            versions={"versionId": "1"},
        )
        self.servers[name] = (service.event_loop, service.event_loop._open())

    def stop(self, name: str) -> None:
        del self.servers[name]

    def work(self, seconds: float = 8.0) -> list[tuple[str, str]]:
        """Let all servers work; gives all alerts so far, state and what the text begins with."""
        for _ in range(round(seconds * 2)):
            for event_loop, reader in self.servers.values():
                event_loop.cycle(reader)
            self.clock.sleep(0.5)
        return [(one.state, one.text.split(" never")[0]) for one in self.alerts()]

    def alerts(self) -> list[Any]:
        return [decode_alert(record.value) for record in self.broker.read("alerts")]

    def tell(self, state: str, table: str, product: str = GAINS, **more: Any) -> None:
        """Say on the bus what became of a table."""
        now_us = self.clock.now_us()
        said = {
            "schema": "table/1",
            "table": table,
            "product": product,
            "kind": "sky-model",
            "content_type": "x/y",
            "state": state,
            "size": 5_000_000,
            "received": 0,
            "sha256": "0" * 64,
            "sent_at": now_us - 1_000_000,
            "time": now_us,
            **({"reason": "digest: expected 00, got 01"} if state == "FAILED" else {}),
            **more,
        }
        key = f"{product}!failed" if state == "FAILED" else product
        self.broker.append(Record(topic="tables", key=key.encode(), value=json.dumps(said).encode()))
        self.clock.sleep(0.1)


RAISED, CLEARED = ("ACTIVE", f"table t1 of {GAINS}"), ("CLEARED", f"over; it was: table t1 of {GAINS}")


@pytest.fixture
def bench():
    return Bench()


def test_a_lost_table_is_told_once_and_cleared_by_a_newer_one(bench):
    bench.tell("FAILED", "t1")
    assert bench.work() == [RAISED]
    (alert,) = bench.alerts()
    assert (alert.condition, alert.source, alert.severity) == (TABLE_LOST, GAINS, "ALARM")
    assert "digest: expected 00" in alert.text
    assert ICD.conditions[alert.condition].response
    assert bench.work(30.0) == [RAISED]
    bench.tell("COMPLETE", "t2")
    assert bench.work(30.0) == [RAISED, CLEARED]


@pytest.mark.parametrize(("product", "is_told"), [("sky", True), ("subarray/02/gains", False)])
def test_a_table_that_no_device_shows_is_told_by_the_server_of_the_first_one(bench, product, is_told):
    """Nobody told it. This server has subarray 01 only, so another one tells of the other subarrays."""
    bench.tell("FAILED", "t1", product=product)
    assert bench.work() == [("ACTIVE", f"table t1 of {product}")] * is_told
    bench.tell("COMPLETE", "t2", product=product)
    assert len(bench.work()) == 2 * is_told


def test_a_product_that_is_removed_is_gone_with_its_alarm(bench, monkeypatch):
    monkeypatch.setattr(cli, "Connection", lambda settings: None)
    monkeypatch.setattr(cli, "KafkaBus", lambda connection, client: MemoryBus(bench.broker))
    bench.tell("COMPLETE", "t0")
    bench.tell("FAILED", "t1")
    bench.tell("COMPLETE", "b1", product="subarray/01/bandpass")
    assert bench.work() == [RAISED]
    done = CliRunner().invoke(app, ["tables", "remove", f"{GAINS}s"])
    assert f"expected one that has a table (subarray/01/bandpass, {GAINS}), got '{GAINS}s'" in str(done.exception)
    done = CliRunner().invoke(app, ["tables", "remove", GAINS])
    assert done.output == f"{GAINS}: removed\n"
    assert bench.work() == [RAISED, CLEARED]
    assert [one.product for one in newest_tables(MemoryBus(bench.broker)).values()] == ["subarray/01/bandpass"]
    bench.tell("FAILED", "t2")
    assert bench.work()[2:] == [("ACTIVE", f"table t2 of {GAINS}")]


def test_what_was_sent_later_and_is_complete_already_has_made_it_good(bench):
    """A table expires minutes after its last segment; meanwhile a newer one came. It is told nevertheless."""
    sent_at = bench.clock.now_us()
    bench.tell("COMPLETE", "t2", sent_at=sent_at - 1)
    bench.tell("FAILED", "t1", sent_at=sent_at - 2)
    assert bench.work(30.0) == [RAISED, CLEARED]


@pytest.mark.parametrize("made_good", [False, True])
@pytest.mark.parametrize("lived", [0.0, 1.5, 2.5, 3.5, 9.0])
def test_a_kill_at_any_time_neither_loses_nor_doubles_it(bench, lived, made_good):
    bench.tell("FAILED", "t1")
    if made_good:
        bench.tell("COMPLETE", "t2")
    bench.work(lived)
    bench.stop("calibration")
    bench.work(2.0)
    bench.start("calibration")
    assert bench.work(30.0) == [RAISED, CLEARED][: 2 if made_good else 1]


def test_what_a_worker_gives_up_is_told(tmp_path):
    """By way of a real worker: a wrong digest, and one that is driven out by others."""
    with Desk(tmp_path, tables=2) as desk:
        desk.run(cut("t1", b"x" * 30, product=GAINS, sha256="0" * 64))
        evicted = [cut(f"e{n}", b"x" * 30, product=f"subarray/01/p{n}")[0] for n in range(3)]
        desk.run(evicted)
        bench = Bench(desk.broker)
        bench.work()
        assert {one.source: one.text.split(": ")[1] for one in bench.alerts()} == {
            GAINS: "digest",
            "subarray/01/p0": "evicted",
        }
        desk.run(cut("t2", b"x" * 30, product=GAINS, kind="sky"))
        bench.work()
        assert [one.source for one in bench.alerts() if one.state == "CLEARED"] == [GAINS]


def test_a_producer_whose_clock_is_ahead_makes_no_later_loss_good(bench):
    bench.tell("COMPLETE", "t0", sent_at=bench.clock.now_us() + 86_400_000_000)
    bench.clock.sleep(60.0)
    bench.tell("FAILED", "t1")
    assert bench.work(30.0) == [RAISED]
