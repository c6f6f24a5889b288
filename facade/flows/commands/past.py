"""What became of past commands, by the bus alone: the same fold as the device servers', over a part of the topics."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from facade.bus.port import Record
from facade.flows.commands.messages import AckMessage, CommandMessage, decode_ack, decode_command, issued
from facade.flows.commands.outcomes import FINAL, MICRO, Tracked
from facade.flows.commands.tracker import Tracker
from facade.numbers import LARGEST
from facade.outcome import Rejected, Suppressed

OPEN = "OPEN"
"""Said of a command that has no outcome yet."""
OUTCOMES = (*sorted(FINAL), OPEN)
_ALL = 2**62


class Past:
    """Commands of a span of time, and their outcomes.

    Parameters
    ----------
    since_us
        Commands that were issued before are left out [Unix us].
    """

    def __init__(self, since_us: int) -> None:
        self._since_us = since_us
        self._trackers: dict[str, Tracker] = {}
        self.unreadable = 0
        """Records that are no commands and no acknowledgements."""

    def add_command(self, record: Record) -> None:
        """Take a record of ``commands``; all of them come before the first acknowledgement."""
        command = decode_command(record.value)
        if isinstance(command, Suppressed | Rejected):
            self.unreadable += isinstance(command, Rejected)
        else:
            self._tracker(command.device).fold_command(command, record)

    def add_ack(self, record: Record) -> None:
        """Take a record of ``command-acks``."""
        ack = decode_ack(record.value)
        if isinstance(ack, Suppressed | Rejected):
            self.unreadable += isinstance(ack, Rejected)
        elif self._since_us <= issued(ack.id) <= LARGEST:
            self._tracker(ack.device).fold_ack(ack, 0.0)

    def commands(self) -> list[Tracked]:
        """Return the commands in the order in which they were issued."""
        found = (
            one
            for device, tracker in self._trackers.items()
            for one in (*tracker.finished(device, _ALL), *tracker.pending(device))
        )
        return sorted((one for one in found if _when(one) >= self._since_us), key=_when)

    def _tracker(self, device: str) -> Tracker:
        made = self._trackers.get(device)
        if made is None:
            made = self._trackers[device] = Tracker([device], keep=_ALL, acks=0, with_commands=False)
        return made


@dataclass(slots=True)
class One:
    """One command with all that the bus has of it."""

    id: str
    command: CommandMessage | None = None
    """None: its record is not on the bus (any more)."""
    acks: list[tuple[AckMessage, int]] = field(default_factory=list)
    """In the order of the log, each with the time at which the bus took it [Unix us]."""

    def add_command(self, record: Record) -> None:
        """Take a record of ``commands``."""
        command = decode_command(record.value)
        if isinstance(command, CommandMessage) and command.id == self.id and self.command is None:
            self.command = command

    def add_ack(self, record: Record) -> None:
        """Take a record of ``command-acks``."""
        ack = decode_ack(record.value)
        if isinstance(ack, AckMessage) and ack.id == self.id:
            self.acks.append((ack, record.timestamp_us))

    @property
    def outcome(self) -> AckMessage | None:
        """Return the first final acknowledgement; it holds."""
        return next((ack for ack, _ in self.acks if ack.status in FINAL), None)


def outcome_of(tracked: Tracked) -> str:
    """Return the outcome of a command, or that it has none."""
    return tracked.status if tracked.status in FINAL else OPEN


def row(tracked: Tracked) -> dict[str, Any]:
    """Return a command as lists show it; times are Unix times [s]."""
    when = _when(tracked)
    took = (tracked.ended - when) / MICRO if tracked.ended else None
    return {
        "id": tracked.id,
        "device": tracked.device,
        "command": tracked.command,
        "transaction_id": tracked.transaction_id,
        "issued": when / MICRO,
        "outcome": outcome_of(tracked),
        "status": tracked.status,
        "seconds": took,
        "origin": tracked.outcome.origin if tracked.outcome else "",
        "text": tracked.text,
    }


def chosen(
    commands: Iterable[Tracked], *, devices: Iterable[str] = (), names: Iterable[str] = (), outcomes: Iterable[str] = ()
) -> Iterator[Tracked]:
    """Return the commands of some devices, of some names and with some outcomes; none of a kind: all."""
    of, called, ended = ({*kind} for kind in (devices, names, outcomes))
    for one in commands:
        if (
            (not of or one.device.lower() in of)
            and (not called or one.command in called)
            and (not ended or outcome_of(one) in ended)
        ):
            yield one


def _when(tracked: Tracked) -> int:
    return tracked.issued or issued(tracked.id)
