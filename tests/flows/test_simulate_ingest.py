"""The simulator's sender: keeps its rate, waits for the broker, and reports what was confirmed."""

from functools import partial

import pytest

from facade.flows.telemetry.simulator.faults import Scenario
from facade.flows.telemetry.simulator.heaps import HeapStream
from facade.flows.telemetry.simulator.ingest import HeapReport, heap_report, heap_shape
from facade.kernel.bus.port import Headers
from facade.kernel.clock import ManualClock
from facade.simulate.pacing import Pacer
from facade.simulate.sender import Stop, StreamSender

PLAIN = Scenario(nodes=3, rate=1000.0, seed=5)


@pytest.mark.parametrize("rate", [0.5, 10.0, 90.0, 1000.0, 127_200.0])
def test_a_steady_stream_keeps_its_rate(rate: float) -> None:
    """After any time the number given is the rate times the time, in batches of at most 20 ms of data."""
    clock = ManualClock()
    pacer, begin, given = Pacer(rate, clock), clock.monotonic(), 0
    while clock.monotonic() - begin < 20:
        count = pacer.take()
        assert count <= max(1, rate * 0.02)
        given += count
        assert given <= (clock.monotonic() - begin) * rate + 0.1
    assert given == pytest.approx(20 * rate, abs=max(1, rate * 0.02))
    assert pacer.slipped == 0


def test_a_stream_with_windows_is_taken_at_their_ends() -> None:
    """Whatever the tick: the last records of a window must not wait for it."""
    clock = ManualClock(1_800_000_000.03)
    pacer, taken = Pacer(1000.0, clock, burst=0.2, tick=0.1, window=1.0), list[float]()
    while clock.monotonic() < 1_800_000_004.5:
        if pacer.take():
            taken.append(round(clock.now(), 3))
    assert {1_800_000_001.0, 1_800_000_002.0, 1_800_000_003.0, 1_800_000_004.0} <= {*taken}
    assert len(taken) < 60, "the other batches have their tick"


class Shelf:
    """An outlet that keeps everything, and confirms it while the broker is up."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.sent: list[bytes | None] = []
        self.queued = 0
        self.failed = 0
        self.confirmed = 0
        self.away: tuple[float, float] = (0.0, 0.0)

    @property
    def backlog(self) -> int:
        return self.queued - self.confirmed - self.failed

    @property
    def delivered(self) -> int:
        return self.confirmed

    def send_many(
        self, topic: str, keys: list[bytes], values: list[bytes | None], headers: list[Headers] | None = None
    ) -> None:
        assert topic == "ingest.heaps"
        assert len(keys) == len(values)
        self.sent += values
        self.queued += len(values)

    def poll(self, timeout: float = 0.0) -> None:
        self.clock.sleep(timeout)
        if not self.away[0] <= self.clock.monotonic() < self.away[1]:
            self.confirmed = self.queued - self.failed

    def flush(self, timeout: float) -> bool:
        self.poll()
        if self.backlog:
            self.clock.sleep(timeout)
        return not self.backlog

    def abandon(self) -> None:
        self.failed += self.backlog


def simulate(
    clock: ManualClock, shelf: Shelf, scenario: Scenario = PLAIN
) -> tuple[StreamSender[HeapReport], list[HeapReport]]:
    reports: list[HeapReport] = []
    stream = HeapStream(scenario)
    more = {"clock": clock, "topic_name": "test.ingest.heaps", "each_second": reports.append}
    simulator = StreamSender(stream, heap_shape(stream), partial(heap_report, stream), shelf, **more)
    return simulator, reports


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def shelf(clock: ManualClock) -> Shelf:
    return Shelf(clock)


@pytest.mark.parametrize(
    ("stop", "heaps", "by"),
    [(Stop(count=1234), 1234, "count"), (Stop(seconds=2.5), 2500, "seconds"), (Stop(count=0), 0, "count")],
)
def test_a_run_sends_what_was_asked_for(clock: ManualClock, shelf: Shelf, stop: Stop, heaps: int, by: str) -> None:
    """Exactly so many heaps, at the rate asked for, all confirmed."""
    simulator, reports = simulate(clock, shelf)
    report = simulator.run(stop)
    assert (report.heaps, report.queued, report.sent, report.undelivered) == (heaps, heaps, heaps, 0)
    assert len(shelf.sent) == heaps
    assert (report.finished, report.stopped_by, report.certain) == (True, by, True)
    assert report.elapsed == pytest.approx(heaps / 1000, abs=0.03)
    assert reports[-1] == report
    assert len(reports) == int(report.elapsed) + 1
    assert not any(earlier.finished for earlier in reports[:-1])
    assert report.expected.consumed == heaps


def test_a_signal_stops_and_flushes(clock: ManualClock, shelf: Shelf) -> None:
    """The report then covers what was sent until then."""
    simulator, reports = simulate(clock, shelf)
    simulator._each_second = lambda report: (reports.append(report), simulator.stop())
    report = simulator.run(Stop())
    assert report.stopped_by == "signal"
    assert report.sent == len(shelf.sent) == report.expected.consumed > 900


def test_a_broker_that_is_away_is_waited_for(clock: ManualClock, shelf: Shelf) -> None:
    """Nothing is lost; the report says that waits were so long that late records cannot be foretold."""
    shelf.away = (clock.monotonic() + 1, clock.monotonic() + 16)
    simulator, reports = simulate(clock, shelf)
    report = simulator.run(Stop(count=5000))
    assert (report.sent, report.undelivered) == (5000, 0)
    assert max(earlier.backlog for earlier in reports) > 3000
    assert report.longest_wait == pytest.approx(15, abs=0.3)
    assert not report.certain


def test_what_was_not_delivered_is_said(clock: ManualClock, shelf: Shelf) -> None:
    """After a signal a broker that stays away is not waited for in vain."""
    shelf.away = (clock.monotonic() + 0.5, 1e18)
    simulator, reports = simulate(clock, shelf)
    simulator._each_second = lambda report: (reports.append(report), simulator.stop())
    report = simulator.run(Stop())
    assert report.undelivered == report.queued - report.sent > 0
    assert clock.monotonic() - 1_800_000_000 < 12
