"""The frame of simulators: a stream is sent at its schedule until its end, and a report counts the records.

Delivery: idempotent, to all in-sync replicas. A full queue never drops a record: without a broker the stream pauses,
and it continues when the broker is back. At the end everything is flushed, so that the report has the records confirmed
by the broker.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from facade.kernel.bus.port import Headers
from facade.kernel.clock import Clock, Time, as_seconds
from facade.simulate.pacing import Schedule

PATIENCE = 600.0
"""Time for which the delivery of a record is tried [s]."""
_GRACE = 8.0
"""Longest flush after a signal [s]; process supervisors commonly kill after ten."""


class StreamReport(msgspec.Struct, frozen=True, kw_only=True):
    """An exact account of one run; it also holds for the readers once `sent` equals `queued`."""

    schema: str
    finished: bool
    """False: the run is not finished, or was killed after this report."""
    stopped_by: str
    """``count``, ``seconds``, ``signal``, or empty while running."""
    topic: str
    """With the deployment's prefix."""
    began: float
    """[Unix s]."""
    elapsed: float
    """Time since then, without the last flush [s]."""
    queued: int
    """Records given to the Kafka client."""
    sent: int
    """Records that all in-sync replicas have confirmed."""
    backlog: int
    """Records without a result."""
    undelivered: int
    """After the end: unconfirmed records; during the run: finally failed ones."""
    last_error: str
    slipped: float = 0.0
    """Delay of the stream by an absent broker or a slow machine [s]."""
    longest_wait: float = 0.0
    """Longest time between queueing and confirmation [s]."""


EncodedRecords = tuple[list[bytes], list[bytes | None]] | tuple[list[bytes], list[bytes | None], list[Headers]]
"""Keys and values of records, and optionally their headers."""
ReportT = TypeVar("ReportT", bound=StreamReport)


class Outlet(Protocol):
    """The receiver of the records; see `facade.kernel.bus.kafka.producer.KafkaStreamWriter`."""

    queued: int
    failed: int

    @property
    def backlog(self) -> int:
        """Queued records without a result."""

    @property
    def delivered(self) -> int:
        """Records confirmed."""

    def send_many(
        self, topic: str, keys: list[bytes], values: list[bytes | None], headers: list[Headers] | None = None
    ) -> None:
        """Queue records in order; without `headers` they have none."""

    def poll(self, timeout: float = 0.0) -> None:
        """Serve failures, waiting at most `timeout` [s]."""

    def flush(self, timeout: float) -> bool:
        """Wait for all records, at most `timeout` [s]; False: some have no result."""

    def abandon(self) -> None:
        """Drop the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Conditions of the end; None: no limit."""

    count: int | None = None
    """Number of the stream's units: heaps, alerts."""
    seconds: float | None = None


class Stream(Protocol):
    """Generates the records."""

    topic: str

    @property
    def given(self) -> int:
        """Number of generated units: heaps, alerts."""

    def take(self, count: int, now_us: Time) -> EncodedRecords:
        """Return and count the next records, with the given time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a stream is sent."""

    pace: Callable[[Clock], Schedule]
    most_waiting: int = 50_000
    """Unconfirmed records at which the stream waits."""
    chunk: int = 10_000
    """Most records generated at once, between two looks at the clock."""
    rate: float | None = None
    """Units of a stream that ends with its last unit, where a time is given [1/s]; None: it ends by the clock."""


