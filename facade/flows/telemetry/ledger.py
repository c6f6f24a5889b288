"""State of one windowed topic in a device server: totals, sequences and windows of its groups.

* **Offsets.** A summary with counted offsets is refused. The summaries of a group and partition come in the order of
  the log. Where nodes are the groups, a worker writes them by rack, and the offsets stand for all nodes of the rack. A
  worker that says `contiguous` writes one about each rack in each transaction, so a gap between two shows a loss. For
  other groups, the uncounted offsets of a refused summary show it.
* **Order.** Partials merge in any order. The newest window that a watermark has closed is shown, see
  `facade.flows.telemetry.watermarks`. A straggler still corrects a window that is kept; such a window is torn.
* **Restart.** Totals, sequences, watermarks and windows over all groups come from the snapshot and continue at its
  offsets. Short windows of groups are rebuilt from earlier records, which are not counted again: `count=False`. Long
  windows are in the snapshot, and contain these records.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from facade.bus.offsets import CountedOffsets, Gap, LogCut, Overlap
from facade.flows.telemetry.partial import Group, Summary, copy_partial, merge
from facade.flows.telemetry.plan import MICRO, Plan
from facade.flows.telemetry.rack import RackRow
from facade.flows.telemetry.watermarks import Mark, Watermarks, closed_at, newest_close
from facade.messages import FieldStatistics, Partial, RackSummary, Watermark
from facade.sequences import SeenNumbers


class RackOffsets(CountedOffsets):
    """The offsets of the nodes from `first` to `last`."""

    first: int = 0
    last: int = -1


class PartitionOffsets(msgspec.Struct):
    """The offsets of one partition."""

    groups: dict[str, CountedOffsets] = {}
    racks: dict[str, RackOffsets] = {}
    gaps_to: int = 0
    """Offset after the newest gap: racks without the same summaries have the same gap."""


class Coverage(msgspec.Struct):
    """The offsets of one windowed topic."""

    partitions: dict[int, PartitionOffsets] = {}

    def take(self, group: Group, summary: Summary) -> Overlap | LogCut | None:
        """Count the offsets of a group's summary, unless they overlap."""
        at = self.partitions.setdefault(summary.partition, PartitionOffsets())
        counted = at.groups.setdefault(str(group), CountedOffsets(*_begin(summary)))
        found = counted.take(summary.log, summary.offset_from, summary.offset_to, summary.part)
        if isinstance(found, LogCut):
            at.gaps_to = 0
        # a transaction without records of the group has no summary of it
        return None if isinstance(found, Gap) else found

    def lost_with(self, summary: Summary, refused: Overlap) -> Gap | None:
        """Return the uncounted offsets of a refused summary; those of several groups are returned once."""
        at = self.partitions[summary.partition]
        found = Gap(max(refused.expected, at.gaps_to), summary.offset_to)
        at.gaps_to = max(at.gaps_to, found.after)
        return found if found.records > 0 else None

    def take_rack(self, summary: RackSummary) -> Overlap | Gap | LogCut | None:
        """Count the offsets of a rack's summary, unless they overlap. A gap is returned once for all racks."""
        at = self.partitions.setdefault(summary.partition, PartitionOffsets())
        first, last = summary.first, summary.last
        rack = at.racks.setdefault(f"{first}-{last}", RackOffsets(*_begin(summary), first=first, last=last))
        found = rack.take(summary.log, summary.offset_from, summary.offset_to, summary.part)
        if isinstance(found, LogCut):
            at.gaps_to = 0
        elif isinstance(found, Gap):
            found = Gap(max(found.first, at.gaps_to), found.after)
            if not summary.contiguous or found.records <= 0:
                return None
            at.gaps_to = found.after
        return found

    def epochs(self, group: Group) -> Iterator[tuple[int, RackOffsets]]:
        """Return the partitions whose first records are missing in a group's totals, with its offsets there."""
        for partition, at in self.partitions.items():
            for one in at.racks.values():
                if isinstance(group, int) and one.first <= group <= one.last and (one.begin > 0 or one.epoch > 1):
                    yield partition, one


def _begin(summary: Summary | RackSummary) -> tuple[str, int, int]:
    return summary.log, summary.offset_from, summary.offset_from


KEPT_WINDOWS = 3
"""Closed windows kept: the shown one, and others for stragglers."""
_MOST = 8
"""Windows kept while a worker stands still, beside windows of early records."""


class HeapWindow(NamedTuple):
    """A closed window."""

    partial: Partial
    groups: frozenset[Group]
    is_torn: bool
    """Whether it lacks late records, or may lack some."""


