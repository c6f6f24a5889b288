"""The account of the fault run of processing blocks finds what is wrong: each kind of wrong, made on purpose."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from facade.messages import ProcessingBlock
from proving.fault_runs.block_account import ATTRIBUTES, CONDITION, Found, differences
from proving.fault_runs.block_controller import count_confirmed, read_confirmed
from proving.fault_runs.block_scenario import REMOVED, SUBARRAYS, Confirmed, failed_now, newest, plan

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


def all_is_well() -> Found:
    told = everything_told()
    topic = {name: ProcessingBlock(pb_id=name, **{**one._asdict(), "kind": "batch"}) for name, one in told.items()}
    shown = {MASTER: values(told)}
    for number in range(1, SUBARRAYS + 1):
        own = {name: one for name, one in told.items() if one.subarray == number}
        shown[f"mid-sdp/subarray/{number:02d}"] = values(own)
    alarms = [alarm(number, "UNACK", failed_now(told, number)[0]) for number in range(1, SUBARRAYS)]
    return Found(told=told, topic=topic, shown=shown, alarms=[*alarms, alarm(SUBARRAYS, "RTNUN", "an older one")])


def alarm(number: int, state: str, name: str) -> dict[str, Any]:
    return {
        "condition": CONDITION,
        "source": f"sdp-facade/subarray/{number:02d}",
        "state": state,
        "text": f"{name} failed",
    }


def test_nothing_is_wrong_where_all_agree() -> None:
    assert differences(all_is_well(), MASTER) == []


def test_a_plan_is_the_same_each_time_and_its_end_is_in_the_middle_of_an_execution_block() -> None:
    steps = plan(7, 1, RECORDS)
    assert (steps, len(steps)) == (plan(7, 1, RECORDS), RECORDS)
    assert steps != plan(8, 1, RECORDS)
    assert REMOVED in {step.state for step in steps}
    assert {one.state for one in everything_told().values()} == {"STARTING", "WAITING", "RUNNING", "FINISHED", "FAILED"}
    assert failed_now(everything_told(), 1)
    assert not failed_now(everything_told(), SUBARRAYS)


def test_an_unconfirmed_record_is_not_counted(tmp_path: Path) -> None:
    journal = tmp_path / "confirmed.txt"
    assert (count_confirmed(journal), read_confirmed(journal)) == (0, [])
    journal.write_text(f"{5:016d} {1_800_000_000_000_000:016d}\n{0:016d} {0:016d}\n")
    assert (count_confirmed(journal), read_confirmed(journal)) == (2, [(5, 1_800_000_000_000_000), (0, 0)])
    assert len(newest(1, plan(7, 1, RECORDS), [(1, 1)])) == 1


def a_block_is_lost(found: Found) -> None:
    del found.topic[min(found.topic)]  # type: ignore[attr-defined]


def a_removed_block_is_back(found: Found) -> None:
    found.topic["pb-more"] = found.topic[min(found.topic)]  # type: ignore[index]


def an_older_state_is_newest(found: Found) -> None:
    name = min(found.topic)
    found.topic[name] = msgspec.structs.replace(found.topic[name], sequence=1)  # type: ignore[index]


def a_count_is_wrong(found: Found) -> None:
    found.shown[MASTER]["blocksFailed"] += 1  # type: ignore[index]


def a_device_does_not_answer(found: Found) -> None:
    found.shown[FIRST].clear()  # type: ignore[attr-defined]


def a_block_is_listed_in_another_state(found: Found) -> None:
    first, *others = found.shown[FIRST]["processingBlocks"]
    found.shown[FIRST]["processingBlocks"] = (first.replace("ING", "ED"), *others)  # type: ignore[index]


def an_older_failure_is_shown(found: Found) -> None:
    found.shown[FIRST]["newestFailure"] = json.dumps({"pb_id": "pb-old"})  # type: ignore[index]


def an_alarm_is_missing(found: Found) -> None:
    del found.alarms[0]  # type: ignore[attr-defined]


def an_alarm_has_cleared(found: Found) -> None:
    found.alarms[0]["state"] = "RTNUN"  # type: ignore[index]


def an_alarm_names_no_failure(found: Found) -> None:
    found.alarms[0]["text"] = "pb-old failed"  # type: ignore[index]


def an_alarm_does_not_clear(found: Found) -> None:
    found.alarms[-1]["state"] = "UNACK"  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (a_block_is_lost, "newest record of pb-fault1-004-00000: expected Confirmed"),
        (a_removed_block_is_back, "newest record of pb-more: expected none, got Confirmed"),
        (an_older_state_is_newest, "newest record of pb-fault1-004-00000: expected Confirmed"),
        (a_count_is_wrong, "blocksFailed of mid-sdp/control/0: expected"),
        (a_device_does_not_answer, "blocksRunning of mid-sdp/subarray/01: expected"),
        (a_block_is_listed_in_another_state, "processingBlocks of mid-sdp/subarray/01: expected"),
        (an_older_failure_is_shown, "newestFailure of mid-sdp/subarray/01: expected"),
        (an_alarm_is_missing, "processingBlockFailed of subarray 01: expected an active alarm, got none"),
        (an_alarm_has_cleared, "processingBlockFailed of subarray 01: expected an active alarm, got RTNUN"),
        (an_alarm_names_no_failure, "processingBlockFailed of subarray 01: expected one of its"),
        (an_alarm_does_not_clear, "processingBlockFailed of subarray 04: expected none that is active, got UNACK"),
    ],
)
def test_what_is_wrong_is_named(change: Any, named: str) -> None:
    found = all_is_well()
    change(found)
    assert any(line.startswith(named) for line in differences(found, MASTER)), differences(found, MASTER)
