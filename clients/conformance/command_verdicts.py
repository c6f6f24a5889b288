"""Judges what was seen while one subarray was commanded."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from clients.conformance.case import demand
from clients.conformance.endings import ENDINGS
from clients.conformance.options import ANSWERS_WITHIN, CLOCKS
from clients.conformance.seen import ADDRESSES, FINAL, NOT_REPORTED, STEPS, Given, Walk
from clients.conformance.subarray import OBS_STATE, RESULT
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch, NotShown
from clients.sample_arguments import FAMILIES
from facade.flows.commands.rules import STABLE, is_transitional
from facade.icd.model import Command

QUEUED = 2
"""SKA's ResultCode of a command that was taken."""
_TIMES = {"not_after": "start_within", "deadline": "deadline", "ceiling": "ceiling"}
"""Keys of the record, and fields of the ICD that they follow from."""
_WALKED = frozenset(name for step in STEPS for name in ((step,) if isinstance(step, str) else step))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnBus:
    """What stands on the bus about the device's commands."""

    records: Mapping[str, tuple[dict[str, Any], float]]
    """By id, with the time of the record [Unix s]."""
    acks: Mapping[str, tuple[str, ...]]
    """Statuses by id."""


def read_bus(system: System, device: str) -> OnBus:
    """Read the newest commands of a device, and their acknowledgements."""
    records: dict[str, tuple[dict[str, Any], float]] = {}
    for record, message in system.messages("commands"):
        if message.get("device") == device:
            records[str(message.get("id"))] = (message, record.timestamp_us / 1e6)
    acks: dict[str, tuple[str, ...]] = {}
    for _, message in system.messages("command-acks"):
        id = str(message.get("id"))
        acks[id] = (*acks.get(id, ()), str(message.get("status")))
    return OnBus(records=records, acks=acks)


def judge_refusal(walk: Walk, command: str, aspect: str) -> str:
    """Judge whether calls were refused in words that help, and changed nothing."""
    tried = [one for one in walk.refused if (one.command, one.aspect) == (command, aspect)]
    if not tried:
        raise NotShown(walk.broken_off or "the walk passes no state in which it is not allowed")
    for one in tried:
        if one.answer.result is not None:
            raise Mismatch("a refusal", f"it was taken: {one.answer.result}")
        if missing := [word for word in (*one.words, "expected", "got") if word not in one.answer.error]:
            if aspect != "refuses-no-json" or set(missing) - {"got"}:
                raise Mismatch(f"a refusal that names {', '.join(missing)}", one.answer.error)
        if one.changes:
            raise Mismatch("a refusal that changes nothing", f"{dict(one.changes)}")
    return f"{len(tried)} refused: {tried[0].answer.error:.200}"


def judge_taken(given: Given) -> str:
    """Judge the answer to a good command."""
    if given.answer.result is None:
        raise Mismatch("[ResultCode], [id]", given.answer.error)
    codes, ids = ([*part] for part in given.answer.result)
    if len(codes) != 1 or codes[0] != QUEUED or len(ids) != 1 or not ids[0]:
        raise Mismatch(f"[{QUEUED}] (QUEUED) and one id", f"{codes} and {ids}")
    if given.answer.took > ANSWERS_WITHIN:
        raise Mismatch(f"an answer within {ANSWERS_WITHIN:g} s", f"one after {given.answer.took:.3f} s")
    return f"{given.answer.took * 1e3:.1f} ms"


def judge_record(given: Given, on_bus: OnBus) -> str:
    """Judge whether a command was on the bus before its caller got the id, and says what the ICD says."""
    if given.id not in on_bus.records:
        raise Mismatch(f"a record with the id {given.id} on commands", "none")
    message, at = on_bus.records[given.id]
    if at > given.answer.at + CLOCKS:
        raise Mismatch("a record that is there when the call returns", f"one {at - given.answer.at:.3f} s later")
    command = given.command
    wanted = {"command": command.name, "repeatable": command.repeatable}
    wanted |= {key: getattr(command, field) for key, field in _TIMES.items()}
    found = {"command": message["command"], "repeatable": message["repeatable"]}
    found |= {key: (message[key] - message["issued"]) / 1e6 for key in _TIMES}
    for key, value in wanted.items():
        if value != found[key] and not (key in _TIMES and abs(value - found[key]) < 1e-3):
            raise Mismatch(f"{key} {value}", found[key])
    return f"{(at - message['issued'] / 1e6) * 1e3:.1f} ms after the call"


def judge_acks(given: Given, on_bus: OnBus) -> str:
    """Judge whether each acknowledgement on the bus is seen on the device."""
    wanted = on_bus.acks.get(given.id, ())
    if not wanted:
        raise Mismatch("acknowledgements on command-acks", "none")
    found = [str(ack.get("status")) for ack in given.at_end.get("acks", ())]
    if missing := [status for status in wanted if status not in found]:
        raise Mismatch(f"GetCommand shows {', '.join(wanted)}", f"{', '.join(found) or 'none'}; not {missing[0]}")
    return ", ".join(wanted)


