"""What is checked of commands with ``--active``: the verdicts about the walk, one for each aspect of each command."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from clients.conformance import command_verdicts as verdicts
from clients.conformance.case import Check, CommandOf, DeviceOf
from clients.conformance.endings import ENDINGS, Ending, require_outcome
from clients.conformance.flows import FlowChecks
from clients.conformance.queries import Asked, answer
from clients.conformance.samples import bad
from clients.conformance.seen import REPORTED, Given, Walk
from clients.conformance.subarray import Subarray
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch, NotShown
from clients.conformance.walk import not_allowed, require_rest, walk

ONLY_ACTIVE = "only --active gives commands"
_ALL_OF_SDP = "it would be about all of SDP, and is not given"
_ENDS_EARLY = "with --outcome the observation ends early"


@cache
def seen_walk(system: System) -> Walk:
    """Command the subarray, once, and give what was seen."""
    return walk(system, system.walked_class, system.options.subarray)


@cache
def seen_on_bus(system: System) -> verdicts.OnBus:
    """Return what stands on the bus after the walk."""
    seen_walk(system)
    return verdicts.read_bus(system, system.options.subarray)


def execution_checks(system: System, of: CommandOf) -> tuple[Check[CommandOf], ...]:
    """Return what is checked of a command by giving it."""
    if not system.options.active:
        return (Check(aspect="execution", judge=_nothing(ONLY_ACTIVE)),)
    if system.options.outcome is not None:
        return (Check(aspect="execution", judge=_nothing(_ENDS_EARLY)),)
    if of.device != system.options.subarray:
        return _repeated(system, of)
    arguments = () if of.entry.argument is None else bad(system.icd, of.entry.argument, "0")
    refusals = [_refusal(one.aspect, ("Command.argument",)) for one in arguments]
    if not verdicts.is_walked(of.entry):
        return (*refusals, Check(aspect="execution", judge=_nothing("the walk does not know how to give it")))
    overtaking = (OVERTAKING,) if of.entry.overtakes else ()
    reporting = (REPORTING,) if of.entry.name in REPORTED else ()
    return (*refusals, REFUSALS[0], *GIVEN_CHECKS, *reporting, *overtaking)


def _repeated(system: System, of: CommandOf) -> tuple[Check[CommandOf], ...]:
    """Return what can be seen of a command without any effect: that it is refused where it is not allowed."""
    if of.device_class.name != system.walked_class.name:
        return (
            Check(aspect="refuses-state", claims=("Command.state",), judge=_refused_now),
            Check(aspect="execution", judge=_nothing(_ALL_OF_SDP)),
        )
    return (Check(aspect="execution", judge=_nothing(f"only {system.options.subarray} is commanded")),)


def _refused_now(system: System, of: CommandOf) -> str:
    """Return the command in a State in which it is not allowed, if that is the present one."""
    proxy = system.proxy(of.device)
    state = str(proxy.state())
    if of.entry.argument is not None or not not_allowed(of.entry, state, ""):
        raise NotShown(f"it is allowed in State {state}; {_ALL_OF_SDP}")
    subarray = Subarray(proxy, system.icd, system.clock, listen=False)
    finished = proxy.commandsFinished
    answer = subarray.call(of.entry.name, None)
    if answer.result is not None:
        raise Mismatch(f"a refusal in State {state}", f"it was taken: {answer.result}")
    if missing := [word for word in (of.entry.name, state, "expected", "got") if word not in answer.error]:
        raise Mismatch(f"a refusal that names {', '.join(missing)}", answer.error)
    if (str(proxy.state()), proxy.commandsFinished) != (state, finished):
        raise Mismatch("a refusal that changes nothing", f"State {proxy.state()}")
    return answer.error


def _refusal(aspect: str, claims: tuple[str, ...]) -> Check[CommandOf]:
    return Check(
        aspect=aspect,
        claims=claims,
        judge=lambda system, of: verdicts.judge_refusal(seen_walk(system), of.entry.name, aspect),
    )


def _nothing(reason: str) -> Callable[[System, Any], str]:
    def judge(_: System, __: Any) -> str:
        raise NotShown(reason)

    return judge


def _given(system: System, of: CommandOf) -> Given:
    """Return the call of a command to be judged: one that nothing else has overtaken."""
    found = [one for one in seen_walk(system).given if one.command.name == of.entry.name and not one.overtaken]
    if not found and seen_walk(system).broken_off:
        # The observation has FAILED, and says why; a FAILED for each command behind it would hide that.
        raise NotShown(f"the observation ended before: {seen_walk(system).broken_off}")
    if not found:
        raise Mismatch(f"{of.entry.name} is given", "an observation without it")
    return found[-1]


def _overtakes(system: System, of: CommandOf) -> str:
    return verdicts.judge_overtaking(seen_walk(system), of.entry)


GIVEN_CHECKS: tuple[Check[CommandOf], ...] = (
    Check(aspect="taken", judge=lambda system, of: verdicts.judge_taken(_given(system, of))),
    Check(
        aspect="durable",
        claims=("Command.repeatable", "Command.start_within", "Command.deadline", "Command.ceiling"),
        judge=lambda system, of: verdicts.judge_record(_given(system, of), seen_on_bus(system)),
    ),
    Check(aspect="acknowledged", judge=lambda system, of: verdicts.judge_acks(_given(system, of), seen_on_bus(system))),
    Check(
        aspect="effect",
        claims=("Command.reports", "Command.transitional", "Command.targets", "Command.commanded"),
        judge=lambda system, of: verdicts.judge_effect(_given(system, of)),
    ),
    Check(aspect="outcome", judge=lambda system, of: verdicts.judge_outcome(_given(system, of))),
)


REPORTING: Check[CommandOf] = Check(
    aspect="reports",
    claims=("Attribute.reported",),
    judge=lambda system, of: verdicts.judge_reporting(_given(system, of)),
)
OVERTAKING: Check[CommandOf] = Check(aspect="overtakes", claims=("Command.overtakes",), judge=_overtakes)
REFUSALS: tuple[Check[CommandOf], ...] = (
    _refusal("refuses-state", ("Command.state", "Command.obs_state")),
    _refusal("refuses-no-json", ("Command.argument",)),
    _refusal("refuses-wrong-type", ("Command.argument",)),
    _refusal("refuses-unknown-key", ("Command.argument",)),
    _refusal("refuses-version", ("Command.argument",)),
    _refusal("knows-version-0.4", ("Icd.arguments",)),
)
"""Such as they are made for each command and each version of its argument."""


def _off_the_bus(system: System, _: DeviceOf) -> str:
    return verdicts.judge_bus(seen_walk(system), seen_on_bus(system))


def _put_back(system: System, _: DeviceOf) -> str:
    if seen_walk(system).left:
        raise Mismatch("the subarray as it was: OFF and EMPTY", seen_walk(system).left)
    return "OFF and EMPTY"


def _ended(system: System, _: DeviceOf) -> str:
    if seen_walk(system).broken_off:
        raise Mismatch("an observation from On to Off", seen_walk(system).broken_off)
    return f"{len(seen_walk(system).given)} commands taken, {len(seen_walk(system).refused)} refused"


def _ending(outcome: str, ending: Ending) -> Check[DeviceOf]:
    """Return the check of an outcome that is no good; a controller has to be set to it."""

    def judge(system: System, _: DeviceOf) -> str:
        if system.options.outcome is None or system.options.outcome[1] != outcome:
            raise NotShown(
                f"needs a controller that is set to it, such as `sdp-facade simulate controller --fault"
                f" {ending.fault}:AssignResources`, and --outcome AssignResources={outcome}"
            )
        return verdicts.judge_ending(seen_walk(system), outcome, seen_on_bus(system))

    return Check(aspect=ending.aspect, judge=judge)


WALK_CHECKS: tuple[Check[DeviceOf], ...] = (
    Check(aspect="observation", judge=_ended),
    Check(aspect="refused-not-on-bus", judge=_off_the_bus),
    *(_ending(outcome, ending) for outcome, ending in ENDINGS.items()),
    Check(aspect="put-back", judge=_put_back),
)
"""What is said of the walk as a whole."""


def _newest_command(system: System, device: str) -> str:
    found = json.loads(system.proxy(device).GetCommandHistory(1))
    if not found:
        raise NotShown("no command was given yet")
    return str(found[0]["id"])


_COMMAND = ("id", "name", "status")
ASKED: Mapping[str, Asked] = {
    "GetCommand": Asked(argument=_newest_command, kind=dict, keys=(*_COMMAND, "acks")),
    "GetCommandHistory": Asked(argument=lambda *_: 5, kind=list, keys=_COMMAND),
}
"""Queries about commands."""


def _walk_checks(system: System, of: DeviceOf) -> tuple[Check[DeviceOf], ...]:
    return WALK_CHECKS if system.options.active and of.device == system.options.subarray else ()


def _prepare(system: System) -> None:
    require_outcome(system.options)
    if system.options.active:
        require_rest(system)


CHECKS = FlowChecks(
    command=execution_checks,
    query=lambda _, of: (answer(ASKED[of.entry.name]),) if of.entry.name in ASKED else (),
    device=_walk_checks,
    prepare=_prepare,
    every=(*REFUSALS, *GIVEN_CHECKS, REPORTING, OVERTAKING, *WALK_CHECKS),
)
