"""Processing blocks of a simulated site: controllers that tell their states, and what devices must show of them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from facade.flows.blocks import source as sources
from facade.flows.blocks.flow import BlocksFlow
from facade.flows.blocks.source import (
    BLOCKS,
    ENDED,
    FAILED,
    FINISHED,
    RUNNING,
    STARTING,
    STATES,
    WAITING,
    BlockSource,
    read_block,
)
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.clock import Clock
from facade.kernel.errors import BusError
from facade.sdp.messages import ProcessingBlock
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.site import Site

SUBARRAYS = (1, 2)
SERVERS = ("subarray", "control")
_REMOVED = "removed"
_OPEN = 3
"""Blocks that a controller has at once."""
_PAUSE, _PATIENCE = 1.5, 3.0
"""Longest pause between two states, and longest wait for the bus [s]."""
_BACK = 60.0
"""By how much the clock of a controller is set back while it is away [s]."""
_NEXT = {STARTING: (WAITING, RUNNING), WAITING: (RUNNING,), RUNNING: (FINISHED, FINISHED, FAILED)}


@dataclass(slots=True)
class Block:
    """A block, as its controller has it."""

    subarray: int
    state: str
    is_confirmed: bool = False
    """Whether the bus has said that it has this state."""


@dataclass(frozen=True, slots=True)
class _SetBack:
    """A controller's clock, whose wall time is behind."""

    clock: Clock
    by: float

    def now(self) -> float:
        return self.clock.now() - self.by

    def now_us(self) -> int:
        return round(self.now() * 1e6)

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)


class Processing:
    """Who tells states of blocks; a controller that was killed tells again what nobody has confirmed."""

    def __init__(self) -> None:
        self.is_telling = True
        self.blocks: dict[str, Block] = {}
        """By id."""
        self.told = 0
        self.starts: Counter[int] = Counter()
        """How often the controller of each subarray has started; each time, its clock has been set back."""

    def add(self, site: "Site") -> None:
        for subarray in SUBARRAYS:
            site.bodies[f"processor-{subarray}"] = partial(self._control, subarray, site)

    def _control(self, subarray: int, site: "Site", process: Process) -> None:
        writer = KafkaWriter(site.connection(process), health=BusHealth(), client=process.name)
        clock = _SetBack(process.clock, _BACK * self.starts[subarray])
        self.starts[subarray] += 1
        source = BlockSource(
            process.name, lambda record: writer.send_durably(record, _PATIENCE), clock, after=_newest(site, process)
        )
        random = site.scheduler.random
        while True:
            for id in [id for id, one in self.blocks.items() if one.subarray == subarray and not one.is_confirmed]:
                self._tell(source, id, site, process)
            process.clock.sleep(random.random() * _PAUSE)
            if self.is_telling:
                self._change(subarray, site)

    def _change(self, subarray: int, site: "Site") -> None:
        """Let a new block start, one go on, or one that has ended be removed."""
        random = site.scheduler.random
        own = {id: one for id, one in self.blocks.items() if one.subarray == subarray and one.state != _REMOVED}
        ended = [one for one in own.values() if one.state in ENDED]
        under_way = [one for one in own.values() if one.state not in ENDED]
        if ended and random.random() < 0.1:
            chosen = random.choice(ended)
            chosen.state, chosen.is_confirmed = _REMOVED, False
        elif len(under_way) < _OPEN and random.random() < 0.5:
            self.blocks[f"pb-simulated-{len(self.blocks):05d}"] = Block(subarray, STARTING)
        elif under_way:
            chosen = random.choice(under_way)
            chosen.state, chosen.is_confirmed = random.choice(_NEXT[chosen.state]), False

    def _tell(self, source: BlockSource, id: str, site: "Site", process: Process) -> None:
        block = self.blocks[id]
        try:
            if block.state == _REMOVED:
                source.remove(id)
            else:
                source.tell(id, f"eb-simulated-{block.subarray}", block.subarray, "batch", block.state)
        except BusError as error:
            site.trace.note(process.name, f"tells {block.state} of {id} again: {error}")
            return
        if not process.is_dead:
            block.is_confirmed = True
            self.told += 1

    def differences(self, site: "Site") -> Iterator[str]:
        """Say where a device server has another state of a block than the one that was confirmed last."""
        for id, block in self.blocks.items():
            if not block.is_confirmed:
                yield f"{id}: {block.state} is not confirmed"
        others = self._of_commands(site)
        for instance in SERVERS:
            (flow,) = (one for one in site.servers[instance].flows if isinstance(one, BlocksFlow))
            for subarray in SUBARRAYS:
                own = {id: one for id, one in self.blocks.items() if one.subarray == subarray}
                expected = Counter(one.state for one in own.values() if one.state != _REMOVED)
                expected += Counter(one.state for one in others if one.subarray == subarray)
                found = flow.subarrays[subarray]
                under_way = {id: one.state for id, one in found.open.items() if id in own}
                if +found.counts != expected:
                    shown = dict(+found.counts)
                    yield f"{instance}: blocks of subarray {subarray}: told {dict(expected)}, shown {shown}"
                elif under_way != {id: one.state for id, one in own.items() if one.state in _NEXT}:
                    yield f"{instance}: subarray {subarray}: not the blocks under way that were told: {under_way}"
        expected = Counter(one.state for one in [*self.blocks.values(), *others])
        for state in STATES:
            count = site.value("mid-sdp/control/0", f"blocks{state.title()}")
            if (count or 0) != expected[state]:
                yield f"SdpMaster shows {count} blocks as {state}, {expected[state]} were told"

    def _of_commands(self, site: "Site") -> list[ProcessingBlock]:
        """Return the blocks of the controller that executes commands, as the topic has them."""
        newest: dict[str, ProcessingBlock] = {}
        for entry in site.entries(BLOCKS):
            block = read_block(Record(topic=BLOCKS, key=entry.key, value=entry.value))
            if isinstance(block, ProcessingBlock) and block.pb_id not in self.blocks:
                newest[block.pb_id] = block
        return list(newest.values())


def _newest(site: "Site", process: Process) -> int:
    """Return the newest sequence of a controller that starts, as soon as the bus gives it."""
    while True:
        try:
            records = KafkaBus(site.connection(process), client=process.name).read_all(BLOCKS)
        except BusError as error:
            site.trace.note(process.name, f"reads its blocks again: {error}")
            process.clock.sleep(1.0)
        else:
            return sources.newest_sequence(records, process.name)
