"""Version 2 of ska-tango-base's protocol for long-running commands: what has changed, in one event.

A client, `invoke_lrc`, subscribes to ``_lrcEvent``, gives its command, and looks for its id in each event. The
attribute has pairs of an id and a JSON object: those of ``status`` (TaskStatus), ``progress`` [%] and ``result`` that
have changed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from facade.flows.commands.outcomes import TASK_STATUS, Tracked, result

VERSIONS = (1, 2)
"""Lowest and highest version of the protocol that devices speak."""
_KEPT = 1.0
"""So long a change stays in the events that follow [s]: one event may take the place of another that has not left."""
_NUMBERS = {"STAGING": 0, "QUEUED": 1, "IN_PROGRESS": 2, "ABORTED": 3, "COMPLETED": 5, "REJECTED": 6, "FAILED": 7}
"""TaskStatus of the SKA control model."""


class LrcEvents:
    """What has changed of the commands of one device."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, Any]] = {}
        self._recent: dict[str, tuple[float, dict[str, Any]]] = {}
        """When each command last changed [Unix s], and how."""
        self._value: tuple[str, ...] = ()

    def value(self, commands: Sequence[Tracked], now: float) -> tuple[str, ...]:
        """Return id, JSON object, id, JSON object ... of the commands that have just changed.

        Without a change it is the same as before: a shorter one would be an event that repeats old changes.
        """
        states = {one.id: _state(one) for one in commands}
        changes = {id: changed for id, state in states.items() if (changed := self._changed(id, state))}
        self._told = states
        if not changes:
            return self._value
        self._recent = {id: (at, change) for id, (at, change) in self._recent.items() if now - at <= _KEPT}
        for id, change in changes.items():
            self._recent[id] = (now, {**self._recent.get(id, (now, {}))[1], **change})
        self._value = tuple(text for id, (_, change) in self._recent.items() for text in (id, json.dumps(change)))
        return self._value

    def _changed(self, id: str, state: Mapping[str, Any]) -> dict[str, Any]:
        before = self._told.get(id, {})
        return {name: value for name, value in state.items() if before.get(name) != value}


def _state(one: Tracked) -> dict[str, Any]:
    state: dict[str, Any] = {"status": _NUMBERS[TASK_STATUS[one.status]]}
    if one.progress is not None:
        state["progress"] = one.progress
    if one.ended:
        state["result"] = result(one)
    return state
