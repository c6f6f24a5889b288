"""The random values and faults of a simulated stream, drawn in blocks of many heaps.

A block does not depend on the division into batches, and each fault has a random generator of its own: switching one on
changes neither the others nor the values.
"""

from dataclasses import dataclass, fields

import numpy as np

from facade.flows.telemetry.simulator.faults import Faults, HeapOutcome, Scenario
from facade.kernel.clock import as_duration
from facade.sdp.columns import Column as Column

PACKETS = 512
FRACTION_STEPS = 10_000
"""Resolution of a flagged fraction."""
LATENCY_LIMIT = 20_000
"""Upper bound of latencies [us]."""

_BLOCK = 8192
_BURST = 1 / 200_000  # chance that a heap begins a burst of losses
_BURST_LENGTH = 200.0  # heaps, on average
_BURST_SHARE = 0.009  # most packets lost in a burst: below the alarm limit, so that only a chosen loss is an alarm
_LATE_PACKETS = 1e-4  # chance that a heap has late packets
_LATENCY = 2_000.0  # median [us]
_LATENCY_SPREAD = 0.3  # of the logarithm
_FLAG_PERIOD = 600.0  # of the slow change of the flagged fraction [s]


@dataclass(slots=True, kw_only=True)
class Block:
    """Consecutive heaps of a stream, the nodes in turn; each column has the shape (heaps,)."""

    node: Column
    """Index of the node, from 0."""
    seq: Column
    lost: Column
    late_packets: Column
    fraction: Column
    """Flagged fraction in parts of `FRACTION_STEPS`."""
    latency: Column
    """[us]."""
    shift: Column
    """Error of the data time [us]."""
    outcome: Column
    """As `HeapOutcome`."""
    sent: Column
    """Number of copies: 0 while its node is silent, 2 when duplicated."""
    skipped: Column
    """Whether the sequence number before it is skipped."""
    swapped: Column
    """Whether its successor overtakes it."""
    garbage: Column
    """Whether a malformed record follows."""

    def __len__(self) -> int:
        return len(self.node)

    def part(self, begin: int, end: int) -> "Block":
        """Return a slice of the heaps, without a copy."""
        return Block(**{field.name: getattr(self, field.name)[begin:end] for field in fields(self)})


