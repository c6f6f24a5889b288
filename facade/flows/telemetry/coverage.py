"""Which offsets of the windowed topic are in a ledger already: what covers them once more is refused.

The summaries of one group and partition come in the order of the log, as each transaction follows on the one before.
Where nodes are the groups, a worker writes them by rack: the offsets of such a summary stand for all nodes of the rack.
"""

from collections.abc import Sequence

import msgspec

from facade.flows.telemetry.partial import Group, Summary
from facade.messages import RackSummary

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


class _Partition(msgspec.Struct):
    """What is counted of one partition."""

    logs: list[str]
    """Which logs it had; the newest is the last."""
    groups: dict[str, _Covered] = {}
    """Of groups that were written alone, and of which no newer summary of a rack was counted."""
    racks: list[_CoveredRack] = []
    """Named by their nodes, as another run may have racks of another size."""


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

    def refuse_rack(self, summary: RackSummary) -> str:
        """Return why the summary of a rack must not be counted, as `refuse` does."""
        first, last = summary.first, summary.last
        now = _CoveredRack(summary.offset_from, summary.offset_to, summary.part, first, last)
        at, why = self._at(summary)
        alone = [group for group in at.groups if first <= int(group) <= last]
        racks = [one for one in at.racks if one.first <= last and first <= one.last]
        if why := why or _overlap([*racks, *(at.groups[group] for group in alone)], now, summary.partition):
            return why
        for group in alone:
            del at.groups[group]
        at.racks = [one for one in at.racks if not first <= one.first <= one.last <= last]
        at.racks.append(now)
        return ""

    def _at(self, summary: Summary | RackSummary) -> tuple[_Partition, str]:
        """Return what is counted of the partition of a summary, and why its log is not the one that is counted."""
        at = self.partitions.setdefault(summary.partition, _Partition([summary.log]))
        if summary.log in at.logs[:-1]:
            why = f"partition {summary.partition}: expected offsets of log {at.logs[-1]}, got some of {summary.log}"
            return at, why
        if summary.log != at.logs[-1]:
            at.logs, at.groups, at.racks = [*at.logs, summary.log][-_LOGS:], {}, []
        return at, ""


def _overlap(before: Sequence[_Covered], now: _Covered, partition: int) -> str:
    for covered in before:
        if now.begin < covered.end and not _is_next_part(covered, now):
            came = f"partition {partition}, offsets {now.begin} to {now.end - 1}, part {now.part}"
            return f"{came}: expected offset {covered.end} or later, as those before are counted"
    return ""


def _is_next_part(covered: _Covered, now: _Covered) -> bool:
    return (now.begin, now.end) == (covered.begin, covered.end) and now.part > covered.part
