"""State of one windowed topic in a device server: totals, sequences and windows of its groups.

* **Offsets.** A summary with counted offsets is refused. The summaries of a group and partition come in the order of
  the log. Where nodes are the groups, a worker writes them by rack, and the offsets stand for all nodes of the rack. A
  worker that says `contiguous` writes one about each rack in each transaction, so a gap between two shows a loss. A
  summary of another group says where the one before it ended (`FOLLOWS`), unless it is the first one of its worker; the
  uncounted offsets of a refused summary show a loss as well.
* **Order.** Partial sums merge in any order. The newest window that a watermark has closed is shown, see
  `facade.flows.telemetry.watermarks` and `facade.kernel.windows.newest`.
* **Arrays.** Totals and windows are columns over all groups of the ledger: no object is made for a node.
* **Restart.** Totals, sequences, watermarks and windows over all groups come from the snapshot and continue at its
  offsets. Short windows of groups are rebuilt from earlier records, which are not counted again: `count=False`. Long
  windows are in the snapshot, and contain these records.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from facade.flows.telemetry.partial import Group, Summary
from facade.flows.telemetry.plan import Plan
from facade.flows.telemetry.watermarks import Mark, Watermarks
from facade.kernel.bus.offsets import CountedOffsets, Gap, LogCut, Overlap
from facade.kernel.clock import NEVER, Duration, Time, as_duration
from facade.kernel.windows.frame import Array, Frame, distinct, merge
from facade.kernel.windows.newest import ShownWindow, Windows
from facade.kernel.windows.totals import GroupTotals, Totals
from facade.sdp.messages import Partial, RackSummary, Watermark
from facade.sdp.summaries import as_frames, as_partials


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

    def take(self, group: Group, summary: Summary, follows: int = 0) -> Overlap | Gap | LogCut | None:
        """Count the offsets of a group's summary, unless they overlap.

        `follows`: the end of the summary before it; 0: unknown.
        """
        at = self.partitions.setdefault(summary.partition, PartitionOffsets())
        counted = at.groups.setdefault(str(group), CountedOffsets(*_begin(summary)))
        found = counted.take(summary.log, summary.offset_from, summary.offset_to, summary.part)
        if isinstance(found, LogCut):
            at.gaps_to = 0
        if isinstance(found, Gap):  # a transaction without records of the group has no summary of it
            return Gap(found.first, follows) if found.first < follows <= found.after else None
        return found

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

    def epochs(self, group: Group | None = None) -> Iterator[tuple[int, RackOffsets]]:
        """Return the partitions whose first records are missing in totals of a group, or of any, with offsets there."""
        for partition, at in self.partitions.items():
            for one in at.racks.values():
                is_of = group is None or (isinstance(group, int) and one.first <= group <= one.last)
                if is_of and (one.begin > 0 or one.epoch > 1):
                    yield partition, one


def _begin(summary: Summary | RackSummary) -> tuple[str, int, int]:
    return summary.log, summary.offset_from, summary.offset_from


_GRACE = as_duration(1.5)
"""Delay of a watermark above which its worker counts as standing still: it commits once a second."""
_NODES = 10_000
"""Upper bound of a node's number, in each message."""


class LedgerState(msgspec.Struct, omit_defaults=True):
    """A ledger in a snapshot."""

    groups: dict[str, GroupTotals]
    windows: dict[str, list[Partial]] = {}
    """Long windows by group."""
    all_groups: dict[str, list[tuple[Partial, list[Group]]]] = {}
    torn: list[tuple[Time, Group]] = []
    """Long windows with stragglers, each with a group that has them."""
    all_torn: list[Time] = []
    """Windows over all groups with stragglers."""
    torn_before: Time = NEVER
    """Windows that begin before this time may lack records [Unix us]."""
    counted: Coverage = msgspec.field(default_factory=Coverage)
    watermarks: Watermarks = msgspec.field(default_factory=Watermarks)


@dataclass(frozen=True, slots=True)
class OverallWindow:
    """A closed window over all groups."""

    shown: Sequence[ShownWindow]
    """The window, with a single row."""
    groups: frozenset[Group]
    """The groups in it."""


