"""Commands through kills: TM commands all subarrays while device server, controller and broker are killed.

Sent: each call of TM's clients, one line of a journal. Expected: one outcome of each command that is on the bus, and no
other command. Observed: topics, `GetCommandHistory` of the devices, and the report of the controller. The history of
all clients is judged by a checker that is not ours; see `sdp_facade_lab.fault_runs.history`.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
import tango
from msgspec.json import decode

from facade.flows.commands.messages import ACKS, COMMANDS, AckMessage, CommandMessage
from facade.flows.commands.outcomes import FINAL
from facade.infra.processes import Process
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.errors import InfraError
from facade.sdk.controller.simulator.controller import ExecutionLine
from sdp_facade_lab.balance import Balance
from sdp_facade_lab.command_account import FoundCommands, account
from sdp_facade_lab.fault_runs.callers import call_random_commands, read_calls, read_seen
from sdp_facade_lab.fault_runs.frame import ALWAYS, BROKER, READY_WITHIN, SERVER, STANDSTILL, FaultRun, Size
from sdp_facade_lab.fault_runs.history import judge, operations

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
    full, short = Size(10_000, ALWAYS), Size(200, 1)
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

    def count_arrived(self) -> int:
        """Count the commands that the device server took."""
        self._given = sum(line.answer == "given" for line in read_calls(self._calls))
        return self._given

    def in_words(self) -> str:
        return f"{len(read_calls(self._calls)):,} calls, {self.count_arrived():,} commands given"

    def account(self) -> Balance:
        self.demand(self._is_quiet, _ENDS_WITHIN, "the last outcomes")
        bus = KafkaBus(self.deployment.connection, client="fault-run")
        shown: dict[str, str] = {}
        for device in self._devices:
            shown |= self._statuses(device)
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
            # An attribute may be older than the answer to the last call.
            return all(
                self.deployment.proxy(device).state() != tango.DevState.UNKNOWN
                and FINAL.issuperset(self._statuses(device).values())
                for device in self._devices
            )
        except tango.DevFailed:
            return False

    def _statuses(self, device: str) -> dict[str, str]:
        """Return the status of each command of a device, by id."""
        proxy = self.deployment.proxy(device)
        proxy.set_timeout_millis(_ANSWERS_WITHIN)
        return {one["id"]: one["status"] for one in msgspec.json.decode(proxy.command_inout("GetCommandHistory", 2000))}

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
