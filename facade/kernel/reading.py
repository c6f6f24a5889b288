"""A value never travels alone: it has a time and a quality."""

import enum

import msgspec

from facade.kernel.clock import Time
from facade.kernel.icd.topic_model import Limits

Image = tuple[tuple[float, ...], ...]
"""Rows of numbers, all of the same length."""

Value = bool | int | float | str | tuple[str, ...] | tuple[int, ...] | tuple[float, ...] | Image


class Quality(enum.Enum):
    """Whether a value may be used; names are those of Tango's AttrQuality."""

    VALID = "VALID"
    WARNING = "WARNING"
    ALARM = "ALARM"
    INVALID = "INVALID"


QUALITIES = tuple(Quality)
"""By the numbers that stand for them in arrays; the larger one counts where there are two."""


class Reading(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The reading of an attribute: value, time of the data, and quality.

    A server makes ten thousand of them a second: a struct is made in an eighth of the time of a frozen dataclass.
    """

    value: Value
    time: Time
    """Time of the data, not of arrival."""
    quality: Quality = Quality.VALID

    def invalid(self) -> "Reading":
        """Return the same value with the quality INVALID."""
        return Reading(self.value, self.time, Quality.INVALID)


class Changes:
    """Readings of values without a time of their own: each has the time at which it was first found."""

    def __init__(self) -> None:
        self.shown: dict[str, Reading] = {}
        """By name."""

    def reading(self, name: str, value: Value, now: Time, quality: Quality = Quality.VALID) -> Reading:
        """Return the reading of a value found at a time."""
        before = self.shown.get(name)
        # NaN is not equal to itself.
        same = before is not None and (before.value is value or before.value == value)
        if before is None or not same or before.quality is not quality:
            self.shown[name] = Reading(value, before.time if before is not None and same else now, quality)
        return self.shown[name]


def judge(value: Value, limits: Limits | None) -> Quality:
    """Compare a number with its limits, as Tango does: reaching a limit counts.

    Values that are not single numbers have no limits and are VALID.
    """
    if limits is None or isinstance(value, str | tuple):
        return Quality.VALID
    if _reaches(value, limits.min_alarm, limits.max_alarm):
        return Quality.ALARM
    if _reaches(value, limits.min_warning, limits.max_warning):
        return Quality.WARNING
    return Quality.VALID


def _reaches(value: float, low: float | None, high: float | None) -> bool:
    return (low is not None and value <= low) or (high is not None and value >= high)
