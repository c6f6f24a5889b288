"""A table that never gets complete is an alert: once, never lost, cleared by a newer one, after restarts too."""

from typing import Any

import pytest
from typer.testing import CliRunner

from facade.flows.alerts.messages import decode_alert
from facade.flows.tables import cli
from facade.flows.tables.composition import TABLE_LOST
from facade.flows.tables.fetch import newest_tables
from facade.kernel.cli.app import app
from facade.kernel.icd.load import load
from tests.support.commanding import DeviceServers
from tests.support.simulated_bus import MemoryBroker, MemoryBus
from tests.support.tables import Desk, announced, cut

ICD = load()
DEVICES = {
    # Together with another that raises alerts: each must leave the other's alone.
    "calibration": {"SdpCalibration": ["mid-sdp/calibration/01"], "SdpQuality": ["mid-sdp/quality/01"]},
    "alerts": {"SdpAlerts": ["mid-sdp/alerts/0"]},
}
GAINS = "subarray/01/gains"


class Bench(DeviceServers):
    """The device servers of the tables and of the alerts; that of the tables may be away."""

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        super().__init__(broker, **DEVICES)

    def work(self, seconds: float = 8.0) -> list[tuple[str, str]]:
        """Let all servers work; gives all alerts so far, state and what the text begins with."""
        self.cycle(round(seconds * 2))
        return [(one.state, one.text.split(" never")[0]) for one in self.alerts()]

    def alerts(self) -> list[Any]:
        return [decode_alert(record.value) for record in self.broker.read("alerts")]

    def tell(self, state: str, table: str, product: str = GAINS, **more: Any) -> None:
        """Say on the bus what became of a table."""
        if state == "FAILED":
            more["reason"] = "digest: expected 00, got 01"
        self.broker.append(announced(state, table, product, self.clock.now_us(), kind="sky-model", **more))
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
    del bench.servers[0]
    bench.work(2.0)
    bench.servers.append(bench.serve("calibration"))
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
