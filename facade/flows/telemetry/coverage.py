"""The offsets of a windowed topic that are in a ledger; a summary that covers some of them once more is refused.

The summaries of one group and partition come in the order of the log, as each transaction follows on the one before.
Where nodes are the groups, a worker writes them by rack, and the offsets stand for all nodes of the rack. A worker that
says `contiguous` writes one about each rack in each transaction, so a gap between two of them shows that summaries are
lost.
"""

from collections.abc import Iterator

import msgspec

from facade.bus.offsets import CountedOffsets, Gap, LogCut, Overlap
from facade.flows.telemetry.partial import Group, Summary
from facade.messages import RackSummary


class RackOffsets(CountedOffsets):
    """The offsets of the nodes from `first` to `last`."""

    first: int = 0
    last: int = -1


class PartitionOffsets(msgspec.Struct):
    """The offsets of one partition."""

    groups: dict[str, CountedOffsets] = {}
    racks: dict[str, RackOffsets] = {}
    gaps_to: int = 0
    """Offset after the newest gap: racks that lack the same summaries have the same gap."""


class Coverage(msgspec.Struct):
    """The offsets of one windowed topic."""

    partitions: dict[int, PartitionOffsets] = {}

    def take(self, group: Group, summary: Summary) -> Overlap | LogCut | None:
        """Count the offsets of the summary of a group, unless they overlap."""
        known = self._partition(summary.partition).groups
        found = _take(known.setdefault(str(group), _none(summary)), summary)
        return None if isinstance(found, Gap) else found  # there is none of a transaction without records of the group

    def take_rack(self, summary: RackSummary) -> Overlap | Gap | LogCut | None:
        """Count the offsets of the summary of a rack, unless they overlap; a gap is returned once for all racks."""
        at = self._partition(summary.partition)
        name = f"{summary.first}-{summary.last}"
        if name not in at.racks:
            at.racks[name] = RackOffsets(
                summary.log, summary.offset_from, summary.offset_from, -1, first=summary.first, last=summary.last
            )
        found = _take(at.racks[name], summary)
        if isinstance(found, LogCut):
            at.gaps_to = 0
        elif isinstance(found, Gap):
            found = Gap(max(found.first, at.gaps_to), found.after)
            if not summary.contiguous or found.records <= 0:
                return None
            at.gaps_to = found.after
        return found

    def epochs(self, group: Group) -> Iterator[tuple[int, RackOffsets]]:
        """Return the partitions of whose records the totals of a group lack the first ones, and its offsets there."""
        for partition, at in self.partitions.items():
            for one in at.racks.values():
                if isinstance(group, int) and one.first <= group <= one.last and (one.begin > 0 or one.epoch > 1):
                    yield partition, one

    def _partition(self, number: int) -> PartitionOffsets:
        return self.partitions.setdefault(number, PartitionOffsets())


def _none(summary: Summary | RackSummary) -> CountedOffsets:
    return CountedOffsets(summary.log, summary.offset_from, summary.offset_from, -1)


def _take(counted: CountedOffsets, summary: Summary | RackSummary) -> Overlap | Gap | LogCut | None:
    return counted.take(summary.log, summary.offset_from, summary.offset_to, summary.part)
