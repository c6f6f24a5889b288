"""The demo's side of the observation: waits for TM's end, and asks everyone what became of the commands."""

import msgspec
from msgspec.json import decode

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.reader import KafkaReader
from facade.bus.port import BusHealth, Record
from facade.clock import Clock
from facade.controller.simulator.controller import ExecutionLine
from facade.errors import InfraError
from facade.flows.commands.messages import ACKS, COMMANDS, AckMessage, CommandMessage
from proving.demo.command_account import CommandsFound, Told, compare_commands, timeline, wrong_commands
from proving.demo.journal import read_journal
from proving.demo.options import ENDS_WITHIN, OBSERVED_WITHIN
from proving.demo.report import DemoReport
from proving.demo.show import Show
from proving.demo.stage import Stage

_READ_WITHIN = 10.0


def account_for_commands(stage: Stage, show: Show, report: DemoReport, clock: Clock) -> None:
    """Wait for the end of the observation, and put the account of its commands into the report.

    Raises
    ------
    InfraError
        It does not end.
    """
    show.demand(lambda: read_journal(stage.journal_file).finished, OBSERVED_WITHIN, "the end of the observation")
    # TM goes by obsState, which may be shown before the last command's outcome is.
    show.wait_until(lambda: stage.tango_side.nothing_pending(), ENDS_WITHIN)
    found = _found(stage, clock)
    journal = read_journal(stage.journal_file)
    report.commands = timeline(found)
    report.command_account = compare_commands(found)
    report.failures += [*(f"TM: {error}" for error in journal.errors), *wrong_commands(found)]
    show.step(f"the observation has ended: {sum(1 for one in journal.given if one.id)} commands")


def _found(stage: Stage, clock: Clock) -> CommandsFound:
    records = _records(stage, clock)
    try:
        return CommandsFound(
            given=read_journal(stage.journal_file).given,
            commands=[decode(one.value or b"", type=CommandMessage) for one in records if one.topic == COMMANDS],
            acks=[decode(record.value or b"", type=AckMessage) for record in records if record.topic == ACKS],
            histories={
                device: msgspec.json.decode(stage.tango_side.history(device), type=list[Told])
                for device in stage.tango_side.subarrays
            },
            executions=[
                msgspec.json.decode(line, type=ExecutionLine)
                for line in stage.executions_file.read_bytes().splitlines()
            ],
        )
    except (msgspec.DecodeError, FileNotFoundError) as error:
        raise InfraError(f"what became of the commands cannot be read: {error}") from error


def _records(stage: Stage, clock: Clock) -> list[Record]:
    """Read the topics from their beginning, as nobody else does."""
    topics = {COMMANDS: None, ACKS: None}
    reader = KafkaReader(Connection(stage.settings, clock=clock), topics, start={}, health=BusHealth())
    try:
        return reader.read_to_end(_READ_WITHIN)
    finally:
        reader.close()
