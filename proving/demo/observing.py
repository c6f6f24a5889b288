"""The demo's side of the observation: waits for TM's end, and asks everyone what became of the commands."""

import msgspec
from msgspec.json import decode

from facade.bus.kafka.bus import KafkaBus
from facade.controller.simulator.controller import ExecutionLine
from facade.errors import InfraError
from facade.flows.commands.messages import ACKS, COMMANDS, AckMessage, CommandMessage
from proving.demo.command_account import CommandsFound, HistoryEntry, compare_commands, timeline, wrong_commands
from proving.demo.journal import read_journal
from proving.demo.options import ENDS_WITHIN, OBSERVED_WITHIN
from proving.demo.plan import AFTER, SWITCHED_ON
from proving.demo.system import Demo


def account_for_commands(demo: Demo) -> None:
    """Wait for the end of the observation, and put the account of its commands into the report.

    Raises
    ------
    InfraError
        It does not end.
    """
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
    """Ask everyone what became of the commands.

    Raises
    ------
    InfraError
        Somebody's answer cannot be read.
    """
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
