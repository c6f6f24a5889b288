"""Simulated heap notifications as bytes ready to send, with an exact account of them.

Pure: no I/O, no clock, no Kafka. A stream holds the same records for the same scenario however it
is cut into batches; only the time stamps come from the caller.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from facade.flows.telemetry.simulator.account import Account
from facade.flows.telemetry.simulator.draws import FRACTION_STEPS, LATENCY_LIMIT, PACKETS, Block, Column, Draws
from facade.flows.telemetry.simulator.faults import MICRO, Scenario
from facade.flows.telemetry.simulator.garbage import GARBAGE

CHANNELS = 65_536
"""Frequency channels of the telescope, split over the nodes."""

_RECORD = b'%b%d,"time":%d%b%b%b'
_FRACTIONS = np.array([b"%.4f" % (n / FRACTION_STEPS) for n in range(FRACTION_STEPS + 1)], dtype=np.object_)
_LATENCIES = np.array([b',"latency":%.6f}' % (n / MICRO) for n in range(LATENCY_LIMIT)], dtype=np.object_)


class Batch(NamedTuple):
    """Records to send, in order."""

    keys: list[bytes]
    values: list[bytes | None]


class HeapStream:
    """The heap notifications of some nodes, which send in turn.

    Raises
    ------
    ConfigError
        The scenario makes no sense.
    """

    topic = "ingest.heaps"

    def __init__(self, scenario: Scenario) -> None:
        scenario.check()
        self.scenario = scenario
        self.account = Account(scenario)
        """Of all records given out so far."""
        self.given = 0
        """Heaps given out so far, those of silent nodes included."""
        self._draws = Draws(scenario)
        self._latest_us = 0
        self._kinds: Iterator[int] = itertools.cycle(range(len(GARBAGE)))
        numbers = range(scenario.first_node, scenario.first_node + scenario.nodes)
        self._node_keys = [b"%d" % number for number in numbers]
        self._node_heads = [
            b'{"schema":"heap/1","node":%d,"scan_id":%d,"seq":' % (number, scenario.scan_id) for number in numbers
        ]
        width = max(1, CHANNELS // scenario.nodes)
        self._node_channels = [
            b',"channel_start":%d,"channel_count":%d' % (index * width % CHANNELS, width)
            for index in range(scenario.nodes)
        ]
        self._load(self._draws.block())

    def take(self, count: int, now_us: int) -> Batch:
        """Return the records of the next heaps and count them.

        Parameters
        ----------
        now_us
            When the newest of them was taken [Unix us]; the others are spread evenly before it, but
            never before the last batch.
        """
        batch = Batch([], [])
        step = MICRO / self.scenario.rate
        while count:
            if self._at == len(self._block):
                self._load(self._draws.block())
            now = min(count, len(self._block) - self._at)
            count -= now
            newest = now_us - count * step
            times = (newest - np.arange(now - 1, -1, -1) * step).astype(np.int64)
            np.maximum(times, self._latest_us, out=times)
            self._latest_us = int(times[-1])
            self._give(batch, now, times)
        return batch

    def _load(self, block: Block) -> None:
        """Prepare everything that needs no time stamp, for a whole block at once."""
        rounds = len(block) // self.scenario.nodes
        self._block, self._at = block, 0
        self._plain = not (np.any(block.sent != 1) or np.any(block.garbage))
        self._keys = self._node_keys * rounds
        self._heads = self._node_heads * rounds
        whole = b',"received":%d,"lost":0,"late":0,"flagged_fraction":' % PACKETS
        self._middles = [channels + whole for channels in self._node_channels] * rounds
        for i in np.flatnonzero(block.lost + block.late_packets).tolist():
            lost, late = int(block.lost[i]), int(block.late_packets[i])
            self._middles[i] = self._node_channels[i % self.scenario.nodes] + (
                b',"received":%d,"lost":%d,"late":%d,"flagged_fraction":' % (PACKETS - lost - late, lost, late)
            )
        self._seq: list[int] = block.seq.tolist()
        self._fractions: list[bytes] = _FRACTIONS[block.fraction].tolist()
        self._latencies: list[bytes] = _LATENCIES[block.latency].tolist()

    def _give(self, batch: Batch, count: int, times: Column) -> None:
        begin, end = self._at, self._at + count
        self._at, self.given = end, self.given + count
        part = self._block.part(begin, end)
        self.account.add(part)
        values = map(
            _RECORD.__mod__,
            zip(
                self._heads[begin:end],
                self._seq[begin:end],
                (times + part.shift).tolist(),
                self._middles[begin:end],
                self._fractions[begin:end],
                self._latencies[begin:end],
                strict=True,
            ),
        )
        if self._plain:
            batch.keys.extend(self._keys[begin:end])
            batch.values.extend(values)
        else:
            self._give_unevenly(batch, list(values), self._keys[begin:end], part)

    def _give_unevenly(self, batch: Batch, values: list[bytes], keys: list[bytes], part: Block) -> None:
        """Return records of which some are silent, doubled, or followed by garbage."""
        done = 0
        for i in np.flatnonzero((part.sent != 1) | part.garbage).tolist():
            batch.keys.extend(keys[done:i])
            batch.values.extend(values[done:i])
            copies = int(part.sent[i])
            batch.keys.extend([keys[i]] * copies)
            batch.values.extend([values[i]] * copies)
            if part.garbage[i]:
                kind = GARBAGE[next(self._kinds)]
                self.account.add_garbage(kind)
                batch.keys.append(keys[i])
                batch.values.append(kind.make(values[i]))
            done = i + 1
        batch.keys.extend(keys[done:])
        batch.values.extend(values[done:])
