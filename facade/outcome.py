"""What became of a record that was taken: each one ends as exactly one of these values."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Used:
    """The record is part of the shown values; `USED` is the one value."""


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A legal record that was left out on purpose."""

    reason: str
    """A word that can be counted, such as ``tombstone``."""


@dataclass(frozen=True, slots=True)
class RecordRejected:
    """A record that could not be used, and becomes a dead letter."""

    reason: str
    """A word that can be counted, such as ``schema``."""
    path: str
    """Where in the document, such as ``$.latency``; ``headers.NAME`` for a header."""
    detail: str
    """What was expected and got, in words; short, whatever the record holds."""

    def __str__(self) -> str:
        """Return all of it in one line."""
        return f"{self.reason}: {self.path}: {self.detail}"


INCONSISTENT: Final = "inconsistent"
"""Reason of a record that can be read and contradicts itself, which every reader of its topic judges alike."""
USED: Final = Used()
TOMBSTONE: Final = Suppressed("tombstone")
"""A record without a value: legal, and says nothing, or that what its key names is no more."""
LATE: Final = Suppressed("late")
"""A record whose data time is older than its stream tolerates."""

Unused = Suppressed | RecordRejected
Outcome = Used | Suppressed | RecordRejected
