"""What a device server makes of the partials of one windowed topic: totals, sequences and windows of its groups.

Policies:

* **Order.** Partials merge in any order; only what a window shows depends on which have come.
* **Restart.** Totals and sequences come from the snapshot and go on from its offsets. Short windows
  are rebuilt from records a little further back, which must not be counted again: `count=False`.
  Long ones are in the snapshot, where such records already are.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from facade.flows.telemetry.coverage import Coverage, Hole
from facade.flows.telemetry.partial import Group, Summary, merge
from facade.flows.telemetry.plan import MICRO, Plan
from facade.flows.telemetry.rack import Row, together
from facade.flows.telemetry.sequences import SeenNumbers
from facade.flows.telemetry.windows import AllGroupsState, AllGroupsWindows, GroupWindows
from facade.messages import FieldStatistics, Partial, RackSummary


class GroupTotals(msgspec.Struct):
    """What one group has sent since the ledger began."""

    count: int = 0
    late: int = 0
    sums: dict[str, int | float] = {}
    """Sums of the fields that have one."""
    epoch: int = -1
    seen: SeenNumbers = msgspec.field(default_factory=SeenNumbers)
    newest_us: int = 0
    """Newest data time [Unix us]."""
    heard: float = 0.0
    """When a worker last wrote about the group [Unix s]."""

    def add(self, partial: Partial) -> None:
        """Count a partial."""
        if partial.epoch != self.epoch and partial.time_max > self.newest_us:
            # A new scan restarts the sequence. It is told by its time: a single record with a wrong
            # scan number must not end the counting for good.
            self.epoch, self.seen = partial.epoch, SeenNumbers()
        if partial.late:
            self.late += partial.count
        else:
            self.count += partial.count
            for name, statistics in partial.fields.items():
                if statistics.sum is not None:
                    self.sums[name] = self.sums.get(name, 0) + statistics.sum
            self.newest_us = max(self.newest_us, partial.time_max)
        if partial.epoch == self.epoch:
            self.seen.add(partial.runs, partial.count)

    def as_partial(self) -> Partial:
        """Return count and sums in the form that the rules read."""
        return Partial(
            epoch=self.epoch,
            window=0,
            late=False,
            count=self.count,
            time_min=0,
            time_max=self.newest_us,
            runs=[],
            fields={name: FieldStatistics(sum=value) for name, value in self.sums.items()},
        )


class _State(msgspec.Struct, omit_defaults=True):
    """A ledger in a snapshot."""

    groups: dict[str, GroupTotals]
    windows: dict[str, list[Partial]] = {}
    """Of each group; only long ones."""
    all_groups: AllGroupsState = msgspec.field(default_factory=AllGroupsState)
    coverage: Coverage = msgspec.field(default_factory=Coverage)


class Restored(NamedTuple):
    """What a snapshot has of a ledger."""

    totals: dict[Group, GroupTotals]
    windows: dict[Group, list[Partial]]
    all_groups: AllGroupsState
    coverage: Coverage


class Ledger:
    """Everything that one device server keeps of the partials of one windowed topic.

    Parameters
    ----------
    groups
        Those to keep; none: any, as many as the ICD allows.
    per_group
        Whether to keep windows of each group.
    over_all
        Whether to keep windows over all groups.
    """

    def __init__(self, plan: Plan, groups: Collection[Group], *, per_group: bool, over_all: bool) -> None:
        self.plan = plan
        self.expected = frozenset(groups)
        self.totals = {group: GroupTotals() for group in self.expected}
        self._per_group = per_group
        self._over_all = over_all
        self._coverage = Coverage()
        self._rebuilding = Coverage()
        """Of records that the snapshot already counts."""
        self._holes: list[Hole] = []
        """Offsets whose summaries never came, until somebody takes them."""
        self._begin(rebuilt=False)

    def keeps(self, group: Group) -> bool:
        """Return whether partials of a group are for this ledger."""
        return group in self.totals or (not self.expected and len(self.totals) < self.plan.window.most_groups)

    def keeps_any(self, nodes: range) -> bool:
        """Return whether partials of any of these nodes are for this ledger."""
        return not self.expected or any(group in nodes for group in self.totals)

    def refuse(self, group: Group, summary: Summary, *, count: bool = True) -> str:
        """Return why a summary must not be folded, as its offsets are counted already; empty text: it may be."""
        return (self._coverage if count else self._rebuilding).refuse(group, summary)

    def fold(self, group: Group, partials: Sequence[Partial], heard: float, *, count: bool = True) -> None:
        """Merge what a worker wrote about a group that is kept.

        Parameters
        ----------
        heard
            When it was written [Unix s].
        count
            False for records that the snapshot already counts: they only rebuild windows.
        """
        self._fold(group, partials, heard, count=count)
        if self._over_all and (count or self.plan.is_rebuilt):
            for partial in partials:
                self.all_groups.add(group, partial, heard)

    def refuse_rack(self, summary: RackSummary, *, count: bool = True) -> str:
        """Return why the summary of a rack must not be folded, as `refuse` does; a hole before it is kept."""
        found = (self._coverage if count else self._rebuilding).refuse_rack(summary)
        if isinstance(found, Hole):
            if count:
                self._holes.append(found)
            return ""
        return found or ""

    def taken_holes(self) -> list[Hole]:
        """Return the holes that were found since the last call."""
        found, self._holes = self._holes, []
        return found

    def before(self, group: Group) -> Iterator[tuple[int, int]]:
        """Return partitions of whose records the first ones are not counted, and the offset from which on they are."""
        return self._coverage.before(group)

    def fold_rack(self, found: Sequence[Row], heard: float, *, count: bool = True) -> None:
        """Merge what a worker wrote about the nodes of a rack that are kept; parameters as of `fold`.

        Over all groups, nodes are put together before they go into a window.
        """
        for node, partial in found:
            self._fold(node, (partial,), heard, count=count)
        if not self._over_all or not (count or self.plan.is_rebuilt):
            return
        windows: dict[int, list[Row]] = {}
        for node, partial in found:
            self.all_groups.hear(node, heard)
            if not partial.late and partial.count:
                windows.setdefault(partial.window, []).append((node, partial))
        for rows in windows.values():
            self.all_groups.join([node for node, _ in rows], together([partial for _, partial in rows]))

    def _fold(self, group: Group, partials: Sequence[Partial], heard: float, *, count: bool) -> None:
        totals = self.totals.get(group)
        if totals is None:
            totals = self.totals[group] = GroupTotals()
        totals.heard = max(totals.heard, heard)
        windows = self.windows_of(group) if self._per_group and (count or self.plan.is_rebuilt) else None
        for partial in partials:
            if count:
                totals.add(partial)
            if windows is not None:
                windows.add(partial, heard)

    def windows_of(self, group: Group) -> GroupWindows:
        """Return the windows of a group."""
        found = self._windows.get(group)
        if found is None:
            found = self._windows[group] = GroupWindows(self.plan, rebuilt=self._rebuilt)
        return found

    @property
    def heard(self) -> float:
        """When a worker last wrote about any group [Unix s]; 0: never."""
        return max((totals.heard for totals in self.totals.values()), default=0.0)

    def overall(self) -> Partial:
        """Return the totals over all groups."""
        whole = GroupTotals().as_partial()
        for totals in self.totals.values():
            merge(whole, totals.as_partial())
        return whole

    def as_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        heard = {str(group): totals for group, totals in self.totals.items() if totals.heard}
        state = _State(heard, coverage=self._coverage)
        if not self.plan.is_rebuilt:
            state.windows = {str(group): windows.as_list() for group, windows in self._windows.items()}
            state.all_groups = self.all_groups.state()
        builtins: dict[str, Any] = msgspec.to_builtins(state)
        return builtins

    def parse(self, state: Mapping[str, Any]) -> "Restored":
        """Return the state that a snapshot has.

        Raises
        ------
        ValueError, msgspec.ValidationError
            It has another form.
        """
        stored = msgspec.convert(state, _State, strict=False)
        totals = {self.plan.group(text): one for text, one in stored.groups.items()}
        windows = {self.plan.group(text): partials for text, partials in stored.windows.items()}
        return Restored(totals, windows, stored.all_groups, stored.coverage)

    def restore(self, restored: "Restored") -> None:
        """Take the state of a snapshot."""
        self.totals |= {group: totals for group, totals in restored.totals.items() if self.keeps(group)}
        self._coverage, self._rebuilding = restored.coverage, Coverage()
        self._begin(rebuilt=self.plan.is_rebuilt)
        if self.plan.is_rebuilt:
            return
        heard = {group: totals.heard for group, totals in self.totals.items() if totals.heard}
        for group in restored.windows.keys() & heard.keys():
            for partial in restored.windows[group]:
                self.windows_of(group).add(partial, heard[group])
        self.all_groups.restore(restored.all_groups, heard)

    def _begin(self, *, rebuilt: bool) -> None:
        self._rebuilt = rebuilt
        self._windows: dict[Group, GroupWindows] = {}
        self.all_groups = AllGroupsWindows(self.plan, rebuilt=rebuilt)


def seconds(time_us: int) -> float:
    """Convert a data time from [Unix us] to [Unix s]."""
    return time_us / MICRO
