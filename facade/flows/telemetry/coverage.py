"""Which offsets of the windowed topic are in a ledger already: what covers them once more is refused.

The summaries of one group and partition come in the order of the log, as each transaction follows on the one before.
Where nodes are the groups, a worker writes them by rack: the offsets of such a summary stand for all nodes of the rack.
A worker that says `contiguous` writes one about each rack in each transaction. So a summary that begins behind the end
of the one before shows that some were lost in between, wherever that happened.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from facade.flows.telemetry.partial import Group, Summary
from facade.messages import RackSummary, Watermark

_LOGS = 8
"""So many former logs of a partition are remembered."""


class _Covered(msgspec.Struct, array_like=True, gc=False):
    """The newest transaction of one group and partition that was counted."""

    begin: int
    end: int
    part: int
    """Number of its newest summary."""


class _CoveredRack(_Covered, array_like=True, gc=False):
    """The same of all nodes from `first` to `last`."""

    first: int
    last: int
    contiguous: bool = False
    """Whether the next summary begins where this one ends, unless some are lost."""
    since: int = -1
    """Offset from which on the totals have everything but known holes; -1: not known."""


class _Partition(msgspec.Struct):
    """What is counted of one partition."""

    logs: list[str]
    """Which logs it had; the newest is the last."""
    groups: dict[str, _Covered] = {}
    """Of groups that were written alone, and of which no newer summary of a rack was counted."""
    racks: list[_CoveredRack] = []
    """Named by their nodes, as another run may have racks of another size."""
    former: list[_CoveredRack] = []
    """Racks as they were counted when the end of the log was lost."""
    hole: tuple[int, int] = (0, 0)
    """The newest hole: its first offset, and the one after its last."""

    def widen(self, first: int, after: int) -> int:
        """Take a hole of a rack; return how many of its offsets are in no hole of another one, if it has any such."""
        low, high = self.hole
        both = max(min(high, after) - max(low, first), 0)
        if new := after - first - both:
            self.hole = (min(low, first), max(high, after)) if both else (first, after)
        return new


class Hole(NamedTuple):
    """Offsets of a windowed topic whose summaries never came, of one rack or more."""

    partition: int
    first: int
    after: int
    """Offset after the last one."""
    new: int
    """How many of them are in no hole that was found before."""


class Coverage(msgspec.Struct):
    """What is counted of one windowed topic."""

    partitions: dict[int, _Partition] = {}

    def refuse(self, group: Group, summary: Summary) -> str:
        """Return why a summary must not be counted; empty text: it may, and is noted as counted."""
        if not summary.log:  # of an older worker
            return ""
        now = _Covered(summary.offset_from, summary.offset_to, summary.part)
        at, why = self._at(summary)
        before: list[_Covered] = [one for one in (at.groups.get(str(group)),) if one is not None]
        if at.racks and isinstance(group, int):
            before += [one for one in at.racks if one.first <= group <= one.last]
        if why := why or _overlap(before, now, summary.partition):
            return why
        at.groups[str(group)] = now
        return ""

    def refuse_rack(self, summary: RackSummary) -> "str | Hole | None":
        """Return why the summary of a rack must not be counted; None: it may, and is noted as counted.

        A hole says that it may, and that others were lost before it.
        """
        first, last = summary.first, summary.last
        now = _CoveredRack(summary.offset_from, summary.offset_to, summary.part, first, last, summary.contiguous)
        at, why = self._at(summary)
        alone = [group for group in at.groups if first <= int(group) <= last]
        racks = [one for one in at.racks if one.first <= last and first <= one.last]
        if why := why or _overlap([*racks, *(at.groups[group] for group in alone)], now, summary.partition):
            return why
        earlier = racks or [one for one in at.former if one.first <= last and first <= one.last]
        now.since = max((one.since for one in earlier), default=-1 if alone or not now.contiguous else now.begin)
        for group in alone:
            del at.groups[group]
        at.racks = [one for one in at.racks if not first <= one.first <= one.last <= last]
        at.racks.append(now)
        end = max((one.end for one in earlier if one.contiguous), default=now.begin)
        # A worker from before there were racks writes nothing about a node without records.
        if now.contiguous and not alone and now.begin > end and (count := at.widen(end, now.begin)):
            return Hole(summary.partition, end, now.begin, count)
        return None

    def refuse_watermark(self, watermark: Watermark) -> str:
        """Return why a watermark does not count; empty text: it does."""
        return self._at(watermark)[1]

    def before(self, group: Group) -> Iterator[tuple[int, int]]:
        """Return partitions of whose records the first ones are not counted, and the offset from which on they are."""
        for partition, at in self.partitions.items():
            since = [one.since for one in at.racks if isinstance(group, int) and one.first <= group <= one.last]
            if max(since, default=0) > 0:
                yield partition, max(since)

    def _at(self, summary: Summary | RackSummary | Watermark) -> tuple[_Partition, str]:
        """Return what is counted of the partition of a summary, and why its log is not the one that is counted."""
        at = self.partitions.setdefault(summary.partition, _Partition([summary.log]))
        if summary.log in at.logs[:-1]:
            why = f"partition {summary.partition}: expected offsets of log {at.logs[-1]}, got some of {summary.log}"
            return at, why
        if summary.log != at.logs[-1]:
            is_cut = summary.log.partition("#")[0] == at.logs[-1].partition("#")[0]
            at.former = at.racks if is_cut else []
            at.logs, at.groups, at.racks = [*at.logs, summary.log][-_LOGS:], {}, []
            at.hole = (0, 0)
        return at, ""


def _overlap(before: Sequence[_Covered], now: _Covered, partition: int) -> str:
    for covered in before:
        if now.begin < covered.end and not _is_next_part(covered, now):
            came = f"partition {partition}, offsets {now.begin} to {now.end - 1}, part {now.part}"
            return f"{came}: expected offset {covered.end} or later, as those before are counted"
    return ""


def _is_next_part(covered: _Covered, now: _Covered) -> bool:
    return (now.begin, now.end) == (covered.begin, covered.end) and now.part > covered.part