class Windows:
    """The newest windows of a group, or over all groups; rebuilt ones may begin in the middle of a window."""

    __slots__ = ("_groups", "_plan", "_since", "_torn", "_torn_before", "_windows")

    def __init__(self, plan: Plan, *, rebuilt: bool = False) -> None:
        self._plan = plan
        self._windows: dict[int, Partial] = {}
        self._groups: dict[int, set[Group]] = {}
        self._torn: set[int] = set()
        self._torn_before = 0
        """Windows that begin before this time may lack records [Unix us]."""
        self._since = -1 if rebuilt else 0
        """Windows that begin before this time are neither shown nor kept [Unix us]; -1: the next record decides."""

    def add(self, partial: Partial, read_to: int, heard_us: int, groups: Collection[Group] = ()) -> None:
        """Merge a partial of some groups into its window; times are Unix us, as of `WindowLedger`."""
        if partial.late or partial.count == 0:
            return
        window = partial.window
        if self._since < 0:
            # Earlier records were written before, with older data times: a clock that is ahead is always ahead.
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
        """Note that windows before a time [Unix us] may lack records."""
        self._torn_before = max(self._torn_before, before)

    def shown(self, read_to: int) -> HeapWindow | None:
        """Return the newest closed window, if any."""
        limit = read_to - closed_at(self._plan, 0)
        window = max((one for one in self._windows if one <= limit), default=None)
        if window is None:
            return None
        is_torn = window in self._torn or window < self._torn_before
        return HeapWindow(self._windows[window], frozenset(self._groups.get(window, ())), is_torn)

    def as_list(self) -> list[tuple[Partial, list[Group]]]:
        """Return the windows with their groups, for a snapshot."""
        return [(partial, list(self._groups.get(window, ()))) for window, partial in self._windows.items()]

    def restore(self, windows: Collection[tuple[Partial, Collection[Group]]]) -> None:
        """Restore the windows from a snapshot."""
        self._windows = {partial.window: partial for partial, _ in windows}
        self._groups = {partial.window: set(groups) for partial, groups in windows if groups}

    def _drop(self, read_to: int) -> None:
        rule, limit = self._plan.window, read_to - closed_at(self._plan, 0)
        kept = sorted(self._windows)
        closed = sum(one <= limit for one in kept)
        most = KEPT_WINDOWS + _MOST + math.ceil(rule.ahead / rule.length)
        for window in kept[: max(closed - KEPT_WINDOWS, len(kept) - most, 0)]:
            self._since = window + self._plan.length_us
            del self._windows[window]
            self._groups.pop(window, None)
            self._torn.discard(window)


_GRACE = 1.5
"""Delay of a watermark above which its worker counts as standing still [s]: it commits once a second."""


class GroupTotals(msgspec.Struct):
    """Totals of one group since the ledger began."""

    count: int = 0
    late: int = 0
    sums: dict[str, int | float] = {}
    """Sums of the fields with a sum."""
    epoch: int = -1
    seen: SeenNumbers = msgspec.field(default_factory=SeenNumbers)
    newest_us: int = 0
    """Newest data time [Unix us]."""
    heard: float = 0.0
    """Time of the last summary [Unix s]."""
    partitions: list[int] = []
    """Partitions of the windowed topic with its records; none: unknown."""

    def add(self, partial: Partial) -> None:
        """Count a partial."""
        if partial.epoch != self.epoch and partial.time_max > self.newest_us:
            # A new scan restarts the sequence, if its time is newer: a single wrong scan number must not end the
            # counting.
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
        """Return count and sums as a partial."""
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


class LedgerState(msgspec.Struct, omit_defaults=True):
    """A ledger in a snapshot."""

    groups: dict[str, GroupTotals]
    windows: dict[str, list[Partial]] = {}
    """Long windows by group."""
    all_groups: dict[str, list[tuple[Partial, list[Group]]]] = {}
    counted: Coverage = msgspec.field(default_factory=Coverage)
    watermarks: Watermarks = msgspec.field(default_factory=Watermarks)


