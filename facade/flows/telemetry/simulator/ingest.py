"""Plays the ingest nodes: sends heap notifications at a steady rate and knows exactly what it sent."""

from collections import deque
from collections.abc import Callable

from facade.clock import Clock
from facade.flows.telemetry.simulator.faults import MICRO
from facade.flows.telemetry.simulator.heaps import HeapStream
from facade.flows.telemetry.simulator.report import Report
from facade.simulate.pacing import Pacer
from facade.simulate.sender import Outlet, Stop, StreamSender

TOPIC = "ingest.heaps"

_MOST_WAITING = 250_000
"""With so many records unconfirmed the stream waits."""
_APPEND_SLACK = 0.5
"""Added to the longest wait, as waits are known to a tick only and two clocks are involved [s]."""


class IngestSimulator(StreamSender[Report]):
    """Sends one stream; the parameters are those of `facade.simulate.sender.StreamSender`."""

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
        self._stream = stream
        self._waiting: deque[tuple[float, int]] = deque()  # when queued, and how many were queued by then
        self._longest_wait = 0.0
        super().__init__(
            outlet,
            clock=clock,
            topic_name=topic_name,
            most_waiting=_MOST_WAITING,
            each_second=each_second,
            last_error=last_error,
        )

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
            elapsed=self._elapsed,
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
        if stop.count is not None and self._stream.heaps >= stop.count:
            return "count"
        if stop.seconds is not None:
            # A stream that kept its rate ends with its last heap, one that was held up by the clock.
            if self._stream.heaps >= round(stop.seconds * self._stream.scenario.rate):
                return "seconds"
            if self._clock.monotonic() - self._began >= stop.seconds + 1:
                return "seconds"
        return ""

    def _send(self, stop: Stop) -> None:
        count = self._pacer.take()
        if stop.count is not None:
            count = min(count, stop.count - self._stream.heaps)
        if stop.seconds is not None:
            count = min(count, round(stop.seconds * self._stream.scenario.rate) - self._stream.heaps)
        if count:
            batch = self._stream.take(count, round(self._clock.now() * MICRO))
            self._outlet.send_many(TOPIC, batch.keys, batch.values)
            self._waiting.append((self._clock.monotonic(), self._outlet.queued))

    def _restart(self) -> None:
        super()._restart()
        self._pacer = Pacer(self._stream.scenario.rate, self._clock)

    def _look_after(self) -> None:
        super()._look_after()
        now = self._clock.monotonic()
        known = self._outlet.queued - self._outlet.backlog
        while self._waiting:
            queued_at, queued = self._waiting[0]
            self._longest_wait = max(self._longest_wait, now - queued_at)
            if queued > known:
                break
            self._waiting.popleft()

    def _certain(self) -> bool:
        limits, wait = self._stream.scenario.limits, self._longest_wait + _APPEND_SLACK
        return all(
            limits.outcome(shift) == limits.outcome(shift, wait) for _, shift in self._stream.scenario.faults.shifts()
        )
