"""Plays the senders of any windowed topic: sends at a steady rate, and says exactly what it has sent."""

from collections.abc import Callable

import msgspec

from facade.clock import Clock
from facade.flows.telemetry.simulator.records import GroupAccount, RecordStream
from facade.simulate.pacing import Pacer
from facade.simulate.sender import Outlet, Stop, StreamSender

VERSION = "simulate-telemetry/1"
_MOST_WAITING = 50_000
"""With so many records unconfirmed the stream waits."""


class TelemetryReport(msgspec.Struct, frozen=True, kw_only=True):
    """An exact account of what one run sent; it holds for the other end once `sent` equals `queued`."""

    schema: str = VERSION
    finished: bool
    stopped_by: str
    """``count``, ``seconds``, ``signal``, or empty while running."""
    topic: str
    """Name on the brokers, with the deployment's prefix."""
    rate: float
    elapsed: float
    """[s]"""
    queued: int
    sent: int
    """Records that all in-sync replicas have confirmed."""
    undelivered: int
    last_error: str
    groups: dict[str, GroupAccount]


class TelemetrySimulator(StreamSender[TelemetryReport]):
    """Sends one stream; the other parameters are those of `facade.simulate.sender.StreamSender`."""

    def __init__(
        self,
        stream: RecordStream,
        rate: float,
        outlet: Outlet,
        *,
        clock: Clock,
        topic_name: str,
        each_second: Callable[[TelemetryReport], None],
        last_error: Callable[[], str] = str,
    ) -> None:
        self._stream, self._rate = stream, rate
        super().__init__(
            outlet,
            clock=clock,
            topic_name=topic_name,
            most_waiting=_MOST_WAITING,
            each_second=each_second,
            last_error=last_error,
        )

    def report(self, *, stopped_by: str = "", finished: bool = False) -> TelemetryReport:
        """Say how things are."""
        outlet = self._outlet
        return TelemetryReport(
            finished=finished,
            stopped_by=stopped_by,
            topic=self._topic_name,
            rate=self._rate,
            elapsed=self._elapsed,
            queued=outlet.queued,
            sent=outlet.delivered,
            undelivered=outlet.queued - outlet.delivered if finished else outlet.failed,
            last_error=self._last_error(),
            groups={str(group): account for group, account in self._stream.accounts.items()},
        )

    def _stopped_by(self, stop: Stop) -> str:
        if stop.count is not None and self._stream.records >= stop.count:
            return "count"
        return "seconds" if stop.seconds is not None and self._elapsed >= stop.seconds else ""

    def _send(self, stop: Stop) -> None:
        count = self._pacer.take()
        if stop.count is not None:
            count = min(count, stop.count - self._stream.records)
        if count:
            keys, values = self._stream.take(count, round(self._clock.now() * 1e6))
            self._outlet.send_many(self._stream.plan.topic, keys, values)

    def _restart(self) -> None:
        super()._restart()
        self._pacer = Pacer(self._rate, self._clock)
