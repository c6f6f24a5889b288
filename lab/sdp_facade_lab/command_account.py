"""The account of commands: callers, topics, devices and controllers are compared. No I/O."""

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import msgspec

from facade.flows.commands.messages import AckMessage, CommandMessage
from facade.flows.commands.outcomes import COMPLETED, FINAL, REJECTED, TIMED_OUT, UNDELIVERED
from facade.kernel.clock import as_seconds
from facade.sdk.controller.simulator.controller import ExecutionLine
from sdp_facade_lab.balance import Balance, Silence, Tally

Answer = Literal["given", "refused", "not sent", "unknown", "no answer"]
NOT_GIVEN: tuple[Answer, ...] = ("unknown", "no answer", "refused", "not sent")


class CallLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a command."""

    client: int = 0
    device: str
    command: str
    scan: int = 0
    """scan_id of a Scan."""
    called: float
    """[Unix s]."""
    seconds: float
    """Until there was an answer, or an error instead."""
    answer: Answer
    id: str = ""
    """Where the answer, or the error, has one."""
    text: str = ""
    """The error."""
    transaction_id: str = ""
    """Of the argument, if it has one."""
    again: bool = False
    """Whether the call repeats one whose answer was lost or unknown, with the same transaction_id."""


class SeenLine(msgspec.Struct, frozen=True, kw_only=True):
    """One value that a client read."""

    client: int
    device: str
    called: float
    """[Unix s]."""
    seconds: float
    """Until there was an answer."""
    what: str
    """An attribute, or the id of a command, whose status was asked for."""
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCommands:
    """Expected and observed."""

    calls: Sequence[CallLine]
    commands: Sequence[CommandMessage]
    """The topic, in its order for each device."""
    acks: Sequence[AckMessage]
    """The topic, in its order for each device."""
    shown: Mapping[str, str]
    """Status by id, from GetCommandHistory of all devices."""
    executions: Sequence[ExecutionLine]
    """The controller's report."""
    seen: Sequence[SeenLine] = ()
    """What clients have read."""


def late_commands(acks: Iterable[AckMessage], written: Container[str]) -> set[str]:
    """Return the ids of commands that were given up, and whose records came to the bus later.

    A device server gives a command up when it is too late to begin it, and its record is not on the bus. That outcome
    holds as any other does.
    """
    return {ack.id for ack in acks if ack.status == UNDELIVERED and ack.id in written}


def first_outcomes(acks: Sequence[AckMessage]) -> dict[str, str]:
    """Return the first final acknowledgement by id, judged without the tracker's code."""
    outcomes: dict[str, str] = {}
    begun: set[str] = set()
    at_work: set[str] = set()
    for ack in acks:
        if ack.status not in FINAL:
            begun.add(ack.id)
            if ack.status == "IN_PROGRESS" and ack.id not in outcomes:
                at_work.add(ack.id)
        elif not (ack.id in at_work and ack.status == "REJECTED") and not (
            ack.id in begun and ack.status == UNDELIVERED
        ):
            outcomes.setdefault(ack.id, ack.status)
    return outcomes


def account(found: FoundCommands) -> Balance:
    made = Balance()
    answers = Counter(line.answer for line in found.calls if not line.again)
    repeated = Counter(line.answer for line in found.calls if line.again)
    written = {command.id: command for command in found.commands}
    outcomes, late = first_outcomes(found.acks), late_commands(found.acks, written)
    executed = Counter(line.id for line in found.executions)
    ended = Counter(outcomes.get(id, "none") for id in written)
    made.rows += [(f"calls: {answer}", answers[answer]) for answer in ("given", *NOT_GIVEN)]
    made.rows += [("calls repeated with their transaction_id", repeated.total()), ("... and given", repeated["given"])]
    made.rows += [("commands on the bus", len(written)), ("their records", len(found.commands))]
    made.rows += [(f"first outcome: {outcome}", count) for outcome, count in sorted(ended.items())]
    made.rows += [
        ("acknowledgements", len(found.acks)),
        ("... of commands that nobody sent", sum(ack.id not in written for ack in found.acks)),
        ("... with another outcome after the first", _contrary(found.acks, outcomes)),
        ("executions", len(found.executions)),
        ("executed again after a crash (repeatable)", sum(line.again for line in found.executions)),
    ]
    made.rows.append(("given up, and on the bus after all", len(late)))
    # What the caller of a late command was told is right if it was not executed.
    made.wrong += _calls(found.calls, written, found.shown, late - executed.keys())
    made.wrong += _twice(written, found.acks)
    for id, command in written.items():
        made.wrong += _command(command, outcomes.get(id), found.shown.get(id), executed[id])
    made.wrong += [
        f"{line.id}: begun {as_seconds(line.begun_at - line.not_after):.3f} s after its not_after"
        for line in found.executions
        if line.begun_at > line.not_after and not line.again  # a repeated execution began in time before
    ]
    slowest = max((line.seconds for line in found.calls if line.answer != "no answer"), default=0.0)
    made.rows.append(("slowest answer of a device that was there", f"{slowest * 1e3:.0f} ms"))
    made.tallies["commands"] = _tally(found, written, outcomes)
    return made


