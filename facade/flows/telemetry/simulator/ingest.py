"""Simulated ingest nodes: heap notifications at a steady rate, with an exact report."""

from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from facade.flows.telemetry.simulator.account import Expected, NodeAccount
from facade.flows.telemetry.simulator.faults import Faults
from facade.flows.telemetry.simulator.heaps import HeapNumbers
from facade.simulate.pacing import Pacer
from facade.simulate.sender import Shape, StreamReport

VERSION = "simulate-ingest/1"


class HeapReport(StreamReport, frozen=True, kw_only=True):
    """An exact account of one run; `fired`, `garbage`, `expected` and `nodes` are about the `queued` records."""

    schema: str = VERSION
    seed: int
    first_node: int
    node_count: int
    scan_id: int
    rate: float
    """Requested rate of all nodes together [heaps/s]."""
    faults: Faults
    heaps: int
    """Heaps that were due, including those of silent nodes, without duplicates and garbage."""
    certain: bool
    """Whether all records arrived soon enough for certain outcomes."""
    fired: dict[str, int]
    garbage: dict[str, int]
    """Malformed records by kind, see `facade.flows.telemetry.simulator.garbage`."""
    expected: Expected
    nodes: dict[str, NodeAccount]
    """Accounts of nodes, by number in decimal."""


def read_report(path: Path) -> HeapReport:
    """Read the report of a run."""
    return msgspec.json.decode(path.read_bytes(), type=HeapReport)


_APPEND_SLACK = 0.5
"""Added to the longest wait, as waits are measured with two clocks to a tick [s]."""


def heap_shape(stream: HeapNumbers) -> Shape:
    """Return how the heaps of some nodes are sent."""
    rate, most = stream.scenario.rate, stream.most_at_once
    window = stream.scenario.limits.window
    pace = partial(Pacer, rate, burst=2 * stream.tick, tick=stream.tick, largest=most, window=window)
    return Shape(pace=pace, most_waiting=stream.most_waiting, chunk=most, rate=rate)


def heap_report(stream: HeapNumbers, common: dict[str, Any]) -> HeapReport:
    """Return the report of a stream so far; `common`: the fields that all reports have."""
    account, scenario = stream.account, stream.scenario
    wait = common["longest_wait"] + _APPEND_SLACK
    shifts = [shift for _, shift in scenario.faults.shifts()]
    return HeapReport(
        **common,
        seed=scenario.seed,
        first_node=scenario.first_node,
        node_count=scenario.nodes,
        scan_id=scenario.scan_id,
        rate=scenario.rate,
        faults=scenario.faults,
        heaps=stream.given,
        certain=all(scenario.limits.outcome(shift) == scenario.limits.outcome(shift, wait) for shift in shifts),
        fired=dict(account.fired),
        garbage=dict(account.garbage),
        expected=account.expected(),
        nodes=account.nodes(),
    )
