"""Lists commands of which an archive has not all records, because a site was lost."""

from collections.abc import Iterable
from typing import Final

from facade.flows.commands.messages import (
    ACKS,
    COMMANDS,
    HELD_COMMANDS,
    AckMessage,
    CommandMessage,
    decode_ack,
    decode_command,
    decode_held,
)
from facade.flows.commands.outcomes import FINAL
from facade.kernel.bus.port import Record
from facade.kernel.clock import utc_seconds
from facade.kernel.printable import printable

TOPICS: Final = (HELD_COMMANDS, COMMANDS, ACKS)
_DECODERS: Final = {COMMANDS: decode_command, ACKS: decode_ack, HELD_COMMANDS: decode_held}
_MOST_SHOWN = 50


def describe_commands(records: Iterable[Record], *, ended: bool = False) -> list[str]:
    """Return a line for each command without an outcome among the records of `TOPICS`, the oldest first.

    A command whose own record is missing has a line as well, if it was acknowledged.

    Parameters
    ----------
    ended
        Describe the commands with an outcome as well.
    """
    commands: dict[tuple[str, str], CommandMessage] = {}
    acks: dict[tuple[str, str], AckMessage] = {}
    for record in records:
        message = _DECODERS[record.topic](record.value)
        if isinstance(message, CommandMessage):
            commands[message.device, message.id] = message
        elif isinstance(message, AckMessage):
            key = message.device, message.id
            if (before := acks.get(key)) is None or before.status not in FINAL:
                acks[key] = message
    left = [key for key in commands | acks if ended or key not in acks or acks[key].status not in FINAL]
    lines = []
    for key in sorted(left, key=lambda key: commands[key].issued if key in commands else acks[key].time):
        device, id = key
        ack, command = acks.get(key), commands.get(key)
        said = f"{ack.status} at {utc_seconds(ack.time)}" if ack else "not acknowledged"
        if command is None:
            where = "in the archive" if ended else "lost"
            lines.append(f"  {device}  {ack.command if ack else ''}  id {id}: {said}; its own record is {where}")
        else:
            given = f"transaction_id {command.transaction_id}, issued {utc_seconds(command.issued)}"
            lines.append(f"  {device}  {command.command}  id {id}, {given}: {said}")
    more = [f"  and {len(lines) - _MOST_SHOWN} later ones"] if len(lines) > _MOST_SHOWN else []
    return [printable(line) for line in lines[:_MOST_SHOWN]] + more
