"""The account of the fault run of processing blocks: what was told, what the topic has, what devices show. No I/O."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from facade.messages import ProcessingBlock
from proving.fault_runs.block_scenario import STATES, SUBARRAYS, Confirmed, failed_now

CONDITION = "processingBlockFailed"
ATTRIBUTES = {state: f"blocks{state.title()}" for state in STATES}
"""By state, which attribute of SdpSubarray and SdpMaster counts it."""
_ACTIVE = ("UNACK", "ACKED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What everyone says."""

    told: Mapping[str, Confirmed]
    """Each block, as its controller was confirmed to have told it last."""
    topic: Mapping[str, ProcessingBlock]
    """Each block, as its newest record has it."""
    shown: Mapping[str, Mapping[str, Any]]
    """Values of attributes, by device; the name of an SdpSubarray ends with its number."""
    alarms: Iterable[Mapping[str, Any]]
    """GetAlarms."""


def differences(found: Found, master: str) -> list[str]:
    """Compare all; each line names one difference."""
    return [*_on_the_topic(found), *_at_devices(found, master), *_alarms(found)]


def _on_the_topic(found: Found) -> list[str]:
    wrong = []
    for name in sorted(found.told.keys() | found.topic.keys()):
        expected, block = found.told.get(name), found.topic.get(name)
        got = block and Confirmed(block.subarray, block.eb_id, block.state, block.sequence, block.time)
        if got != expected:
            wrong.append(f"newest record of {name}: expected {expected or 'none'}, got {got or 'none'}")
    return wrong


def _at_devices(found: Found, master: str) -> list[str]:
    wrong = []
    for device, values in found.shown.items():
        number = 0 if device == master else int(device[-2:])
        blocks = {name: one for name, one in found.told.items() if number in (0, one.subarray)}
        counts = Counter(one.state for one in blocks.values())
        for state, attribute in ATTRIBUTES.items():
            if values.get(attribute) != counts[state]:
                wrong.append(f"{attribute} of {device}: expected {counts[state]}, got {values.get(attribute)}")
        wrong += _texts(device, values, blocks)
    return wrong


def _texts(device: str, values: Mapping[str, Any], blocks: Mapping[str, Confirmed]) -> list[str]:
    wrong = []
    running = {name: one.state for name, one in blocks.items() if one.state not in ("FINISHED", "FAILED")}
    listed = {one["pb_id"]: one["state"] for one in map(json.loads, values.get("processingBlocks") or ())}
    if listed != running:
        differ = sorted(name for name in listed.keys() | running.keys() if listed.get(name) != running.get(name))
        wrong.append(f"processingBlocks of {device}: expected {len(running)} blocks, differs in {differ}")
    failed = {name: one.time for name, one in blocks.items() if one.state == "FAILED"}
    # Two controllers may have told in the same microsecond.
    expected = {name for name, time in failed.items() if time == max(failed.values())} or {""}
    got = json.loads(values["newestFailure"])["pb_id"] if values.get("newestFailure") else ""
    if got not in expected:
        wrong.append(f"newestFailure of {device}: expected {' or '.join(sorted(expected))}, got {got or 'none'}")
    return wrong


def _alarms(found: Found) -> list[str]:
    """Hold the alarms of subarrays against the failures in their newest execution blocks."""
    alarms = {one["source"][-2:]: one for one in found.alarms if one["condition"] == CONDITION}
    wrong = []
    for number in range(1, SUBARRAYS + 1):
        failures = failed_now(found.told, number)
        alarm = alarms.get(f"{number:02d}")
        here = f"{CONDITION} of subarray {number:02d}"
        if failures and (alarm is None or alarm["state"] not in _ACTIVE):
            wrong.append(f"{here}: expected an active alarm, got {alarm['state'] if alarm else 'none'}")
        elif failures and alarm and not any(name in alarm["text"] for name in failures):
            wrong.append(f"{here}: expected one of its {len(failures)} failures in the text, got {alarm['text']!r}")
        elif not failures and alarm is not None and alarm["state"] in _ACTIVE:
            wrong.append(f"{here}: expected none that is active, got {alarm['state']}: {alarm['text']}")
    return wrong
