"""Checks of commands by giving them (``--active``): each aspect of each call, and the run as a whole."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from facade.flows.commands.rules import STABLE, is_transitional
from facade.kernel.clock import as_seconds
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import CommandDefinition
from sdp_facade_clients.conformance.checks import (
    CheckOptions,
    FlowChecks,
    LiveCheck,
    Mismatch,
    NotShown,
    Subject,
    demand,
    not_shown,
)
from sdp_facade_clients.conformance.devices import QueryAnswer, answer_checks
from sdp_facade_clients.conformance.live_system import CLOCKS, LiveSystem
from sdp_facade_clients.conformance.subarray_run import (
    ADDRESSES,
    OBS_STATE,
    REPORTED,
    RESULT,
    STEPS,
    RefusedCall,
    SubarrayClient,
    SubarrayRun,
    TakenCall,
    command_subarray,
    not_allowed,
    require_rest,
)
from sdp_facade_clients.sample_arguments import FAMILIES, bad_arguments

_ANSWERS_WITHIN = 0.5
"""Longest answer to a command [s]: TM's clients wait no longer."""
_QUEUED = 2
"""SKA's ResultCode of a command that was taken."""
_NOT_REPORTED = ("", "null", "{}", "[]", "0")
"""Values of the attributes in `REPORTED` without a report."""
_TIMES = {"not_after": "start_within", "deadline": "deadline", "ceiling": "ceiling"}
"""Keys of the record, and the fields of the ICD behind them."""
_ALL_OF_SDP = "it would be about all of SDP, and is not given"

FORCED: Mapping[str, tuple[str, str, int, str]] = {
    "REJECTED": ("is-rejected", "REJECTED", 5, "reject"),
    "FAILED": ("fails", "FAILED", 3, "fail"),
    "TIMED_OUT": ("times-out", "FAILED", 4, "hang"),
}
"""Outcomes for which a controller has to be set: the aspect, SKA's task status, the ResultCode, and the fault of
`sdp-facade simulate controller`. ABORTED is part of each run: commands are overtaken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusRecords:
    """The records of the device's commands on the bus."""

    records: Mapping[str, tuple[dict[str, Any], float]]
    """By id, with the time of the record [Unix s]."""
    acks: Mapping[str, tuple[str, ...]]


@cache
def run_of(system: LiveSystem) -> SubarrayRun:
    """Command the subarray, once."""
    return command_subarray(system, system.commanded_class, system.options.subarray)


@cache
def bus_of(system: LiveSystem) -> BusRecords:
    """Return the records on the bus after the run."""
    run = run_of(system)
    records = {
        str(message.get("id")): (message, as_seconds(record.timestamp_us))
        for record, message in system.messages("commands")
        if message.get("device") == run.device
    }
    acks: dict[str, tuple[str, ...]] = {}
    for _, message in system.messages("command-acks"):
        id = str(message.get("id"))
        acks[id] = (*acks.get(id, ()), str(message.get("status")))
    return BusRecords(records=records, acks=acks)


# --- One call ---


def judge_refusal(run: SubarrayRun, command: str, aspect: str) -> str:
    """Judge whether calls were refused with a helpful text and without an effect."""
    tried = [one for one in run.refused if (one.command, one.aspect) == (command, aspect)]
    if not tried:
        raise NotShown(run.broken_off or "the run passes no state in which it is not allowed")
    for one in tried:
        judge_refused(one)
    return f"{len(tried)} refused: {tried[0].answer.error:.200}"


def judge_refused(call: RefusedCall) -> None:
    """Judge one refusal."""
    if call.answer.result is not None:
        raise Mismatch("a refusal", f"it was taken: {call.answer.result}")
    missing = [word for word in (*call.words, "expected", "got") if word not in call.answer.error]
    if missing and (call.aspect != "refuses-no-json" or missing != ["got"]):
        raise Mismatch(f"a refusal that names {', '.join(missing)}", call.answer.error)
    if call.changes:
        raise Mismatch("a refusal that changes nothing", f"{dict(call.changes)}")


def judge_taken(call: TakenCall) -> str:
    """Judge the answer to a good command."""
    answer = call.answer
    if answer.result is None:
        raise Mismatch("[ResultCode], [id]", answer.error)
    codes, ids = ([*part] for part in answer.result)
    if codes != [_QUEUED] or len(ids) != 1 or not ids[0]:
        raise Mismatch(f"[{_QUEUED}] (QUEUED) and one id", f"{codes} and {ids}")
    if answer.took > _ANSWERS_WITHIN:
        raise Mismatch(f"an answer within {_ANSWERS_WITHIN:g} s", f"one after {answer.took:.3f} s")
    return f"{answer.took * 1e3:.1f} ms"