class StreamSender(Generic[ReportT]):
    """Sends one stream.

    Parameters
    ----------
    report
        Makes the report of the fields that all reports have.
    topic_name
        The topic's name on the brokers, for the report.
    each_second
        Called with the report while running, and with the final report.
    last_error
        Returns the last error.
    """

    def __init__(
        self,
        stream: Stream,
        shape: Shape,
        report: Callable[[dict[str, Any]], ReportT],
        outlet: Outlet,
        *,
        clock: Clock,
        topic_name: str,
        each_second: Callable[[ReportT], None],
        last_error: Callable[[], str] = str,
    ) -> None:
        self._records, self._shape, self._report, self._outlet, self._clock = stream, shape, report, outlet, clock
        self._topic_name, self._each_second, self._last_error = topic_name, each_second, last_error
        self._signals = 0
        self._ended: float | None = None
        self._waiting: deque[tuple[float, int]] = deque()
        """When records were queued, and how many were queued by then."""
        self._longest_wait = 0.0
        self._restart()

    def stop(self) -> None:
        """Stop sending soon and flush; a second call skips the flush. Safe in a signal handler."""
        self._signals += 1

    def run(self, stop: Stop) -> ReportT:
        """Send until the end, flush, and return the final report."""
        self._restart()
        while not (stopped_by := "signal" if self._signals else self._stopped_by(stop)):
            if self._outlet.backlog >= self._shape.most_waiting:
                self._outlet.poll(0.01)
            else:
                self._send(self._due(stop))
            self._look_after()
        self._ended = self._clock.monotonic()
        self._flush()
        report = self.report(stopped_by=stopped_by, finished=True)
        self._each_second(report)
        return report

    def report(self, *, stopped_by: str = "", finished: bool = False) -> ReportT:
        """Return the present report."""
        queued, sent, failed = self._outlet.queued, self._outlet.delivered, self._outlet.failed
        common = {
            "finished": finished,
            "stopped_by": stopped_by,
            "topic": self._topic_name,
            "began": self._began_wall,
            "elapsed": (self._ended or self._clock.monotonic()) - self._began,
            "queued": queued,
            "sent": sent,
            "backlog": 0 if finished else queued - sent - failed,
            "undelivered": queued - sent if finished else failed,
            "last_error": self._last_error(),
            "slipped": self._schedule.slipped,
            "longest_wait": self._longest_wait,
        }
        return self._report(common)

    def _stopped_by(self, stop: Stop) -> str:
        """Return the reason to stop: ``count`` or ``seconds``; empty: there is none."""
        given, lasted = self._records.given, self._clock.monotonic() - self._began
        if stop.count is not None and given >= stop.count:
            return "count"
        if stop.seconds is None:
            return ""
        if self._shape.rate is None:
            return "seconds" if lasted >= stop.seconds else ""
        # A stream at its full rate ends with its last unit, a delayed one by the clock.
        has_ended = given >= round(stop.seconds * self._shape.rate) or lasted >= stop.seconds + 1
        return "seconds" if has_ended else ""

    def _due(self, stop: Stop) -> int:
        """Wait a little, and return the number of due records."""
        count, given = self._schedule.take(), self._records.given
        if stop.count is not None:
            count = min(count, stop.count - given)
        if stop.seconds is not None and self._shape.rate is not None:
            count = min(count, round(stop.seconds * self._shape.rate) - given)
        return count

    def _send(self, count: int) -> None:
        for begin in range(0, count, self._shape.chunk):
            now = min(count - begin, self._shape.chunk)
            self._outlet.send_many(self._records.topic, *self._records.take(now, self._clock.now_us()))
        if count > 0:
            self._waiting.append((self._clock.monotonic(), self._outlet.queued))

    def _restart(self) -> None:
        self._began, self._began_wall = self._clock.monotonic(), as_seconds(self._clock.now_us())
        self._next_report = self._began + 1
        self._schedule = self._shape.pace(self._clock)

    def _look_after(self) -> None:
        self._outlet.poll(0)
        now, known = self._clock.monotonic(), self._outlet.queued - self._outlet.backlog
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
        """Wait until every record is confirmed or has failed, less patiently after a signal."""
        begin = self._clock.monotonic()
        while not self._outlet.flush(0.2):
            self._look_after()
            patience = _GRACE if self._signals else PATIENCE + 10
            if self._signals > 1 or self._clock.monotonic() - begin > patience:
                self._outlet.abandon()
                break
        self._look_after()
