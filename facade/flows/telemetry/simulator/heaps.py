"""Simulated heap notifications as records of JSON, ready to send."""

from typing import NamedTuple

import numpy as np

from facade.flows.telemetry.simulator.draws import FRACTION_STEPS, LATENCY_LIMIT, PACKETS, Block
from facade.flows.telemetry.simulator.faults import MICRO, Scenario
from facade.flows.telemetry.simulator.stream import Drawn, HeapNumbers

_RECORD = b'%b%d,"time":%d%b%b%b'
_FRACTIONS = np.array([b"%.4f" % (n / FRACTION_STEPS) for n in range(FRACTION_STEPS + 1)], dtype=np.object_)
_LATENCIES = np.array([b',"latency":%.6f}' % (n / MICRO) for n in range(LATENCY_LIMIT)], dtype=np.object_)


class HeapBatch(NamedTuple):
    """Records to send, in order."""

    keys: list[bytes]
    values: list[bytes | None]


class HeapStream(HeapNumbers):
    """The heap notifications of some nodes, which send in turn; see `HeapNumbers`."""

    tick, most_at_once, most_waiting = 0.01, 10_000, 250_000

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._node_keys = [b"%d" % number for number in self.numbers]
        self._node_heads = [
            b'{"schema":"heap/1","node":%d,"scan_id":%d,"seq":' % (number, scenario.scan_id) for number in self.numbers
        ]
        self._node_channels = [
            b',"channel_start":%d,"channel_count":%d' % (self.channel_start(index), self.channel_count)
            for index in range(scenario.nodes)
        ]

    def take(self, count: int, now_us: int) -> HeapBatch:
        """Return the records of the next heaps and count them; see `HeapNumbers.take`."""
        batch = HeapBatch([], [])
        for drawn in self._draw(count, now_us):
            self._give(batch, drawn)
        return batch

    def _load(self, block: Block) -> None:
        """Prepare everything that needs no time stamp, for a whole block at once."""
        super()._load(block)
        rounds = len(block) // self.scenario.nodes
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

    def _give(self, batch: HeapBatch, drawn: Drawn) -> None:
        begin, end = drawn.begin, drawn.begin + len(drawn.heaps)
        values = map(
            _RECORD.__mod__,
            zip(
                self._heads[begin:end],
                self._seq[begin:end],
                drawn.time.tolist(),
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
            self._give_unevenly(batch, list(values), self._keys[begin:end], drawn.heaps)

    def _give_unevenly(self, batch: HeapBatch, values: list[bytes], keys: list[bytes], part: Block) -> None:
        """Return records of which some are silent, doubled, or followed by garbage."""
        done = 0
        for i in np.flatnonzero((part.sent != 1) | part.garbage).tolist():
            batch.keys.extend(keys[done:i])
            batch.values.extend(values[done:i])
            copies = int(part.sent[i])
            batch.keys.extend([keys[i]] * copies)
            batch.values.extend([values[i]] * copies)
            if part.garbage[i]:
                batch.keys.append(keys[i])
                batch.values.append(self._spoil(values[i]))
            done = i + 1
        batch.keys.extend(keys[done:])
        batch.values.extend(values[done:])