class WindowLedger:
    """State of one windowed topic in a device server.

    Groups have numbers from 0 in all frames and arrays of a ledger: see `number`.

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
        self.groups: list[Group] = []
        """The groups that are kept, by their numbers."""
        self._numbers: dict[Group, int] = {}
        self._of_nodes = np.full(_NODES, -1, dtype=np.int64)
        """Number of the group of each node."""
        self._size = max(len(groups), 0 if groups else plan.window.most_groups, 1)
        for group in groups:
            self._add_group(group)
        self.totals = Totals(self._size)
        self._per_group = per_group
        self._over_all = over_all
        self._counted = Coverage()
        self._rebuilding = Coverage()
        """Offsets counted in the snapshot."""
        self._watermarks = Watermarks()
        self._gaps: list[tuple[int, Gap]] = []
        """Partitions, with the offsets whose summaries are missing."""
        self._shown: Sequence[ShownWindow] | None = None
        self._read_to: Array | None = None
        """Watermark of each group [Unix us]; None: it and the shown windows must be worked out again."""
        self._overall: OverallWindow | None = None
        self._is_looked_at = False
        """Whether the window over all groups belongs to the newest state."""
        self._members: dict[Time, Array] = {}
        """Whether each group has records in a window over all groups, by window."""
        self._begin(rebuilt=False)

    def _add_group(self, group: Group) -> int:
        number = self._numbers[group] = len(self.groups)
        assert number < self._size, f"group {group} would be number {number} of the arrays, which have {self._size}"
        self.groups.append(group)
        if isinstance(group, int):
            self._of_nodes[group] = number
        return number

    def number(self, group: Group) -> int:
        """Return the number of a group that is kept."""
        found = self._numbers.get(group)
        return self._add_group(group) if found is None else found

    def keeps(self, group: Group) -> bool:
        """Return whether this ledger keeps a group."""
        return group in self._numbers or (not self.expected and len(self.groups) < self.plan.window.most_groups)

    def keeps_any(self, nodes: range) -> bool:
        """Return whether this ledger keeps any of these nodes."""
        return not self.expected or bool((self._of_nodes[nodes.start : nodes.stop] >= 0).any())

    def take(
        self, group: Group, summary: Summary, heard: Time, *, follows: int = 0, count: bool = True
    ) -> Overlap | None:
        """Count the offsets of a summary. Return an overlap, with which it must not be folded, or None; see `fold`."""
        coverage = self._counted if count else self._rebuilding
        found = coverage.take(group, summary, follows)
        lost = coverage.lost_with(summary, found) if isinstance(found, Overlap) else found
        if isinstance(lost, Gap) and count:
            self._gaps.append((summary.partition, lost))
        return self._refused(found, heard)

    def take_rack(self, summary: RackSummary, heard: Time, *, count: bool = True) -> Overlap | None:
        """Count the offsets of the summary of a rack; see `take`. A gap before them is kept."""
        found = (self._counted if count else self._rebuilding).take_rack(summary)
        if isinstance(found, Gap) and count:
            self._gaps.append((summary.partition, found))
        return self._refused(found, heard)

    def _refused(self, found: Overlap | Gap | LogCut | None, heard: Time) -> Overlap | None:
        if isinstance(found, Gap | LogCut):
            self._tear(heard)
            self._changed()
        return found if isinstance(found, Overlap) else None

    def _tear(self, before: Time) -> None:
        for windows in (self._windows, self._all_groups):
            windows.tear(before)

    def taken_gaps(self) -> list[tuple[int, Gap]]:
        """Return and forget the gaps, with their partitions."""
        found, self._gaps = self._gaps, []
        return found

    def epochs(self, group: Group | None = None) -> Iterator[tuple[int, RackOffsets]]:
        """See `Coverage.epochs`."""
        return self._counted.epochs(group)

    def of_group(self, group: Group, rows: Frame) -> Frame:
        """Return rows of a group that is kept, with its number."""
        return replace(rows, group=np.full(len(rows), self.number(group)))

    def of_nodes(self, rows: Frame) -> Frame | None:
        """Return the rows of the nodes that are kept, with their numbers as groups; None: there are none."""
        if not self.expected:
            for node in distinct(rows.group):
                if self.keeps(node):
                    self.number(node)
        numbers = self._of_nodes[rows.group]
        rows = replace(rows, group=numbers)
        kept = numbers >= 0
        return rows if kept.all() else rows.take(kept) if kept.any() else None

    def hear(self, group: Group, partition: int, heard: Time) -> None:
        """Note that a summary of a group came; parameters as of `fold`."""
        if self.totals.hear(np.array([self.number(group)]), partition, heard):
            self._changed()

    def fold(self, rows: Frame, heard: Time, *, partition: int = 0, count: bool = True) -> None:
        """Merge the rows of a summary.

        Parameters
        ----------
        heard
            Time of the summary.
        partition
            Partition of the records.
        count
            False for records that the snapshot already counts: they only rebuild windows.
        """
        # A negative number would count from the end, and so for another group.
        assert rows.group.min(initial=0) >= 0, f"{self.plan.topic}: rows of {rows.group.min()}, which is not kept"
        if self.totals.hear(rows.group, partition, heard):
            self._changed()
        if count:
            self.totals.add(rows)
        if self._per_group and (count or self.plan.is_rebuilt):
            # Open windows are not shown, so mostly nothing changes that is.
            if self._windows.add(rows, self._read_to_of_groups(), heard):
                self._shown = None
        if self._over_all and count:
            self._fold_over_all(rows, heard)

    def _fold_over_all(self, rows: Frame, heard: Time) -> None:
        kept = ~rows.late & (rows.count > 0)
        if not kept.any():
            return
        rows = rows if kept.all() else rows.take(kept)
        for window in map(Time, distinct(rows.window)):
            there = self._members.setdefault(window, np.zeros(self._size, dtype=np.bool_))
            there[rows.group[rows.window == window]] = True
        together = merge([replace(rows.without_runs(), group=np.zeros(len(rows), dtype=np.int64))], epochs=False)
        if self._all_groups.add(together, self._read_to_of_all(), heard):
            self._is_looked_at = False
        windows = set(self._all_groups)
        for window in self._members.keys() - windows:
            del self._members[window]
        known = self._members.keys()
        assert known == windows, f"{self.plan.topic}: windows {windows} over all groups, groups of {[*known]}"

    def take_watermark(self, watermark: Watermark, partition: int, *, count: bool = True) -> None:
        """Apply a watermark from a partition of the summary topic."""
        self._since_start.take(watermark, partition)
        if count and self._watermarks.take(watermark, partition):
            self.totals.forget_partitions()  # from now on their records may be on others
        self._changed()

    def read_to(self, group: Group | None = None) -> Time:
        """Return the watermark of a group's windows, or of the windows over all groups."""
        watermarks = self._watermarks if group is None else self._of_groups
        return watermarks.read_to(self._partitions(group), self._summaries)

    @property
    def _of_groups(self) -> Watermarks:
        return self._since_start if self._rebuilt else self._watermarks

    def _read_to_of_groups(self) -> Array:
        if self._read_to is None:
            marks, summaries = self._of_groups, self._summaries
            on = () if self.plan.one_group else self.totals.on
            known = {partition: marks.read_to((partition,), summaries) for partition in on}
            self._read_to = self.totals.read_to(known, marks.read_to((), summaries))
        return self._read_to

    def _read_to_of_all(self) -> Array:
        return np.array([int(self.read_to())], dtype=np.int64)

    def standing_still(self, now: Time, group: Group | None = None) -> Iterator[tuple[int, Mark]]:
        """Return the partitions of a group, or all, that are not read up to now, with their watermarks."""
        newest = self.plan.rule.newest_close(now - _GRACE)
        return self._watermarks.behind(self._partitions(group), newest)

    def is_silent(self, group: Group, within: Duration) -> bool:
        """Return whether the partitions of a group were read up to a time beyond its last summary without another."""
        heard = Time(self.totals.heard[self.number(group)])
        return self.read_to(group) - heard > within

    def _partitions(self, group: Group | None) -> Sequence[int]:
        if group is None or self.plan.one_group:
            return ()
        number = self.number(group)
        return [partition for partition, there in self.totals.on.items() if there[number]]

    def shown(self) -> Sequence[ShownWindow]:
        """Return the newest closed window of each group that has one; groups by their numbers."""
        if self._shown is None:
            self._shown = self._windows.shown(self._read_to_of_groups())
        return self._shown

    def shown_over_all(self) -> OverallWindow | None:
        """Return the newest closed window over all groups, if any."""
        if not self._is_looked_at:
            found = self._all_groups.shown(self._read_to_of_all())
            self._overall = OverallWindow(found, self._groups_of(found[0].window)) if found else None
            self._is_looked_at = True
        return self._overall

    def _groups_of(self, window: Time) -> frozenset[Group]:
        there = self._members.get(window)
        return frozenset() if there is None else frozenset(self.groups[at] for at in np.flatnonzero(there).tolist())

    def _changed(self) -> None:
        self._shown = self._read_to = None
        self._is_looked_at = False

    def live(self, groups: Collection[Group], now: Time, within: Duration) -> frozenset[Group]:
        """Return the groups with a summary within the last `within`."""
        is_live = now - self.totals.heard <= within
        return frozenset(group for group in groups if is_live[self.number(group)])

    @property
    def heard(self) -> Time:
        """Time of the last summary of any group; 0: never."""
        return Time(self.totals.heard.max())

    def as_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        # The totals may have room for more groups than there are.
        heard = {str(g): one for g, one in zip(self.groups, self.totals.of_groups(), strict=False) if one.heard}
        everything = [
            (partial, sorted(self._groups_of(window), key=str))
            for window in self._all_groups
            for _, partial in as_partials(self._all_groups.whole(window))
        ]
        state = LedgerState(
            heard,
            all_groups={"windows": everything},
            all_torn=[window for window, _ in self._all_groups.torn()],
            torn_before=self._all_groups.torn_before,
            counted=self._counted,
            watermarks=self._watermarks,
        )
        if not self.plan.is_rebuilt:
            for window in self._windows:
                for number, partial in as_partials(self._windows.whole(window)):
                    state.windows.setdefault(str(self.groups[number]), []).append(partial)
            state.torn = [(window, self.groups[number]) for window, number in self._windows.torn()]
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
        self.totals = Totals(self._size)
        for text, totals in stored.groups.items():
            if self.keeps(group := self.plan.group(text)):
                self.totals.restore(self.number(group), totals)
        self._counted, self._rebuilding, self._watermarks = stored.counted, Coverage(), stored.watermarks
        self._begin(rebuilt=self.plan.is_rebuilt)
        if not self.plan.is_rebuilt:
            kept = ((self.plan.group(text), partials) for text, partials in stored.windows.items())
            frames = (as_frames(self.number(group), partials) for group, partials in kept if group in self._numbers)
            torn = [(window, self._numbers[group]) for window, group in stored.torn if group in self._numbers]
            self._windows.restore([frame for found in frames for frame in found], torn)
        windows = stored.all_groups.get("windows", [])
        whole = [frame for partial, _ in windows for frame in as_frames(0, [partial])]
        self._all_groups.restore(whole, [(window, 0) for window in stored.all_torn])
        self._tear(stored.torn_before)
        for partial, groups in windows:
            there = self._members[partial.window] = np.zeros(self._size, dtype=np.bool_)
            there[[self._numbers[group] for group in groups if group in self._numbers]] = True

    def _begin(self, *, rebuilt: bool) -> None:
        self._rebuilt = rebuilt
        self._since_start = Watermarks()
        """Watermarks of the records for rebuilt windows, and of later records."""
        self._windows = Windows(self.plan.rule, self._size, rebuilt=rebuilt)
        self._all_groups = Windows(self.plan.rule, 1)
        self._members = {}
        self._changed()
