"""Commands one subarray through an observation, with whatever has to be refused on the way; gives what was seen.

Nothing is judged here but that the walk can go on; `clients.conformance.command_verdicts` judges.
"""

import os
from contextlib import closing, suppress

import tango

from clients.conformance.samples import bad, good
from clients.conformance.seen import FINAL, REPORTED, STEPS, Given, RefusedCall, Walk
from clients.conformance.subarray import COMMANDED, OBS_STATE, PENDING, RESULT, STATE, Subarray
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch, in_words
from facade.errors import ConfigError
from facade.flows.commands.rules import is_transitional
from facade.icd.model import Command, DeviceClass

AT_REST = ("OFF", "EMPTY")
"""State and obsState before and after the walk."""
_SPARE = 10.0
"""Time beyond the ICD's deadline after which the walk ends [s]."""
_PATIENCE = 60.0
"""Longest time for putting the subarray back [s]."""


def require_rest(system: System) -> None:
    """Demand that the subarray may be commanded.

    Raises
    ------
    ConfigError
        It is not there, or somebody uses it.
    """
    device = system.options.subarray
    known = system.devices[system.walked_class.name]
    if device not in known:
        raise ConfigError(f"--subarray: expected one of {', '.join(known) or 'none in the database'}, got {device}")
    try:
        subarray = Subarray(system.proxy(device), system.icd, system.clock, listen=False)
        states, pending = subarray.states(), subarray.read(PENDING)
    except tango.DevFailed as failed:
        raise ConfigError(f"--subarray {device}: expected an answer, got {failed.args[0].desc}") from failed
    if states != AT_REST or pending:
        what = f"State {states[0]}, obsState {states[1]}, {pending} commands pending"
        raise ConfigError(f"--subarray {device}: expected OFF and EMPTY without commands, got {what}; name another one")


def walk(system: System, device_class: DeviceClass, device: str) -> Walk:
    """Command a subarray that is OFF and EMPTY, and leave it so, whatever happens."""
    found = Walk(device=device, began=system.clock.now())
    with closing(Subarray(system.proxy(device), system.icd, system.clock)) as subarray:
        if (now := subarray.states()) != AT_REST or not subarray.settled():  # since the run began
            found.broken_off = f"expected OFF and EMPTY, got {' and '.join(now)}: somebody else commands it"
            found.ended = system.clock.now()
            return found
        walker = _Walker(system, device_class, subarray, found)
        try:
            walker.go()
        except Exception as error:
            found.broken_off = in_words(error)
        finally:
            found.ended = system.clock.now()
            found.left = put_back(subarray)
            if found.left:  # said at once: of a run that is interrupted there is no report
                os.write(2, f"{device} was not put back: {found.left}\n".encode())
            _look_again(subarray, found)
    return found


def _look_again(subarray: Subarray, found: Walk) -> None:
    """See at the end what is known of each command."""
    for given in found.given:
        if given.id:
            with suppress(tango.DevFailed, ValueError):  # the verdict finds nothing then
                given.at_end = subarray.known(given.id)


def put_back(subarray: Subarray) -> str:
    """Bring a subarray to OFF; gives what could not be done."""
    try:
        if subarray.states() == AT_REST:  # what was given last may be under way, and lead elsewhere
            subarray.wait(lambda: subarray.settled() or subarray.states() != AT_REST, _PATIENCE, "an outcome")
        if subarray.states() != AT_REST:
            subarray.call("Off", None)
            subarray.wait(lambda: subarray.states() == AT_REST and subarray.settled(), _PATIENCE, "OFF and EMPTY again")
    except (Mismatch, tango.DevFailed) as error:
        return in_words(error)
    return ""


