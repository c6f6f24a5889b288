"""Commands one subarray through an observation, tries calls that must be refused, and records the answers.

The run goes from OFF to OFF through `STEPS`. In each new pair of State and obsState it first tries every command that
is not allowed there, and before the first call of a command its bad arguments. It judges only whether it can go on:
`sdp_facade_clients.conformance.command_checks` judges the record. Whatever happens, the subarray is put back to OFF.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import tango

from facade.flows.commands.rules import is_transitional
from facade.kernel.clock import Clock, as_seconds, wait_until
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import CommandDefinition, DeviceClass, Icd
from sdp_facade_clients.ask import in_name_of
from sdp_facade_clients.conformance.checks import Mismatch, explain
from sdp_facade_clients.conformance.live_system import EventStream, EventStreams, LiveSystem
from sdp_facade_clients.sample_arguments import bad_arguments, good_argument

STATE, OBS_STATE, COMMANDED, PENDING = "State", "obsState", "commandedObsState", "commandsPending"
RESULT = "longRunningCommandResult"
STEPS: tuple[str | tuple[str, str], ...] = (
    "On",
    "AssignResources",
    "ReleaseResources",
    "Configure",
    "Scan",
    "EndScan",
    "End",
    "ReleaseAllResources",
    ("AssignResources", "Abort"),
    "ObsReset",
    "Abort",
    "Restart",
    ("AssignResources", "Off"),
)
"""Commands from OFF to OFF; of a pair, the second overtakes the first."""
FINAL = ("COMPLETED", "FAILED", "ABORTED", "REJECTED", "TIMED_OUT", "UNDELIVERED")
ADDRESSES = "receiveAddresses"
REPORTED = {"AssignResources": (ADDRESSES, "resources", "ebID"), "Configure": ("scanType",), "Scan": ("scanID",)}
"""Attributes that a controller reports with a command, besides the states."""
_UNCHANGED = "State obsState commandedObsState adminMode commandsPending commandsFinished lastCommand transactionId \
resources ebID scanID scanType".split()
"""Attributes that a refusal must leave as they are."""
_AT_REST = ("OFF", "EMPTY")
_OPERATOR = "conformance"
"""Name in which GiveCommand gives the commands that are overtaken."""
_SPARE = 10.0
"""Time beyond the ICD's deadline after which the run ends [s]."""
_PATIENCE = 60.0
"""Longest time to put the subarray back [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    """The end of one call."""

    result: Any
    """None: it failed."""
    error: str
    """Reason and text of the exception."""
    took: float
    """[s]"""
    at: float
    """Time of its arrival [Unix s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCall:
    """A call that had to fail."""

    command: str
    aspect: str
    words: tuple[str, ...]
    """Words that the refusal must have."""
    answer: CommandAnswer
    changes: Mapping[str, str]
    """Attributes that had other values after it."""


@dataclass(slots=True, kw_only=True)
class TakenCall:
    """A call that had to be taken, and the attributes when its outcome was there."""

    command: CommandDefinition
    answer: CommandAnswer
    id: str = ""
    operator: str = ""
    """Name in which GiveCommand gave it; empty: it was given by itself."""
    overtaken: bool = False
    before: str = ""
    """Value of the attribute that shows the effect, before the call."""
    path: list[str] = field(default_factory=list)
    """Its values since."""
    reported: dict[str, str] = field(default_factory=dict)
    commanded: str = ""
    """commandedObsState."""
    known: dict[str, Any] = field(default_factory=dict)
    """Answer of GetCommand."""
    at_end: dict[str, Any] = field(default_factory=dict)
    """Answer of GetCommand at the end of the run."""
    obs_state: str = ""
    """obsState after a forced outcome; `result` and `finished` likewise."""
    result: tuple[str, ...] = ()
    """longRunningCommandResult."""
    finished: dict[str, Any] = field(default_factory=dict)
    """Entry of lrcFinished."""


@dataclass(slots=True, kw_only=True)
class SubarrayRun:
    """The record of a run."""

    device: str
    began: float
    """[Unix s]"""
    ended: float = 0.0
    refused: list[RefusedCall] = field(default_factory=list)
    taken: list[TakenCall] = field(default_factory=list)
    broken_off: str = ""
    """Reason of an early end."""
    left: str = ""
    """Reason why the subarray was not put back."""


class SubarrayClient:
    """A subarray as TM has it: calls, and events of its states once it listens."""

    def __init__(self, proxy: Any, icd: Icd, clock: Clock) -> None:
        self._proxy, self._labels, self._clock = proxy, icd.enums["ObsState"], clock
        self._streams: dict[str, EventStream] = {}

    def listen(self, events: EventStreams) -> None:
        """Subscribe to its states."""
        self._streams = {name: events.add(self._proxy, name) for name in (STATE, OBS_STATE)}

    def call(self, name: str, argument: str | None) -> CommandAnswer:
        """Give a command."""
        begin, result, error = self._clock.monotonic(), None, ""
        try:
            result = self._proxy.command_inout(name, *([] if argument is None else [argument]))
        except tango.DevFailed as failed:
            error = f"{failed.args[0].reason}: {failed.args[0].desc}"
        return CommandAnswer(
            result=result, error=error, took=self._clock.monotonic() - begin, at=as_seconds(self._clock.now_us())
        )

    def read(self, name: str) -> Any:
        """Return a value; of a state, its label."""
        return self._label(name, self._proxy.read_attribute(name).value)

    def picture(self) -> dict[str, str]:
        """Return all values that a refusal must leave as they are."""
        return {one.name: str(one.value) for one in self._proxy.read_attributes(_UNCHANGED)}

    def states(self) -> tuple[str, str]:
        """Return State and obsState."""
        return self.read(STATE), self.read(OBS_STATE)

    def path(self, name: str, mark: int = 0) -> list[str]:
        """Return the values that State or obsState has had since a mark, a number of values."""
        stream = self._streams[name]
        events = [one for one in (stream.first, *stream.pushed) if one is not None and one.value is not None]
        return [label for label, _ in groupby(self._label(name, one.value) for one in events)][mark:]

    def known(self, id: str) -> dict[str, Any]:
        """Return the answer of GetCommand."""
        found = json.loads(self._proxy.GetCommand(id))
        return found if isinstance(found, dict) else {}

    def finished(self, id: str) -> dict[str, Any]:
        """Return the entry of lrcFinished."""
        found = (json.loads(text) for text in self._proxy.read_attribute("lrcFinished").value or ())
        return next((one for one in found if one.get("uid") == id), {})

    def wait(self, condition: Callable[[], bool], within: float, what: str) -> None:
        """Wait for a condition; a time-out is a mismatch."""
        if not wait_until(self._clock, condition, within, 0.02):
            state, obs_state = self.states()
            raise Mismatch(f"{what} within {within:g} s", f"State {state}, obsState {obs_state}")

    def _label(self, name: str, value: Any) -> Any:
        return str(value) if name == STATE else self._labels[value] if name in (OBS_STATE, COMMANDED) else value


def require_rest(system: LiveSystem) -> None:
    """Demand that the subarray may be commanded; ConfigError if there is none, or if somebody uses it."""
    device = system.options.subarray
    _ = system.commanded_class
    try:
        subarray = SubarrayClient(system.proxy(device), system.icd, system.clock)
        states, pending = subarray.states(), subarray.read(PENDING)
    except tango.DevFailed as failed:
        raise ConfigError(f"--subarray {device}: expected an answer, got {failed.args[0].desc}") from failed
    if states != _AT_REST or pending:
        what = f"State {states[0]}, obsState {states[1]}, {pending} commands pending"
        raise ConfigError(f"--subarray {device}: expected OFF and EMPTY without commands, got {what}; name another one")


def command_subarray(system: LiveSystem, device_class: DeviceClass, device: str) -> SubarrayRun:
    """Command a subarray that is OFF and EMPTY, and leave it so."""
    run = SubarrayRun(device=device, began=as_seconds(system.clock.now_us()))
    subarray = SubarrayClient(system.proxy(device), system.icd, system.clock)
    with closing(EventStreams(system.clock)) as events:
        subarray.listen(events)
        if (now := subarray.states()) != _AT_REST or subarray.read(PENDING):  # since the kit began
            run.broken_off = f"expected OFF and EMPTY, got {' and '.join(now)}: somebody else commands it"
            run.ended = as_seconds(system.clock.now_us())
            return run
        try:
            _Runner(system, device_class, subarray, run).go()
        except Exception as error:
            run.broken_off = explain(error)
        finally:
            run.ended = as_seconds(system.clock.now_us())
            run.left = _put_back(subarray)
            if run.left:  # said at once: an interrupted run has no report
                os.write(2, f"{device} was not put back: {run.left}\n".encode())
            for call in run.taken:
                if call.id:
                    with suppress(tango.DevFailed, ValueError):  # the check finds nothing then
                        call.at_end = subarray.known(call.id)
    return run


def _put_back(subarray: SubarrayClient) -> str:
    def is_settled() -> bool:
        return not subarray.read(PENDING)

    try:
        if subarray.states() == _AT_REST:  # the last command may be under way, and lead elsewhere
            subarray.wait(lambda: is_settled() or subarray.states() != _AT_REST, _PATIENCE, "an outcome")
        if subarray.states() != _AT_REST:
            subarray.call("Off", None)
            subarray.wait(lambda: subarray.states() == _AT_REST and is_settled(), _PATIENCE, "OFF and EMPTY again")
    except (Mismatch, tango.DevFailed) as error:
        return explain(error)
    return ""


class _Runner:
    def __init__(
        self, system: LiveSystem, device_class: DeviceClass, subarray: SubarrayClient, run: SubarrayRun
    ) -> None:
        self._icd, self._subarray, self._run = system.icd, subarray, run
        self._commands = {command.name: command for command in device_class.commands}
        self._number = round(as_seconds(system.clock.now_us()) * 1e3)
        self._tried: set[object] = set()
        self._last, self._outcome = system.options.outcome or ("", "")

    def go(self) -> None:
        for step in STEPS:
            first, then = (step, "") if isinstance(step, str) else step
            self._refuse_states()
            self._refuse_arguments(self._commands[first])
            call = self._give(self._commands[first], _OPERATOR if then else "")
            if step == self._last:
                self._await_forced(call)
                return
            if then:
                # A command that waits in the controller's queue would be dropped, not aborted.
                self._subarray.wait(
                    lambda call=call: self._subarray.known(call.id).get("started_time") is not None,  # type: ignore[misc]
                    call.command.start_within + _SPARE,
                    f"a controller begins {first}",
                )
                call.overtaken = True
                call = self._give(self._commands[then])
            self._await_effect(call)

    def _give(self, command: CommandDefinition, operator: str = "") -> TakenCall:
        subarray, name, argument = self._subarray, command.name, self._argument(command)
        if operator:
            name, argument = "GiveCommand", in_name_of(operator, name, argument)
        self._mark, before = len(subarray.path(command.reports)), str(subarray.read(command.reports))
        call = TakenCall(command=command, answer=subarray.call(name, argument), before=before, operator=operator)
        self._run.taken.append(call)
        if call.answer.result is None:
            raise Mismatch(f"{command.name} is taken", call.answer.error)
        call.id = str(call.answer.result[1][0]) if len(call.answer.result[1]) else ""
        return call

    def _await_outcome(self, call: TakenCall, wanted: str, within: float) -> None:
        subarray, name = self._subarray, call.command.name
        subarray.wait(
            lambda: subarray.known(call.id).get("status") in FINAL and not subarray.read(PENDING),
            within + _SPARE,
            f"an outcome of {name}",
        )
        for one in self._run.taken[-2:]:
            one.known = one.known or subarray.known(one.id)
        if call.known.get("status") != wanted:
            got = f"{call.known.get('status')}: {call.known.get('text')}"
            raise Mismatch(f"the outcome {wanted} of {name}", got)

    def _await_effect(self, call: TakenCall) -> None:
        command, subarray, target = call.command, self._subarray, call.command.targets[0]
        self._await_outcome(call, "COMPLETED", command.deadline)
        subarray.wait(
            lambda: subarray.path(command.reports, self._mark)[-1:] == [target],
            _SPARE,
            f"{command.reports} {target} after {command.name}",
        )
        call.path = subarray.path(command.reports, self._mark)
        call.commanded = subarray.read(COMMANDED)
        call.reported = {name: str(subarray.read(name)) for name in REPORTED.get(command.name, ())}
        resting = command.commanded or target
        if command.reports == STATE:
            subarray.wait(lambda: subarray.states() == (target, resting), _SPARE, f"obsState {resting}")

    def _await_forced(self, call: TakenCall) -> None:
        subarray, command = self._subarray, call.command
        # A controller may ask for more time, up to the ceiling.
        self._await_outcome(call, self._outcome, command.ceiling if self._outcome == "TIMED_OUT" else command.deadline)
        subarray.wait(
            lambda: subarray.read(RESULT)[0] == call.id and bool(subarray.finished(call.id)),
            _SPARE,
            f"{RESULT} and lrcFinished of {command.name}",
        )
        call.result, call.finished = tuple(subarray.read(RESULT)), subarray.finished(call.id)
        call.commanded = subarray.read(COMMANDED)
        again, lasts = f"{command.reports} {call.before} again", f"an obsState that lasts, as {self._outcome},"
        try:
            subarray.wait(
                lambda: (
                    subarray.path(command.reports, self._mark)[-1:] in ([], [call.before])
                    if self._outcome == "REJECTED"
                    else not is_transitional(subarray.read(OBS_STATE))
                ),
                _SPARE,
                f"{again if self._outcome == 'REJECTED' else lasts} after {command.name}",
            )
        finally:
            call.obs_state = subarray.read(OBS_STATE)
            call.path = subarray.path(command.reports, self._mark)

    def _refuse_states(self) -> None:
        states = self._subarray.states()
        for command in self._commands.values() if states not in self._tried else ():
            if label := not_allowed(command, *states):
                self._refuse(command, "refuses-state", self._argument(command), (command.name, label))
        self._tried.add(states)

    def _refuse_arguments(self, command: CommandDefinition) -> None:
        if command.name not in self._tried and command.argument is not None:
            self._number += 1
            for aspect, text, words in bad_arguments(self._icd, command.argument, self._number):
                self._refuse(command, aspect, text, words)
        self._tried.add(command.name)

    def _refuse(self, command: CommandDefinition, aspect: str, argument: str | None, words: tuple[str, ...]) -> None:
        before = self._subarray.picture()
        answer = self._subarray.call(command.name, argument)
        changes = {name: text for name, text in self._subarray.picture().items() if text != before[name]}
        self._run.refused.append(
            RefusedCall(command=command.name, aspect=aspect, words=words, answer=answer, changes=changes)
        )
        if answer.result is not None:
            raise Mismatch(f"{command.name} ({aspect}) is refused", f"it was taken: {answer.result}")

    def _argument(self, command: CommandDefinition) -> str | None:
        self._number += 1  # no other execution block of any run has it
        return None if command.argument is None else good_argument(self._icd, command.argument, self._number)


def not_allowed(command: CommandDefinition, state: str, obs_state: str) -> str:
    """Return the state that forbids a command; empty where it is allowed."""
    if state not in command.state:
        return state
    return obs_state if command.obs_state and obs_state not in command.obs_state else ""
