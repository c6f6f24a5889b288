"""The demo's processing blocks: those of each observation run, one of them fails, and devices and operator know it."""

from collections import Counter
from collections.abc import Iterable

from facade.bus.kafka.bus import KafkaBus
from facade.flows.alerts.follower import Entry
from facade.flows.blocks.source import BLOCKS, FAILED, STATES, read_block
from facade.messages import ProcessingBlock
from proving.demo.account import Line, disagreeing
from proving.demo.options import FLOWS_WITHIN
from proving.demo.system import Demo

_CONDITION = "processingBlockFailed"


def account_for_blocks(demo: Demo, entries: list[Entry]) -> None:
    """Compare what devices and alerts tell of blocks with the topic, and put it into the report.

    Parameters
    ----------
    entries
        What a client was given of alerts, which grows.
    """
    report, progress = demo.report, demo.progress
    newest = {
        block.pb_id: block
        for record in KafkaBus(demo.deployment.connection, client="demo-blocks").read_all(BLOCKS)
        if isinstance(block := read_block(record), ProcessingBlock)
    }
    states = {device: Counter[str]() for device in demo.tango_side.subarrays}
    for block in newest.values():
        states[f"mid-sdp/subarray/{block.subarray:02d}"][block.state] += 1
    progress.wait_until(
        lambda: all(line.agrees for line in _shown(demo, states)), FLOWS_WITHIN, "devices show the blocks"
    )
    progress.wait_until(
        lambda: len(_alarms(entries)) == len(states), FLOWS_WITHIN, "an alarm for each block that failed"
    )
    report.block_account = [
        *_shown(demo, states),
        *(Line(one, "has a block that failed", 1, int(count[FAILED] > 0)) for one, count in states.items()),
        *(Line(one, f"alarm {_CONDITION}", 1, int(one[-2:] in _alarms(entries))) for one in states),
    ]
    report.failures += disagreeing("processing blocks", report.block_account)


def _shown(demo: Demo, states: dict[str, Counter[str]]) -> list[Line]:
    lines = []
    for device, count in states.items():
        names = {state: f"blocks{state.title()}" for state in STATES}
        shown = demo.tango_side.read(device, names.values())
        for state, name in names.items():
            found = shown.get(name)
            value = None if found is None or found.value is None else int(found.value)
            lines.append(Line(device, f"processing blocks {state}", count[state], value))
    return lines


def _alarms(entries: Iterable[Entry]) -> set[str]:
    """Return the numbers of the subarrays for which the alarm was raised."""
    alerts = [entry.alert for entry in list(entries) if entry.alert is not None]
    return {alert["source"].rpartition("/")[2] for alert in alerts if alert["condition"] == _CONDITION}
