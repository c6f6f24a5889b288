"""Past commands and their outcomes, from the bus alone: the device servers' fold over a part of the topics."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from facade.flows.commands.messages import (
    AckMessage,
    CommandMessage,
    decode_ack,
    decode_command,
    decode_held,
    decode_refusal,
    issued,
)
from facade.flows.commands.outcomes import FINAL, NEW, SENT, TRANSITIONS, WITHDRAWN, Tracked, command_of, given
from facade.flows.commands.tracker import Tracker
from facade.kernel import tracing
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, Time, as_seconds
from facade.kernel.numbers import LARGEST
from facade.kernel.outcome import RecordRejected, Suppressed, Unused

_Message = TypeVar("_Message")

OPEN = "OPEN"
"""Outcome shown for a command without one."""
REFUSED = "REFUSED"
"""Outcome shown for a command that its device refused: it has no id, and no controller saw it."""
OUTCOMES = (*sorted(FINAL), OPEN, REFUSED)
_ALL = 2**62
_SHOWN = 500
"""Most characters of an argument that a list may show."""
_DEEPEST = 32
"""Greatest depth of orders; SDP has four."""


class Past:
    """Commands of a span of time, and their outcomes.

    Parameters
    ----------
    since
        Earlier commands are left out.
    """

    def __init__(self, since: Time) -> None:
        self._since = since
        self._trackers: dict[str, Tracker] = {}
        self._refused: list[Tracked] = []
        self.unreadable = 0
        """Undecodable records."""
        self.arguments: dict[str, str] = {}
        """The beginning of each command's argument as JSON, by the command's id."""

    def add_command(self, record: Record) -> None:
        """Add a record of ``commands``; all of them come before the first acknowledgement."""
        if (command := self._readable(decode_command(record.value))) is not None:
            self._tracker(command.device).fold_command(command, record)
            self._keep_argument(command)

    def add_held(self, record: Record) -> None:
        """Add a record of ``commands-held``; all of them come before the first of ``commands``."""
        found = decode_held(record.value)
        if isinstance(found, AckMessage):
            self._tracker(found.device).fold_unapproved(found)
        elif (command := self._readable(found)) is not None:
            self._tracker(command.device).fold_held(command, record)
            self._keep_argument(command)

    def add_ack(self, record: Record) -> None:
        """Add a record of ``command-acks``."""
        ack = self._readable(decode_ack(record.value))
        if ack is not None and int(issued(ack.id)) <= LARGEST:
            tracker = self._tracker(ack.device)
            # The id of an approved command is older than its issue.
            if issued(ack.id) >= self._since or tracker.find(ack.id) is not None:
                tracker.fold_ack(ack, 0.0)

    def add_refusal(self, record: Record) -> None:
        """Add a record of ``command-refusals``."""
        if (refusal := self._readable(decode_refusal(record.value))) is None:
            return
        message = msgspec.structs.replace(
            command_of("", refusal.device, refusal.command),
            issued=refusal.time,
            client=refusal.client,
            operator=refusal.operator,
        )
        self._refused.append(Tracked(message=message, state=REFUSED, text=refusal.text))

    def commands(self) -> list[Tracked]:
        """Return the commands in the order in which they were issued."""
        found = (
            one
            for device, tracker in self._trackers.items()
            for one in (*tracker.finished(device, _ALL), *tracker.pending(device))
        )
        return sorted((one for one in (*found, *self._refused) if given_at(one) >= self._since), key=given_at)

    def _readable(self, found: _Message | Unused) -> _Message | None:
        if not isinstance(found, Suppressed | RecordRejected):
            return found
        self.unreadable += isinstance(found, RecordRejected)
        return None

    def _keep_argument(self, command: CommandMessage) -> None:
        if command.argument is not None:
            self.arguments[command.id] = msgspec.json.encode(command.argument).decode()[:_SHOWN]

    def _tracker(self, device: str) -> Tracker:
        made = self._trackers.get(device)
        if made is None:
            made = self._trackers[device] = Tracker([device], keep=_ALL, acks=0, with_commands=False)
        return made


@dataclass(slots=True)
class One:
    """One command with all its records on the bus."""

    id: str
    command: CommandMessage | None = None
    """None: its record is not, or no longer, on the bus."""
    held: bool = False
    """Whether the record is the one on which it waits, or waited in vain, for a second person."""
    appended: Time = NEVER
    """Append time of its record; 0: unknown."""
    trace: str = ""
    """Id of its trace; empty: it is not traced."""
    acks: list[tuple[AckMessage, Time]] = field(default_factory=list)
    """In the order of the log, each with its append time."""
    orders: list["One"] = field(default_factory=list)
    """Orders of its controller to other controllers for it, in the order of issue."""

    @property
    def outcome(self) -> AckMessage | None:
        """Return the first final acknowledgement that counts; it holds."""
        state = SENT if self.command is not None and not self.held else NEW
        for ack, _ in self.acks:
            after = WITHDRAWN if ack.withdrawer else ack.status
            if after not in TRANSITIONS[state]:
                continue
            if ack.status in FINAL:
                return ack
            state = after
        return None

    @property
    def given(self) -> Time:
        """Return the time of issue."""
        return issued(self.id) if self.command is None else given(self.command, self.appended)

    @property
    def seconds(self) -> float | None:
        """Return the time from issue to outcome [s]; None: it has no outcome."""
        return None if self.outcome is None else as_seconds(self.outcome.time - self.given)


class CommandFamily:
    """One command with its orders, the orders of these, and so on.

    Records of ``commands-held`` come first; then those of ``commands``, an order perhaps before its parent; then
    `gather`, then acknowledgements.
    """

    def __init__(self, id: str) -> None:
        self.first = One(id)
        """The requested command."""
        self._orders: dict[str, One] = {}
        """All orders that were read, by id."""
        self._members: dict[str, One] = {}
        """The command and all orders below it, by id."""

    def add_held(self, record: Record) -> None:
        """Add a record of ``commands-held``."""
        command = decode_held(record.value)
        if isinstance(command, AckMessage) and command.id == self.first.id:
            self.first.acks.append((command, record.timestamp_us))
        elif isinstance(command, CommandMessage) and command.id == self.first.id:
            self.first.command, self.first.held = command, True
            self.first.appended, self.first.trace = record.timestamp_us, tracing.trace_id(record.headers)

    def add_command(self, record: Record) -> None:
        """Add a record of ``commands``."""
        command = decode_command(record.value)
        if not isinstance(command, CommandMessage) or not (command.parent or command.id == self.first.id):
            return
        one = self.first if command.id == self.first.id else self._orders.setdefault(command.id, One(command.id))
        if one.command is None or one.held:  # an order is written again after its controller was killed
            one.command, one.held = command, False
            one.appended, one.trace = record.timestamp_us, tracing.trace_id(record.headers)

    def add_ack(self, record: Record) -> None:
        """Add a record of ``command-acks``."""
        ack = decode_ack(record.value)
        if isinstance(ack, AckMessage) and not ack.withdrawer and (one := self._members.get(ack.id)) is not None:
            if one.command is None or one.command.device == ack.device:  # others may have used its id
                one.acks.append((ack, record.timestamp_us))

    def gather(self) -> None:
        """Put each order below its parent, when all commands have been read."""
        below = defaultdict[str, list[One]](list)
        for one in sorted(self._orders.values(), key=lambda one: (one.given, one.id)):
            below[one.command.parent if one.command else ""].append(one)
        level = [self.first]
        for _ in range(_DEEPEST):
            self._members |= {one.id: one for one in level}
            for parent in level:
                parent.orders = below.pop(parent.id, [])
            level = [order for parent in level for order in parent.orders]


def outcome_of(tracked: Tracked) -> str:
    """Return the outcome of a command, or OPEN."""
    return tracked.status if tracked.status in OUTCOMES else OPEN


def row(tracked: Tracked) -> dict[str, Any]:
    """Return a command as lists show it; times are Unix times [s]."""
    when = given_at(tracked)
    took = as_seconds(tracked.ended - when) if tracked.ended else None
    return {
        "id": tracked.id,
        "device": tracked.device,
        "command": tracked.command,
        "transaction_id": tracked.message.transaction_id,
        "client": tracked.message.client,
        "operator": tracked.message.operator,
        "parent": tracked.message.parent,
        "issued": as_seconds(when),
        "outcome": outcome_of(tracked),
        "status": tracked.status,
        "seconds": took,
        "origin": tracked.newest.origin if tracked.newest and tracked.final else "",
        "text": tracked.text,
    }


def chosen(
    commands: Iterable[Tracked], *, devices: Iterable[str] = (), names: Iterable[str] = (), outcomes: Iterable[str] = ()
) -> Iterator[Tracked]:
    """Return the commands of some devices, names and outcomes; an empty selection of a kind means all."""
    of, called, ended = ({*kind} for kind in (devices, names, outcomes))
    for one in commands:
        if (
            (not of or one.device.lower() in of)
            and (not called or one.command in called)
            and (not ended or outcome_of(one) in ended)
        ):
            yield one


def nested(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return rows in order, but each order below its parent, with the number of its ancestors that are there."""
    rows = list(rows)
    there, below = {one["id"] for one in rows}, defaultdict[str, list[dict[str, Any]]](list)
    for one in rows:
        below[one["parent"] if one["parent"] in there else ""].append(one)
    while below:
        # Orders of each other, which only a faulty program gives, are below nothing.
        stack = [(0, one) for one in reversed(below.pop("" if "" in below else next(iter(below))))]
        while stack:
            depth, one = stack.pop()
            yield depth, one
            stack += [(depth + 1, order) for order in reversed(below.pop(one["id"], []))]


def given_at(tracked: Tracked) -> Time:
    """Return when a command was issued; of one whose record is unknown, by its id."""
    return tracked.given or issued(tracked.id)
