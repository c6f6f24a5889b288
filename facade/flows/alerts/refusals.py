"""Reasons to refuse an operator's action, as a function of the present alarm."""

from facade.flows.alerts.messages import Action, Alarm
from facade.kernel.clock import DAY, as_seconds, utc_seconds
from facade.sdp import alarm_states as states

LONGEST_SHELVING = 7 * DAY


_PAST = {
    "ACKNOWLEDGE": "acknowledged",
    "UNSHELVE": "unshelved",
    "RESET": "reset",
    "REMOVE_FROM_SERVICE": "removed",
    "RETURN_TO_SERVICE": "returned",
}


def refusal(action: Action, alarm: Alarm | None) -> str:
    """Return the reason why an action is not possible now; empty: it is.

    Parameters
    ----------
    alarm
        The alarm of the action; None: it is at rest or unknown.
    """
    name = f"{action.condition} of {action.source}"
    if action.action == "SHELVE":
        # Both times are those of one clock, which need not be that of the brokers.
        if not action.time < action.until <= action.time + LONGEST_SHELVING:
            longest, length = as_seconds(LONGEST_SHELVING), action.until - action.time
            return f"until: expected an end within {longest:.0f} s of time, got {length} us after it"
        return ""
    if action.action == "REMOVE_FROM_SERVICE":
        if alarm is not None and alarm.out_of_service:
            return f"{name} is out of service already{_who(alarm, action.action)}"
        return ""
    if alarm is None:
        return f"expected an alarm, got {name}, which is at rest or was never heard of"
    match action.action:
        case "ACKNOWLEDGE" if alarm.state not in states.UNACKNOWLEDGED:
            return f"{name} needs no acknowledgement: its state is {alarm.state}{_who(alarm, action.action)}"
        case "ACKNOWLEDGE" if action.occurrence != alarm.occurrence:
            return f"occurrence: expected the newest of {name}, {alarm.occurrence}, got {action.occurrence}"
        case "RESET" if states.RESET not in states.TRANSITIONS[alarm.state]:
            return f"{name} is not latched: its state is {alarm.state}{_who(alarm, action.action)}"
        case "UNSHELVE" if not alarm.shelved_until:
            return f"{name} is not shelved{_who(alarm, action.action)}"
        case "RETURN_TO_SERVICE" if not alarm.out_of_service:
            return f"{name} is in service already{_who(alarm, action.action)}"
    return ""


def _who(alarm: Alarm, kind: str) -> str:
    """Name the faster operator, with the time; empty: there was none since the alarm was last at rest."""
    before = next((one for one in reversed(alarm.actions) if one.action == kind), None)
    if before is None:
        return ""
    return f"; {before.operator} {_PAST[kind]} it at {utc_seconds(before.time)}"
