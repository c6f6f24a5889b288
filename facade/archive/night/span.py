"""The time of a report, and its division into slots for plots and tables."""

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property

from facade.kernel.clock import DAY, MINUTE, SECOND, Duration, Time, as_seconds
from facade.kernel.errors import ConfigError
from facade.sdp.durations import parse_time

_DAY = 1440
_WIDTHS = (1, 2, 5, 10, 20, 30, 60, 120, 180, 360, 720, _DAY)
"""Lengths of slots [min]."""
_MOST_SLOTS = 24
_LONGEST = 366 * DAY
"""Longest time of a report: figures of each 10 minutes of it are in memory."""


@dataclass(frozen=True)
class Night:
    """The time [begin, end) of a report, by Kafka's time."""

    begin_us: Time
    end_us: Time
    block: str = ""
    """Id of the execution block whose time it is; empty: of none."""

    @cached_property
    def slot_us(self) -> Duration:
        """Return the length of a slot; the last one may be shorter."""
        least = (self.end_us - self.begin_us) / MINUTE / _MOST_SLOTS
        return next((one for one in _WIDTHS if one >= least), math.ceil(least / _DAY) * _DAY) * MINUTE

    @property
    def seconds(self) -> float:
        """Return the length [s]."""
        return as_seconds(self.end_us - self.begin_us)

    @cached_property
    def slots(self) -> list[Time]:
        """Return the begin of each slot."""
        return [*map(Time, range(int(self.begin_us), int(self.end_us), int(self.slot_us)))]

    def slot(self, at_us: Time) -> int:
        """Return the number of the slot of a time; a time outside belongs to the first or the last slot."""
        return (min(max(at_us, self.begin_us), self.end_us - Duration(1)) - self.begin_us) // self.slot_us

    def slot_seconds(self, slot: int) -> float:
        """Return the length of a slot [s]."""
        return as_seconds(min(self.slots[slot] + self.slot_us, self.end_us) - self.slots[slot])


def choose_night(night: str | None, begin: str | None, end: str | None) -> Night:
    """Return the time given by the options of a command line."""
    if (night is None) == (begin is None and end is None) or (begin is None) != (end is None):
        raise ConfigError("expected either --night, or --from and --to")
    if night is not None:
        try:
            evening = date.fromisoformat(night)
            days = evening, evening + timedelta(days=1)
            first, last = (parse_time(f"{day}T12:00", "--night") for day in days)
            return Night(first, last)
        except (ValueError, OverflowError, ConfigError) as error:
            raise ConfigError(f"--night: expected a date such as 2026-11-21, got {night!r:.100}") from error
    found = Night(parse_time(begin or "", "--from"), parse_time(end or "", "--to"))
    if found.begin_us >= found.end_us:
        raise ConfigError(f"--to: expected a time after {utc(found.begin_us)}, got {utc(found.end_us)}")
    if found.end_us - found.begin_us > _LONGEST:
        raise ConfigError(f"--from, --to: expected at most a year, got {found.seconds / 86_400:,.0f} days")
    return found


def utc(at_us: Time, *, fraction: int = 0) -> str:
    """Return a time as text, with some digits of the second's fraction."""
    part = f".{int(at_us % SECOND):06d}"[: fraction + 1] if fraction else ""
    return f"{datetime.fromtimestamp(at_us // SECOND, UTC):%Y-%m-%d %H:%M:%S}{part} UTC"
