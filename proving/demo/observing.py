"""The observation of a demo: TM's commands, the orders below them, and processing blocks."""

from collections import Counter
from collections.abc import Iterable

import msgspec
from msgspec.json import decode

from facade.bus.kafka.bus import KafkaBus
from facade.controller.simulator.controller import ExecutionLine
from facade.errors import InfraError
from facade.flows.alerts.follower import FollowedAlert
from facade.flows.blocks.source import BLOCKS, FAILED, STATES, read_block
from facade.flows.commands.messages import ACKS, COMMANDS, AckMessage, CommandMessage
from facade.flows.commands.past import One
from facade.messages import ProcessingBlock
from proving.demo.account import BalanceLine, disagreeing
from proving.demo.command_account import (
    CommandsFound,
    DeviceCommands,
    HistoryEntry,
    compare_commands,
    compare_orders,
    families,
    order_lines,
    timeline,
    wrong_commands,
)
from proving.demo.options import ENDS_WITHIN, FLOWS_WITHIN, OBSERVED_WITHIN
from proving.demo.plan import AFTER, SWITCHED_ON, read_journal
from proving.demo.system import Demo


def account_for_commands(demo: Demo) -> None:
    """Wait for the end of the observation, and put the account of its commands into the report."""
    progress, report = demo.progress, demo.report
    progress.demand(lambda: read_journal(demo.journal_file).finished, OBSERVED_WITHIN, "the end of the observation")
    # TM goes by obsState, which may be shown before the last command's outcome is.
    progress.wait_until(demo.tango_side.nothing_pending, ENDS_WITHIN, "each command has an outcome")
    found = commands_found(demo)
    journal = read_journal(demo.journal_file)
    report.commands = timeline(found)
    report.command_account = compare_commands(found)
    report.failures += [*(f"TM: {error}" for error in journal.errors), *wrong_commands(found)]
    progress.step(f"the observation has ended: {sum(1 for one in journal.given if one.id)} commands")


def commands_found(demo: Demo) -> CommandsFound:
    """Ask everyone what became of the commands."""
    bus, side = KafkaBus(demo.deployment.connection, client="demo-commands"), demo.tango_side
    devices, last = [*side.subarrays], dict[str, str]()
    if demo.options.orders:
        devices.append(side.sdp)
        last = {side.sdp: AFTER[-1].command, **dict.fromkeys(side.subarrays, SWITCHED_ON[-1].command)}
    try:
        return CommandsFound(
            given=read_journal(demo.journal_file).given,
            commands=[decode(record.value or b"", type=CommandMessage) for record in bus.read_all(COMMANDS)],
            acks=[decode(record.value or b"", type=AckMessage) for record in bus.read_all(ACKS)],
            histories={device: decode(side.history(device), type=list[HistoryEntry]) for device in devices},
            executions=[decode(line, type=ExecutionLine) for line in demo.executions_file.read_bytes().splitlines()],
            last=last,
        )
    except (msgspec.DecodeError, FileNotFoundError) as error:
        raise InfraError(f"what became of the commands cannot be read: {error}") from error


def await_cascade(demo: Demo) -> None:
    """Wait until SDP's On has come to all subarrays."""
    side = demo.tango_side

    def are_on() -> bool:
        states = [side.read(device, ["State"]).get("State") for device in side.subarrays]
        return all(one is not None and str(one.value) == "ON" for one in states)

    demo.progress.demand(are_on, FLOWS_WITHIN, "SDP's On has come to all subarrays")
    demo.progress.step(f"TM has switched on {side.sdp}; its controller has switched on the subarrays by orders")


def account_for_orders(demo: Demo) -> None:
    """Wait until each order has its outcome, and put their account into the report."""
    report = demo.report
    demo.progress.wait_until(
        lambda: all(line.outcome for line in order_lines(_given(demo))), ENDS_WITHIN, "the outcome of each order"
    )
    given, found = _given(demo), commands_found(demo)
    report.orders = order_lines(given)
    devices = {device: DeviceCommands(found, device) for device in sorted({one.device for one in found.commands})}
    report.order_account = compare_orders(given, devices, len(demo.tango_side.subarrays))
    report.failures += [f"orders: {line}" for line in report.order_account if not line.agrees]
    count = sum(1 for line in report.orders if line.depth)
    demo.progress.step(f"for these, controllers have given {count} orders, down to the workers")


def _given(demo: Demo) -> list[One]:
    """Return what TM gave, with the orders below it."""
    bus = KafkaBus(demo.deployment.connection, client="demo-orders")
    commands, acks = bus.read_all(COMMANDS), bus.read_all(ACKS)
    return families([one.id for one in read_journal(demo.journal_file).given if one.id], commands, acks)


_CONDITION = "processingBlockFailed"


def account_for_blocks(demo: Demo, entries: list[FollowedAlert]) -> None:
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
        *(BalanceLine(one, "has a block that failed", 1, int(count[FAILED] > 0)) for one, count in states.items()),
        *(BalanceLine(one, f"alarm {_CONDITION}", 1, int(one[-2:] in _alarms(entries))) for one in states),
    ]
    report.failures += disagreeing("processing blocks", report.block_account)


def _shown(demo: Demo, states: dict[str, Counter[str]]) -> list[BalanceLine]:
    lines = []
    for device, count in states.items():
        names = {state: f"blocks{state.title()}" for state in STATES}
        shown = demo.tango_side.read(device, names.values())
        for state, name in names.items():
            found = shown.get(name)
            value = None if found is None or found.value is None else int(found.value)
            lines.append(BalanceLine(device, f"processing blocks {state}", count[state], value))
    return lines


def _alarms(entries: Iterable[FollowedAlert]) -> set[str]:
    """Return the numbers of the subarrays for which the alarm was raised."""
    alerts = [entry.alert for entry in list(entries) if entry.alert is not None]
    return {alert["source"].rpartition("/")[2] for alert in alerts if alert["condition"] == _CONDITION}
