"""The states of an alarm as tables; the ledger, the documents and the property test walk them.

The states and transitions are those of IEC 62682 (and ISA-18.2); the names are those of Elettra's alarm
handler, which SKA uses, and LTUNK and LTACK for the latched ones, which it does not have.
"""

from collections.abc import Mapping
from typing import get_args

from facade.sdp.messages import AlertStateState as State

STATES: tuple[State, ...] = get_args(State)
"""States of the alarm itself, without the three that cover it."""
NORM, UNACK, ACKED, RTNUN, LTUNK, LTACK = STATES
SHLVD, DSUPR, OOSRV = "SHLVD", "DSUPR", "OOSRV"

RAISE, ESCALATE, CLEAR, CLEAR_LATCHED = "RAISE", "ESCALATE", "CLEAR", "CLEAR_LATCHED"
ACKNOWLEDGE, RESET = "ACKNOWLEDGE", "RESET"

ACTIVE = frozenset({UNACK, ACKED})
UNACKNOWLEDGED = frozenset({UNACK, RTNUN, LTUNK})
"""An operator has not acknowledged it yet."""

TRANSITIONS: Mapping[State, Mapping[str, State]] = {
    NORM: {RAISE: UNACK},
    UNACK: {ESCALATE: UNACK, CLEAR: RTNUN, CLEAR_LATCHED: LTUNK, ACKNOWLEDGE: ACKED},
    ACKED: {ESCALATE: UNACK, CLEAR: NORM, CLEAR_LATCHED: LTACK},
    RTNUN: {RAISE: UNACK, ACKNOWLEDGE: NORM},
    LTUNK: {RAISE: UNACK, ACKNOWLEDGE: LTACK, RESET: NORM},
    LTACK: {RAISE: UNACK, RESET: NORM},
}
"""Next state by state and event; an event that is not named changes nothing."""

URGENCY = (NORM, DSUPR, OOSRV, SHLVD, LTACK, ACKED, RTNUN, LTUNK, UNACK)
"""All shown states, the most urgent last: the most urgent one stands for several sources of a condition."""


def shown(state: str, *, shelved: bool, suppressed: bool, out_of_service: bool) -> str:
    """Return the shown state: a cover of the alarm, if there is one, hides the rest.

    A covered alarm is still evaluated (OPC UA Part 9, 4.8), so its own state is there when it is uncovered.
    """
    if out_of_service:
        return OOSRV
    if suppressed:
        return DSUPR
    return SHLVD if shelved else state
