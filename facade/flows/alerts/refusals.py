"""Why an operator's action is not possible: a function of the alarm as it is."""

from facade.flows.alerts import states
from facade.flows.alerts.messages import Action, Alarm

LONGEST_SHELVING = 7 * 86400.0
"""Shelving ends, and not later than after this [s]: what is forgotten on a shelf is no alarm any more."""


def refusal(action: Action, alarm: Alarm | None, now_us: int) -> str:
    """Say why an action is not possible now; nothing if it is.

    Parameters
    ----------
    alarm
        That of the action; None: it is at rest or was never heard of.
    """
    name = f"{action.condition} of {action.source}"
    if action.action == "SHELVE":
        if not now_us < action.until <= now_us + round(LONGEST_SHELVING * 1e6):
            return f"until: expected an end within {LONGEST_SHELVING:.0f} s from now, got {action.until} us"
        return ""
    if action.action == "REMOVE_FROM_SERVICE":
        return f"{name} is out of service already" if alarm is not None and alarm.out_of_service else ""
    if alarm is None:
        return f"expected an alarm, got {name}, which is at rest or was never heard of"
    match action.action:
        case "ACKNOWLEDGE" if alarm.state not in states.UNACKNOWLEDGED:
            return f"{name} needs no acknowledgement: its state is {alarm.state}"
        case "ACKNOWLEDGE" if action.occurrence != alarm.occurrence:
            return f"occurrence: expected the newest of {name}, {alarm.occurrence}, got {action.occurrence}"
        case "RESET" if states.RESET not in states.TRANSITIONS[alarm.state]:
            return f"{name} is not latched: its state is {alarm.state}"
        case "UNSHELVE" if not alarm.shelved_until:
            return f"{name} is not shelved"
        case "RETURN_TO_SERVICE" if not alarm.out_of_service:
            return f"{name} is in service already"
    return ""
