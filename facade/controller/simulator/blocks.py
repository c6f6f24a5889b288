"""What SDP's commands do to the processing blocks of a subarray: real-time ones run at once, batch ones after End."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from facade.controller.simulator.observation import Subarray
from facade.flows.blocks.source import FAILED, FINISHED, RUNNING, STARTING, WAITING

FAILURE = "simulated failure of the processing block"


class BlockState(NamedTuple):
    """A state that is told of a block."""

    pb_id: str
    kind: Literal["realtime", "batch"]
    state: str
    more: Mapping[str, Any] = {}


def begin(command: str, argument: Mapping[str, Any]) -> Iterator[BlockState]:
    """Return what is told of blocks when a command begins."""
    if command == "AssignResources":
        for block in argument.get("processing_blocks", ()):
            kind = block["script"]["kind"]
            yield BlockState(block["pb_id"], kind, STARTING if kind == "realtime" else WAITING, _said(block))


def end(
    before: Subarray, command: str, argument: Mapping[str, Any], changes: Mapping[str, Any]
) -> Iterator[BlockState]:
    """Return what is told of blocks when a command has done its work.

    Parameters
    ----------
    changes
        What it changes of the subarray.
    """
    if command == "AssignResources":
        for block in argument.get("processing_blocks", ()):
            if block["script"]["kind"] == "realtime":
                yield BlockState(block["pb_id"], "realtime", RUNNING, _said(block))
    elif command == "End":
        yield from (BlockState(pb_id, "batch", RUNNING, {"progress": 0.0}) for pb_id in before.batch)
    elif changes.get("pbRealtime") == []:
        yield from (BlockState(pb_id, "realtime", FINISHED) for pb_id in before.realtime)
        yield from (BlockState(pb_id, "batch", FINISHED, {"progress": 100.0}) for pb_id in before.batch)


def fail(before: Subarray) -> tuple[BlockState, dict[str, Any]] | None:
    """Let the first block of a subarray fail: what is told, and what changes of the subarray; None: it has none."""
    if before.realtime:
        first, *left = before.realtime
        return BlockState(first, "realtime", FAILED, {"text": FAILURE}), {"pbRealtime": left}
    if before.batch:
        first, *left = before.batch
        return BlockState(first, "batch", FAILED, {"text": FAILURE}), {"pbBatch": left}
    return None


def _said(block: Mapping[str, Any]) -> dict[str, Any]:
    script = block["script"]
    return {
        "script": f"{script['name']}:{script['version']}"[:200],
        "dependencies": [one["pb_id"] for one in block.get("dependencies", ())][:64],
        "resources": {"nodes": 1.0},
    }
