"""What the newest records of processing blocks amount to: counts by subarray and state, open blocks, failures.

The topic is compacted, and each block is counted once, by its newest state: reading it again gives the same counts.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from facade.bus.port import Record
from facade.flows.blocks.messages import BLOCKS, ENDED, FAILED, read_block
from facade.messages import ProcessingBlock
from facade.outcome import TOMBSTONE, USED, Outcome, Suppressed
from facade.runtime.flow import Flow

MOST_OPEN = 200_000
"""Blocks that have not ended, of all subarrays: more than an observation has."""
MOST_ENDED = 400_000
"""Ended blocks whose ids are known; older ones stay counted, and are not known to be the same if they come again."""
MOST_KEPT = 1024
"""Open blocks of a subarray that are kept with all that is said of them, and as many failed ones."""


class _Known(NamedTuple):
    """What is kept of each block."""

    subarray: int
    state: str
    sequence: int


@dataclass(slots=True)
class Blocks:
    """The processing blocks of one subarray, or of several."""

    counts: Counter[str] = field(default_factory=Counter)
    """By state."""
    open: dict[str, ProcessingBlock] = field(default_factory=dict)
    """By id."""
    failed: dict[str, ProcessingBlock] = field(default_factory=dict)
    """By id, the newest last."""
    newest: ProcessingBlock | None = None
    """What was heard last, by the controllers' clocks."""
    version: int = 0

    def failures(self) -> list[ProcessingBlock]:
        """Return the failed blocks of the execution block that was heard of last, the newest last."""
        eb_id = "" if self.newest is None else self.newest.eb_id
        return [one for one in self.failed.values() if one.eb_id == eb_id]


class BlocksFlow(Flow):
    """A flow: the newest state of each processing block; see `facade.runtime.flow.Flow`.

    Parameters
    ----------
    subarrays
        Numbers of those whose blocks are wanted.
    """

    topic = BLOCKS

    def __init__(self, subarrays: Collection[int]) -> None:
        self.subarrays = {number: Blocks() for number in subarrays}
        """By number."""
        self._open: dict[str, _Known] = {}
        self._ended: dict[str, _Known] = {}

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Take the state of a block; see `facade.runtime.flow.Flow`."""
        if record.value is None:
            self._remove((record.key or b"").decode("utf-8", "replace"))
            return TOMBSTONE
        block = read_block(record)
        if not isinstance(block, ProcessingBlock):
            return block
        if block.subarray not in self.subarrays:
            return Suppressed("other-subarray")
        before = self._open.get(block.pb_id) or self._ended.get(block.pb_id)
        if before is not None and block.sequence <= before.sequence:
            return Suppressed("repeated" if block.sequence == before.sequence else "older")
        if before is None and block.state not in ENDED and len(self._open) >= MOST_OPEN:
            return Suppressed("too-many")
        self._remove(block.pb_id)
        self._add(block)
        return USED

    def _add(self, block: ProcessingBlock) -> None:
        blocks, has_ended = self.subarrays[block.subarray], block.state in ENDED
        known = self._ended if has_ended else self._open
        known[block.pb_id] = _Known(block.subarray, block.state, block.sequence)
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        blocks.counts[block.state] += 1
        blocks.version += 1
        if blocks.newest is None or block.time >= blocks.newest.time:
            blocks.newest = block
        if block.state == FAILED:
            blocks.failed[block.pb_id] = block
            if len(blocks.failed) > MOST_KEPT:
                del blocks.failed[next(iter(blocks.failed))]
        elif not has_ended and len(blocks.open) < MOST_KEPT:
            blocks.open[block.pb_id] = block

    def _remove(self, pb_id: str) -> None:
        """Forget a block."""
        before = self._open.pop(pb_id, None) or self._ended.pop(pb_id, None)
        if before is not None:
            blocks = self.subarrays[before.subarray]
            blocks.counts[before.state] -= 1
            blocks.open.pop(pb_id, None)
            blocks.failed.pop(pb_id, None)
            blocks.version += 1