def judge_record(call: TakenCall, bus: BusRecords) -> str:
    """Judge whether a command was on the bus before its caller got the id, with the times of the ICD."""
    if call.id not in bus.records:
        raise Mismatch(f"a record with the id {call.id} on commands", "none")
    (message, at), command = bus.records[call.id], call.command
    if at > call.answer.at + CLOCKS:
        raise Mismatch("a record that is there when the call returns", f"one {at - call.answer.at:.3f} s later")
    for key, value in (("command", command.name), ("repeatable", command.repeatable)):
        if message[key] != value:
            raise Mismatch(f"{key} {value}", message[key])
    for key, field in _TIMES.items():
        wanted, found = getattr(command, field), as_seconds(message[key] - message["issued"])
        if abs(wanted - found) >= 1e-3:
            raise Mismatch(f"{key} {wanted}", found)
    return f"{(at - as_seconds(message['issued'])) * 1e3:.1f} ms after the call"


def judge_acks(call: TakenCall, bus: BusRecords) -> str:
    """Judge whether the device shows each acknowledgement on the bus."""
    wanted = bus.acks.get(call.id, ())
    if not wanted:
        raise Mismatch("acknowledgements on command-acks", "none")
    found = [str(ack.get("status")) for ack in call.at_end.get("acks", ())]
    if missing := [status for status in wanted if status not in found]:
        raise Mismatch(f"GetCommand shows {', '.join(wanted)}", f"{', '.join(found) or 'none'}; not {missing[0]}")
    return ", ".join(wanted)


def judge_effect(call: TakenCall) -> str:
    """Judge whether the states followed the ICD."""
    command = call.command
    wanted = [*([command.transitional] if command.transitional else []), command.targets[0]]
    if call.path != wanted:
        raise Mismatch(f"{command.reports} {' -> '.join(wanted)}", " -> ".join(call.path) or "no change")
    commanded = command.commanded or (command.targets[0] if command.reports == OBS_STATE else "")
    if commanded and call.commanded != commanded:
        raise Mismatch(f"commandedObsState {commanded} after it", call.commanded)
    return " -> ".join(call.path)


def judge_reports(call: TakenCall) -> str:
    """Judge whether the controller reports the attributes that TM needs, besides obsState."""
    missing = [name for name, value in call.reported.items() if value in _NOT_REPORTED]
    if ADDRESSES in missing:
        raise Mismatch(f"{ADDRESSES} in IDLE: where the data go, as JSON", f"{call.reported[ADDRESSES]}: not reported")
    if missing:
        raise NotShown(f"the controller does not report {', '.join(missing)}; TM and operators see nothing of it")
    return ", ".join(call.reported)


def judge_outcome(call: TakenCall) -> str:
    """Judge whether there is one outcome, which stays."""
    status, wanted = call.known.get("status"), "ABORTED" if call.overtaken else "COMPLETED"
    if status != wanted:
        raise Mismatch(f"the outcome {wanted}", f"{status}: {call.known.get('text', '')}")
    return demand(status, call.at_end.get("status"))


def judge_name(run: SubarrayRun, bus: BusRecords) -> str:
    """Judge whether a command that was given in the name of an operator is as any other, and keeps the name."""
    call = next((one for one in run.taken if one.operator), None)
    if call is None:
        raise NotShown(run.broken_off or "no command was given in a name")
    judge_taken(call)
    judge_record(call, bus)
    demand(call.operator, bus.records[call.id][0].get("operator"))
    return demand(call.operator, call.at_end.get("operator"))


def judge_overtaking(run: SubarrayRun, command: CommandDefinition) -> str:
    """Judge whether a command ended the one before it."""
    for before, call in zip(run.taken, run.taken[1:], strict=False):
        if before.overtaken and call.command.name == command.name:
            status = before.known.get("status")
            if status == "COMPLETED":
                raise NotShown(f"{before.command.name} had ended before {command.name} came")
            demand("ABORTED", status)
            return f"{before.command.name} {status}"
    raise NotShown(run.broken_off or "no command was overtaken")


def _call(system: LiveSystem, of: Subject) -> TakenCall:
    run = run_of(system)
    found = [one for one in run.taken if one.command.name == of.entry.name and not one.overtaken]
    if not found and run.broken_off:
        # The check `observation` has failed and names the cause; one more failure for each later command would hide it.
        raise NotShown(f"the observation ended before: {run.broken_off}")
    if not found:
        raise Mismatch(f"{of.entry.name} is given", "an observation without it")
    return found[-1]


def _refusal(aspect: str) -> LiveCheck:
    return LiveCheck(aspect, lambda system, of: judge_refusal(run_of(system), of.entry.name, aspect))


