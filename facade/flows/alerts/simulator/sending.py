"""Plays sources of alerts: sends at a steady rate or in bursts, and says exactly what it has sent."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from facade.clock import Clock
from facade.flows.alerts.simulator.stream import AlertStream, SourceAccount
from facade.simulate.pacing import Pacer
from facade.simulate.sender import Outlet, Stop, StreamSender

VERSION = "simulate-alerts/1"
_MOST_WAITING, _MOST_WAITING_BYTES = 50_000, 64_000_000
"""With so much unconfirmed the stream waits."""
_CHUNK, _CHUNK_BYTES = 500, 8_000_000
"""Most alerts between two looks at the clock."""
_LONGEST_SLEEP = 0.2
"""So that a stop is noticed soon [s]."""


class Schedule(Protocol):
    """Says when alerts are due; `facade.simulate.pacing.Pacer` or `Bursts`."""

    def take(self) -> int:
        """Wait a little, and say how many are due."""


class Bursts:
    """Many alerts at once, and then silence; a burst that takes longer than that is followed by the next at once.

    Parameters
    ----------
    size
        Alerts of one burst.
    every
        Time from the beginning of one burst to that of the next [s].
    """

    def __init__(self, size: int, every: float, clock: Clock, *, chunk: int = _CHUNK) -> None:
        self._size, self._every, self._clock, self._chunk = size, every, clock, chunk
        self._next = clock.monotonic()
        self._left = 0

    def take(self) -> int:
        """Wait for the next part of a burst and say how many alerts it has; 0 now and then while waiting long."""
        now = self._clock.monotonic()
        if not self._left and now >= self._next:
            self._left = self._size
            self._next = max(self._next + self._every, now)
        if not self._left:
            self._clock.sleep(min(self._next - now, _LONGEST_SLEEP))
            return 0
        count = min(self._left, self._chunk)
        self._left -= count
        return count


class AlertReport(msgspec.Struct, frozen=True, kw_only=True):
    """An exact account of what one run sent; it holds for the other end once `sent` equals `queued`."""

    schema: str = VERSION
    finished: bool
    """False: the run goes on, or was killed after this."""
    stopped_by: str
    """``count``, ``seconds``, ``signal``, or empty while running."""
    topic: str
    """With the deployment's prefix."""
    seed: int
    began: float
    """[Unix s]."""
    elapsed: float
    """Time since then, without the last flush [s]."""
    alerts: int
    """Alerts among what was queued; the rest is garbage."""
    queued: int
    sent: int
    """Records that all in-sync replicas have confirmed."""
    undelivered: int
    last_error: str
    garbage: dict[str, int]
    """Bad records by kind."""
    dead_letters: dict[str, int]
    """What must become of them, by reason."""
    sources: dict[str, SourceAccount]
    alarms: dict[str, str]
    """ACTIVE or CLEARED by condition@source."""


class AlertSimulator(StreamSender[AlertReport]):
    """Sends one stream; the other parameters are those of `facade.simulate.sender.StreamSender`.

    Parameters
    ----------
    rate
        Steady alerts [1/s], unless there are bursts.
    bursts
        Alerts of one burst, and the time to the next [s].
    """

    def __init__(
        self,
        stream: AlertStream,
        outlet: Outlet,
        *,
        clock: Clock,
        topic_name: str,
        rate: float = 1.0,
        bursts: tuple[int, float] | None = None,
        each_second: Callable[[AlertReport], None],
        last_error: Callable[[], str] = str,
    ) -> None:
        self._stream, self._rate, self._bursts = stream, rate, bursts
        size = stream.scenario.packet_size
        self._chunk = max(_CHUNK_BYTES // size, 1) if size else _CHUNK
        super().__init__(
            outlet,
            clock=clock,
            topic_name=topic_name,
            most_waiting=max(_MOST_WAITING_BYTES // size, 1) if size else _MOST_WAITING,
            each_second=each_second,
            last_error=last_error,
        )

    def report(self, *, stopped_by: str = "", finished: bool = False) -> AlertReport:
        """Say how things are."""
        account, outlet = self._stream.account, self._outlet
        sent = outlet.delivered
        return AlertReport(
            finished=finished,
            stopped_by=stopped_by,
            topic=self._topic_name,
            seed=self._stream.scenario.seed,
            began=self._began_wall,
            elapsed=self._elapsed,
            alerts=account.alerts,
            queued=outlet.queued,
            sent=sent,
            undelivered=outlet.queued - sent if finished else outlet.failed,
            last_error=self._last_error(),
            garbage=dict(account.garbage),
            dead_letters=dict(account.dead_letters),
            sources=dict(account.sources),
            alarms=dict(account.alarms),
        )

    def _restart(self) -> None:
        super()._restart()
        self._schedule: Schedule = (
            Pacer(self._rate, self._clock)
            if self._bursts is None
            else Bursts(*self._bursts, self._clock, chunk=self._chunk)
        )

    def _stopped_by(self, stop: Stop) -> str:
        if stop.count is not None and self._stream.account.alerts >= stop.count:
            return "count"
        if stop.seconds is not None and self._clock.monotonic() - self._began >= stop.seconds:
            return "seconds"
        return ""

    def _send(self, stop: Stop) -> None:
        count = self._schedule.take()
        if stop.count is not None:
            count = min(count, stop.count - self._stream.account.alerts)
        while count > 0:
            now = min(count, self._chunk)
            keys, values = self._stream.take(now, round(self._clock.now() * 1e6))
            self._outlet.send_many(self._stream.topic, keys, values)
            count -= now


def read_alert_report(path: Path) -> AlertReport:
    """Read what `facade.simulate.sender.write_report` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=AlertReport)
