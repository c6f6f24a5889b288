"""The frame of simulators: a stream is sent at its pace until it is time to stop, and a report says what was sent.

Delivery: idempotent, to all in-sync replicas. Nothing is ever dropped for a full queue: with the
broker away the stream stands still, and moves on when the broker is back. When the run is over
everything is flushed, so that the report holds what the broker has confirmed.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from facade.clock import Clock

PATIENCE = 600.0
"""How long a record is tried to be delivered [s]."""
_GRACE = 8.0
"""Longest flush after a signal [s]; process supervisors commonly kill after ten."""

ReportT = TypeVar("ReportT", bound=msgspec.Struct)


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

    count: int | None = None
    """After so many of what the stream consists of: heaps, alerts."""
    seconds: float | None = None


class StreamSender(ABC, Generic[ReportT]):
    """Sends one stream.

    Parameters
    ----------
    topic_name
        The topic's name on the brokers, for the report.
    most_waiting
        With so many records unconfirmed the stream waits.
    each_second
        Called with the state of affairs while running, and with the final report.
    last_error
        Asked for what went wrong last.
    """

    def __init__(
        self,
        outlet: Outlet,
        *,
        clock: Clock,
        topic_name: str,
        most_waiting: int,
        each_second: Callable[[ReportT], None],
        last_error: Callable[[], str],
    ) -> None:
        self._outlet, self._clock = outlet, clock
        self._topic_name, self._most_waiting = topic_name, most_waiting
        self._each_second, self._last_error = each_second, last_error
        self._signals = 0
        self._ended: float | None = None
        self._restart()

    def stop(self) -> None:
        """Stop sending soon and flush; called twice, do not wait for the flush. Safe in a signal handler."""
        self._signals += 1

    def run(self, stop: Stop) -> ReportT:
        """Send until it is time to stop, flush, and give the final report."""
        self._restart()
        while not (stopped_by := "signal" if self._signals else self._stopped_by(stop)):
            if self._outlet.backlog >= self._most_waiting:
                self._outlet.poll(0.01)
            else:
                self._send(stop)
            self._look_after()
        self._ended = self._clock.monotonic()
        self._flush()
        report = self.report(stopped_by=stopped_by, finished=True)
        self._each_second(report)
        return report

    @abstractmethod
    def report(self, *, stopped_by: str = "", finished: bool = False) -> ReportT:
        """Say how things are."""

    @abstractmethod
    def _stopped_by(self, stop: Stop) -> str:
        """Tell why it is time to stop: ``count`` or ``seconds``; empty: it is not."""

    @abstractmethod
    def _send(self, stop: Stop) -> None:
        """Wait a little for what is due, and send it."""

    @property
    def _elapsed(self) -> float:
        """Time since the beginning, without the last flush [s]."""
        return (self._ended or self._clock.monotonic()) - self._began

    def _restart(self) -> None:
        self._began, self._began_wall = self._clock.monotonic(), self._clock.now()
        self._next_report = self._began + 1

    def _look_after(self) -> None:
        self._outlet.poll(0)
        now = self._clock.monotonic()
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


def write_report(report: msgspec.Struct, path: Path) -> None:
    """Write the report so that a reader, or a crash, never meets half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    beside.replace(path)
