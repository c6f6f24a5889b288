"""The states of a command as one table; the tracker, the documents and the property test walk it.

A command is NEW until the broker has confirmed its record, then SENT; the other states are what
controllers, or in the end the facade, acknowledge. The first final one is the outcome.
"""

from collections.abc import Mapping

NEW, SENT = "NEW", "SENT"
ACCEPTED, IN_PROGRESS = "ACCEPTED", "IN_PROGRESS"
COMPLETED, FAILED, ABORTED, REJECTED = "COMPLETED", "FAILED", "ABORTED", "REJECTED"
TIMED_OUT, UNDELIVERED = "TIMED_OUT", "UNDELIVERED"

FINAL = frozenset({COMPLETED, FAILED, ABORTED, REJECTED, TIMED_OUT, UNDELIVERED})
"""Outcomes: nothing comes after them."""

_ANSWERED = frozenset({IN_PROGRESS, COMPLETED, FAILED, ABORTED, TIMED_OUT})
_SENT = _ANSWERED | {ACCEPTED, REJECTED}

TRANSITIONS: Mapping[str, frozenset[str]] = {
    # An acknowledgement may overtake the delivery report, so what follows SENT may follow NEW.
    NEW: _SENT | {SENT, UNDELIVERED},
    SENT: _SENT,
    # A controller may find only on a closer look that it must refuse; once it has begun it has failed.
    ACCEPTED: _ANSWERED | {REJECTED},
    IN_PROGRESS: _ANSWERED,
    **dict.fromkeys(FINAL, frozenset()),
}
"""What may follow on what."""

TASK_STATUS: Mapping[str, str] = {
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
"""ResultCode by outcome; after a time-out nobody knows whether the command took effect."""
