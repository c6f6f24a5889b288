"""The account of the fault run: what callers, topics, devices and the controller say of each command. No I/O."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from facade.controller.simulator.controller import ExecutionLine
from facade.flows.commands.messages import AckMessage, CommandMessage
from facade.flows.commands.outcomes import COMPLETED, FINAL, REJECTED, TIMED_OUT, UNDELIVERED
from proving.fault_runs.caller import NOT_GIVEN, CallLine
from proving.fault_runs.frame import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What everyone says."""

    calls: Sequence[CallLine]
    commands: Sequence[CommandMessage]
    """The topic, in its order for each device."""
    acks: Sequence[AckMessage]
    """The topic, in its order for each device."""
    shown: Mapping[str, str]
    """Status by id, from GetCommandHistory of all devices."""
    executions: Sequence[ExecutionLine]
    """The controller's report."""


def account(found: Found) -> Account:
    """Compare all."""
    made = Account()
    answers = Counter(line.answer for line in found.calls if not line.again)
    repeated = Counter(line.answer for line in found.calls if line.again)
    written = {command.id: command for command in found.commands}
    outcomes = first_outcomes(found.acks)
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
    made.wrong += _calls(found.calls, written, found.shown)
    made.wrong += _twice(written, found.acks)
    for id, command in written.items():
        made.wrong += _command(command, outcomes.get(id), found.shown.get(id), executed[id])
    made.wrong += [
        f"{line.id}: begun {(line.begun_at - line.not_after) / 1e6:.3f} s after its not_after"
        for line in found.executions
        if line.begun_at > line.not_after
    ]
    slowest = max((line.seconds for line in found.calls if line.answer != "no answer"), default=0.0)
    made.rows.append(("slowest answer of a device that was there", f"{slowest * 1e3:.0f} ms"))
    return made


def first_outcomes(acks: Sequence[AckMessage]) -> dict[str, str]:
    """Return the first final acknowledgement by id, judged without the tracker's code."""
    outcomes: dict[str, str] = {}
    at_work: set[str] = set()
    for ack in acks:
        if ack.status == "IN_PROGRESS" and ack.id not in outcomes:
            at_work.add(ack.id)
        elif ack.status in FINAL and not (ack.status == "REJECTED" and ack.id in at_work):
            outcomes.setdefault(ack.id, ack.status)
    return outcomes


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
        # Of ids that nobody has sent: a controller that is made to write wrong ones cannot find its own word again
        # after a crash. What it executes is judged all the same, by the command's own id.
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


def _calls(calls: Sequence[CallLine], written: Mapping[str, CommandMessage], shown: Mapping[str, str]) -> list[str]:
    """Hold what callers were told against what is on the bus."""
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
        if line.answer in ("refused", "not sent") and (
            line.id in written or (not line.again and (line.device, line.command, line.transaction_id) in transactions)
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
    if outcome == REJECTED and executed:
        wrong.append(f"{command.id}: is REJECTED and was executed")
    if outcome == COMPLETED and not executed:
        wrong.append(f"{command.id}: is COMPLETED and was never executed")
    return wrong
