"""The heaps of a simulated stream as numbers, in order, with an exact account of them.

Pure: no I/O, no clock, no Kafka. A stream holds the same heaps for the same scenario however it is cut into batches;
only the time stamps come from the caller.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

import numpy as np

from facade.flows.telemetry.simulator.account import SentAccount
from facade.flows.telemetry.simulator.draws import Block, Column, Draws
from facade.flows.telemetry.simulator.faults import MICRO, Scenario
from facade.flows.telemetry.simulator.garbage import GARBAGE
from facade.simulate.sender import EncodedRecords

CHANNELS: Final = 65_536
"""Frequency channels of the telescope, split over the nodes."""


class Drawn(NamedTuple):
    """Consecutive heaps of one block."""

    begin: int
    """The first one's place in the block."""
    heaps: Block
    time: Column
    """Data times [Unix us], shape (heaps,)."""


class HeapNumbers(ABC):
    """The heaps of some nodes, which send in turn.

    Raises
    ------
    ConfigError
        The scenario makes no sense.
    """

    topic = "ingest.heaps"
    tick: ClassVar[float]
    """Time between two calls of `take` [s]."""
    most_at_once: ClassVar[int]
    """Most heaps of one call."""
    most_waiting: ClassVar[int]
    """With so many records unconfirmed the stream waits: few enough that the client's queue never fills."""

    def __init__(self, scenario: Scenario) -> None:
        scenario.check()
        self.scenario = scenario
        self.account = SentAccount(scenario)
        """Of all records given out so far."""
        self.given = 0
        """Heaps given out so far, those of silent nodes included."""
        self.numbers = range(scenario.first_node, scenario.first_node + scenario.nodes)
        self.channel_count = max(1, CHANNELS // scenario.nodes)
        self._draws = Draws(scenario)
        self._block: Block | None = None
        self._at = 0
        self._latest_us = 0
        self._kinds: Iterator[int] = itertools.cycle(range(len(GARBAGE)))

    @abstractmethod
    def take(self, count: int, now_us: int) -> EncodedRecords:
        """Return the records of the next heaps and count them.

        Parameters
        ----------
        now_us
            When the newest of them was taken [Unix us]; the others are spread evenly before it, but
            never before the last batch.
        """

    def channel_start(self, index: int) -> int:
        """Return the first frequency channel of a node, by its place among the nodes."""
        return index * self.channel_count % CHANNELS

    def _load(self, block: Block) -> None:
        """Begin with a block."""
        self._block, self._at = block, 0

    def _draw(self, count: int, now_us: int) -> Iterator[Drawn]:
        """Return the next heaps and count them; parameters as of `take`."""
        step = MICRO / self.scenario.rate
        while count:
            if self._block is None or self._at == len(self._block):
                self._load(self._draws.block())
            assert self._block is not None
            begin = self._at
            now = min(count, len(self._block) - begin)
            count -= now
            newest = now_us - count * step
            times = (newest - np.arange(now - 1, -1, -1) * step).astype(np.int64)
            np.maximum(times, self._latest_us, out=times)
            self._latest_us = int(times[-1])
            self._at, self.given = begin + now, self.given + now
            heaps = self._block.part(begin, begin + now)
            self.account.add(heaps)
            yield Drawn(begin, heaps, times + heaps.shift)

    def _spoil(self, value: bytes) -> bytes | None:
        """Make a record malformed in the next way, and count it."""
        kind = GARBAGE[next(self._kinds)]
        self.account.add_garbage(kind)
        return kind.make(value)
