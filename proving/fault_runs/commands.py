"""The fault run of the commands: TM commands all subarrays while device server, controller and broker are killed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import tango
import typer
from msgspec.json import decode

from facade.bus.kafka.bus import KafkaBus
from facade.controller.simulator.controller import ExecutionLine
from facade.errors import ConfigError, InfraError
from facade.flows.commands.messages import ACKS, COMMANDS, AckMessage, CommandMessage
from facade.infra.processes import Process
from proving.deployment import Deployment
from proving.fault_runs.caller import read_calls
from proving.fault_runs.command_account import Found, account
from proving.fault_runs.frame import BROKER, READY_WITHIN, SERVER, STANDSTILL, Account, FaultRun, Folder, Seed, play

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

_QUICK = 200
_SPEED = 50.0
_BETWEEN, _QUICK_BETWEEN = (3.0, 7.0), (1.0, 2.0)
_QUICK_FAULTS = 8
"""After so many, a short run lets the callers get to their end: a slow machine gets little done between two."""
_ENDS_WITHIN = 150.0
"""Longest wait for the last outcomes [s]: some deadlines are a minute."""
_STUCK_AFTER = 120.0
"""Time without any command taken after which something is stuck for good [s]."""
_REMEMBERED = 1900
"""Commands of one subarray that its device surely still knows at the end of the run."""
_READ_WITHIN = 60.0


class CommandFaultRun(FaultRun):
    """One run of the commands.

    Parameters
    ----------
    quick
        Whether faults follow each other closely, so that a short run has all of them.
    """

    faults = (SERVER, CONTROLLER, BROKER, STANDSTILL)

    def __init__(self, deployment: Deployment, *, commands: int, seed: int, quick: bool = False) -> None:
        self.between = _QUICK_BETWEEN if quick else _BETWEEN
        super().__init__(deployment, seed)
        self._commands, self._seed = commands, seed
        self._devices = deployment.devices("SdpSubarray")
        self._calls, self._executions = deployment.folder / "calls.jsonl", deployment.folder / "executions.jsonl"
        self._controller_faults = QUICK_CONTROLLER_FAULTS if quick else CONTROLLER_FAULTS
        if quick:
            self.left = _QUICK_FAULTS
        self._moved, self._given = 0.0, 0

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        """Return the device server and the controller."""
        faults = [text for fault in self._controller_faults for text in ("--fault", fault)]
        options = ["--subarrays", len(self._devices), "--speed", _SPEED, *faults, "--report", self._executions]
        return {
            SERVER: lambda: self.deployment.server("subarray", name="device-server"),
            CONTROLLER: lambda: self.deployment.launch(CONTROLLER, "simulate", "controller", *options),
        }

    def begin(self) -> None:
        """Let the callers begin as soon as there is somebody to answer."""
        self.demand(lambda: self.deployment.answers("subarray"), READY_WITHIN, SERVER)
        self._caller = self.deployment.play(
            "call-random-commands",
            ends=True,
            journal=str(self._calls),
            commands=self._commands,
            seed=self._seed,
            devices=self._devices,
        )
        self._moved = self.clock.monotonic()

    def step(self) -> bool:
        """Go on until the callers are done."""
        if self._caller.is_alive:
            if self.clock.monotonic() - self._moved > _STUCK_AFTER:
                what = f"no command was taken for {_STUCK_AFTER:g} s; the last call: {read_calls(self._calls)[-1:]}"
                raise InfraError("\n".join((what, *map(self._picture, self._devices))))
            return True
        if len(read_calls(self._calls)) < self._commands:
            raise InfraError(f"the callers ended early; their output ends:\n{self._caller.tail()}")
        return False

    def in_words(self) -> str:
        """Say how many commands were given, and take note that there are more of them."""
        calls = read_calls(self._calls)
        given = sum(line.answer == "given" for line in calls)
        if given != self._given:
            self._given, self._moved = given, self.clock.monotonic()
        return f"{len(calls):,} calls, {given:,} commands given"

    def account(self) -> Account:
        """Hold what callers, topics, devices and the controller say against each other."""
        self.demand(self._is_quiet, _ENDS_WITHIN, "the last outcomes")
        bus = KafkaBus(self.deployment.connection, client="fault-run")
        shown: dict[str, str] = {}
        for device in self._devices:
            history = self.deployment.proxy(device).command_inout("GetCommandHistory", 2000)
            shown |= {one["id"]: one["status"] for one in msgspec.json.decode(history)}
        return account(
            Found(
                calls=read_calls(self._calls),
                commands=[decode(record.value or b"", type=CommandMessage) for record in bus.read_all(COMMANDS)],
                acks=[decode(record.value or b"", type=AckMessage) for record in bus.read_all(ACKS)],
                shown=shown,
                executions=_executions(self._executions),
            )
        )

    def _is_quiet(self) -> bool:
        """Return whether no device has a command without an outcome."""
        try:
            proxies = [self.deployment.proxy(device) for device in self._devices]
            return all(
                proxy.state() != tango.DevState.UNKNOWN and proxy.read_attribute("commandsPending").value == 0
                for proxy in proxies
            )
        except tango.DevFailed:
            return False

    def _picture(self, device: str) -> str:
        """Say what a device shows, for whoever has to find out why nothing goes on."""
        try:
            names = ("State", "obsState", "commandsPending", "lastCommand", "healthInfo")
            values = (str(one.value) for one in self.deployment.proxy(device).read_attributes(names))
            return f"{device}: {', '.join(values)}"
        except tango.DevFailed as failed:
            return f"{device}: {failed.args[0].desc}"


def _executions(path: Path) -> list[ExecutionLine]:
    return [msgspec.json.decode(line, type=ExecutionLine) for line in path.read_bytes().split(b"\n") if line]


def faults(
    commands: Annotated[int, typer.Option(min=1, help="Commands to give in all.")] = 10_000,
    subarrays: Annotated[int, typer.Option(min=1, max=16)] = 8,
    seed: Seed = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"Only {_QUICK} commands, and faults one close upon the other.")
    ] = False,
    folder: Folder = Path(".run"),
) -> None:
    """Give thousands of commands while device server, controller and broker are killed (kill -9), and account for each.

    The exit code is 1 when a command was lost, executed twice although it must not be, begun too late, or
    has another outcome on the device than on the log.

    Example: sdp-facade faults --quick
    """
    commands = _QUICK if quick else commands
    if commands > _REMEMBERED * subarrays:
        most = _REMEMBERED * subarrays
        raise ConfigError(f"--commands: expected at most {most} with {subarrays} subarrays, got {commands}")
    play(
        lambda deployment: CommandFaultRun(deployment, commands=commands, seed=seed, quick=quick),
        f"{commands:,} commands, {subarrays} subarrays, seed {seed}",
        "every command has one outcome, the same for all; none is lost, doubled against the rules, or late",
        folder,
        "faults",
        nodes=1,
        subarrays=subarrays,
    )
