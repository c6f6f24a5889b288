"""What SdpSubarray and SdpMaster show of processing blocks."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from heapq import nsmallest

from facade.flows.blocks.flow import Blocks, rank
from facade.flows.blocks.messages import STATES
from facade.messages import ProcessingBlock
from facade.reading import Reading, Value
from facade.runtime.flow import DeviceReading

MOST_SHOWN = 64
"""Open blocks in `processingBlocks`."""


class BlocksView:
    """A view: the processing blocks of one subarray; see `facade.runtime.flow.View`.

    Parameters
    ----------
    known
        Whether the topic has been read as far as it went at the start.
    """

    def __init__(self, device: str, blocks: Blocks, known: Callable[[], bool]) -> None:
        self._device, self._blocks, self._known = device, blocks, known
        self._version = -1

    def readings(self, now: float) -> Iterator[DeviceReading]:
        """Return all of it when a block has changed."""
        blocks = self._blocks
        if blocks.version == self._version or not self._known():
            return
        time = now if blocks.newest is None else blocks.newest.time / 1e6
        for name, value in values([blocks]).items():
            yield self._device, name, Reading(value, time)
        self._version = blocks.version


def values(several: Iterable[Blocks]) -> Mapping[str, Value]:
    """Return the attributes that show the blocks of some subarrays, by name."""
    several = list(several)
    shown = nsmallest(MOST_SHOWN, (one for blocks in several for one in blocks.first(MOST_SHOWN)), key=rank)
    failed = [one for blocks in several for one in blocks.failed.values()]
    return {
        "processingBlocks": tuple(json.dumps(as_dict(one)) for one in shown),
        **{f"blocks{state.title()}": sum(blocks.counts[state] for blocks in several) for state in STATES},
        "newestFailure": json.dumps(as_dict(max(failed, key=lambda one: one.time))) if failed else "",
    }


def as_dict(block: ProcessingBlock) -> dict[str, object]:
    """Return what is said of a block, for people and programs; what is not known is left out."""
    found = {
        "pb_id": block.pb_id,
        "eb_id": block.eb_id,
        "subarray": block.subarray,
        "kind": block.kind,
        "state": block.state,
        "time": datetime.fromtimestamp(block.time / 1e6, UTC).isoformat(timespec="milliseconds"),
    }
    more = ("progress", "script", "dependencies", "resources", "text", "source")
    return found | {name: value for name in more if (value := getattr(block, name)) not in (None, "", [], {})}
