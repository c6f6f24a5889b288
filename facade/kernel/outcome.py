"""Outcomes of consumed records: each record ends as exactly one of these values."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Used:
    """The record is part of the shown values; `USED` is the only instance."""


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A legal record that was left out on purpose."""

    reason: str
    """A word for counts, such as ``tombstone``."""


@dataclass(frozen=True, slots=True)
class RecordRejected:
    """A record that could not be used, and becomes a dead letter."""

    reason: str
    """A word for counts, such as ``schema``."""
    path: str
    """Path in the document, such as ``$.latency``; ``headers.NAME`` for a header."""
    detail: str
    """Expected and present value, in a short text."""

    def __str__(self) -> str:
        """Return one line with all fields."""
        return f"{self.reason}: {self.path}: {self.detail}"


INCONSISTENT: Final = "inconsistent"
"""Reason of a readable record that contradicts itself; every reader of its topic judges it alike."""
USED: Final = Used()
TOMBSTONE: Final = Suppressed("tombstone")
"""A record without a value: legal; it removes the object of its key, if there is one."""
LATE: Final = Suppressed("late")
"""A record whose data time is older than its stream tolerates."""

Unused = Suppressed | RecordRejected
Outcome = Used | Suppressed | RecordRejected