def judge_effect(given: Given) -> str:
    """Judge whether the states went as the ICD says."""
    command = given.command
    wanted = [*([command.transitional] if command.transitional else []), command.targets[0]]
    if given.path != wanted:
        raise Mismatch(f"{command.reports} {' -> '.join(wanted)}", " -> ".join(given.path) or "no change")
    commanded = command.commanded or (command.targets[0] if command.reports == OBS_STATE else "")
    if commanded and given.commanded != commanded:
        raise Mismatch(f"commandedObsState {commanded} after it", given.commanded)
    return " -> ".join(given.path)


def judge_reporting(given: Given) -> str:
    """Judge whether the controller reports what TM needs of its command, not only obsState."""
    missing = [name for name, value in given.reported.items() if value in NOT_REPORTED]
    if ADDRESSES in missing:
        raise Mismatch(f"{ADDRESSES} in IDLE: where the data go, as JSON", f"{given.reported[ADDRESSES]}: not reported")
    if missing:
        raise NotShown(f"the controller does not report {', '.join(missing)}; TM and operators see nothing of it")
    return ", ".join(given.reported)


def judge_outcome(given: Given) -> str:
    """Judge whether there is one outcome, which stays."""
    status, at_end = given.known.get("status"), given.at_end.get("status")
    wanted = ("ABORTED",) if given.overtaken else ("COMPLETED",)
    if status not in FINAL or status not in wanted:
        raise Mismatch(f"the outcome {wanted[0]}", f"{status}: {given.known.get('text', '')}")
    return demand(status, at_end)


def judge_ending(walk: Walk, outcome: str, on_bus: OnBus) -> str:
    """Judge whether an outcome that is no good is shown everywhere, with its reason, and in its time."""
    given, ending = walk.given[-1] if walk.given else None, ENDINGS[outcome]
    if given is None or given.known.get("status") != outcome:
        found = given.known.get("status") if given is not None else None
        raise Mismatch(f"the outcome {outcome}", found or f"none: {walk.broken_off or 'no command was given'}")
    if not given.result:
        raise Mismatch(f"{RESULT} and lrcFinished with the outcome {outcome}", walk.broken_off)
    judge_acks(given, on_bus)
    demand(outcome, given.at_end.get("status"))  # whatever a controller has said later
    if outcome not in on_bus.acks[given.id]:
        raise Mismatch(f"{outcome} on command-acks", ", ".join(on_bus.acks[given.id]))
    text = str(given.known.get("text", ""))
    if not text:
        raise Mismatch("a text that says why", "none")
    shown = {
        "GetCommand": (given.known.get("task_status"), [given.known.get("result_code"), text]),
        "lrcFinished": (given.finished.get("status"), given.finished.get("result")),
        RESULT: (ending.task_status, json.loads(given.result[1])),
    }
    for where, found in shown.items():
        if found != (ending.task_status, [ending.result_code, text]):
            raise Mismatch(f"{ending.task_status} and [{ending.result_code}, {text!r}] from {where}", found)
    if outcome == "REJECTED" and given.commanded and given.command.reports == OBS_STATE:
        # With nothing under way, commandedObsState is what obsState is.
        demand(STABLE.get(given.before, given.before), given.commanded)
    # On the way there a transitional state may be shown, as of each command that was taken.
    if outcome == "REJECTED" and given.path[-1:] not in ([], [given.before]):
        raise Mismatch(f"{given.command.reports} {given.before} again after a rejection", " -> ".join(given.path))
    if is_transitional(given.obs_state):
        what = f"an obsState that lasts after {outcome}: the one that holds, or FAULT"
        raise Mismatch(what, f"{given.obs_state}, which a controller has reported without another after it")
    begin, end = (datetime.fromisoformat(given.known[key]) for key in ("submitted_time", "finished_time"))
    took = (end - begin).total_seconds()
    if outcome == "TIMED_OUT" and not given.command.deadline <= took <= given.command.ceiling + CLOCKS:
        raise Mismatch(f"it after {given.command.deadline:g} to {given.command.ceiling:g} s", f"after {took:.1f} s")
    return f"after {took:.1f} s: {text}"


def judge_overtaking(walk: Walk, command: Command) -> str:
    """Judge whether a command ended what was under way."""
    for before, given in zip(walk.given, walk.given[1:], strict=False):
        if before.overtaken and given.command.name == command.name:
            status = before.known.get("status")
            if status == "COMPLETED":
                raise NotShown(f"{before.command.name} had ended before {command.name} came")
            demand("ABORTED", status)
            return f"{before.command.name} {status}"
    raise NotShown(walk.broken_off or "no command was overtaken")


def judge_bus(walk: Walk, on_bus: OnBus) -> str:
    """Judge whether what was refused is not on the bus."""
    mine = {given.id for given in walk.given}
    strange = [
        f"{id} ({message.get('command')})"
        for id, (message, at) in on_bus.records.items()
        if walk.began <= at <= walk.ended and id not in mine
    ]
    if strange:
        raise Mismatch("no records on commands but those of the calls that were taken", ", ".join(strange))
    return f"{len(mine)} records"


def is_walked(command: Command) -> bool:
    """Return whether the walk can give a command."""
    return command.name in _WALKED and (command.argument is None or command.argument in FAMILIES)
