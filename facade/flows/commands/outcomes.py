"""The states of a command as one table, which the tracker, the documents and the property test walk; and one command.

A command is NEW until the broker has confirmed its record, then SENT. Acknowledgements of controllers, and finally of
the facade, give the other states. The first final one is the outcome.

A command that waits for a second person is HELD, and on a topic of its own. The approval makes it NEW. While an outcome
of the facade for it is on its way, it is CLOSED, and takes no approval. It ends as WITHDRAWN by its caller, or as
UNDELIVERED.

Three states are the view of one process, and the log overrules them: a device server has GIVEN_UP a command whose
record is surely not on the bus, a command is WITHDRAWN unless it was approved at the same time, and a controller has
NOTED an outcome of its own that has not come back from the log.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from facade.flows.commands.messages import AckMessage, AckStatus, CommandMessage
from facade.kernel.clock import NEVER, SECOND, Time, as_seconds

HELD, CLOSED, NEW, SENT = "HELD", "CLOSED", "NEW", "SENT"
GIVEN_UP, WITHDRAWN, NOTED = "GIVEN_UP", "WITHDRAWN", "NOTED"
ACCEPTED, IN_PROGRESS = "ACCEPTED", "IN_PROGRESS"
COMPLETED, FAILED, ABORTED, REJECTED = "COMPLETED", "FAILED", "ABORTED", "REJECTED"
TIMED_OUT, UNDELIVERED = "TIMED_OUT", "UNDELIVERED"

FINAL = frozenset({COMPLETED, FAILED, ABORTED, REJECTED, TIMED_OUT, UNDELIVERED})
"""Outcomes: nothing comes after them."""
BY_FACADE = frozenset({TIMED_OUT, UNDELIVERED})
"""Outcomes written by device servers; controllers write the others, except for the ABORTED of a withdrawal."""
WAITING = frozenset({HELD, CLOSED})
"""States of a command that waits for a second person."""
ENDED = FINAL | {GIVEN_UP, WITHDRAWN}
"""States of a command that is shown with an outcome."""
OFF_THE_LOG = WAITING | {GIVEN_UP, WITHDRAWN}
"""States in which an acknowledgement says that the record of the command is still to be read."""

_ANSWERED = frozenset({IN_PROGRESS, COMPLETED, FAILED, ABORTED, TIMED_OUT})
_SENT = _ANSWERED | {ACCEPTED, REJECTED}

TRANSITIONS: Mapping[str, frozenset[str]] = {
    # Its record on `commands` says that another device server has had it approved.
    HELD: frozenset({CLOSED, NEW, SENT, WITHDRAWN, UNDELIVERED, GIVEN_UP}),
    CLOSED: frozenset({HELD, SENT, WITHDRAWN, UNDELIVERED}),
    # An acknowledgement may overtake the delivery report, so every successor of SENT may also follow NEW. It is HELD
    # again if its approval is surely not on the bus.
    NEW: _SENT | {SENT, NOTED, UNDELIVERED, GIVEN_UP, HELD, WITHDRAWN},
    # Its record may come to the bus after it was given up, or be read before the outcome.
    SENT: _SENT | {UNDELIVERED},
    # A controller may refuse only before it has begun; afterwards it has failed.
    ACCEPTED: _ANSWERED | {REJECTED, NOTED},
    IN_PROGRESS: _ANSWERED | {NOTED},
    NOTED: FINAL,
    **dict.fromkeys((GIVEN_UP, WITHDRAWN), frozenset({SENT})),
    **dict.fromkeys(FINAL, frozenset()),
}
"""Possible successors of each state."""

_SHOWN: Mapping[str, str] = {CLOSED: HELD, GIVEN_UP: UNDELIVERED, WITHDRAWN: ABORTED}
"""Status by state, where they differ."""

TASK_STATUS: Mapping[str, str] = {
    HELD: "STAGING",
    NEW: "STAGING",
    SENT: "QUEUED",
    ACCEPTED: "IN_PROGRESS",
    IN_PROGRESS: "IN_PROGRESS",
    COMPLETED: "COMPLETED",
    FAILED: "FAILED",
    ABORTED: "ABORTED",
    REJECTED: "REJECTED",
    TIMED_OUT: "FAILED",
    UNDELIVERED: "FAILED",
}
"""TaskStatus of the SKA control model."""

OK, QUEUED, RESULT_FAILED, UNKNOWN, RESULT_REJECTED, RESULT_ABORTED = 0, 2, 3, 4, 5, 7
"""ResultCode of ska-tango-base."""

RESULT_CODE: Mapping[str, int] = {
    COMPLETED: OK,
    FAILED: RESULT_FAILED,
    ABORTED: RESULT_ABORTED,
    REJECTED: RESULT_REJECTED,
    TIMED_OUT: UNKNOWN,
    UNDELIVERED: RESULT_FAILED,
}
"""ResultCode by outcome; after a time-out it is unknown whether the command took effect."""


@dataclass(slots=True, kw_only=True, eq=False)
class Tracked:
    """One command with its acknowledgements."""

    message: CommandMessage
    """The command; without its argument, unless it waits for a second person or was not approved."""
    digest: bytes = b""
    """Digest of the argument."""
    state: str = NEW
    """A key of `TRANSITIONS`."""
    deadline: Time = NEVER
    """When the facade stops waiting for the outcome; progress moves it."""
    place: str = ""
    """Position of its record on `commands`; empty: it was not read."""
    appended_us: Time = NEVER
    """Append time of its record; for a command that waits for a second person, of the record on which it waits."""
    began: Time = NEVER
    ended: Time = NEVER
    progress: int | None = None
    text: str = ""
    result: Any = None
    acks: list[AckMessage] = field(default_factory=list)
    newest: AckMessage | None = None
    """The outcome, or else the newest acknowledgement that changed the state; None: there is none."""
    begun: AckMessage | None = None
    """The newest acknowledgement before the outcome; kept after a time-out, until a controller has ended it."""
    closed_at: float = float("-inf")
    """Time at which this server last wrote an outcome for it [monotonic s]."""

    @classmethod
    def of(cls, message: CommandMessage, state: str) -> "Tracked":
        """Return a command without acknowledgements."""
        return cls(
            message=kept(message, state), digest=digest(message.argument), state=state, deadline=message.deadline
        )

    @property
    def id(self) -> str:
        """Id of the command."""
        return self.message.id

    @property
    def device(self) -> str:
        """Name of its Tango device."""
        return self.message.device

    @property
    def command(self) -> str:
        """Name of the command."""
        return self.message.command

    @property
    def status(self) -> str:
        """Status as clients see it: the one in the last acknowledgement, and HELD, NEW or SENT before the first one."""
        return _SHOWN.get(self.state, self.state)

    @property
    def final(self) -> bool:
        """Whether the outcome is known."""
        return self.state in ENDED or self.state == NOTED

    @property
    def given(self) -> Time:
        """Time of issue; see `given`."""
        return given(self.message, self.appended_us)

    def overdue(self, now_us: Time, origin: str, has_read: Callable[[Time], bool]) -> AckMessage | None:
        """Return the outcome of an overdue command; None: it is not overdue, or its record may still be found.

        Parameters
        ----------
        has_read
            Whether every record that was on `commands` at a time has been read.
        """
        status: AckStatus
        if self.state == NEW or self.state in WAITING:
            # After that time it cannot be executed any more, even if its record still comes.
            too_late = self.message.not_after + SECOND
            if now_us <= too_late or not has_read(too_late):
                return None
            status, text = "UNDELIVERED", "its record never appeared on the bus"
            if self.state in WAITING:
                waits = as_seconds(self.message.not_after - self.given)
                text = f"no second person approved it within {waits:g} s"
        elif now_us <= min(self.deadline, self.message.ceiling):
            return None
        else:
            waited = as_seconds(now_us - self.given)
            status, text = "TIMED_OUT", f"no outcome within {waited:.1f} s; whether it took effect is not known"
        return AckMessage(
            id=self.id, device=self.device, command=self.command, status=status, time=now_us, origin=origin, text=text
        )


def given(message: CommandMessage, appended: Time) -> Time:
    """Return the time of issue of a command whose record was appended at a time; 0: that is unknown.

    An order takes its time of issue from its parent, and a gateway's times of issue never go back. So the append time
    counts for an order, and for a record that is older than its issue.
    """
    return appended if appended and (message.parent or appended < message.issued) else message.issued


def command_of(id: str, device: str, name: str) -> CommandMessage:
    """Return a command whose own record was not read: nothing else of it is known."""
    return CommandMessage(
        id=id,
        device=device,
        command=name,
        argument=None,
        transaction_id="",
        issued=NEVER,
        not_after=NEVER,
        deadline=NEVER,
        ceiling=NEVER,
        repeatable=False,
        origin="",
    )


def kept(message: CommandMessage, state: str) -> CommandMessage:
    """Return a command as it is kept in a state: its argument, which may be long, is dropped unless it is held."""
    return message if state == HELD else msgspec.structs.replace(message, argument=None)


def digest(argument: Mapping[str, Any] | None) -> bytes:
    """Return a digest that two arguments share if they are the same document."""
    return hashlib.sha256(msgspec.json.encode(argument, order="deterministic")).digest()


def result(one: Tracked) -> list[Any]:
    """Return result code and text, as ska-tango-base gives them."""
    return [RESULT_CODE[one.status], one.text or one.status]
