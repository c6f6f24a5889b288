"""Plays the ingest nodes: sends heap notifications at a steady rate and knows exactly what it sent.

Delivery: idempotent, to all in-sync replicas. Nothing is ever dropped for a full queue: with the
broker away the stream stands still, and moves on when the broker is back. When the run is over
everything is flushed, so that the report holds what the broker has confirmed.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from facade.clock import Clock
from facade.simulate.faults import MICRO
from facade.simulate.heaps import HeapStream
from facade.simulate.pacing import Pacer
from facade.simulate.report import Report

TOPIC = "ingest.heaps"
PATIENCE = 600.0
"""How long a record is tried to be delivered [s]."""

_MOST_WAITING = 250_000
"""With so many records unconfirmed the stream waits."""
_GRACE = 8.0
"""Longest flush after a signal [s]; process supervisors commonly kill after ten."""
_APPEND_SLACK = 0.5
"""Added to the longest wait, as waits are known to a tick only and two clocks are involved [s]."""


class Outlet(Protocol):
    """Where the records go; `facade.bus.kafka.writer.KafkaStreamWriter`."""

    queued: int
    failed: int

    @property
    def backlog(self) -> int:
        """Records queued whose fate is not known yet."""

    @property
    def delivered(self) -> int:
        """Records confirmed."""

    def send_many(self, topic: str, keys: list[bytes], values: list[bytes | None]) -> None:
        """Queue records in order."""

    def poll(self, timeout: float = 0.0) -> None:
        """Serve failures, waiting at most `timeout` [s]."""

    def flush(self, timeout: float) -> bool:
        """Wait for all records, at most `timeout` [s]; False: some are left."""

    def abandon(self) -> None:
        """Forget what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """When to stop by itself; None: never."""

    heaps: int | None = None
    seconds: float | None = None


class IngestSimulator:
    """Sends one stream.

    Parameters
    ----------
    topic_name
        The topic's name on the brokers, for the report.
    each_second
        Called with the state of affairs while running, and with the final report.
    last_error
        Asked for what went wrong last.
    """

    def __init__(
        self,
        stream: HeapStream,
        outlet: Outlet,
        *,
        clock: Clock,
        topic_name: str,
        each_second: Callable[[Report], None],
        last_error: Callable[[], str] = str,
    ) -> None:
        self._stream, self._outlet, self._clock = stream, outlet, clock
        self._topic_name, self._each_second, self._last_error = topic_name, each_second, last_error
        self._signals = 0
        self._began, self._began_wall = clock.monotonic(), clock.now()
        self._ended: float | None = None
        self._next_report = self._began + 1
        self._pacer = Pacer(stream.scenario.rate, clock)
        self._waiting: deque[tuple[float, int]] = deque()  # when queued, and how many were queued by then
        self._longest_wait = 0.0

    def stop(self) -> None:
        """Stop sending soon and flush; called twice, do not wait for the flush. Safe in a signal handler."""
        self._signals += 1

    def run(self, stop: Stop) -> Report:
        """Send until it is time to stop, flush, and give the final report."""
        self._began, self._began_wall = self._clock.monotonic(), self._clock.now()
        self._pacer = Pacer(self._stream.scenario.rate, self._clock)
        self._next_report = self._began + 1
        while not (stopped_by := self._stopped_by(stop)):
            self._send(stop)
            self._look_after()
        self._ended = self._clock.monotonic()
        self._flush()
        report = self.report(stopped_by=stopped_by, finished=True)
        self._each_second(report)
        return report

    def report(self, *, stopped_by: str = "", finished: bool = False) -> Report:
        """Say how things are."""
        stream, outlet, scenario = self._stream, self._outlet, self._stream.scenario
        sent, failed = outlet.delivered, outlet.failed
        return Report(
            finished=finished,
            stopped_by=stopped_by,
            topic=self._topic_name,
            seed=scenario.seed,
            first_node=scenario.first_node,
            node_count=scenario.nodes,
            scan_id=scenario.scan_id,
            rate=scenario.rate,
            faults=scenario.faults,
            began=self._began_wall,
            elapsed=(self._ended or self._clock.monotonic()) - self._began,
            slipped=self._pacer.slipped,
            heaps=stream.heaps,
            queued=outlet.queued,
            sent=sent,
            backlog=0 if finished else outlet.queued - sent - failed,
            undelivered=outlet.queued - sent if finished else failed,
            longest_wait=self._longest_wait,
            certain=self._certain(),
            last_error=self._last_error(),
            fired=dict(stream.account.fired),
            garbage=dict(stream.account.garbage),
            expected=stream.account.expected(),
            nodes=stream.account.nodes(),
        )

    def _stopped_by(self, stop: Stop) -> str:
        if self._signals:
            return "signal"
        if stop.heaps is not None and self._stream.heaps >= stop.heaps:
            return "count"
        if stop.seconds is not None:
            # A stream that kept its rate ends with its last heap, one that was held up by the clock.
            if self._stream.heaps >= round(stop.seconds * self._stream.scenario.rate):
                return "seconds"
            if self._clock.monotonic() - self._began >= stop.seconds + 1:
                return "seconds"
        return ""

    def _send(self, stop: Stop) -> None:
        if self._outlet.backlog >= _MOST_WAITING:
            self._outlet.poll(0.01)
            return
        count = self._pacer.take()
        if stop.heaps is not None:
            count = min(count, stop.heaps - self._stream.heaps)
        if stop.seconds is not None:
            count = min(count, round(stop.seconds * self._stream.scenario.rate) - self._stream.heaps)
        if count:
            batch = self._stream.take(count, round(self._clock.now() * MICRO))
            self._outlet.send_many(TOPIC, batch.keys, batch.values)
            self._waiting.append((self._clock.monotonic(), self._outlet.queued))

    def _look_after(self) -> None:
        self._outlet.poll(0)
        now = self._clock.monotonic()
        known = self._outlet.queued - self._outlet.backlog
        while self._waiting:
            queued_at, queued = self._waiting[0]
            self._longest_wait = max(self._longest_wait, now - queued_at)
            if queued > known:
                break
            self._waiting.popleft()
        if now >= self._next_report:
            self._next_report = max(self._next_report + 1, now)
            self._each_second(self.report())

    def _flush(self) -> None:
        """Wait until everything is confirmed or has failed, less patiently after a signal."""
        begin = self._clock.monotonic()
        while not self._outlet.flush(0.2):
            self._look_after()
            patience = _GRACE if self._signals else PATIENCE + 10
            if self._signals > 1 or self._clock.monotonic() - begin > patience:
                self._outlet.abandon()
                break
        self._look_after()

    def _certain(self) -> bool:
        limits, wait = self._stream.scenario.limits, self._longest_wait + _APPEND_SLACK
        return all(
            limits.outcome(shift) == limits.outcome(shift, wait) for _, shift in self._stream.scenario.faults.shifts()
        )
