"""What a simulator says about its run: the JSON that a test compares the other end with."""

from pathlib import Path

import msgspec

from facade.flows.telemetry.simulator.account import Expected, NodeAccount
from facade.flows.telemetry.simulator.faults import Faults
from facade.simulate.sender import StreamReport

VERSION = "simulate-ingest/1"


class HeapReport(StreamReport, frozen=True, kw_only=True):
    """An exact account of what one run sent.

    `fired`, `garbage`, `expected` and `nodes` are about the `queued` records; they hold for the
    other end once `sent` equals `queued`, which the end of a run makes sure of or denies.
    """

    schema: str = VERSION
    seed: int
    first_node: int
    node_count: int
    scan_id: int
    rate: float
    """Asked for, of all nodes together [heaps/s]."""
    faults: Faults
    """The settings."""
    slipped: float
    """Time by which the stream was held up, by a broker that was away or a slow machine [s]."""
    heaps: int
    """Heaps that were due; those of silent nodes are among them, duplicates and garbage are not."""
    longest_wait: float
    """Longest time between queueing and confirmation [s]."""
    certain: bool
    """Whether all records arrived so soon that used, late and ahead can be told apart beforehand."""
    fired: dict[str, int]
    """How often each fault happened."""
    garbage: dict[str, int]
    """Malformed records by kind, see `facade.flows.telemetry.simulator.garbage`."""
    expected: Expected
    nodes: dict[str, NodeAccount]
    """By number in decimal."""


def read_report(path: Path) -> HeapReport:
    """Read the report of a run."""
    return msgspec.json.decode(path.read_bytes(), type=HeapReport)
