"""The newest windows of a group, and over all groups: when a window is closed, and which one is shown.

Policies:

* **Closing.** A group's window is closed when the group has spoken of a later one. When it falls
  silent, the newest window is shown once nothing came for the window's length plus the hold time;
  or earlier, when the clock on the wall says that whatever still came would be late.
  A straggler still corrects a window that is kept; a window that was closed so stays closed.
* **All groups.** The window shown is the newest one that at least half of the live groups are in and
  have left behind, so that one group with a wrong clock cannot drag it; it is shown when all of
  them have left it, or after the hold time. The first one of a stream is not shown while the
  stream goes on: which groups will be in it is not known before the next.
"""

from collections.abc import Mapping, Sequence

import msgspec

from facade.flows.telemetry.partial import Group, copy_partial, merge
from facade.flows.telemetry.plan import MICRO, Plan
from facade.messages import Partial

KEPT_WINDOWS = 3
"""Windows kept per group: the one shown, the open one, and one for a straggler."""


class AllGroupsState(msgspec.Struct):
    """Windows over all groups in a snapshot."""

    windows: list[tuple[Partial, list[Group]]] = []
    newest: list[tuple[Group, int]] = []


def is_over(plan: Plan, window: int, now: float, silence: float) -> bool:
    """Return whether nothing more is expected for the newest window.

    Parameters
    ----------
    window
        Its start [Unix us].
    now
        Wall-clock time [Unix s].
    silence
        Time since anything was heard [s].
    """
    rule = plan.window
    if silence >= rule.length + rule.hold:
        return True
    latest = window / MICRO + rule.length + rule.lateness + rule.hold
    return now >= latest and silence >= min(rule.length, rule.lateness) + rule.hold


class GroupWindows:
    """The newest windows of one group.

    Parameters
    ----------
    rebuilt
        Whether they are made from records that may begin in the middle of a window.
    """

    __slots__ = ("_first", "_over", "_plan", "_rebuilt", "_windows", "heard")

    def __init__(self, plan: Plan, *, rebuilt: bool) -> None:
        self._plan = plan
        self._windows: dict[int, Partial] = {}
        self._rebuilt = rebuilt
        self._first: int | None = None
        self._over: int | None = None
        """The window that was last closed by silence."""
        self.heard = 0.0
        """When a worker last wrote about the group [Unix s]."""

    def add(self, partial: Partial, heard: float) -> None:
        """Put a partial into its window."""
        self.heard = max(self.heard, heard)
        if partial.late or partial.count == 0:
            return
        if self._first is None:
            self._first = partial.window
        mine = self._windows.get(partial.window)
        if mine is None:
            self._windows[partial.window] = copy_partial(partial)
            while len(self._windows) > KEPT_WINDOWS:
                del self._windows[min(self._windows)]
        else:
            merge(mine, partial)

    def shown(self, now: float) -> Partial | None:
        """Return the newest closed window, if any.

        Parameters
        ----------
        now
            Wall-clock time [Unix s]; it only says whether the group has fallen silent.
        """
        newest = max(self._windows, default=None)
        if newest is None:
            return None
        # After a silence, what was shown before it is not shown again as if it were new.
        recent = newest - KEPT_WINDOWS * self._plan.length_us
        if newest == self._over or is_over(self._plan, newest, now, now - self.heard):
            closed: int | None = newest
            self._over = newest
        else:
            closed = max((one for one in self._windows if recent <= one < newest), default=None)
        if closed is None or (self._rebuilt and closed == self._first):
            return None  # rebuilding began in the middle of this window
        return self._windows[closed]

    def as_list(self) -> list[Partial]:
        """Return the windows for a snapshot."""
        return list(self._windows.values())


class AllGroupsWindows:
    """The newest windows over all groups, with the groups that are in each; `rebuilt` as for `GroupWindows`."""

    def __init__(self, plan: Plan, *, rebuilt: bool) -> None:
        self._plan = plan
        self._windows: dict[int, tuple[Partial, set[Group]]] = {}
        self._newest: dict[Group, int] = {}
        self._heard: dict[Group, float] = {}
        self._left_at: dict[int, float] = {}
        self._rebuilt = rebuilt
        self._first: int | None = None
        self._over: int | None = None
        """The window that was last closed by silence."""

    def add(self, group: Group, partial: Partial, heard: float) -> None:
        """Put a partial of a group into its window."""
        self.hear(group, heard)
        if not partial.late and partial.count:
            self.join([group], partial)

    def hear(self, group: Group, heard: float) -> None:
        """Note when a worker wrote about a group [Unix s]."""
        self._heard[group] = max(self._heard.get(group, 0.0), heard)

    def join(self, groups: Sequence[Group], partial: Partial) -> None:
        """Put into its window what several groups amount to, none of it late."""
        window = partial.window
        if self._first is None:
            self._first = window
        for group in groups:
            self._newest[group] = max(self._newest.get(group, 0), window)
        mine = self._windows.get(window)
        if mine is None:
            self._windows[window] = (copy_partial(partial), set(groups))
            while len(self._windows) > KEPT_WINDOWS * 4:  # more than per group: clocks differ
                del self._windows[min(self._windows)]
        else:
            merge(mine[0], partial)
            mine[1].update(groups)

    def live(self, now: float, within: float) -> set[Group]:
        """Return the groups that were heard of within the last `within` [s]."""
        return {group for group, heard in self._heard.items() if now - heard <= within}

    def shown(self, now: float, within: float) -> tuple[Partial, frozenset[Group]] | None:
        """Return the window to show and the groups in it, if any.

        Parameters
        ----------
        now
            Wall-clock time [Unix s].
        within
            A group that was silent for longer [s] is not waited for, unless a window could not be over by then.
        """
        within = max(within, self._plan.window.length + self._plan.window.hold)
        newest = sorted(self._newest[group] for group in self.live(now, within) if group in self._newest)
        if not newest:
            return self._get(max(self._windows, default=None))
        middle = newest[(len(newest) - 1) // 2]
        if middle == self._over or is_over(self._plan, middle, now, now - max(self._heard.values())):
            self._over = middle
            return self._get(middle)
        reach = round(within * MICRO)  # what was before a silence is not shown again as if it were new
        for window in sorted((w for w in self._windows if middle - reach <= w < middle), reverse=True):
            if 2 * len(self._windows[window][1]) < len(newest):
                continue  # only groups with wrong clocks are in it
            if not any(window - reach <= before < window for before in self._windows):
                return None  # groups that nobody has heard of yet may be in it, and no earlier one is within reach
            left_at = self._left_at.setdefault(window, now)
            if newest[0] > window or now - left_at >= self._plan.window.hold:
                self._left_at = {w: t for w, t in self._left_at.items() if w in self._windows}
                return self._get(window)
        return None

    def state(self) -> AllGroupsState:
        """Return the windows for a snapshot."""
        windows = [(partial, list(groups)) for partial, groups in self._windows.values()]
        return AllGroupsState(windows, list(self._newest.items()))

    def restore(self, state: AllGroupsState, heard: Mapping[Group, float]) -> None:
        """Take the windows from a snapshot, and when each group was heard [Unix s]."""
        self._windows = {partial.window: (partial, set(groups)) for partial, groups in state.windows}
        self._newest, self._heard = dict(state.newest), dict(heard)

    def _get(self, window: int | None) -> tuple[Partial, frozenset[Group]] | None:
        if window is None or window not in self._windows or (self._rebuilt and window == self._first):
            return None
        partial, groups = self._windows[window]
        return partial, frozenset(groups)