CALL_CHECKS = (
    LiveCheck("taken", lambda system, of: judge_taken(_call(system, of))),
    LiveCheck("durable", lambda system, of: judge_record(_call(system, of), bus_of(system))),
    LiveCheck("acknowledged", lambda system, of: judge_acks(_call(system, of), bus_of(system))),
    LiveCheck("effect", lambda system, of: judge_effect(_call(system, of))),
    LiveCheck("outcome", lambda system, of: judge_outcome(_call(system, of))),
    LiveCheck("reports", lambda system, of: judge_reports(_call(system, of)), lambda of: of.entry.name in REPORTED),
    LiveCheck(
        "overtakes", lambda system, of: judge_overtaking(run_of(system), of.entry), lambda of: bool(of.entry.overtakes)
    ),
)


def is_given(command: CommandDefinition) -> bool:
    """Return whether the run can give a command."""
    steps = {name for step in STEPS for name in ((step,) if isinstance(step, str) else step)}
    return command.name in steps and (command.argument is None or command.argument in FAMILIES)


def _why_not_given(system: LiveSystem, of: Subject) -> str:
    """Return why the run gives no commands to a device; empty where it does."""
    if not system.options.active:
        return "only --active gives commands"
    if system.options.outcome is not None:
        return "with --outcome the observation ends early"
    if of.device_class.name != system.commanded_class.name:
        return _ALL_OF_SDP
    return "" if of.device == system.options.subarray else f"only {system.options.subarray} is commanded"


def _command_checks(system: LiveSystem, of: Subject) -> Iterable[LiveCheck]:
    if why := _why_not_given(system, of):
        refused = (LiveCheck("refuses-state", _refused_now),) if why == _ALL_OF_SDP else ()
        return (*refused, LiveCheck("execution", not_shown(why)))
    bad = () if of.entry.argument is None else bad_arguments(system.icd, of.entry.argument, 0)
    refusals = [_refusal(aspect) for aspect, _, _ in bad]
    if not is_given(of.entry):
        return (*refusals, LiveCheck("execution", not_shown("the run does not know how to give it")))
    return (*refusals, _refusal("refuses-state"), *CALL_CHECKS)


def _refused_now(system: LiveSystem, of: Subject) -> str:
    """Give a command that is not allowed in the present State, and so has no effect."""
    proxy = system.proxy(of.device)
    state = str(proxy.state())
    if of.entry.argument is not None or not not_allowed(of.entry, state, ""):
        raise NotShown(f"it is allowed in State {state}; {_ALL_OF_SDP}")
    finished = proxy.commandsFinished
    answer = SubarrayClient(proxy, system.icd, system.clock).call(of.entry.name, None)
    is_changed = (str(proxy.state()), proxy.commandsFinished) != (state, finished)
    changes = {"State": str(proxy.state())} if is_changed else {}
    words = (of.entry.name, state)
    judge_refused(RefusedCall(command=of.entry.name, aspect="", words=words, answer=answer, changes=changes))
    return answer.error


# --- The run as a whole ---


def judge_bus(run: SubarrayRun, bus: BusRecords) -> str:
    """Judge whether refused calls are not on the bus."""
    mine = {call.id for call in run.taken}
    strange = [
        f"{id} ({message.get('command')})"
        for id, (message, at) in bus.records.items()
        if run.began <= at <= run.ended and id not in mine
    ]
    if strange:
        raise Mismatch("no records on commands but those of the calls that were taken", ", ".join(strange))
    return f"{len(mine)} records"


def judge_forced(run: SubarrayRun, outcome: str, bus: BusRecords) -> str:
    """Judge whether a forced outcome is shown everywhere, with its reason, and in its time."""
    call = run.taken[-1] if run.taken else None
    _, task_status, code, _ = FORCED[outcome]
    if call is None or call.known.get("status") != outcome:
        found = call.known.get("status") if call is not None else None
        raise Mismatch(f"the outcome {outcome}", found or f"none: {run.broken_off or 'no command was given'}")
    if not call.result:
        raise Mismatch(f"{RESULT} and lrcFinished with the outcome {outcome}", run.broken_off)
    judge_acks(call, bus)
    demand(outcome, call.at_end.get("status"))  # whatever a controller has said later
    if outcome not in bus.acks[call.id]:
        raise Mismatch(f"{outcome} on command-acks", ", ".join(bus.acks[call.id]))
    text = str(call.known.get("text", ""))
    if not text:
        raise Mismatch("a text that says why", "none")
    for where, found in (
        ("GetCommand", (call.known.get("task_status"), [call.known.get("result_code"), text])),
        ("lrcFinished", (call.finished.get("status"), call.finished.get("result"))),
        (RESULT, (task_status, json.loads(call.result[1]))),
    ):
        if found != (task_status, [code, text]):
            raise Mismatch(f"{task_status} and [{code}, {text!r}] from {where}", found)
    if outcome == "REJECTED":
        if call.commanded and call.command.reports == OBS_STATE:
            # With nothing under way, commandedObsState follows obsState.
            demand(STABLE.get(call.before, call.before), call.commanded)
        # A transitional state may be shown on the way, as of each command that was taken.
        if call.path[-1:] not in ([], [call.before]):
            raise Mismatch(f"{call.command.reports} {call.before} again after a rejection", " -> ".join(call.path))
    if is_transitional(call.obs_state):
        what = f"an obsState that lasts after {outcome}: the one that holds, or FAULT"
        raise Mismatch(what, f"{call.obs_state}, which a controller has reported without another after it")
    begin, end = (datetime.fromisoformat(call.known[key]) for key in ("submitted_time", "finished_time"))
    took, command = (end - begin).total_seconds(), call.command
    if outcome == "TIMED_OUT" and not command.deadline <= took <= command.ceiling + CLOCKS:
        raise Mismatch(f"it after {command.deadline:g} to {command.ceiling:g} s", f"after {took:.1f} s")
    return f"after {took:.1f} s: {text}"


