"""Reports of an archive worker: states of its device on the bus, and alarms.

A value that can go stale is written with each report, any other value after a change and at long intervals. Their topic
is compacted only after days, and the device server reads all of it at a start: so reports are rare, and most of them
short. ``conditions.toml`` has the delays, causes and responses of the alarms.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from facade.kernel.bus.port import Record
from facade.kernel.clock import Clock, as_duration
from facade.kernel.errors import BusError
from facade.kernel.icd.model import Condition
from facade.kernel.recent import MeanRate
from facade.kernel.runtime.flow import Alerts
from facade.kernel.severities import WARNING
from facade.sdp.device_state import StateMessage, state_record

_log = logging.getLogger(__name__)

REPORTS = "archive-reports"
"""Topic of the reports: only archive workers write there."""
REPORT_EACH = 10.0
"""Time between two reports [s]."""
_STEADY_EACH = 600.0
"""Time after which an unchanged value is written again, as a record may be lost [s]."""
_BURSTS = 2.0
"""Period of the mean rate, in longest waits in memory, as files come in bursts."""
BEHIND, DISK_LOW, FAILING = "archiveBehind", "archiveDiskLow", "archiveFailing"
"""Conditions of the ICD."""
_LATE, _SLACK = 2.0, 60.0
"""A record may wait this multiple of the longest wait in memory, and this time in addition [s]."""
_LOW, _ENOUGH = 0.10, 0.12
"""Free part of the disk at which the alarm is raised, and at which it is cleared."""


class ArchiveFigures(NamedTuple):
    """State of a worker."""

    behind: float | None
    """Age of the oldest record that may be read and is in no file yet [s]; None: unknown."""
    written: int
    """Bytes in files since the start."""
    newest: str
    """Name of the last file; empty: none since the start."""
    errors: int
    """Failures of the bus or the store since the start."""
    last_error: str
    failing: str
    """Reason of the last failure of what has not succeeded since; empty: all goes well."""
    space: tuple[int, int] | None
    """Free space of the disk, and its size [bytes]; None: unknown, or the archive is not a folder."""


class ArchiveAlarms:
    """Raises and clears the alarms of one worker.

    At a start it also clears alarms that are not active: an earlier run may have raised them.
    """

    def __init__(self, alerts: Alerts, conditions: Mapping[str, Condition], *, age: float) -> None:
        self._alerts, self._limit = alerts, _LATE * age + _SLACK
        self._severities = {name: conditions[name].severity or WARNING for name in (FAILING, BEHIND, DISK_LOW)}
        self._told: dict[str, bool] = {}
        """Whether each condition is active, according to the bus's confirmations."""

    def tell(self, figures: ArchiveFigures, rate: float) -> None:
        """Report changes; `rate`: bytes written per second. Unconfirmed reports are repeated."""
        try:
            for condition, is_active, text in self._judge(figures, rate):
                if is_active is not self._told.get(condition):
                    if is_active:
                        self._alerts.raise_alert(condition, self._severities[condition], text)
                    else:
                        self._alerts.clear(condition, text)
                    self._told[condition] = is_active
        except BusError as error:
            _log.warning("archive alarm not told yet reason=%s", error)

    def _judge(self, figures: ArchiveFigures, rate: float) -> Iterator[tuple[str, bool, str]]:
        yield FAILING, bool(figures.failing), figures.failing or "the archive is written"
        if figures.behind is not None:
            is_late = figures.behind > self._limit
            text = f"the oldest record that is in no file is of {figures.behind:.0f} s ago"
            yield BEHIND, is_late, f"{text}; expected at most {self._limit:.0f} s" if is_late else text
        if figures.space is not None:
            free, size = figures.space
            least = _ENOUGH if self._told.get(DISK_LOW) else _LOW
            is_low = free < least * size
            text = f"{free / size:.1%} of the disk is free: {free / 1e9:.1f} GB"
            if rate >= 1:
                text += f", enough for {free / rate / 3600:.1f} h at {rate / 1e6:.3f} MB/s"
            yield DISK_LOW, is_low, f"{text}; expected at least {least:.0%}" if is_low else text


class ArchiveReporter:
    """Writes the reports of one worker."""

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
        """Last written value of each attribute, and its time [monotonic s]."""
        self._rate = MeanRate(as_duration(max(_BURSTS * age, 6 * REPORT_EACH)))

    def tell(self, figures: ArchiveFigures) -> None:
        """Report, and raise or clear alarms."""
        rate = self._rate.note(figures.written, self._clock.now_us())
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

    def _write(self, name: str, value: str, each: float) -> None:
        now = self._clock.monotonic()
        before, at = self._told.get(name, ("", now))
        if value == before and now - at < each:
            return
        self._told[name] = value, now
        time = self._clock.now_us()
        message = StateMessage(device=self._device, attribute=name, value=value, time=time, origin=self._origin)
        self._send(state_record(message, REPORTS))
