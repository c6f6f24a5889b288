"""Commands through kills: TM commands all subarrays while device server, controller and broker are killed.

Sent: each call of TM's clients, one line of a journal. Expected: one outcome of each command that is on the bus, and no
other command. Observed: topics, `GetCommandHistory` of the devices, and the report of the controller. The history of
all clients is judged by a checker that is not ours; see `proving.fault_runs.history`.
"""

import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import msgspec
import tango
from msgspec.json import decode

from facade.bus.kafka.bus import KafkaBus
from facade.clock import as_seconds
from facade.controller.simulator.controller import ExecutionLine
from facade.errors import InfraError
from facade.flows.commands.messages import ACKS, COMMANDS, AckMessage, CommandMessage
from facade.flows.commands.outcomes import COMPLETED, FINAL, REJECTED, TIMED_OUT, UNDELIVERED
from facade.infra.processes import Process
from proving.fault_runs.callers import NOT_GIVEN, CallLine, call_random_commands, read_calls, read_seen
from proving.fault_runs.frame import (
    ALWAYS,
    BROKER,
    READY_WITHIN,
    SERVER,
    STANDSTILL,
    Balance,
    FaultRun,
    Silence,
    Size,
    Tally,
)
from proving.fault_runs.history import FoundCommands, first_outcomes, judge, late_commands, operations


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
        if line.begun_at > line.not_after
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


CONTROLLER = "controller"
CONTROLLER_FAULTS = (
    "duplicate-acks::0.05",
    "no-acks::0.01",
    "wrong-ids::0.01",
    "fail::0.02",
    "reject::0.02",
    "slow::0.02",
    "hang:Configure:0.003",
    "crash-before::0.001",
    "crash-after::0.001",
)
"""What goes wrong at the controller besides its being killed."""

QUICK_CONTROLLER_FAULTS = tuple(
    text.replace("::0.01", ":Scan:0.1") if text.startswith(("no-acks", "wrong-ids")) else text
    for text in CONTROLLER_FAULTS
)
"""The same, but nothing whose outcome takes a minute."""

_SPEED = 50.0
_SUBARRAYS, _CLIENTS = 8, 3
_BETWEEN, _QUICK_BETWEEN = (3.0, 7.0), (1.0, 2.0)
_ENDS_WITHIN = 150.0
"""Longest wait for the last outcomes [s]: some deadlines are a minute."""
_ANSWERS_WITHIN = 30_000
"""Longest answer at the end of the run [ms]."""
_REMEMBERED = 1900
"""Commands of one subarray that its device surely still knows at the end of the run."""


