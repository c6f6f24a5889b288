"""Which offsets of the windowed topic are in a ledger already: what covers them once more is refused.

The summaries of one group and partition come in the order of the log, as each transaction follows on the one before.
"""

import msgspec

from facade.flows.telemetry.partial import Group, Summary

_LOGS = 8
"""So many former logs of a partition are remembered."""


class _Covered(msgspec.Struct, array_like=True, gc=False):
    """The newest transaction of one group and partition that was counted."""

    begin: int
    end: int
    part: int
    """Number of its newest summary."""


class _Partition(msgspec.Struct):
    """What is counted of one partition."""

    logs: list[str]
    """Which logs it had; the newest is the last."""
    groups: dict[str, _Covered] = {}


class Coverage(msgspec.Struct):
    """What is counted of one windowed topic."""

    partitions: dict[int, _Partition] = {}

    def refuse(self, group: Group, summary: Summary) -> str:
        """Return why a summary must not be counted; empty text: it may, and is noted as counted."""
        if not summary.log:  # of an older worker
            return ""
        at = self.partitions.setdefault(summary.partition, _Partition([summary.log]))
        if summary.log in at.logs[:-1]:
            return f"partition {summary.partition}: expected offsets of log {at.logs[-1]}, got some of {summary.log}"
        if summary.log != at.logs[-1]:
            at.logs, at.groups = [*at.logs, summary.log][-_LOGS:], {}
        covered = at.groups.get(str(group))
        now = _Covered(summary.offset_from, summary.offset_to, summary.part)
        if covered is not None and now.begin < covered.end and not _is_next_part(covered, now):
            came = f"partition {summary.partition}, offsets {now.begin} to {now.end - 1}, part {now.part}"
            return f"{came}: expected offset {covered.end} or later, as those before are counted"
        at.groups[str(group)] = now
        return ""


def _is_next_part(covered: _Covered, now: _Covered) -> bool:
    return (now.begin, now.end) == (covered.begin, covered.end) and now.part > covered.part