def _tally(found: FoundCommands, written: Mapping[str, CommandMessage], outcomes: Mapping[str, str]) -> Tally:
    executed = Counter(line.id for line in found.executions)
    given = [line for line in found.calls if line.answer == "given"]
    known = written.keys() & outcomes.keys()
    sent = written.keys() | {line.id for line in given}
    again = [id for id, times in executed.items() if times > 1 and id in written and not written[id].repeatable]
    answered = sorted(line.called + line.seconds for line in given)
    gaps = [Silence(one, later - one) for one, later in pairwise(answered)]
    return Tally(len(sent), len(known), len(sent - known), len(again) + len(_twice(written, found.acks)), gaps)


def _contrary(acks: Sequence[AckMessage], outcomes: Mapping[str, str]) -> int:
    """Count outcomes that came too late to count: a late one of the controller is no fault of anybody's."""
    return sum(ack.status in FINAL and ack.status != outcomes.get(ack.id, ack.status) for ack in acks)


def _twice(written: Mapping[str, CommandMessage], acks: Sequence[AckMessage]) -> list[str]:
    """Find what a transaction, or a controller, must not do twice."""
    ids: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for id, command in written.items():
        ids[command.device, command.command, command.transaction_id].append(id)
    controllers: defaultdict[str, set[str]] = defaultdict(set)
    for ack in acks:
        # Unknown ids are left out: after a crash, a controller with the fault `wrong-ids` does not recognise its own
        # acknowledgements. Its executions are judged by the ids of the commands.
        if ack.id in written and ack.status in FINAL and ack.status not in (TIMED_OUT, UNDELIVERED):
            controllers[ack.id].add(ack.status)
    return [
        f"{device}: transaction_id {transaction} is that of {len(found)} commands: {', '.join(found)}"
        for (device, _, transaction), found in ids.items()
        if len(found) > 1
    ] + [
        f"{id}: its controller has said {' and '.join(sorted(said))}"
        for id, said in controllers.items()
        if len(said) > 1
    ]


def _calls(
    calls: Sequence[CallLine],
    written: Mapping[str, CommandMessage],
    shown: Mapping[str, str],
    given_up: Collection[str],
) -> list[str]:
    """Compare the answers to callers with the commands on the bus.

    `given_up`: commands that came too late to be executed, and were not.
    """
    wrong = []
    transactions = {(command.device, command.command, command.transaction_id) for command in written.values()}
    heard: defaultdict[str, set[str]] = defaultdict(set)
    silent: Counter[str] = Counter()
    for line in calls:
        heard[line.device].add(line.id)
        silent[line.device] += line.answer == "no answer"
        if line.answer == "given" and line.id not in written:
            wrong.append(f"{line.id}: its caller was told that it is on the bus, and it is not")
        if line.answer == "unknown" and line.id not in written and shown.get(line.id, UNDELIVERED) != UNDELIVERED:
            wrong.append(f"{line.id}: is not on the bus, and is shown as {shown[line.id]}")
        if (
            line.answer in ("refused", "not sent")
            and line.id not in given_up
            and (
                line.id in written
                or (not line.again and (line.device, line.command, line.transaction_id) in transactions)
            )
        ):
            name = line.id or f"{line.device} {line.command} {line.transaction_id}"
            wrong.append(f"{name}: its caller was told that it is not on the bus, and it is: {line.text}")
    unheard = Counter(command.device for id, command in written.items() if id not in heard[command.device])
    wrong += [
        f"{device}: {count} commands on the bus that no caller was told of, with {silent[device]} calls unanswered"
        for device, count in unheard.items()
        if count > silent[device]
    ]
    return wrong


def _command(command: CommandMessage, outcome: str | None, shown: str | None, executed: int) -> list[str]:
    wrong = []
    if outcome is None:
        wrong.append(f"{command.id}: has no outcome")
    elif shown != outcome:
        wrong.append(f"{command.id}: the log says {outcome}, the device {shown or 'nothing'}")
    if executed > 1 and not command.repeatable:
        wrong.append(f"{command.id}: must not be repeated, and was executed {executed} times")
    if outcome in (REJECTED, UNDELIVERED) and executed:
        wrong.append(f"{command.id}: is {outcome} and was executed")
    if outcome == COMPLETED and not executed:
        wrong.append(f"{command.id}: is COMPLETED and was never executed")
    return wrong
