"""Reports of a worker about itself, as states of its device on the bus.

A value that goes stale is written with each report, any other one when it has changed and now and then. `state` is
compacted after days only, and everybody reads all of it at a start: so reports are rare, and most of them short.
"""

from collections import deque
from collections.abc import Callable

from facade.bus.port import Record
from facade.clock import Clock
from facade.flows.archive.alarms import ArchiveAlarms, ArchiveFigures
from facade.runtime.device_state import StateMessage, state_record

REPORT_EACH = 10.0
"""Time between two reports [s]."""
_STEADY_EACH = 600.0
"""Time after which a value that has not changed is written again, as a record may have got lost [s]."""
_BURSTS = 2.0
"""Longest waits in memory that a rate is the mean of, as files come in bursts."""


class ArchiveReporter:
    """Writes the reports of one worker.

    Parameters
    ----------
    device
        Name of the device that shows them.
    origin
        Name of the worker.
    send
        Queues a record, and never waits.
    age
        Longest time that a record waits in memory [s].
    """

    def __init__(
        self,
        device: str,
        origin: str,
        send: Callable[[Record], None],
        alarms: ArchiveAlarms,
        clock: Clock,
        *,
        age: float,
    ) -> None:
        self._alarms = alarms
        self._device, self._origin, self._send, self._clock = device, origin, send, clock
        self._told: dict[str, tuple[str, float]] = {}
        """What was written of each attribute, and when [monotonic s]."""
        self._rate_over = max(_BURSTS * age, 6 * REPORT_EACH)
        self._written = deque[tuple[float, int]]()
        """Bytes in files, by the time of a report [monotonic s]."""

    def tell(self, figures: ArchiveFigures) -> None:
        """Report, and raise or clear alarms."""
        rate = self._rate(figures.written)
        texts = {"newestFile": figures.newest, "lastError": figures.last_error}
        numbers = {"behind": figures.behind, "writeRate": rate}
        if figures.space is not None:
            numbers["diskFree"] = figures.space[0]
        for name, number in numbers.items():
            if number is not None:
                self._write(name, str(round(number)), 0.0)
        for name, text in {**texts, "errors": str(figures.errors)}.items():
            if text:
                self._write(name, text, _STEADY_EACH)
        self._alarms.tell(figures, rate)

    def _rate(self, written: int) -> float:
        now = self._clock.monotonic()
        self._written.append((now, written))
        while now - self._written[0][0] > self._rate_over:
            self._written.popleft()
        since, before = self._written[0]
        return (written - before) / (now - since) if now > since else 0.0

    def _write(self, name: str, value: str, each: float) -> None:
        now = self._clock.monotonic()
        before, at = self._told.get(name, ("", now))
        if value == before and now - at < each:
            return
        self._told[name] = value, now
        time = round(self._clock.now() * 1e6)
        message = StateMessage(device=self._device, attribute=name, value=value, time=time, origin=self._origin)
        self._send(state_record(message))
