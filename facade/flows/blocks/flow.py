"""Processing blocks on devices: their newest states, counts by subarray and state, open blocks, and failures.

The topic is compacted, and each block is counted once, by its newest state: a second read gives the same counts.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest
from typing import NamedTuple

from facade.flows.blocks.source import BLOCKS, ENDED, FAILED, RUNNING, STARTING, STATES, WAITING, read_block
from facade.kernel.bus.port import Record
from facade.kernel.clock import Time, utc_text
from facade.kernel.instances import devices_of, number_of
from facade.kernel.outcome import USED, Outcome, Unused
from facade.kernel.printable import excerpt
from facade.kernel.reading import Reading, Value
from facade.kernel.recent import Bounded
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import AFTER_CHANGES, DeviceView, Gate
from facade.kernel.runtime.health_issues import DEGRADED, ORIGIN, HealthIssue, HealthSource
from facade.kernel.runtime.projection import TOO_MANY, Projection
from facade.sdp.messages import ProcessingBlock
from facade.sdp.scans import OTHER_SUBARRAY

MOST_OPEN, MOST_OPEN_BYTES = 200_000, 200_000_000
"""Most blocks that have not ended, of all subarrays, and the size of their records: more than in an observation."""
MOST_BEYOND = 20_000
"""Further blocks kept beyond `MOST_OPEN` if they run or start; they may use a tenth of the bytes in addition."""
MOST_ENDED = 400_000
"""Ended blocks with known ids; older ones stay counted, and count again if they come again."""
MOST_FAILED = 1024
"""Failed blocks of a subarray kept with all fields."""
_ORDER = {RUNNING: 0, STARTING: 1, WAITING: 2}
"""Order of states among shown open blocks."""
MOST_SHOWN = 64
SUBARRAY, MASTER = "SdpSubarray", "SdpMaster"
_CONDITION = "processingBlockFailed"


class _Known(NamedTuple):
    """The kept fields of a block."""

    subarray: int
    state: str
    sequence: int
    size: int
    """Size of its record [bytes]."""
    age: tuple[Time, Time, str]
    """The broker's time of its record, its own time and its id: the newest block of a subarray has the greatest."""
    eb_id: str


@dataclass(slots=True)
class Blocks:
    """The processing blocks of one subarray, or of several."""

    counts: Counter[str] = field(default_factory=Counter)
    open: dict[str, ProcessingBlock] = field(default_factory=dict)
    _order: list[tuple[int, Time, str]] = field(default_factory=list)
    """A heap of ranks of open blocks; outdated ones are dropped when they reach the top."""
    failed: Bounded[str, ProcessingBlock] = field(default_factory=lambda: Bounded(MOST_FAILED))
    """By id, the newest last."""
    newest: _Known | None = None
    """The last block, by the brokers' clocks: those of controllers may be wrong."""
    version: int = 0

    def add_open(self, block: ProcessingBlock) -> None:
        """Keep a block that has not ended."""
        self.open[block.pb_id] = block
        heappush(self._order, rank(block))
        if len(self._order) > 2 * len(self.open) + 100:
            self._order = [rank(one) for one in self.open.values()]
            heapify(self._order)

    def first(self, most: int) -> list[ProcessingBlock]:
        """Return the open blocks to show: running ones first, then those with the longest wait."""
        ranks: list[tuple[int, Time, str]] = []
        while self._order and len(ranks) < most:
            found = heappop(self._order)
            block = self.open.get(found[-1])
            if block is not None and rank(block) == found and found not in ranks[-1:]:
                ranks.append(found)
        for one in ranks:
            heappush(self._order, one)
        return [self.open[pb_id] for _, _, pb_id in ranks]

    def failures(self) -> list[ProcessingBlock]:
        """Return the failed blocks of the last execution block, the newest last."""
        eb_id = "" if self.newest is None else self.newest.eb_id
        return [one for one in self.failed.values() if one.eb_id == eb_id]


