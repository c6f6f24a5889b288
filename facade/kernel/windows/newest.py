"""The newest windows of many groups: their frames, and the window that is shown.

Windows are kept as the frames that came, and merged when somebody looks at a window that is closed. Workers write by
which time a window is closed (`read_to`, see `facade.flows.telemetry.watermarks`); it may differ from group to group.
A straggler still corrects a window that is kept; the window is then *torn*.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from facade.kernel.clock import NEVER, Duration, Time
from facade.kernel.windows import KEPT_WINDOWS, MOST_WINDOWS
from facade.kernel.windows.frame import Array, Frame, distinct, merge

__all__ = ["Rule", "ShownWindow", "Windows"]

Times = TypeVar("Times", Time, Array)


@dataclass(frozen=True, slots=True)
class Rule:
    """When the windows of a topic begin, and when they are closed."""

    length_us: Duration
    disorder_us: Duration
    """Time between the end of a window and its closing."""
    ahead_us: Duration
    """How far ahead of the brokers' clock the time of a record may be."""

    @property
    def most(self) -> int:
        """Return the largest number of windows kept."""
        return KEPT_WINDOWS + MOST_WINDOWS + math.ceil(self.ahead_us / self.length_us)

    def closed_at(self, window: Times) -> Times:
        """Return the watermark that closes the window with a begin, or those of several."""
        return window + self.length_us + self.disorder_us

    def newest_close(self, time: Time) -> Time:
        """Return the newest watermark up to a time that closes a window."""
        return time - (time - self.disorder_us) % self.length_us


@dataclass(frozen=True, slots=True)
class ShownWindow:
    """The rows of a closed window that are shown: one for each of some groups, in their order."""

    window: Time
    """Begin."""
    rows: Frame
    is_torn: Array
    """Whether a row lacks late records, or may lack some; bool of shape (rows,)."""


class Windows:
    """The newest windows of some groups.

    Parameters
    ----------
    groups
        Number of groups; the frames have their numbers from 0.
    rebuilt
        Whether the first records of a group may begin in the middle of a window, which is then not shown.
    """

    def __init__(self, rule: Rule, groups: int, *, rebuilt: bool = False) -> None:
        self._rule = rule
        self._parts: dict[Time, list[Frame]] = {}
        self._torn: dict[Time, Array] = {}
        """Numbers of groups with stragglers, by window."""
        self.torn_before = NEVER
        """Windows that begin before this time may lack records."""
        self._since = np.full(groups, -1 if rebuilt else 0, dtype=np.int64)
        """Windows of a group that begin before this time are neither shown nor kept [Unix us]; -1: the next record
        decides."""

    def __iter__(self) -> Iterator[Time]:
        return iter(sorted(self._parts))

    def add(self, rows: Frame, read_to: Array, heard_us: Time) -> bool:
        """Add the rows that came in time; return whether a closed window, or the set of kept ones, has changed.

        Parameters
        ----------
        read_to
            Watermark of each group [Unix us], of shape (groups,).
        heard_us
            Time of the summary.
        """
        kept = ~rows.late & (rows.count > 0)
        since = self._since[rows.group]
        if (new := kept & (since < 0)).any():
            # Earlier records were written before, with older data times: a clock that is ahead is always ahead.
            # In reverse, so that the first row of a group decides.
            chosen = np.flatnonzero(new)[::-1]
            self._since[rows.group[chosen]] = np.maximum(rows.time_max[chosen], heard_us)
            since = self._since[rows.group]
        kept &= rows.window >= since
        if not kept.any():
            return False
        rows = (rows if kept.all() else rows.take(kept)).without_runs()
        windows, has_changed = [*map(Time, distinct(rows.window))], False
        for window in windows:
            mine = rows if len(windows) == 1 else rows.take(rows.window == window)
            is_new = window not in self._parts
            self._parts.setdefault(window, []).append(mine)
            late = mine.group[read_to[mine.group] >= self._rule.closed_at(window)]
            if len(late):
                self._torn[window] = np.union1d(self._torn.get(window, late), late)
            has_changed |= (is_new and self._drop(Time(read_to.min()))) or bool(len(late))
        return has_changed

    def tear(self, before: Time) -> None:
        """Note that windows before a time may lack records."""
        self.torn_before = max(self.torn_before, before)

    def torn(self) -> Iterator[tuple[Time, int]]:
        """Return the windows with stragglers, each with the number of a group that has them."""
        return ((window, group) for window, groups in self._torn.items() for group in groups.tolist())

    def whole(self, window: Time) -> Frame:
        """Return a window that is kept, with one row for each group."""
        parts = self._parts[window]
        if len(parts) > 1 or not np.all(np.diff(parts[0].group) > 0):
            parts[:] = [merge(parts, epochs=False)]
        return parts[0]

    def shown(self, read_to: Array) -> Sequence[ShownWindow]:
        """Return the newest closed window of each group that has one; `read_to` as of `add`."""
        groups = len(self._since)
        assert len(read_to) == groups, f"expected a watermark for each of {groups} groups, got {len(read_to)}"
        found, limit = list[ShownWindow](), read_to - self._rule.closed_at(NEVER)
        newest, is_open = Time(limit.max()), np.ones(len(read_to), dtype=np.bool_)
        for window in sorted(self._parts, reverse=True):
            if window > newest:
                continue
            rows = self.whole(window)
            chosen = is_open[rows.group] & (window <= limit[rows.group])
            if chosen.any():
                rows = rows if chosen.all() else rows.take(chosen)
                is_open[rows.group] = False
                assert np.all(rows.group[1:] > rows.group[:-1]), "a shown window must have one row for each group"
                is_closed = read_to[rows.group] >= self._rule.closed_at(window)
                assert is_closed.all(), f"the window {window} is shown before its closing, {read_to[rows.group].min()}"
                is_torn = np.isin(rows.group, self._torn.get(window, ())) | (window < self.torn_before)
                found.append(ShownWindow(window, rows, is_torn))
        return found

    def restore(self, frames: Sequence[Frame], torn: Iterable[tuple[Time, int]]) -> None:
        """Restore the windows from a snapshot, each frame of one window; `torn` as it was returned."""
        self._parts, self._torn = {}, {}
        for one in frames:
            self._parts.setdefault(Time(one.window[0]), []).append(one)
        for window, group in torn:
            self._torn[window] = np.append(self._torn.get(window, np.zeros(0, dtype=np.int64)), group)

    def _drop(self, read_to: Time) -> bool:
        kept = sorted(self._parts)
        closed = sum(self._rule.closed_at(window) <= read_to for window in kept)
        dropped = kept[: max(closed - KEPT_WINDOWS, len(kept) - self._rule.most, 0)]
        for window in dropped:
            for part in self._parts.pop(window):
                np.maximum.at(self._since, part.group, window + self._rule.length_us)
            self._torn.pop(window, None)
        return bool(dropped)
