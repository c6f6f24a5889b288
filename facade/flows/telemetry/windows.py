"""The newest windows of a group, or over all groups: which are closed, and which one is shown.

A window is closed when the watermark has passed it; see `facade.flows.telemetry.watermarks`. The newest closed one is
shown. A straggler still corrects a window that is kept, and then it says that it was torn.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

from facade.flows.telemetry.partial import Group, copy_partial, merge
from facade.flows.telemetry.plan import Plan
from facade.flows.telemetry.watermarks import closed_at
from facade.messages import Partial

KEPT_WINDOWS = 3
"""Closed windows that are kept: the one shown, and others for stragglers."""
_MOST = 8
"""Most windows that are kept while a worker stands still, beside those whose records may come early."""


class HeapWindow(NamedTuple):
    """A window that is closed."""

    partial: Partial
    groups: frozenset[Group]
    """Which are in it, if that is asked."""
    is_torn: bool
    """Whether records of it came when it was closed."""


class Windows:
    """The newest windows of a group, or over all groups.

    Parameters
    ----------
    rebuilt
        Whether they are made from records that may begin in the middle of a window.
    """

    __slots__ = ("_groups", "_plan", "_since", "_torn", "_torn_before", "_windows")

    def __init__(self, plan: Plan, *, rebuilt: bool = False) -> None:
        self._plan = plan
        self._windows: dict[int, Partial] = {}
        self._groups: dict[int, set[Group]] = {}
        self._torn: set[int] = set()
        self._torn_before = 0
        """Windows that begin before this time may lack records [Unix us]."""
        self._since = -1 if rebuilt else 0
        """Windows that begin before this time are not shown, and no longer kept [Unix us]; -1: the next record says."""

    def add(self, partial: Partial, read_to: int, heard_us: int, groups: Collection[Group] = ()) -> None:
        """Put a partial into its window.

        Parameters
        ----------
        read_to
            Up to which time its partitions are read [Unix us].
        heard_us
            When a worker wrote it [Unix us].
        groups
            What it is about.
        """
        if partial.late or partial.count == 0:
            return
        window = partial.window
        if self._since < 0:
            # What came before was written before, with data times that were no newer: a clock that is ahead is always.
            self._since = max(partial.time_max, heard_us)
        if window < self._since:
            return
        mine = self._windows.get(window)
        if mine is None:
            self._windows[window] = copy_partial(partial)
            self._drop(read_to)
        else:
            merge(mine, partial)
        if groups:
            self._groups.setdefault(window, set()).update(groups)
        if closed_at(self._plan, window) <= read_to:
            self._torn.add(window)

    def tear(self, before: int) -> None:
        """Note that windows before a time [Unix us] may lack records: a log was cut, or summaries are lost."""
        self._torn_before = max(self._torn_before, before)

    def shown(self, read_to: int) -> HeapWindow | None:
        """Return the newest closed window, if any; parameters as of `add`."""
        limit = read_to - closed_at(self._plan, 0)
        window = max((one for one in self._windows if one <= limit), default=None)
        if window is None:
            return None
        is_torn = window in self._torn or window < self._torn_before
        return HeapWindow(self._windows[window], frozenset(self._groups.get(window, ())), is_torn)

    def as_list(self) -> list[tuple[Partial, list[Group]]]:
        """Return the windows, and the groups in each, for a snapshot."""
        return [(partial, list(self._groups.get(window, ()))) for window, partial in self._windows.items()]

    def restore(self, windows: Collection[tuple[Partial, Collection[Group]]], since: int) -> None:
        """Take the windows from a snapshot; those that begin before some time are not all there [Unix us]."""
        self._windows = {partial.window: partial for partial, _ in windows}
        self._groups = {partial.window: set(groups) for partial, groups in windows if groups}
        self._since = since

    def _drop(self, read_to: int) -> None:
        """Keep few: what comes for a window that was dropped must not begin it anew."""
        rule, limit = self._plan.window, read_to - closed_at(self._plan, 0)
        kept = sorted(self._windows)
        closed = sum(one <= limit for one in kept)
        most = KEPT_WINDOWS + _MOST + math.ceil(rule.ahead / rule.length)
        for window in kept[: max(closed - KEPT_WINDOWS, len(kept) - most, 0)]:
            self._since = window + self._plan.length_us
            del self._windows[window]
            self._groups.pop(window, None)
            self._torn.discard(window)