class CommandFaultRun(FaultRun):
    """One run of the commands."""

    unit, all_is_well = "commands", "every command has one outcome, the same for all; none is lost, doubled, or late"
    # The kills of a short run have an end: a slow machine gets little done between two.
    full, short = Size(10_000, ALWAYS), Size(200, 2)
    most = _REMEMBERED * _SUBARRAYS
    has_history = True
    settings: ClassVar = {"nodes": 1, "subarrays": _SUBARRAYS}
    faults: ClassVar[Sequence[str]] = (SERVER, CONTROLLER, BROKER, STANDSTILL)
    standstill = 120.0
    pause: ClassVar[float] = 0.0
    """Pause of a caller before a command [s]."""

    def prepare(self) -> None:
        self.between = _QUICK_BETWEEN if self.quick else _BETWEEN
        self._devices = self.deployment.devices("SdpSubarray")
        folder = self.deployment.folder
        self._calls, self._executions = folder / "calls.jsonl", folder / "executions.jsonl"
        self._seen = folder / "seen.jsonl"
        self._controller_faults = QUICK_CONTROLLER_FAULTS if self.quick else CONTROLLER_FAULTS
        self._given = 0

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        faults = [text for fault in self._controller_faults for text in ("--fault", fault)]
        options = ["--subarrays", len(self._devices), "--speed", _SPEED, *faults, "--report", self._executions]
        return {
            SERVER: lambda: self.deployment.server("subarray", name="device-server"),
            CONTROLLER: lambda: self.deployment.launch(
                CONTROLLER, "simulate", "controller", *options, login="controller"
            ),
        }

    def begin(self) -> None:
        self.demand(lambda: self.deployment.answers("subarray"), READY_WITHIN, SERVER)
        self._caller = self.deployment.play(
            call_random_commands,
            ends=True,
            journal=str(self._calls),
            seen=str(self._seen),
            commands=self.count,
            seed=self.seed,
            devices=self._devices,
            pause=self.pause,
            clients=_CLIENTS,
        )
        self.moved = self.clock.monotonic()

    def step(self) -> bool:
        if self._caller.is_alive:
            if self.is_stuck(self._given):
                what = f"no command was taken for {self.standstill:g} s; the last call: {read_calls(self._calls)[-1:]}"
                raise InfraError("\n".join((what, *map(self._picture, self._devices))))
            return True
        if len(read_calls(self._calls)) < self.count:
            raise InfraError(f"the callers ended early; their output ends:\n{self._caller.tail()}")
        return self.kills < ALWAYS and bool(self.left)  # a fast machine has sent all before the last fault is due

    def stop_sending(self) -> None:
        self.count = 0
        self._caller.call_off()

    def in_words(self) -> str:
        calls = read_calls(self._calls)
        self._given = sum(line.answer == "given" for line in calls)
        return f"{len(calls):,} calls, {self._given:,} commands given"

    def account(self) -> Balance:
        self.demand(self._is_quiet, _ENDS_WITHIN, "the last outcomes")
        bus = KafkaBus(self.deployment.connection, client="fault-run")
        shown: dict[str, str] = {}
        for device in self._devices:
            proxy = self.deployment.proxy(device)
            proxy.set_timeout_millis(_ANSWERS_WITHIN)
            history = proxy.command_inout("GetCommandHistory", 2000)
            shown |= {one["id"]: one["status"] for one in msgspec.json.decode(history)}
        found = FoundCommands(
            calls=read_calls(self._calls),
            commands=[decode(record.value or b"", type=CommandMessage) for record in bus.read_all(COMMANDS)],
            acks=[decode(record.value or b"", type=AckMessage) for record in bus.read_all(ACKS)],
            shown=shown,
            executions=_executions(self._executions),
            seen=read_seen(self._seen),
        )
        made = account(found)
        if self.is_judged:
            self._judge(found, made)
        return made

    def _judge(self, found: FoundCommands, made: Balance) -> None:
        history = list(operations(found, self.clock.now()))
        begin = self.clock.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="history-"))
        try:
            wrong = judge(history, folder)
        except InfraError as error:  # the account holds nevertheless
            wrong = f"the history in {folder} was not judged: {error}"
        what = f"operations of {_CLIENTS * len(self._devices)} clients, judged by Porcupine"
        made.rows.append((what, f"{len(history):,}, {self.clock.monotonic() - begin:.1f} s"))
        if wrong:  # the files are kept for a look
            made.wrong.append(wrong)
        else:
            shutil.rmtree(folder)

    def _is_quiet(self) -> bool:
        try:
            proxies = [self.deployment.proxy(device) for device in self._devices]
            return all(
                proxy.state() != tango.DevState.UNKNOWN and proxy.read_attribute("commandsPending").value == 0
                for proxy in proxies
            )
        except tango.DevFailed:
            return False

    def _picture(self, device: str) -> str:
        """Return the state of a device in words, for the report of a run that stands still."""
        try:
            names = ("State", "obsState", "commandsPending", "lastCommand", "healthInfo")
            values = (str(one.value) for one in self.deployment.proxy(device).read_attributes(names))
            return f"{device}: {', '.join(values)}"
        except tango.DevFailed as failed:
            return f"{device}: {failed.args[0].desc}"


def _executions(path: Path) -> list[ExecutionLine]:
    return [msgspec.json.decode(line, type=ExecutionLine) for line in path.read_bytes().split(b"\n") if line]
