"""A subarray as TM has it: events of its states, calls, and what is known of its commands."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tango

from clients.conformance.verdicts import Mismatch
from facade.clock import Clock, wait_until
from facade.icd.model import Icd

STATE, OBS_STATE, COMMANDED, PENDING = "State", "obsState", "commandedObsState", "commandsPending"
RESULT = "longRunningCommandResult"
ANY_CHANGE = (
    STATE,
    OBS_STATE,
    COMMANDED,
    "adminMode",
    PENDING,
    "commandsFinished",
    "lastCommand",
    "transactionId",
    "resources",
    "ebID",
    "scanID",
    "scanType",
)
"""What a refusal must leave as it is."""
_EVERY = 0.02
"""Time between two looks [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a call ended."""

    result: Any
    """None: it failed."""
    error: str
    """Reason and text of the exception."""
    took: float
    """[s]"""
    at: float
    """When it was there [Unix s]."""


class Subarray:
    """One subarray."""

    def __init__(self, proxy: Any, icd: Icd, clock: Clock, *, listen: bool = True) -> None:
        self._proxy, self._icd, self._clock = proxy, icd, clock
        self._changed = threading.Condition()
        self._values: dict[str, list[str]] = {STATE: [], OBS_STATE: []}
        self._ids = [
            proxy.subscribe_event(name, tango.EventType.CHANGE_EVENT, self._taker(name))
            for name in (STATE, OBS_STATE)
            if listen
        ]

    def close(self) -> None:
        """Listen no longer."""
        for id in self._ids:
            self._proxy.unsubscribe_event(id)

    def call(self, name: str, argument: str | None) -> Answer:
        """Return a command."""
        begin = self._clock.monotonic()
        result, error = None, ""
        try:
            result = self._proxy.command_inout(name, *([] if argument is None else [argument]))
        except tango.DevFailed as failed:
            error = f"{failed.args[0].reason}: {failed.args[0].desc}"
        return Answer(result=result, error=error, took=self._clock.monotonic() - begin, at=self._clock.now())

    def read(self, name: str) -> Any:
        """Return a value; of an enumeration, its label."""
        value = self._proxy.read_attribute(name).value
        return self._label(name, value)

    def picture(self) -> dict[str, str]:
        """Return everything that a refusal must leave as it is."""
        return {one.name: str(one.value) for one in self._proxy.read_attributes(list(ANY_CHANGE))}

    def states(self) -> tuple[str, str]:
        """Return State and obsState."""
        return self.read(STATE), self.read(OBS_STATE)

    def mark(self, name: str) -> int:
        """Return a mark behind what has come so far of State or obsState."""
        with self._changed:
            return len(self._values[name])

    def path(self, name: str, mark: int) -> list[str]:
        """Return the values through which State or obsState has gone since a mark."""
        with self._changed:
            return self._values[name][mark:]

    def known(self, id: str) -> dict[str, Any]:
        """Return what GetCommand says."""
        found = json.loads(self._proxy.GetCommand(id))
        return found if isinstance(found, dict) else {}

    def finished(self, id: str) -> dict[str, Any]:
        """Return what lrcFinished says of a command."""
        found = (json.loads(text) for text in self._proxy.read_attribute("lrcFinished").value or ())
        return next((one for one in found if one.get("uid") == id), {})

    def settled(self) -> bool:
        """Return whether no command is without an outcome."""
        return self._proxy.read_attribute(PENDING).value == 0

    def wait(self, condition: Callable[[], bool], within: float, what: str) -> None:
        """Wait until something is so; that it does not become so is a mismatch."""
        if not wait_until(self._clock, condition, within, _EVERY):
            state, obs_state = self.states()
            raise Mismatch(f"{what} within {within:g} s", f"State {state}, obsState {obs_state}")

    def _label(self, name: str, value: Any) -> Any:
        if name == STATE:
            return str(value)
        return self._icd.enums["ObsState"][value] if name in (OBS_STATE, COMMANDED) else value

    def _taker(self, name: str) -> Callable[[Any], None]:
        def take(event: Any) -> None:
            if event.err or event.attr_value.value is None:
                return
            label = self._label(name, event.attr_value.value)
            with self._changed:
                if self._values[name][-1:] != [label]:
                    self._values[name].append(label)

        return take
