"""The time of a report, and its division into slots for plots and tables."""

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property

from facade.durations import parse_time
from facade.errors import ConfigError

MICRO = 1_000_000
_MINUTE_US = 60 * MICRO
_DAY = 1440
_WIDTHS = (1, 2, 5, 10, 20, 30, 60, 120, 180, 360, 720, _DAY)
"""Lengths of slots [min]."""
_MOST_SLOTS = 24
_LONGEST = 366 * 86_400
"""Longest time of a report [s]: figures of each 10 minutes of it are in memory."""


@dataclass(frozen=True)
class Night:
    """The time [begin, end) of a report, by Kafka's time [Unix us]."""

    begin_us: int
    end_us: int

    @cached_property
    def slot_us(self) -> int:
        """Return the length of a slot; the last one may be shorter."""
        least = (self.end_us - self.begin_us) / _MOST_SLOTS / _MINUTE_US
        return next((one for one in _WIDTHS if one >= least), math.ceil(least / _DAY) * _DAY) * _MINUTE_US

    @property
    def seconds(self) -> float:
        """Return the length [s]."""
        return (self.end_us - self.begin_us) / MICRO

    @cached_property
    def slots(self) -> list[int]:
        """Return the begin of each slot."""
        return [*range(self.begin_us, self.end_us, self.slot_us)]

    def slot(self, at_us: int) -> int:
        """Return the number of the slot of a time; a time outside belongs to the first or the last slot."""
        return (min(max(at_us, self.begin_us), self.end_us - 1) - self.begin_us) // self.slot_us

    def slot_seconds(self, slot: int) -> float:
        """Return the length of a slot [s]."""
        return (min(self.slots[slot] + self.slot_us, self.end_us) - self.slots[slot]) / MICRO


def choose_night(night: str | None, begin: str | None, end: str | None) -> Night:
    """Return the time given by the options of a command line."""
    if (night is None) == (begin is None and end is None) or (begin is None) != (end is None):
        raise ConfigError("expected either --night, or --from and --to")
    if night is not None:
        try:
            evening = date.fromisoformat(night)
            days = evening, evening + timedelta(days=1)
            return Night(*(parse_time(f"{day}T12:00", "--night") for day in days))
        except (ValueError, OverflowError, ConfigError) as error:
            raise ConfigError(f"--night: expected a date such as 2026-11-21, got {night!r:.100}") from error
    found = Night(parse_time(begin or "", "--from"), parse_time(end or "", "--to"))
    if found.begin_us >= found.end_us:
        raise ConfigError(f"--to: expected a time after {utc(found.begin_us)}, got {utc(found.end_us)}")
    if found.seconds > _LONGEST:
        raise ConfigError(f"--from, --to: expected at most a year, got {found.seconds / 86_400:,.0f} days")
    return found


def utc(at_us: int, *, fraction: int = 0) -> str:
    """Return a time as text, with some digits of the second's fraction."""
    part = f".{at_us % MICRO:06d}"[: fraction + 1] if fraction else ""
    return f"{datetime.fromtimestamp(at_us // MICRO, UTC):%Y-%m-%d %H:%M:%S}{part} UTC"
