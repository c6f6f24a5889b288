"""Simulated ingest nodes: heap notifications at a steady rate, with an exact report."""

from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from facade.flows.telemetry.simulator.account import Expected, NodeAccount
from facade.flows.telemetry.simulator.faults import Faults
from facade.flows.telemetry.simulator.heaps import HeapNumbers
from facade.simulate.pacing import Pacer
from facade.simulate.sender import Outlet, Stop, StreamReport, StreamSender

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
    slipped: float
    """Delay of the stream by an absent broker or a slow machine [s]."""
    heaps: int
    """Heaps that were due, including those of silent nodes, without duplicates and garbage."""
    longest_wait: float
    """Longest time between queueing and confirmation [s]."""
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


class IngestSimulator(StreamSender[HeapReport]):
    """Sends one stream; the other parameters are those of `facade.simulate.sender.StreamSender`."""

    def __init__(self, stream: HeapNumbers, outlet: Outlet, **frame: Any) -> None:
        self._stream = stream
        self._waiting: deque[tuple[float, int]] = deque()  # when queued, and how many were queued by then
        self._longest_wait = 0.0
        pace = partial(
            Pacer, stream.scenario.rate, burst=2 * stream.tick, tick=stream.tick, largest=stream.most_at_once
        )
        super().__init__(
            stream, outlet, pace=pace, most_waiting=stream.most_waiting, chunk=stream.most_at_once, **frame
        )

    def report(self, *, stopped_by: str = "", finished: bool = False) -> HeapReport:
        """Return the report of the run so far."""
        account, scenario = self._stream.account, self._stream.scenario
        return HeapReport(
            **self._common(stopped_by=stopped_by, finished=finished),
            seed=scenario.seed,
            first_node=scenario.first_node,
            node_count=scenario.nodes,
            scan_id=scenario.scan_id,
            rate=scenario.rate,
            faults=scenario.faults,
            slipped=self._schedule.slipped,
            heaps=self._stream.given,
            longest_wait=self._longest_wait,
            certain=self._certain(),
            fired=dict(account.fired),
            garbage=dict(account.garbage),
            expected=account.expected(),
            nodes=account.nodes(),
        )

    def _stopped_by(self, stop: Stop) -> str:
        if stop.count is not None and self._stream.given >= stop.count:
            return "count"
        if stop.seconds is not None:
            # A stream at its full rate ends with its last heap, a delayed one by the clock.
            if self._stream.given >= round(stop.seconds * self._stream.scenario.rate):
                return "seconds"
            if self._clock.monotonic() - self._began >= stop.seconds + 1:
                return "seconds"
        return ""

    def _due(self, stop: Stop) -> int:
        count = super()._due(stop)
        if stop.seconds is None:
            return count
        return min(count, round(stop.seconds * self._stream.scenario.rate) - self._stream.given)

    def _send(self, count: int) -> None:
        super()._send(count)
        if count:
            self._waiting.append((self._clock.monotonic(), self._outlet.queued))

    def _look_after(self) -> None:
        super()._look_after()
        now = self._clock.monotonic()
        known = self._outlet.queued - self._outlet.backlog
        while self._waiting:
            queued_at, queued = self._waiting[0]
            self._longest_wait = max(self._longest_wait, now - queued_at)
            if queued > known:
                break
            self._waiting.popleft()

    def _certain(self) -> bool:
        limits, wait = self._stream.scenario.limits, self._longest_wait + _APPEND_SLACK
        return all(
            limits.outcome(shift) == limits.outcome(shift, wait) for _, shift in self._stream.scenario.faults.shifts()
        )
