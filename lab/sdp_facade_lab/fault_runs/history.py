"""A history of commands, and its judge: the checker Porcupine, with the model in ``porcupine/model.go``.

The history has what clients saw: each call with its answer, each value that was read, and each look at the outcome of a
command, with its times. The judge finds an order of all these operations that respects the times, and that the
interface allows; or it says that there is none. It shares no code with the facade.
"""

import os
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from facade.flows.commands.messages import AckMessage, CommandMessage, issued
from facade.flows.commands.outcomes import FINAL, REJECTED, TIMED_OUT, UNDELIVERED
from facade.kernel.clock import as_seconds
from facade.kernel.errors import InfraError
from sdp_facade_lab.command_account import CallLine, FoundCommands, SeenLine, first_outcomes

_SOURCE = Path(__file__).parent / "porcupine"
_WITHIN = 600.0
_LINEARIZABLE, _NOT_LINEARIZABLE = 0, 1
_ATTRIBUTES = ("State", "obsState", "scanID")
_CONTROLLER = 99
"""Stands for the client where a command is executed or ends."""
_STATE = re.compile(r"not allowed when (?:State|obsState) is (\w+);")
_UNDER_WAY = re.compile(r"not allowed while \w+ \(([^)]+)\) is under way")


class HistoryOperation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation of a history, as ``lab/sdp_facade_lab/fault_runs/porcupine/main.go`` reads it."""

    client: int
    device: str
    call: int
    """[Unix us]."""
    returned: int | None = msgspec.field(name="return", default=None)
    """[Unix us]; None: the operation may have happened at any later time."""
    input: dict[str, Any]
    output: dict[str, Any] = {}


def build_judge(program: Path = Path(os.devnull)) -> None:
    """Build the judge; Go keeps the modules that it has fetched, so the next time needs no network.

    Raises
    ------
    InfraError
        There is no Go, or it is too old, or it cannot fetch Porcupine.
    """
    if shutil.which("go") is None:
        raise InfraError("the judge is written in Go, and there is no Go here")
    made = _run("go", "build", "-o", program.absolute(), ".", cwd=_SOURCE)
    if made.returncode:
        raise InfraError(f"the judge cannot be built: {made.stderr.strip()}")


def judge(operations: Iterable[HistoryOperation], folder: Path) -> str:
    """Return which parts of a history are not linearizable, or were not decided in time, or an empty text.

    The history is ``history.jsonl`` in the folder, beside a picture of its faults.

    Raises
    ------
    InfraError
        The judge cannot be built, or gives no judgement in time, or this is no history.
    """
    program, history = folder / "porcupine", folder / "history.jsonl"
    history.write_bytes(msgspec.json.Encoder().encode_lines(operations))
    build_judge(program)
    judged = _run(program.absolute(), history, folder / "history.html")
    if judged.returncode not in (_LINEARIZABLE, _NOT_LINEARIZABLE):
        raise InfraError(f"the judge of histories gives no judgement: {judged.stderr}")
    return judged.stderr.strip()


def _run(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, cwd=cwd, text=True, capture_output=True, check=False, timeout=_WITHIN)
    except subprocess.TimeoutExpired as error:
        raise InfraError(f"the judge of histories takes too long: {error}") from error


def operations(found: FoundCommands, end: float) -> Iterator[HistoryOperation]:
    """Return the history of a run.

    Parameters
    ----------
    end
        After everything else [Unix s]: what topics and devices say of a command in the end is one more look at it.
    """
    written = {command.id: command for command in found.commands}
    given = _given(found, written)
    outcomes = first_outcomes(found.acks)
    acks: dict[tuple[str, str], AckMessage] = {(ack.id, ack.status): ack for ack in reversed(found.acks)}
    seen: dict[str, float] = {}
    for line in found.seen:
        if not line.value:  # a server that has just started knows no command yet
            continue
        if line.value in FINAL:
            seen[line.what] = min(line.called + line.seconds, seen.get(line.what, end))
        # A server that has just started does not know the State.
        if line.what in given or (line.what in _ATTRIBUTES and line.value != "UNKNOWN"):
            yield _read(line)
    for call in found.calls:
        if call.answer == "refused":
            yield from _refused(call)
    executed = Counter(line.id for line in found.executions)
    for id, calls in given.items():
        outcome = outcomes.get(id, "") if id in written else UNDELIVERED
        yield from _command(id, calls, outcome, acks.get((id, outcome)), seen.get(id), executed[id])
        for status in {outcome, found.shown.get(id, outcome)} - {""}:
            yield _read(SeenLine(client=0, device=calls[0].device, called=end, seconds=0.0, what=id, value=status))
    for execution in found.executions:
        into = {"op": "execute", "id": execution.id, "repeatable": execution.repeatable}
        at = int(execution.begun_at)
        yield HistoryOperation(client=_CONTROLLER, device=execution.device, call=at, returned=at, input=into)


def _given(found: FoundCommands, written: Mapping[str, CommandMessage]) -> dict[str, list[CallLine]]:
    """Return the calls of each command that was admitted, or whose id was told.

    A call without an answer has no id. Its transaction_id leads to the command, or its time does. If the command is
    not on the bus, the call had an effect only if another client was refused in the meantime.
    """
    by_transaction = {(one.device, one.command, one.transaction_id): id for id, one in written.items()}
    given: defaultdict[str, list[CallLine]] = defaultdict(list)
    silent = []
    for line in found.calls:
        id = line.id if line.answer in ("given", "unknown") else ""
        if not id and line.answer == "no answer":
            id = by_transaction.get((line.device, line.command, line.transaction_id), "")
        if id:
            given[id].append(line)
        elif line.answer in ("no answer", "not sent"):
            silent.append(line)
    devices = {match[1]: line.device for line in found.calls if (match := _UNDER_WAY.search(line.text))}
    devices |= {id: command.device for id, command in written.items()}
    for id in devices.keys() - given.keys():
        for line in silent:
            is_then = line.called <= as_seconds(issued(id)) <= line.called + line.seconds
            if is_then and line.device == devices[id] and id.endswith(f"_{line.command}"):
                given[id].append(line)
    return given


def _read(line: SeenLine) -> HistoryOperation:
    span: dict[str, Any] = {"client": line.client, "device": line.device, "call": _us(line.called)}
    into: dict[str, Any] = {"op": "look", "id": line.what}
    out: dict[str, Any] = {"status": line.value}
    if line.what in _ATTRIBUTES:
        into = {"op": "read", "attribute": line.what}
        out = {"scan": int(line.value)} if line.what == "scanID" else {"got": line.value}
    return HistoryOperation(**span, returned=_us(line.called + line.seconds), input=into, output=out)


def _refused(line: CallLine) -> Iterator[HistoryOperation]:
    """Return a refusal that says something of the subarray."""
    state, under_way = _STATE.search(line.text), _UNDER_WAY.search(line.text)
    if state or under_way:
        yield HistoryOperation(
            client=line.client,
            device=line.device,
            call=_us(line.called),
            returned=_us(line.called + line.seconds),
            input={"op": "refuse", "command": line.command},
            output={"got": state[1]} if state else {"while": under_way and under_way[1]},
        )


def _command(
    id: str,
    calls: Sequence[CallLine],
    outcome: str,
    ack: AckMessage | None,
    seen: float | None,
    executed: int,
) -> Iterator[HistoryOperation]:
    """Return the operations of a command; without an answer, the time of its admission is not known.

    An answer with the id says that it was admitted. If the fate of its record was unknown, a controller may execute the
    command before the device server knows that the record is on the bus. The device server knows it when it shows the
    outcome of the controller, or writes one itself, unless it gives the command up.
    """
    first = calls[0]
    answers = {line.answer: _us(line.called + line.seconds) for line in reversed(calls)}
    admitted = [answers[answer] for answer in ("given", "unknown") if answer in answers]
    span: dict[str, Any] = {"client": first.client, "device": first.device, "call": _us(first.called)}
    into = {"op": "give", "id": id, "command": first.command, "scan": first.scan}
    admitted_by = min(admitted) if admitted else None
    yield HistoryOperation(**span, returned=admitted_by, input={**into, "outcome": outcome, "executions": executed})
    if outcome != UNDELIVERED:
        taken_by = answers.get("given")
        if taken_by is None and outcome == TIMED_OUT and ack is not None:
            taken_by = max(span["call"], ack.time)
        elif taken_by is None and outcome and seen is not None:
            taken_by = _us(seen)
        yield HistoryOperation(**span, returned=taken_by, input={"op": "take", "id": id})
    if outcome:
        out: dict[str, Any] = {"status": outcome}
        span["client"] = _CONTROLLER
        if ack is not None:
            # It is not an outcome before it is written, unless a client saw it earlier, which the judge decides.
            span["call"] = max(span["call"], ack.time if seen is None else min(ack.time, _us(seen)))
            if outcome == REJECTED and (state := _STATE.search(ack.text)):
                out["got"] = state[1]
            if outcome == REJECTED and ack.text.startswith("$.resources."):
                out["absent"] = True
        yield HistoryOperation(
            **span, returned=None if seen is None else _us(seen), input={"op": "end", "id": id}, output=out
        )


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
