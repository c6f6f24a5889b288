"""The account of the fault run of processing blocks finds what is wrong: each kind of wrong, made on purpose."""

import json
from collections import Counter
from typing import Any

import pytest

from facade.sdp.messages import ProcessingBlock
from sdp_facade_lab.fault_runs.blocks import (
    ATTRIBUTES,
    CONDITION,
    SUBARRAYS,
    Confirmed,
    FoundBlocks,
    differences,
    failed_now,
    newest,
    plan,
)

RECORDS = 1_000
MASTER = "mid-sdp/control/0"
FIRST = "mid-sdp/subarray/01"


def everything_told() -> dict[str, Confirmed]:
    told: dict[str, Confirmed] = {}
    for number in range(1, SUBARRAYS + 1):
        steps = plan(7, number, RECORDS)
        told |= newest(number, steps, [(10 * at + number,) * 2 for at in range(1, len(steps) + 1)])
    return told


def values(blocks: dict[str, Confirmed]) -> dict[str, Any]:
    counts = Counter(one.state for one in blocks.values())
    running = [
        {"pb_id": name, "state": one.state} for name, one in blocks.items() if one.state not in ("FINISHED", "FAILED")
    ]
    failed = max((name for name in blocks if blocks[name].state == "FAILED"), key=lambda name: blocks[name].time)
    return {
        **{attribute: counts[state] for state, attribute in ATTRIBUTES.items()},
        "processingBlocks": tuple(map(json.dumps, running)),
        "newestFailure": json.dumps({"pb_id": failed}),
    }


def all_is_well() -> FoundBlocks:
    told = everything_told()
    topic = {name: ProcessingBlock(pb_id=name, **{**one._asdict(), "kind": "batch"}) for name, one in told.items()}
    shown = {MASTER: values(told)}
    for number in range(1, SUBARRAYS + 1):
        own = {name: one for name, one in told.items() if one.subarray == number}
        shown[f"mid-sdp/subarray/{number:02d}"] = values(own)
    alarms = [alarm(number, "UNACK", failed_now(told, number)[0]) for number in range(1, SUBARRAYS)]
    return FoundBlocks(told=told, topic=topic, shown=shown, alarms=[*alarms, alarm(SUBARRAYS, "RTNUN", "an older one")])


def alarm(number: int, state: str, name: str) -> dict[str, Any]:
    return {
        "condition": CONDITION,
        "source": f"sdp-facade/subarray/{number:02d}",
        "state": state,
        "text": f"{name} failed",
    }


def a_block_is_lost(found: FoundBlocks) -> None:
    del found.topic[min(found.topic)]  # type: ignore[attr-defined]


def a_removed_block_is_back(found: FoundBlocks) -> None:
    found.topic["pb-more"] = found.topic[min(found.topic)]  # type: ignore[index]


def an_alarm_is_missing(found: FoundBlocks) -> None:
    del found.alarms[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (a_block_is_lost, "newest record of pb-fault1-004-00000: expected Confirmed"),
        (a_removed_block_is_back, "newest record of pb-more: expected none, got Confirmed"),
        (an_alarm_is_missing, "processingBlockFailed of subarray 01: expected an active alarm, got none"),
    ],
)
def test_what_is_wrong_is_named(change: Any, named: str) -> None:
    found = all_is_well()
    change(found)
    assert any(line.startswith(named) for line in differences(found, MASTER)), differences(found, MASTER)
