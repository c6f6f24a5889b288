"""What a device server makes of the partials of one windowed topic: totals, sequences and windows of its groups.

Policies:

* **Order.** Partials merge in any order; a window is shown when it is closed, see `facade.flows.telemetry.watermarks`.
* **Restart.** Totals, sequences, watermarks and windows over all groups come from the snapshot and go on from its
  offsets. Short windows of groups are rebuilt from records a little further back, which must not be counted again:
  `count=False`. Long ones are in the snapshot, where such records already are.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from facade.bus.offsets import Gap, LogCut, Overlap
from facade.flows.telemetry.coverage import Coverage, RackOffsets
from facade.flows.telemetry.partial import Group, Summary, merge
from facade.flows.telemetry.plan import MICRO, Plan
from facade.flows.telemetry.rack import RackRow, together
from facade.flows.telemetry.sequences import SeenNumbers
from facade.flows.telemetry.watermarks import Mark, Watermarks, newest_close
from facade.flows.telemetry.windows import HeapWindow, Windows
from facade.messages import FieldStatistics, Partial, RackSummary, Watermark

_GRACE = 1.5
"""A partition that is not read up to so long ago is one whose worker stands still [s]: it commits once a second."""


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
    partitions: list[int] = []
    """Partitions of the windowed topic that had records of it; none: they may be on any."""

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


class AllGroupsState(msgspec.Struct):
    """Windows over all groups in a snapshot."""

    windows: list[tuple[Partial, list[Group]]] = []


class _State(msgspec.Struct, omit_defaults=True):
    """A ledger in a snapshot."""

    groups: dict[str, GroupTotals]
    windows: dict[str, list[Partial]] = {}
    """Of each group; only long ones."""
    all_groups: AllGroupsState = msgspec.field(default_factory=AllGroupsState)
    counted: Coverage = msgspec.field(default_factory=Coverage)
    watermarks: Watermarks = msgspec.field(default_factory=Watermarks)


class Restored(NamedTuple):
    """What a snapshot has of a ledger."""

    totals: dict[Group, GroupTotals]
    windows: dict[Group, list[Partial]]
    all_groups: AllGroupsState
    counted: Coverage
    watermarks: Watermarks


class WindowLedger:
    """Everything that one device server keeps of the partials of one windowed topic.

    Parameters
    ----------
    groups
        Those to keep; none: any, as many as the ICD allows.
    per_group
        Whether to keep windows of each group.
    over_all
        Whether to keep windows over all groups.
    summaries
        Partitions of the summary topic that are read.
    """

    def __init__(
        self,
        plan: Plan,
        groups: Collection[Group],
        *,
        per_group: bool,
        over_all: bool,
        summaries: Collection[int] = (0,),
    ) -> None:
        self.plan = plan
        self._summaries = summaries
        self.expected = frozenset(groups)
        self.totals = {group: GroupTotals() for group in self.expected}
        self._per_group = per_group
        self._over_all = over_all
        self._counted = Coverage()
        self._rebuilding = Coverage()
        """Of records that the snapshot already counts."""
        self._watermarks = Watermarks()
        self._gaps: list[tuple[int, Gap]] = []
        """Partitions, and their offsets whose summaries never came, until somebody takes them."""
        self._begin(rebuilt=False)

    def keeps(self, group: Group) -> bool:
        """Return whether partials of a group are for this ledger."""
        return group in self.totals or (not self.expected and len(self.totals) < self.plan.window.most_groups)

    def keeps_any(self, nodes: range) -> bool:
        """Return whether partials of any of these nodes are for this ledger."""
        return not self.expected or any(group in nodes for group in self.totals)

    def take(self, group: Group, summary: Summary, heard: float = 0.0, *, count: bool = True) -> Overlap | None:
        """Count the offsets of a summary; return why it must not be folded, or None; parameters as of `fold`."""
        found = (self._counted if count else self._rebuilding).take(group, summary)
        return self._refused(found, heard)

    def _refused(self, found: Overlap | Gap | LogCut | None, heard: float) -> Overlap | None:
        """Tear the windows that may lack records; return why a summary must not be folded, or None."""
        if isinstance(found, Gap | LogCut):
            for windows in (*self._windows.values(), self._all_groups):
                windows.tear(round(heard * MICRO))
        return found if isinstance(found, Overlap) else None

    def fold(
        self, group: Group, partials: Sequence[Partial], heard: float, *, partition: int = 0, count: bool = True
    ) -> None:
        """Merge what a worker wrote about a group that is kept.

        Parameters
        ----------
        heard
            When it was written [Unix s].
        partition
            Of the windowed topic, from which the records are.
        count
            False for records that the snapshot already counts: they only rebuild windows.
        """
        self._fold(group, partials, heard, partition, count=count)
        if self._over_all and count:
            for partial in partials:
                self._all_groups.add(partial, self.read_to(), round(heard * MICRO), (group,))

    def take_watermark(self, watermark: Watermark, partition: int, *, count: bool = True) -> None:
        """Take a watermark from a partition of the summary topic."""
        self._since_start.take(watermark, partition)
        if count and self._watermarks.take(watermark, partition):
            for totals in self.totals.values():  # their records may be on other partitions from now on
                totals.partitions = []

    def read_to(self, group: Group | None = None) -> int:
        """Return up to which time the records are read that windows of a group have, or over all [Unix us]."""
        watermarks = self._watermarks if group is None or not self._rebuilt else self._since_start
        return watermarks.read_to(self._partitions(group), self._summaries)

    def standing_still(self, now: float, group: Group | None = None) -> Iterator[tuple[int, Mark]]:
        """Return the partitions of a group, or of all, that are not read up to now, and how far they are.

        Parameters
        ----------
        now
            Wall-clock time [Unix s]; it closes nothing.
        """
        return self._watermarks.behind(self._partitions(group), newest_close(self.plan, round((now - _GRACE) * MICRO)))

    def _partitions(self, group: Group | None) -> Sequence[int]:
        return () if group is None or self.plan.one_group else self.totals[group].partitions

    def take_rack(self, summary: RackSummary, heard: float = 0.0, *, count: bool = True) -> Overlap | None:
        """Count the offsets of the summary of a rack, as `take` does; a gap before them is kept."""
        found = (self._counted if count else self._rebuilding).take_rack(summary)
        if isinstance(found, Gap) and count:
            self._gaps.append((summary.partition, found))
        return self._refused(found, heard)

    def taken_gaps(self) -> list[tuple[int, Gap]]:
        """Return the gaps that were found since the last call, with their partitions."""
        found, self._gaps = self._gaps, []
        return found

    def epochs(self, group: Group) -> Iterator[tuple[int, RackOffsets]]:
        """Return the partitions of whose records the totals of a group lack the first ones, and its offsets there."""
        return self._counted.epochs(group)

    def fold_rack(self, found: Sequence[RackRow], heard: float, *, partition: int = 0, count: bool = True) -> None:
        """Merge what a worker wrote about the nodes of a rack that are kept; parameters as of `fold`.

        Over all groups, nodes are put together before they go into a window.
        """
        for node, partial in found:
            self._fold(node, (partial,), heard, partition, count=count)
        if not self._over_all or not count:
            return
        windows: dict[int, list[RackRow]] = {}
        for node, partial in found:
            if not partial.late and partial.count:
                windows.setdefault(partial.window, []).append((node, partial))
        for rows in windows.values():
            whole, nodes = together([partial for _, partial in rows]), [node for node, _ in rows]
            self._all_groups.add(whole, self.read_to(), round(heard * MICRO), nodes)

    def _fold(self, group: Group, partials: Sequence[Partial], heard: float, partition: int, *, count: bool) -> None:
        totals = self.totals.get(group)
        if totals is None:
            totals = self.totals[group] = GroupTotals()
        totals.heard = max(totals.heard, heard)
        if count:
            for partial in partials:
                totals.add(partial)
        if self._per_group and (count or self.plan.is_rebuilt):
            windows = self._windows.get(group)
            if windows is None:
                windows = self._windows[group] = Windows(self.plan, rebuilt=self._rebuilt)
            for partial in partials:
                windows.add(partial, self.read_to(group), round(heard * MICRO))
        if partition not in totals.partitions:
            totals.partitions = [*totals.partitions, partition]

    def shown(self, group: Group | None = None) -> HeapWindow | None:
        """Return the newest closed window of a group, or over all groups, if any."""
        windows = self._all_groups if group is None else self._windows.get(group)
        return None if windows is None else windows.shown(self.read_to(group))

    def live(self, groups: Collection[Group], now: float, within: float) -> frozenset[Group]:
        """Return those of some groups that workers wrote about within the last `within` [s]."""
        return frozenset(group for group in groups if now - self.totals[group].heard <= within)

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
        everything = AllGroupsState(self._all_groups.as_list())
        state = _State(heard, all_groups=everything, counted=self._counted, watermarks=self._watermarks)
        if not self.plan.is_rebuilt:
            state.windows = {
                str(group): [partial for partial, _ in windows.as_list()] for group, windows in self._windows.items()
            }
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
        return Restored(totals, windows, stored.all_groups, stored.counted, stored.watermarks)

    def restore(self, restored: "Restored") -> None:
        """Take the state of a snapshot."""
        self.totals |= {group: totals for group, totals in restored.totals.items() if self.keeps(group)}
        self._counted, self._rebuilding = restored.counted, Coverage()
        self._watermarks = restored.watermarks
        self._begin(rebuilt=self.plan.is_rebuilt)
        for group in restored.windows.keys() & self.totals.keys() if not self.plan.is_rebuilt else ():
            windows = self._windows[group] = Windows(self.plan)
            windows.restore([(partial, ()) for partial in restored.windows[group]], 0)
        # A release without watermarks rebuilt the short ones: what came before the snapshot is in none of them.
        was_rebuilt = self.plan.is_rebuilt and not restored.watermarks.partitions
        since = round((self.heard + self.plan.window.ahead) * MICRO) if was_rebuilt else 0
        self._all_groups.restore(restored.all_groups.windows, since)

    def _begin(self, *, rebuilt: bool) -> None:
        self._rebuilt = rebuilt
        self._since_start = Watermarks()
        """Of the records from which windows are rebuilt, and of those that came since."""
        self._windows: dict[Group, Windows] = {}
        self._all_groups = Windows(self.plan)


def seconds(time_us: int) -> float:
    """Convert a data time from [Unix us] to [Unix s]."""
    return time_us / MICRO
