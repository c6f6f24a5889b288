"""The heaps of a simulated stream as numbers, and as records of JSON, with an exact account of them.

Pure: no I/O, no clock, no Kafka. A scenario gives the same heaps for any division into batches; only the timestamps
come from the caller.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

import msgspec
import numpy as np

from facade.flows.telemetry.simulator.account import SentAccount
from facade.flows.telemetry.simulator.draws import FRACTION_STEPS, PACKETS, Block, Column, Draws
from facade.flows.telemetry.simulator.faults import Scenario
from facade.flows.telemetry.simulator.garbage import GARBAGE
from facade.kernel.clock import SECOND, Time, as_seconds
from facade.sdp.messages import Heap
from facade.simulate.sender import EncodedRecords

CHANNELS: Final = 65_536
"""Frequency channels of the telescope, split over the nodes."""


class Drawn(NamedTuple):
    """Consecutive heaps of one block."""

    heaps: Block
    time: Column
    """Times at which they are due [Unix us], shape (heaps,); with `Block.shift` their data times."""


class HeapNumbers(ABC):
    """The heaps of some nodes, which send in turn."""

    topic = "ingest.heaps"
    tick: ClassVar[float]
    """Time between two calls of `take` [s]."""
    most_at_once: ClassVar[int]
    most_waiting: ClassVar[int]
    """Most unconfirmed records: few enough that the client's queue never fills."""

    def __init__(self, scenario: Scenario) -> None:
        scenario.check()
        self.scenario = scenario
        self.account = SentAccount(scenario)
        """Account of all records generated so far."""
        self.given = 0
        """Heaps generated so far, including those of silent nodes."""
        self.numbers = range(scenario.first_node, scenario.first_node + scenario.nodes)
        self.channel_count = max(1, CHANNELS // scenario.nodes)
        self._draws = Draws(scenario)
        self._block: Block | None = None
        self._at = 0
        self._latest_us = 0
        self._kinds: Iterator[int] = itertools.cycle(range(len(GARBAGE)))

    @abstractmethod
    def take(self, count: int, now_us: Time) -> EncodedRecords:
        """Return and count the records of the next heaps.

        The newest one has the time `now_us`; the others are spread evenly before it, but not before the last
        batch.
        """

    def channel_start(self, index: int) -> int:
        """Return the first frequency channel of a node, by its index among the nodes."""
        return index * self.channel_count % CHANNELS

    def _draw(self, count: int, now_us: Time) -> Iterator[Drawn]:
        """Return the next heaps and count them; parameters as of `take`."""
        step = int(SECOND) / self.scenario.rate
        while count:
            if self._block is None or self._at == len(self._block):
                self._block, self._at = self._draws.block(), 0
            begin = self._at
            now = min(count, len(self._block) - begin)
            count -= now
            newest = int(now_us) - count * step
            times = (newest - np.arange(now - 1, -1, -1) * step).astype(np.int64)
            np.maximum(times, self._latest_us, out=times)
            self._latest_us = int(times[-1])
            self._at, self.given = begin + now, self.given + now
            heaps = self._block.part(begin, begin + now)
            self.account.add(heaps)
            yield Drawn(heaps, times)

    def _spoil(self, value: bytes) -> bytes | None:
        kind = GARBAGE[next(self._kinds)]
        self.account.add_garbage(kind)
        return kind.make(value)


_encode = msgspec.json.Encoder().encode


class HeapBatch(NamedTuple):
    """Records to send, in order."""

    keys: list[bytes]
    values: list[bytes | None]


class HeapStream(HeapNumbers):
    """The heap notifications of some nodes, which send in turn; see `HeapNumbers`."""

    tick, most_at_once, most_waiting = 0.01, 10_000, 250_000

    def take(self, count: int, now_us: Time) -> HeapBatch:
        """Return the records of the next heaps and count them; see `HeapNumbers.take`."""
        batch = HeapBatch([], [])
        for drawn in self._draw(count, now_us):
            self._give(batch, drawn)
        return batch

    def _give(self, batch: HeapBatch, drawn: Drawn) -> None:
        heaps, keys = drawn.heaps, [b"%d" % number for number in self.numbers]
        nodes = heaps.node.tolist()
        for index, value, sent, is_spoilt in zip(
            nodes, self._values(drawn), heaps.sent.tolist(), heaps.garbage.tolist(), strict=True
        ):
            for _ in range(sent):
                batch.keys.append(keys[index])
                batch.values.append(value)
            if is_spoilt:
                batch.keys.append(keys[index])
                batch.values.append(self._spoil(value))

    def _values(self, drawn: Drawn) -> Iterator[bytes]:
        heaps, scan_id, channels = drawn.heaps, self.scenario.scan_id, self.channel_count
        columns = (
            heaps.node,
            heaps.seq,
            drawn.time + heaps.shift,
            PACKETS - heaps.lost - heaps.late_packets,
            heaps.lost,
            heaps.late_packets,
            heaps.fraction / FRACTION_STEPS,
            as_seconds(heaps.latency),
        )
        for index, seq, time, received, lost, late, fraction, latency in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            yield _encode(
                Heap(
                    node=self.numbers[index],
                    scan_id=scan_id,
                    seq=seq,
                    time=time,
                    channel_start=self.channel_start(index),
                    channel_count=channels,
                    received=received,
                    lost=lost,
                    late=late,
                    flagged_fraction=fraction,
                    latency=latency,
                )
            )