class Draws:
    """The blocks of one scenario, the same for the same seed."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._faults = scenario.faults
        nodes = scenario.nodes
        seeds = np.random.SeedSequence(scenario.seed).spawn(7)
        values, gaps, duplicates, disorder, shifts, garbage, bursts = map(np.random.default_rng, seeds)
        self._values, self._burst_chance = values, bursts
        self._chance = {"gaps": gaps, "duplicates": duplicates, "disorder": disorder, "garbage": garbage}
        self._shift_chance = shifts
        self._rounds = max(2, _BLOCK // nodes // 2 * 2)  # even: neighbours are swapped in pairs
        self._shape = (self._rounds, nodes)
        self._done = 0
        self._next_seq = np.zeros(nodes, dtype=np.int64)
        self._flag_base = values.uniform(0.01, 0.05, nodes)
        self._flag_swing = values.uniform(0.0, 0.01, nodes)
        self._flag_phase = values.uniform(0.0, 2 * np.pi, nodes)
        self._bursts: list[tuple[int, int, float]] = []  # node, heaps left, share lost
        self._skew = np.zeros(nodes, dtype=np.int64)
        for skew in scenario.faults.skews:
            self._skew[skew.node - scenario.first_node] = as_duration(skew.seconds)
        self._loss = {loss.node - scenario.first_node: loss.share for loss in scenario.faults.losses}

    def block(self) -> Block:
        """Draw the next heaps."""
        shape, ends = self._shape, self._faults.chance_seconds
        if ends is not None and self._done >= ends * self._scenario.rate:
            self._faults = Faults(silences=self._faults.silences)  # skews and losses are kept apart
        active = self._active()
        skipped = self._happens("gaps", active)
        steps = active.astype(np.int64) + skipped
        seq = self._next_seq + np.cumsum(steps, axis=0) - 1
        self._next_seq += steps.sum(axis=0)
        shift, swapped = self._shifts(), np.zeros(shape, dtype=np.bool_)
        if self._faults.disorder:
            self._swap(seq, shift, swapped, active)
        lost, late_packets = self._losses()
        block = Block(
            node=np.broadcast_to(np.arange(shape[1]), shape),
            seq=seq,
            lost=lost,
            late_packets=late_packets,
            fraction=self._fractions(),
            latency=self._latencies(),
            shift=shift,
            outcome=self._outcomes(shift),
            sent=active.astype(np.int64) + self._happens("duplicates", active),
            skipped=skipped,
            swapped=swapped,
            garbage=self._happens("garbage", active),
        )
        self._done += self._rounds * shape[1]
        return Block(**{field.name: getattr(block, field.name).reshape(-1) for field in fields(block)})

    def _active(self) -> Column:
        active = np.ones(self._shape, dtype=np.bool_)
        if self._faults.silences:
            time = (self._done + np.arange(active.size).reshape(self._shape)) / self._scenario.rate
            for silence in self._faults.silences:
                node = silence.node - self._scenario.first_node
                active[:, node] &= (time[:, node] < silence.begin) | (time[:, node] >= silence.end)
        return active

    def _happens(self, fault: str, active: Column) -> Column:
        probability: float = getattr(self._faults, fault)
        if not probability:
            return np.zeros(self._shape, dtype=np.bool_)
        return (self._chance[fault].random(self._shape) < probability) & active

    def _shifts(self) -> Column:
        shift = np.zeros(self._shape, dtype=np.int64) + self._skew
        if self._faults.late or self._faults.ahead:
            chance = self._shift_chance.random(self._shape)
            late = chance < self._faults.late
            ahead = (chance >= self._faults.late) & (chance < self._faults.late + self._faults.ahead)
            shift[late] -= as_duration(self._faults.late_seconds)
            shift[ahead] += as_duration(self._faults.ahead_seconds)
        return shift

    def _swap(self, seq: Column, shift: Column, swapped: Column, active: Column) -> None:
        both = active[0::2] & active[1::2]
        pairs = (self._chance["disorder"].random(both.shape) < self._faults.disorder) & both
        for column in (seq, shift):
            first, second = column[0::2], column[1::2]
            first[pairs], second[pairs] = second[pairs], first[pairs]
        swapped[1::2] = pairs
        # Sent second, consumed first: its data time is a little before the one that overtook it.
        interval = self._scenario.nodes / self._scenario.rate
        shift[1::2][pairs] -= as_duration(min(1.5 * interval, 0.1))

    def _outcomes(self, shift: Column) -> Column:
        limits = self._scenario.limits
        outcome = np.full(shift.shape, HeapOutcome.USED, dtype=np.int8)
        outcome[shift < -as_duration(limits.lateness)] = HeapOutcome.LATE
        outcome[shift > as_duration(limits.ahead)] = HeapOutcome.AHEAD
        return outcome

    def _losses(self) -> tuple[Column, Column]:
        chance = self._burst_chance
        lost = np.zeros(self._shape, dtype=np.int64)
        for node, share in self._loss.items():
            lost[:, node] = chance.binomial(PACKETS, share, self._rounds)
        late = np.zeros(self._shape, dtype=np.int64)
        begun = [
            (int(at) // self._shape[1], int(at) % self._shape[1], int(length), float(share))
            for at, length, share in (
                (chance.integers(lost.size), chance.geometric(1 / _BURST_LENGTH), chance.uniform(0.0, _BURST_SHARE))
                for _ in range(chance.poisson(lost.size * _BURST))
            )
        ]
        running = [(0, node, length, share) for node, length, share in self._bursts]
        self._bursts = []
        for first, node, length, share in running + begun:
            here = lost[first : first + length, node]
            here[:] = chance.binomial(PACKETS, share, len(here))
            if length > len(here):
                self._bursts.append((node, length - len(here), share))
        places = chance.integers(0, lost.size, chance.poisson(lost.size * _LATE_PACKETS))
        late.reshape(-1)[places] = chance.geometric(0.3, len(places))
        return lost, np.minimum(late, PACKETS - lost)

    def _fractions(self) -> Column:
        time = (self._done + np.arange(self._rounds) * self._shape[1]) / self._scenario.rate
        angle = 2 * np.pi * time[:, np.newaxis] / _FLAG_PERIOD + self._flag_phase
        noise = self._values.normal(0.0, 0.002, self._shape)
        fraction = self._flag_base + self._flag_swing * np.sin(angle) + noise
        return np.rint(np.clip(fraction, 0.0, 1.0) * FRACTION_STEPS).astype(np.int64)

    def _latencies(self) -> Column:
        latency = self._values.lognormal(np.log(_LATENCY), _LATENCY_SPREAD, self._shape)
        return np.minimum(latency, LATENCY_LIMIT - 1).astype(np.int64)
