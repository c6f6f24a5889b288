"""Commands of a night with their outcomes, and those that devices refused.

The first final acknowledgement of a command is its outcome. An order is given when the bus takes it: its id and its
time of issue follow from those of its parent, so that it can be written again.
"""

from dataclasses import dataclass
from typing import get_args

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.flows.archive.night.span import MICRO
from facade.messages import Command, CommandAck, CommandAckStatus, CommandRefusal
from facade.outcome import USED, Outcome, Suppressed

COMMANDS, ACKS, REFUSALS = "commands", "command-acks", "command-refusals"
COMPLETED, OPEN, REFUSED = "COMPLETED", "OPEN", "REFUSED"
"""An outcome; said of a command that has none at the end of the night; and of one that its device refused."""
_FINAL = frozenset(get_args(CommandAckStatus)) - {"ACCEPTED", "IN_PROGRESS"}
_AGAIN, _OTHER = Suppressed("again"), Suppressed("not-shown")
_decode_command = BatchDecoder(Command).decode_one
_decode_ack = BatchDecoder(CommandAck).decode_one
_decode_refusal = BatchDecoder(CommandRefusal).decode_one


@dataclass(slots=True)
class NightCommand:
    """One command."""

    given_us: int
    device: str
    command: str
    by: str
    """Client, or the command that it is an order of."""
    outcome: str = OPEN
    ended_us: int = 0
    text: str = ""

    @property
    def seconds(self) -> float | None:
        """Return the time until the outcome [s]; None: there is none."""
        return (self.ended_us - self.given_us) / MICRO if self.ended_us else None


class Commands:
    """The commands of a night; records of `COMMANDS` come first, then acknowledgements."""

    def __init__(self) -> None:
        self._by_id: dict[str, NightCommand] = {}
        self._refused: list[NightCommand] = []

    @property
    def lines(self) -> list[NightCommand]:
        """Return all commands in the order in which they were given."""
        return sorted((*self._by_id.values(), *self._refused), key=lambda one: one.given_us)

    def take_command(self, record: Record) -> Outcome:
        """Take a command."""
        found = _decode_command(record.value)
        if not isinstance(found, Command):
            return found
        if found.id in self._by_id:
            return _AGAIN
        given = record.timestamp_us if found.parent else found.issued
        by = f"order of {found.parent}" if found.parent else found.client or found.origin
        self._by_id[found.id] = NightCommand(given, found.device, found.command, by)
        return USED

    def take_ack(self, record: Record) -> Outcome:
        """Take an acknowledgement."""
        found = _decode_ack(record.value)
        if not isinstance(found, CommandAck):
            return found
        line = self._by_id.get(found.id)
        if line is None:
            return _OTHER
        if line.outcome == OPEN and found.status in _FINAL:
            line.outcome, line.ended_us, line.text = found.status, found.time, found.text
        return USED

    def take_refusal(self, record: Record) -> Outcome:
        """Take a refusal."""
        found = _decode_refusal(record.value)
        if not isinstance(found, CommandRefusal):
            return found
        by, text = found.client or found.origin, f"{found.reason}: {found.text}"
        self._refused.append(NightCommand(found.time, found.device, found.command, by, REFUSED, found.time, text))
        return USED