def rank(block: ProcessingBlock) -> tuple[int, Time, str]:
    """Return the rank of an open block in the order of `first`."""
    return _ORDER[block.state], block.time, block.pb_id


class BlocksFlow(Projection[ProcessingBlock]):
    """A flow: the newest state of each processing block; see `facade.kernel.runtime.flow.Flow`."""

    topic = BLOCKS

    def __init__(self, subarrays: Collection[int]) -> None:
        self.subarrays = {number: Blocks() for number in subarrays}
        self._open: dict[str, _Known] = {}
        self._open_bytes = 0
        self._ended: Bounded[str, _Known] = Bounded(MOST_ENDED)

    def _read(self, record: Record) -> ProcessingBlock | Unused:
        block = read_block(record)
        is_other = isinstance(block, ProcessingBlock) and block.subarray not in self.subarrays
        return OTHER_SUBARRAY if is_other else block

    def _known(self, pb_id: str) -> _Known | None:
        return self._open.get(pb_id) or self._ended.get(pb_id)

    def _sequences(self, block: ProcessingBlock) -> tuple[int, int]:
        before = self._known(block.pb_id)
        return block.sequence, before.sequence if before is not None else -1

    def _take(self, block: ProcessingBlock, record: Record) -> Outcome:
        blocks, has_ended, size = self.subarrays[block.subarray], block.state in ENDED, len(record.value or b"")
        if not has_ended and self._known(block.pb_id) is None and not self._has_room(block.state, size):
            return TOO_MANY
        before = self._forget(block.pb_id)
        age = record.timestamp_us, block.time, block.pb_id
        own = _Known(block.subarray, block.state, block.sequence, size, age, block.eb_id)
        (self._ended if has_ended else self._open)[block.pb_id] = own
        blocks.counts[block.state] += 1
        blocks.version += 1
        if blocks.newest is None or own.age >= blocks.newest.age:
            blocks.newest = own
        self._replace_newest(before)
        if block.state == FAILED:
            blocks.failed[block.pb_id] = block
        elif not has_ended:
            self._open_bytes += size
            blocks.add_open(block)
        counted = sum(blocks.counts[state] for state in _ORDER)
        there = len(blocks.open)
        assert counted == there, f"{block.pb_id}: {counted} blocks count as open, {there} are shown"
        return USED

    def _has_room(self, state: str, size: int) -> bool:
        beyond = 0 if state == WAITING else MOST_BEYOND
        most_bytes = MOST_OPEN_BYTES + (MOST_OPEN_BYTES // 10 if beyond else 0)
        return len(self._open) < MOST_OPEN + beyond and self._open_bytes + size <= most_bytes

    def _remove(self, pb_id: str) -> None:
        self._replace_newest(self._forget(pb_id))

    def _replace_newest(self, before: _Known | None) -> None:
        """Choose the newest block of a subarray again if that block was removed."""
        if before is not None and (blocks := self.subarrays[before.subarray]).newest is before:
            left = (one for one in (*self._open.values(), *self._ended.values()) if one.subarray == before.subarray)
            blocks.newest = max(left, key=lambda one: one.age, default=None)

    def _forget(self, pb_id: str) -> _Known | None:
        self._open_bytes -= self._open[pb_id].size if pb_id in self._open else 0
        before = self._open.pop(pb_id, None) or self._ended.pop(pb_id, None)
        if before is not None:
            blocks = self.subarrays[before.subarray]
            blocks.counts[before.state] -= 1
            assert blocks.counts[before.state] >= 0, f"{pb_id} was not counted as {before.state}"
            blocks.open.pop(pb_id, None)
            blocks.failed.pop(pb_id, None)
            blocks.version += 1
        is_sound = self._open_bytes > 0 if self._open else self._open_bytes == 0
        assert is_sound, f"{len(self._open)} open blocks have {self._open_bytes} bytes: no other would find room"
        return before


class BlocksView(DeviceView):
    """A view: the processing blocks of one subarray, after a change; see `facade.kernel.runtime.flow.View`."""

    def __init__(self, device: str, blocks: Blocks, known: Callable[[], bool]) -> None:
        super().__init__(device, Gate(AFTER_CHANGES))
        self._blocks, self._known = blocks, known

    def _version(self) -> object:
        return self._blocks.version, self._known()

    def _readings(self, now: Time) -> Iterator[tuple[str, Reading]]:
        time = now if self._blocks.newest is None else self._blocks.newest.age[1]
        for name, value in values([self._blocks]).items() if self._known() else ():
            yield name, Reading(value, time)


def values(several: Iterable[Blocks]) -> Mapping[str, Value]:
    """Return the attributes about the blocks of some subarrays, by name."""
    several = list(several)
    shown = nsmallest(MOST_SHOWN, (one for blocks in several for one in blocks.first(MOST_SHOWN)), key=rank)
    failed = [one for blocks in several for one in blocks.failed.values()]
    return {
        "processingBlocks": tuple(json.dumps(as_dict(one)) for one in shown),
        **{f"blocks{state.title()}": sum(blocks.counts[state] for blocks in several) for state in STATES},
        "newestFailure": json.dumps(as_dict(max(failed, key=lambda one: one.time))) if failed else "",
    }


def as_dict(block: ProcessingBlock) -> dict[str, object]:
    """Return the known fields of a block, for people and programs."""
    found = {
        "pb_id": block.pb_id,
        "eb_id": block.eb_id,
        "subarray": block.subarray,
        "kind": block.kind,
        "state": block.state,
        "time": utc_text(block.time),
    }
    more = ("progress", "script", "dependencies", "resources", "text", "source")
    return found | {name: value for name in more if (value := getattr(block, name)) not in (None, "", [], {})}


def compose(server: Server) -> None:
    """Add the processing blocks to a device server."""
    subarray = server.icd.classes[SUBARRAY]
    own = server.devices.get(SUBARRAY, ())
    # For SdpMaster's server, the blocks of all subarrays.
    every = [name for names in devices_of(subarray, server.settings).values() for name in names]
    wanted = every if server.devices.get(MASTER) else own
    devices = {number: device for device in wanted if (number := number_of(subarray, device)) is not None}
    flow = server.share(BlocksFlow, lambda: BlocksFlow(devices))
    server.flows.append(flow)
    server.views += [
        BlocksView(device, flow.subarrays[number], lambda: server.has_read(flow.topic))
        for number, device in devices.items()
        if device in own
    ]


class BlocksHealth(HealthSource):
    """Health issues about failed processing blocks; see `facade.kernel.runtime.health_issues.HealthSource`."""

    conditions: Mapping[str, str] = {_CONDITION: f"{ORIGIN}/subarray/"}

    def __init__(self, server: Server) -> None:
        self._server = server
        self._shown: tuple[int, Mapping[str, Value]] = (-1, {})
        """Version of the blocks, and the attributes of SdpMaster."""

    def _subarrays(self) -> dict[int, Blocks]:
        flow = self._server.find(BlocksFlow)
        return flow.subarrays if flow is not None and self._server.has_read(flow.topic) else {}

    def issues(self, now: Time) -> Iterator[HealthIssue]:
        """Return the subarrays with failed blocks in their last execution block."""
        for number, blocks in self._subarrays().items():
            if failures := blocks.failures():
                newest = failures[-1]
                more = f" and {len(failures) - 1} more" * (len(failures) > 1)
                text = f"subarray {number:02d}: processing block {newest.pb_id}{more} failed: {excerpt(newest.text)}"
                key = _CONDITION, f"{ORIGIN}/subarray/{number:02d}"
                yield HealthIssue(DEGRADED, text, key, values={"failed": float(len(failures))})

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return the attributes of SdpMaster about the blocks of all subarrays."""
        known = self._subarrays()
        if not known or device_class != MASTER:
            return {}
        if (version := sum(one.version for one in known.values())) != self._shown[0]:
            self._shown = version, values(known.values())
        return self._shown[1]
