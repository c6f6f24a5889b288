"""What controllers tell of processing blocks in the fault run, and what it adds up to. No I/O.

What devices are to show is worked out here a second time, apart from `facade.flows.blocks`, so that the run can hold
the devices against it.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

STATES = ("STARTING", "WAITING", "RUNNING", "FINISHED", "FAILED")
REMOVED = ""
"""Instead of a state: the block is taken off the topic."""

_EXECUTION_BLOCKS = 6
_OPEN = 15
"""Blocks of a controller that run at once; those of all four are as many as SdpMaster lists."""
_FAILS = 10
"""Each such block of an execution block fails."""
_STEPS = _EXECUTION_BLOCKS * 4 + (_EXECUTION_BLOCKS - 2)
"""For each block of an execution block: four states, and the removal of one of the execution block before the last."""

SUBARRAYS = 4
"""Each has a controller; in the newest execution block of the last one nothing fails."""


class Step(NamedTuple):
    """One record."""

    pb_id: str
    eb_id: str
    state: str


class Confirmed(NamedTuple):
    """A block as its controller was confirmed to have told it last."""

    subarray: int
    eb_id: str
    state: str
    sequence: int
    time: int
    """[Unix us]"""


def plan(seed: int, subarray: int, records: int) -> list[Step]:
    """Return what the controller of a subarray tells, in order; the same each time.

    Parameters
    ----------
    records
        How many; the last execution block is cut off there, so that some of its blocks have not ended.
    """
    chance = random.Random(seed * 1_000_003 + subarray)  # noqa: S311 - a plan that can be repeated
    count = -(-records // _STEPS)
    made: list[Step] = []
    for number in range(_EXECUTION_BLOCKS):
        fails = subarray < SUBARRAYS or number < _EXECUTION_BLOCKS - 1
        if number >= 2:
            made += [step._replace(state=REMOVED) for step in _first(subarray, number - 2, count)]
        made += _interleaved(_first(subarray, number, count), chance, fails=fails)
    return made[:records]


def _first(subarray: int, number: int, count: int) -> list[Step]:
    eb_id = f"eb-fault{subarray}-20261124-{number:05d}"
    return [Step(f"pb-fault{subarray}-{number:03d}-{one:05d}", eb_id, STATES[0]) for one in range(count)]


def _interleaved(blocks: Sequence[Step], chance: random.Random, *, fails: bool) -> Iterable[Step]:
    waiting = [
        [step._replace(state=state) for state in (*STATES[:3], "FAILED" if fails and not one % _FAILS else "FINISHED")]
        for one, step in enumerate(blocks)
    ]
    waiting.reverse()
    running: list[list[Step]] = []
    while waiting or running:
        while waiting and len(running) < _OPEN:
            running.append(waiting.pop())
        block = chance.choice(running)
        yield block.pop(0)
        if not block:
            running.remove(block)


def newest(subarray: int, steps: Iterable[Step], confirmed: Iterable[tuple[int, int]]) -> dict[str, Confirmed]:
    """Return each block as it was told last, by its id.

    Parameters
    ----------
    confirmed
        Sequence and time [Unix us] of the records that the bus has confirmed, of the first steps in order.
    """
    blocks: dict[str, Confirmed] = {}
    for step, (sequence, time) in zip(steps, confirmed, strict=False):
        if step.state == REMOVED:
            del blocks[step.pb_id]
        else:
            blocks[step.pb_id] = Confirmed(subarray, step.eb_id, step.state, sequence, time)
    return blocks


def failed_now(blocks: Mapping[str, Confirmed], subarray: int) -> list[str]:
    """Return the blocks of the newest execution block of a subarray that have failed."""
    own = {name: one for name, one in blocks.items() if one.subarray == subarray}
    last = max(own.values(), key=lambda one: one.time, default=None)
    return [name for name, one in own.items() if last and one.eb_id == last.eb_id and one.state == "FAILED"]
