"""Selection of the alarms that an operator names, and the requests of the operator's commands to SdpAlerts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from facade.kernel.errors import ConfigError
from facade.kernel.printable import listed
from facade.kernel.severities import SEVERITIES
from facade.sdp import alarm_states as states
from facade.sdp.judgement import AlarmDict

_ALL = frozenset({*states.STATES, states.SHLVD, states.DSUPR, states.OOSRV})


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """An operator's action on alarms."""

    command: str
    fits: frozenset[str]
    """Shown states of the alarms to which it applies, if several are selected at once."""
    before: bool = False
    """Whether it is possible without an alarm."""
    why: bool = False
    """Whether a comment is required."""


ACTIONS: Mapping[str, OperatorAction] = {
    "ack": OperatorAction("Acknowledge", states.UNACKNOWLEDGED),
    "shelve": OperatorAction("Shelve", _ALL - {states.SHLVD, states.OOSRV}, before=True, why=True),
    "unshelve": OperatorAction("Unshelve", frozenset({states.SHLVD})),
    "reset": OperatorAction("Reset", frozenset({states.LTUNK, states.LTACK})),
    "comment": OperatorAction("Comment", _ALL, why=True),
    "remove-from-service": OperatorAction("RemoveFromService", _ALL - {states.OOSRV}, before=True, why=True),
    "return-to-service": OperatorAction("ReturnToService", frozenset({states.OOSRV})),
}


def urgency(alarm: AlarmDict) -> tuple[int, int, int]:
    """Return the sort key of an alarm by urgency: its state, its severity, its age."""
    return states.URGENCY.index(alarm["state"]), SEVERITIES.index(alarm["severity"]), alarm["occurrence"]


def choose(
    alarms: Sequence[AlarmDict], words: Iterable[str], action: OperatorAction, *, every: bool = False
) -> list[AlarmDict]:
    """Return the alarms with the given names.

    Parameters
    ----------
    words
        Numbers of occurrences, conditions (all their alarms to which it applies), or condition@source.
    every
        All alarms to which it applies, without words.
    """
    words = list(words)
    if every == bool(words):
        got = "both" if every else "neither"
        raise ConfigError(
            f"expected numbers or conditions of alarms, or --all, got {got}; see `sdp-facade alerts list`"
        )
    if every:
        return [alarm for alarm in alarms if alarm["state"] in action.fits]
    chosen = [alarm for word in words for alarm in _named(alarms, word, action)]
    return list({(alarm["condition"], alarm["source"]): alarm for alarm in chosen}.values())


def _named(alarms: Sequence[AlarmDict], word: str, action: OperatorAction) -> list[AlarmDict]:
    condition, at, source = word.partition("@")
    if word.isdecimal():
        found = [alarm for alarm in alarms if alarm["occurrence"] == int(word)]
    elif at:
        found = [alarm for alarm in alarms if (alarm["condition"], alarm["source"]) == (condition, source)]
        if not found and action.before and source:
            return [{"condition": condition, "source": source}]
    else:
        of_it = [alarm for alarm in alarms if alarm["condition"] == condition]
        found = [alarm for alarm in of_it if alarm["state"] in action.fits]
        if of_it and not found:
            states_of_it = ", ".join(sorted({alarm["state"] for alarm in of_it}))
            raise ConfigError(
                f"{word}: expected an alarm in one of the states {', '.join(sorted(action.fits))}, got {states_of_it}"
            )
    if found:
        return found
    there = listed([f"{alarm['occurrence']} {alarm['condition']}@{alarm['source']}" for alarm in alarms], 10)
    raise ConfigError(
        f"{word!r:.200}: expected the number of an alarm, its condition, or condition@source; "
        f"there are: {there or 'no alarms'}; see `sdp-facade alerts list`"
    )


def request(
    alarm: AlarmDict, action: OperatorAction, *, user: str, comment: str, duration: float = 0.0
) -> dict[str, Any]:
    """Return the JSON argument of the Tango command for one alarm."""
    content = {"condition": alarm["condition"], "source": alarm["source"], "operator": user, "comment": comment}
    if action.command == "Acknowledge":
        content["occurrence"] = alarm["occurrence"]
    return content | ({"duration": duration} if duration else {})
