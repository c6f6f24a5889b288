"""The states of a command as one table, which the tracker, the documents and the property test walk; and one command.

A command is NEW until the broker has confirmed its record, then SENT. Acknowledgements of controllers, and finally of
the facade, give the other states. The first final one is the outcome. A command that waits for a second person is HELD,
and on a topic of its own; the approval makes it NEW, its caller may withdraw it (ABORTED), and otherwise it ends as
UNDELIVERED.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from facade.clock import NEVER, SECOND, Time, as_seconds
from facade.flows.commands.messages import AckMessage, AckStatus, CommandMessage

HELD, NEW, SENT = "HELD", "NEW", "SENT"
ACCEPTED, IN_PROGRESS = "ACCEPTED", "IN_PROGRESS"
COMPLETED, FAILED, ABORTED, REJECTED = "COMPLETED", "FAILED", "ABORTED", "REJECTED"
TIMED_OUT, UNDELIVERED = "TIMED_OUT", "UNDELIVERED"

FINAL = frozenset({COMPLETED, FAILED, ABORTED, REJECTED, TIMED_OUT, UNDELIVERED})
"""Outcomes: nothing comes after them."""
BY_FACADE = frozenset({TIMED_OUT, UNDELIVERED})
"""Outcomes written by device servers; controllers write the others, except for the ABORTED of a withdrawal."""

_ANSWERED = frozenset({IN_PROGRESS, COMPLETED, FAILED, ABORTED, TIMED_OUT})
_SENT = _ANSWERED | {ACCEPTED, REJECTED}

TRANSITIONS: Mapping[str, frozenset[str]] = {
    HELD: frozenset({NEW, ABORTED, UNDELIVERED}),
    # An acknowledgement may overtake the delivery report, so every successor of SENT may also follow NEW.
    NEW: _SENT | {SENT, UNDELIVERED},
    # Its record may come to the bus after it was given up, or be read before the outcome.
    SENT: _SENT | {UNDELIVERED},
    # A controller may refuse only before it has begun; afterwards it has failed.
    ACCEPTED: _ANSWERED | {REJECTED},
    IN_PROGRESS: _ANSWERED,
    **dict.fromkeys(FINAL, frozenset()),
}
"""Possible successors of each state."""

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

    id: str
    device: str
    command: str
    transaction_id: str = ""
    issued: Time = NEVER
    not_after: Time = NEVER
    deadline: Time = NEVER
    ceiling: Time = NEVER
    client: str = ""
    """Tango client of the caller; empty: unknown."""
    operator: str = ""
    """Operator's name given by the caller; empty: none."""
    approver: str = ""
    """Name given by the second person; empty: none was needed."""
    approver_client: str = ""
    parent: str = ""
    """Id of the command that ordered it; empty: none."""
    held: CommandMessage | None = None
    """The command that waits for a second person; None: it does not wait."""
    digest: bytes = b""
    """Of the argument."""
    status: str = NEW
    place: str = ""
    """Position of its record on the bus."""
    appended_us: Time = NEVER
    """Append time of its record; for a command that waits for a second person, of the record on which it waits."""
    began: Time = NEVER
    ended: Time = NEVER
    progress: int | None = None
    text: str = ""
    result: Any = None
    acks: list[AckMessage] = field(default_factory=list)
    begun: AckMessage | None = None
    """The newest acknowledgement before the outcome; kept while a controller has not ended it."""
    outcome: AckMessage | None = None
    noted: AckMessage | None = None
    """Last acknowledgement sent from here, which may not have come back; the log overrules it."""
    answered: bool = False
    """Whether a controller has ended it, even after the facade's time-out."""
    closed_at: float = float("-inf")
    """Time of the facade's last own outcome [monotonic s]."""

    @classmethod
    def sent(cls, message: CommandMessage) -> "Tracked":
        """Return a command without acknowledgements."""
        shared = {name: getattr(message, name) for name in message.__struct_fields__ if name in cls.__slots__}
        return cls(**shared, digest=digest(message.argument))

    @classmethod
    def acknowledged(cls, ack: AckMessage) -> "Tracked":
        """Return a command whose own record was not read."""
        return cls(id=ack.id, device=ack.device, command=ack.command)

    @property
    def final(self) -> bool:
        """Return whether the outcome is known."""
        return self.status in FINAL or (self.noted is not None and self.noted.status in FINAL)

    @property
    def is_given_up(self) -> bool:
        """Return whether it is given up here, or withdrawn, which its record would overrule."""
        by_log = self.outcome is not None and not self.outcome.withdrawer
        return not self.place and not by_log and (self.status in (NEW, UNDELIVERED) or self.outcome is not None)

    @property
    def newest(self) -> AckMessage | None:
        """Return the outcome, or else the newest acknowledgement."""
        if self.outcome is None and self.noted is not None and self.noted.status in FINAL:
            return self.noted
        return self.outcome or self.begun or self.noted

    def overdue(self, now_us: Time, origin: str, has_read: Callable[[Time], bool]) -> AckMessage | None:
        """Return the outcome of an overdue command; None: it is not overdue, or its record may still be found.

        Parameters
        ----------
        has_read
            Whether every record that was on `commands` at a time has been read.
        """
        status: AckStatus
        if self.status in (HELD, NEW) and not self.place:
            # After that time it cannot be executed any more, even if its record still comes.
            too_late = self.not_after + SECOND
            if now_us <= too_late or not has_read(too_late):
                return None
            status, text = "UNDELIVERED", "its record never appeared on the bus"
            if self.status == HELD:
                text = f"no second person approved it within {as_seconds(self.not_after - self.issued):g} s"
        elif now_us <= min(self.deadline, self.ceiling):
            return None
        else:
            waited = as_seconds(now_us - self.issued)
            status, text = "TIMED_OUT", f"no outcome within {waited:.1f} s; whether it took effect is not known"
        return AckMessage(
            id=self.id, device=self.device, command=self.command, status=status, time=now_us, origin=origin, text=text
        )


def digest(argument: Mapping[str, Any] | None) -> bytes:
    """Return a digest that two arguments share if they are the same document."""
    return hashlib.sha256(msgspec.json.encode(argument, order="deterministic")).digest()


def result(one: Tracked) -> list[Any]:
    """Return result code and text, as ska-tango-base gives them."""
    return [RESULT_CODE[one.status], one.text or one.status]