class _Walker:
    def __init__(self, system: System, device_class: DeviceClass, subarray: Subarray, walk: Walk) -> None:
        self._icd, self._clock = system.icd, system.clock
        self._commands = {command.name: command for command in device_class.commands}
        self._subarray, self._walk = subarray, walk
        self._run = f"{round(system.clock.now() * 1e3)}"
        self._tried: set[str] = set()
        self._seen: set[tuple[str, str]] = set()
        self._last, self._outcome = system.options.outcome or ("", "")

    def go(self) -> None:
        """Go all the way, or to the command that is to end otherwise."""
        for step in STEPS:
            first, then = (step, "") if isinstance(step, str) else step
            self._refuse_states()
            self._refuse_arguments(self._commands[first])
            given = self._give(self._commands[first])
            if step == self._last:
                self._await_ending(given)
                return
            if then:
                self._await_begin(given)
                given.overtaken = True
                given = self._give(self._commands[then])
            self._await_end(given)

    def _give(self, command: Command) -> Given:
        mark, before = self._subarray.mark(command.reports), str(self._subarray.read(command.reports))
        answer = self._subarray.call(command.name, self._argument(command))
        given = Given(command=command, answer=answer, before=before)
        self._walk.given.append(given)
        if answer.result is None:
            raise Mismatch(f"{command.name} is taken", answer.error)
        given.id = str(answer.result[1][0]) if len(answer.result[1]) else ""
        self._mark = mark
        return given

    def _await_begin(self, given: Given) -> None:
        """Wait until a controller executes a command: one that waits in its queue would be dropped, not aborted."""
        self._subarray.wait(
            lambda: self._subarray.known(given.id).get("started_time") is not None,
            given.command.start_within + _SPARE,
            f"a controller begins {given.command.name}",
        )

    def _await_end(self, given: Given) -> None:
        """Wait for the outcome of the newest command and of those that it has overtaken."""
        command, subarray = given.command, self._subarray
        self._await_outcome(given, "COMPLETED", command.deadline)
        subarray.wait(
            lambda: subarray.path(command.reports, self._mark)[-1:] == [command.targets[0]],
            _SPARE,
            f"{command.reports} {command.targets[0]} after {command.name}",
        )
        given.path = subarray.path(command.reports, self._mark)
        given.commanded = subarray.read(COMMANDED)
        given.reported = {name: str(subarray.read(name)) for name in REPORTED.get(command.name, ())}
        resting = given.command.commanded or given.command.targets[0]
        if command.reports == STATE:
            subarray.wait(lambda: subarray.states() == (command.targets[0], resting), _SPARE, f"obsState {resting}")

    def _await_ending(self, given: Given) -> None:
        """Wait for the outcome that is no good, and for what is shown of it."""
        subarray, command = self._subarray, given.command
        # A controller may ask for more time, up to the ceiling.
        within = command.ceiling if self._outcome == "TIMED_OUT" else command.deadline
        self._await_outcome(given, self._outcome, within)
        subarray.wait(
            lambda: subarray.read(RESULT)[0] == given.id and bool(subarray.finished(given.id)),
            _SPARE,
            f"{RESULT} and lrcFinished of {command.name}",
        )
        given.result, given.finished = tuple(subarray.read(RESULT)), subarray.finished(given.id)
        given.commanded = subarray.read(COMMANDED)
        try:
            if self._outcome == "REJECTED":
                subarray.wait(
                    lambda: subarray.path(command.reports, self._mark)[-1:] in ([], [given.before]),
                    _SPARE,
                    f"{command.reports} {given.before} again after {command.name}",
                )
            else:
                subarray.wait(
                    lambda: not is_transitional(subarray.read(OBS_STATE)),
                    _SPARE,
                    f"an obsState that lasts after {command.name} is {self._outcome}",
                )
        finally:
            given.obs_state = subarray.read(OBS_STATE)
            given.path = subarray.path(command.reports, self._mark)

    def _await_outcome(self, given: Given, wanted: str, within: float) -> None:
        subarray, name = self._subarray, given.command.name
        subarray.wait(
            lambda: subarray.known(given.id).get("status") in FINAL and subarray.settled(),
            within + _SPARE,
            f"an outcome of {name}",
        )
        for one in self._walk.given[-2:]:
            one.known = one.known or subarray.known(one.id)
        if given.known.get("status") != wanted:
            got = f"{given.known.get('status')}: {given.known.get('text')}"
            raise Mismatch(f"the outcome {wanted} of {name}", got)

    def _refuse_states(self) -> None:
        """Try what is not allowed in the present states."""
        states = self._subarray.states()
        if states in self._seen:
            return
        self._seen.add(states)
        for command in self._commands.values():
            label = not_allowed(command, *states)
            if label:
                self._refuse(command, "refuses-state", self._argument(command), (command.name, label))

    def _refuse_arguments(self, command: Command) -> None:
        """Try bad arguments where the command is allowed."""
        if command.argument is None or command.name in self._tried:
            return
        self._tried.add(command.name)
        for one in bad(self._icd, command.argument, self._next()):
            self._refuse(command, one.aspect, one.text, one.words)

    def _refuse(self, command: Command, aspect: str, argument: str | None, words: tuple[str, ...]) -> None:
        before = self._subarray.picture()
        answer = self._subarray.call(command.name, argument)
        changes = {name: text for name, text in self._subarray.picture().items() if text != before[name]}
        self._walk.refused.append(
            RefusedCall(command=command.name, aspect=aspect, words=words, answer=answer, changes=changes)
        )
        if answer.result is not None:
            raise Mismatch(f"{command.name} ({aspect}) is refused", f"it was taken: {answer.result}")

    def _argument(self, command: Command) -> str | None:
        return None if command.argument is None else good(self._icd, command.argument, self._next())

    def _next(self) -> str:
        """Return a number that no other execution block of any run has."""
        self._run = str(int(self._run) + 1)
        return self._run


def not_allowed(command: Command, state: str, obs_state: str) -> str:
    """Return the state that forbids a command; empty where it is allowed."""
    if state not in command.state:
        return state
    return obs_state if command.obs_state and obs_state not in command.obs_state else ""
