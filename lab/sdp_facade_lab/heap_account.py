"""The account of notifications: what the simulator says it sent beside what Tango clients read.

Every figure is compared, none within a tolerance: a single record lost or counted twice shows as
a line that differs, with its name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from facade.flows.telemetry.simulator.ingest import HeapReport
from sdp_facade_lab.progress import ProgressLine

DRAINS_WITHIN: Final = 60.0
"""Longest time for everything sent to be accounted for [s]."""

BUS_FIGURES = ("Consumed", "Used", "Late", "Suppressed", "DeadLettered", "InFlight", "Balance", "Lag")
STREAMS = {"ingest.heaps": "ingestHeaps", "ingest.summary": "ingestSummary"}
"""Prefix of a stream's attributes on SdpBus."""
MASTER_TOTALS = {
    "heapsTotal": "counted",
    "heapsLate": "late",
    "heapsMissing": "missing",
    "heapsDuplicated": "duplicates",
}
NODE_TOTALS = {
    **MASTER_TOTALS,
    "packetsReceivedTotal": "received",
    "packetsLostTotal": "lost",
    "packetsLateTotal": "late_packets",
}
"""Attribute to the figure of a node in the simulator's report."""
_USED, LATE = (STREAMS["ingest.heaps"] + figure for figure in ("Used", "Late"))
"""Figures that depend on the time at which the broker takes a record; so does heapsLate. Totals have both kinds."""


class HeapCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Figures read over Tango, without attributes that cannot be read or are ATTR_INVALID."""

    bus: dict[str, int]
    """SdpBus, by attribute."""
    reasons: dict[str, int]
    """Suppressed and dead-lettered notifications by reason, from SdpBus."""
    master: dict[str, int]
    """SdpMaster, by attribute."""
    nodes: dict[int, dict[str, int]]
    """SdpIngestNode, by node number and attribute."""


class BalanceLine(msgspec.Struct, frozen=True):
    """One figure of the account."""

    where: str
    """Device class, or ``node`` and its number."""
    what: str
    """Attribute, or ``reason`` and its name."""
    expected: int
    found: int | None
    """None: it could not be read."""

    @property
    def agrees(self) -> bool:
        return self.expected == self.found

    def __str__(self) -> str:
        found = "nothing that can be read" if self.found is None else f"{self.found:,}"
        return f"{self.where}: {self.what}: expected {self.expected:,}, got {found}"


def compare(sent: HeapReport, found: HeapCounts) -> list[BalanceLine]:
    """Return every figure of the account; of a run that is not `certain`, used and late records are one figure."""
    lines = [*_stream(sent, found), *_reasons(sent, found), *_master(sent, found), *_nodes(sent, found)]
    return lines if sent.certain else [*_used_or_late(lines)]


def settled_account(progress: ProgressLine, sent: HeapReport, found: Callable[[], HeapCounts]) -> list[BalanceLine]:
    """Compare until every figure agrees, as a lag is brief, and a worker that has just joined writes again."""
    lines: list[BalanceLine] = []

    def agrees() -> bool:
        lines[:] = compare(sent, found())
        return all(line.agrees for line in lines)

    progress.wait_until(agrees, DRAINS_WITHIN, "the figures agree")
    return lines


def disagreements(sent: HeapReport, lines: list[BalanceLine]) -> list[str]:
    """Say what does not balance; empty when everything does."""
    failures = [str(line) for line in lines if not line.agrees]
    if not sent.finished:
        failures.append("simulator: its report is not finished, so what it sent is not known")
    if sent.undelivered:
        failures.append(f"simulator: expected all records confirmed, got {sent.undelivered:,} undelivered")
    if sent.sent != sent.queued:
        failures.append(f"simulator: sent: expected {sent.queued:,} records, got {sent.sent:,}")
    return failures


def waited(sent: HeapReport) -> str:
    """Say why used and late records are one figure; empty when they are not."""
    if sent.certain:
        return ""
    return (
        f"; records waited up to {sent.longest_wait:.1f} s for the broker, so some were late by its clock when it took"
        " them: used and late ones are compared together"
    )


def _stream(sent: HeapReport, found: HeapCounts) -> list[BalanceLine]:
    expected = sent.expected
    figures = {
        "Consumed": expected.consumed,
        "Used": expected.used,
        "Late": expected.late,
        "Suppressed": sum(expected.suppressed.values()),
        "DeadLettered": sum(expected.dead_lettered.values()),
        **dict.fromkeys(("InFlight", "Balance", "Lag"), 0),
    }
    zero = dict.fromkeys(("Balance", "Lag", "DeadLettered"), 0)
    wanted = {
        **{STREAMS["ingest.heaps"] + name: value for name, value in figures.items()},
        **{STREAMS["ingest.summary"] + name: value for name, value in zero.items()},
    }
    return _lines("SdpBus", wanted, found.bus)


def _used_or_late(lines: Sequence[BalanceLine]) -> Iterator[BalanceLine]:
    found = {line.what: line for line in lines}
    for line in lines:
        if line.what == _USED:
            late = found[LATE]
            both = None if line.found is None or late.found is None else line.found + late.found
            yield BalanceLine(line.where, f"{_USED} + {LATE}", line.expected + late.expected, both)
        elif line.what not in (LATE, "heapsLate"):
            yield line


def _reasons(sent: HeapReport, found: HeapCounts) -> list[BalanceLine]:
    wanted = {**sent.expected.suppressed, **sent.expected.dead_lettered}
    names = sorted(wanted.keys() | found.reasons.keys(), key=lambda name: (-wanted.get(name, 0), name))
    return [BalanceLine("SdpBus", f"reason {name}", wanted.get(name, 0), found.reasons.get(name, 0)) for name in names]


def _master(sent: HeapReport, found: HeapCounts) -> list[BalanceLine]:
    nodes = sent.nodes.values()
    wanted = {name: sum(getattr(node, figure) for node in nodes) for name, figure in MASTER_TOTALS.items()}
    return _lines("SdpMaster", wanted, found.master)


def _nodes(sent: HeapReport, found: HeapCounts) -> list[BalanceLine]:
    lines = []
    for number, node in sent.nodes.items():
        wanted = {name: getattr(node, figure) for name, figure in NODE_TOTALS.items()}
        lines += _lines(f"node {number}", wanted, found.nodes.get(int(number), {}))
    return lines


def _lines(where: str, wanted: Mapping[str, int], found: Mapping[str, int]) -> list[BalanceLine]:
    return [BalanceLine(where, name, value, found.get(name)) for name, value in wanted.items()]