class WindowLedger:
    """State of one windowed topic in a device server.

    Parameters
    ----------
    groups
        Groups to keep; none: any, up to the ICD's limit.
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
        """Offsets counted in the snapshot."""
        self._watermarks = Watermarks()
        self._gaps: list[tuple[int, Gap]] = []
        """Partitions, with the offsets whose summaries are missing."""
        self._begin(rebuilt=False)

    def keeps(self, group: Group) -> bool:
        """Return whether this ledger keeps a group."""
        return group in self.totals or (not self.expected and len(self.totals) < self.plan.window.most_groups)

    def keeps_any(self, nodes: range) -> bool:
        """Return whether this ledger keeps any of these nodes."""
        return not self.expected or any(group in nodes for group in self.totals)

    def take(self, group: Group, summary: Summary, heard: float, *, count: bool = True) -> Overlap | None:
        """Count the offsets of a summary. Return an overlap, with which it must not be folded, or None; see `fold`."""
        coverage = self._counted if count else self._rebuilding
        found = coverage.take(group, summary)
        if isinstance(found, Overlap) and (lost := coverage.lost_with(summary, found)) and count:
            self._gaps.append((summary.partition, lost))
        return self._refused(found, heard)

    def _refused(self, found: Overlap | Gap | LogCut | None, heard: float) -> Overlap | None:
        if isinstance(found, Gap | LogCut):
            for windows in (*self._windows.values(), self._all_groups):
                windows.tear(round(heard * MICRO))
        return found if isinstance(found, Overlap) else None

    def fold(
        self, group: Group, partials: Sequence[Partial], heard: float, *, partition: int = 0, count: bool = True
    ) -> None:
        """Merge the partials of a group.

        Parameters
        ----------
        heard
            Time of the summary [Unix s].
        partition
            Partition of the records.
        count
            False for records that the snapshot already counts: they only rebuild windows.
        """
        self._fold(group, partials, heard, partition, count=count)
        if self._over_all and count:
            for partial in partials:
                self._all_groups.add(partial, self.read_to(), round(heard * MICRO), (group,))

    def take_watermark(self, watermark: Watermark, partition: int, *, count: bool = True) -> None:
        """Apply a watermark from a partition of the summary topic."""
        self._since_start.take(watermark, partition)
        if count and self._watermarks.take(watermark, partition):
            for totals in self.totals.values():  # from now on their records may be on other partitions
                totals.partitions = []

    def read_to(self, group: Group | None = None) -> int:
        """Return the watermark of a group's windows, or of the windows over all groups [Unix us]."""
        watermarks = self._watermarks if group is None or not self._rebuilt else self._since_start
        return watermarks.read_to(self._partitions(group), self._summaries)

    def standing_still(self, now: float, group: Group | None = None) -> Iterator[tuple[int, Mark]]:
        """Return the partitions of a group, or all, that are not read up to now [Unix s], with their watermarks."""
        return self._watermarks.behind(self._partitions(group), newest_close(self.plan, round((now - _GRACE) * MICRO)))

    def _partitions(self, group: Group | None) -> Sequence[int]:
        return () if group is None or self.plan.one_group else self.totals[group].partitions

    def take_rack(self, summary: RackSummary, heard: float, *, count: bool = True) -> Overlap | None:
        """Count the offsets of the summary of a rack; see `take`. A gap before them is kept."""
        found = (self._counted if count else self._rebuilding).take_rack(summary)
        if isinstance(found, Gap) and count:
            self._gaps.append((summary.partition, found))
        return self._refused(found, heard)

    def taken_gaps(self) -> list[tuple[int, Gap]]:
        """Return and forget the gaps, with their partitions."""
        found, self._gaps = self._gaps, []
        return found

    def epochs(self, group: Group) -> Iterator[tuple[int, RackOffsets]]:
        """See `Coverage.epochs`."""
        return self._counted.epochs(group)

    def fold_rack(self, found: Sequence[RackRow], heard: float, *, partition: int = 0, count: bool = True) -> None:
        """Merge the rows of a rack's summary; see `fold`."""
        for node, partial in found:
            self._fold(node, (partial,), heard, partition, count=count)
        if not self._over_all or not count:
            return
        windows: dict[int, tuple[Partial, list[Group]]] = {}
        for node, partial in found:  # merged before they go into a window
            if partial.late or not partial.count:
                continue
            if partial.window in windows:
                whole, nodes = windows[partial.window]
                merge(whole, partial)
                nodes.append(node)
            else:
                windows[partial.window] = copy_partial(partial), [node]
        for whole, nodes in windows.values():
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
        """Return the groups with a summary within the last `within` [s]."""
        return frozenset(group for group in groups if now - self.totals[group].heard <= within)

    @property
    def heard(self) -> float:
        """Time of the last summary of any group [Unix s]; 0: never."""
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
        everything = {"windows": self._all_groups.as_list()}
        state = LedgerState(heard, all_groups=everything, counted=self._counted, watermarks=self._watermarks)
        if not self.plan.is_rebuilt:
            state.windows = {
                str(group): [partial for partial, _ in windows.as_list()] for group, windows in self._windows.items()
            }
        builtins: dict[str, Any] = msgspec.to_builtins(state)
        return builtins

    def parse(self, state: Mapping[str, Any]) -> LedgerState:
        """Return the state of a snapshot, or raise ValueError or `msgspec.ValidationError` for another form."""
        stored = msgspec.convert(state, LedgerState, strict=False)
        for text in (*stored.groups, *stored.windows):
            self.plan.group(text)
        return stored

    def restore(self, stored: LedgerState) -> None:
        """Restore the state of a snapshot."""
        totals = {self.plan.group(text): one for text, one in stored.groups.items()}
        self.totals |= {group: one for group, one in totals.items() if self.keeps(group)}
        self._counted, self._rebuilding, self._watermarks = stored.counted, Coverage(), stored.watermarks
        self._begin(rebuilt=self.plan.is_rebuilt)
        for text, partials in stored.windows.items() if not self.plan.is_rebuilt else ():
            if (group := self.plan.group(text)) in self.totals:
                windows = self._windows[group] = Windows(self.plan)
                windows.restore([(partial, ()) for partial in partials])
        self._all_groups.restore(stored.all_groups.get("windows", []))

    def _begin(self, *, rebuilt: bool) -> None:
        self._rebuilt = rebuilt
        self._since_start = Watermarks()
        """Watermarks of the records for rebuilt windows, and of later records."""
        self._windows: dict[Group, Windows] = {}
        self._all_groups = Windows(self.plan)


def seconds(time_us: int) -> float:
    """Convert a data time from [Unix us] to [Unix s]."""
    return time_us / MICRO