def _forced(outcome: str, aspect: str, fault: str) -> LiveCheck:
    def judge(system: LiveSystem, _: Subject) -> str:
        if system.options.outcome is None or system.options.outcome[1] != outcome:
            raise NotShown(
                f"needs a controller that is set to it, such as `sdp-facade simulate controller --fault"
                f" {fault}:AssignResources`, and --outcome AssignResources={outcome}"
            )
        return judge_forced(run_of(system), outcome, bus_of(system))

    return LiveCheck(aspect, judge)


def _complete(system: LiveSystem, _: Subject) -> str:
    run = run_of(system)
    if run.broken_off:
        raise Mismatch("an observation from On to Off", run.broken_off)
    return f"{len(run.taken)} commands taken, {len(run.refused)} refused"


def _put_back(system: LiveSystem, _: Subject) -> str:
    if left := run_of(system).left:
        raise Mismatch("the subarray as it was: OFF and EMPTY", left)
    return "OFF and EMPTY"


RUN_CHECKS = (
    LiveCheck("observation", _complete),
    LiveCheck("refused-not-on-bus", lambda system, _: judge_bus(run_of(system), bus_of(system))),
    *(_forced(outcome, aspect, fault) for outcome, (aspect, _, _, fault) in FORCED.items()),
    LiveCheck("put-back", _put_back),
)


def require_outcome(options: CheckOptions) -> None:
    """Demand that ``--outcome`` names a command of the run and a forced outcome, and that commands may be given."""
    if options.outcome is None:
        return
    commands = [step for step in STEPS if isinstance(step, str)]
    command, outcome = options.outcome
    if command not in commands or outcome not in FORCED:
        what = f"COMMAND one of {', '.join(commands)}, and OUTCOME one of {', '.join(FORCED)}"
        raise ConfigError(f"--outcome: expected COMMAND=OUTCOME, {what}; got COMMAND {command!r}, OUTCOME {outcome!r}")
    if not options.active:
        raise ConfigError("--outcome: expected --active as well, as a command has to be given")


def _prepare(system: LiveSystem) -> None:
    require_outcome(system.options)
    if system.options.active:
        require_rest(system)


def _newest_command(system: LiveSystem, device: str) -> str:
    found = json.loads(system.proxy(device).GetCommandHistory(1))
    if not found:
        raise NotShown("no command was given yet")
    return str(found[0]["id"])


_KEYS = ("id", "name", "status")
_ANSWERS = {
    "GetCommand": QueryAnswer(dict, (*_KEYS, "acks"), _newest_command),
    "GetCommandHistory": QueryAnswer(list, _KEYS, lambda *_: 5),
}


def _checks(system: LiveSystem, of: Subject) -> Iterable[LiveCheck]:
    if isinstance(of.entry, CommandDefinition):
        return _command_checks(system, of)
    if of.entry.name in ("ApproveCommand", "WithdrawCommand"):
        return (LiveCheck("effect", not_shown("which commands wait for a second person is a setting")),)
    if of.entry.name == "SetAdminMode":
        return (LiveCheck("effect", not_shown("a mode would be set, which is for the operators of the deployment")),)
    if of.entry.name == "GiveCommand":
        why = _why_not_given(system, of)
        judge = not_shown(why) if why else lambda system, _: judge_name(run_of(system), bus_of(system))
        return (LiveCheck("effect", judge),)
    return answer_checks(_ANSWERS, of)


def _device_checks(system: LiveSystem, of: Subject) -> Iterable[LiveCheck]:
    return RUN_CHECKS if system.options.active and of.device == system.options.subarray else ()


COMMANDS = FlowChecks(commands=_checks, device=_device_checks, prepare=_prepare)
