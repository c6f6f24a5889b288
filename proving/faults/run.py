"""The fault run: starts everything, lets TM command, kills parts at random, and asks everyone what became of it."""

import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import tango
from msgspec.json import decode

from devices.registration import register
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.reader import KafkaReader
from facade.bus.port import BusHealth
from facade.config import Settings
from facade.controller.simulator.controller import ExecutionLine
from facade.exports.tango_db import SERVER
from facade.flows.commands.messages import ACKS, COMMANDS, AckMessage, CommandMessage
from facade.infra import local
from proving.faults.account import Found
from proving.faults.journal import CallLine, read_calls
from proving.testbed import BenchError, Running, Stage

FAULTS = (
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

QUICK_FAULTS = tuple(
    text.replace("::0.01", ":Scan:0.1") if text.startswith(("no-acks", "wrong-ids")) else text for text in FAULTS
)
"""The same, but nothing whose outcome takes a minute."""

_SPEED = 50.0
_BETWEEN, _QUICK_BETWEEN = (3.0, 7.0), (1.0, 2.0)
"""Shortest and longest time between two accidents [s]."""
_QUICK_ACCIDENTS = 8
"""After so many, a short run lets the callers get to their end: a slow machine gets little done between two."""
_STANDSTILL_OF = "broker's standstill"
_STANDS = (0.3, 2.5)
"""Shortest and longest time for which the broker stands still [s]."""
_ENDS_WITHIN = 150.0
"""Longest wait for the last outcomes [s]: some deadlines are a minute."""
_STANDSTILL = 120.0
"""Time without any command taken after which something is stuck for good [s]."""
_PROGRESS = 5.0
_SERVER = "from devices.server import main; main()"
_CLI = "facade.cli"


class FaultRun:
    """One run of the commands.

    Parameters
    ----------
    seed
        Of the commands and of the kills; what happens in between is up to the machine.
    quick
        Whether accidents follow each other closely, so that a short run has all of them.
    """

    def __init__(self, stage: Stage, *, commands: int, subarrays: int, seed: int, quick: bool = False) -> None:
        self._stage, self._commands, self._seed = stage, commands, seed
        base = stage.settings("faults", nodes=1)
        self._settings: Settings = msgspec.structs.replace(base, subarrays=subarrays)
        self._devices = [f"mid-sdp/subarray/{number:02d}" for number in range(1, subarrays + 1)]
        self._calls, self._executions = stage.folder / "calls.jsonl", stage.folder / "executions.jsonl"
        self._chance = random.Random(seed)  # noqa: S311 - a schedule that can be repeated
        self._running: dict[str, Running] = {}
        self._bag: list[str] = []
        self._between = _QUICK_BETWEEN if quick else _BETWEEN
        self._accidents = _QUICK_ACCIDENTS if quick else sys.maxsize
        """How many are still to come."""
        self._faults = QUICK_FAULTS if quick else FAULTS
        self.kills: dict[str, int] = {"device server": 0, "controller": 0, "broker": 0}
        self.standstills = 0
        """How often the broker kept all connections and answered nobody for a while (SIGSTOP)."""

    def run(self) -> Found:
        """Do it all.

        Raises
        ------
        BenchError
            A part did not come back, or the callers or the last outcomes take too long.
        """
        stage = self._stage
        with stage.topics(self._settings, 1):
            register(stage.icd, self._settings, stage.tango_host)
            for part in ("device server", "controller"):
                self._start(part)
            stage.until(self._answers, "the device server", 60.0)
            caller = self._start_caller()
            self._disturb(caller)
            self._revive()
            stage.until(self._is_quiet, "the last outcomes", _ENDS_WITHIN)
            return self._found()

    def _start(self, part: str) -> None:
        faults = [text for fault in self._faults for text in ("--fault", fault)]
        controller = ["simulate", "controller", "--subarrays", str(len(self._devices)), "--speed", str(_SPEED)]
        argv = {
            "device server": [sys.executable, "-c", _SERVER, "subarray"],
            "controller": [sys.executable, "-m", _CLI, *controller, *faults, "--report", str(self._executions)],
        }
        subarrays = {"SDP_SUBARRAYS": str(len(self._devices))}
        self._running[part] = self._stage.start(part.replace(" ", "-"), argv[part], self._settings, **subarrays)

    def _start_caller(self) -> Running:
        task = [self._stage.tango_host, str(self._calls), str(self._commands), str(self._seed), *self._devices]
        return self._stage.start("caller", [sys.executable, "-m", "proving.faults.caller", *task], self._settings)

    def _disturb(self, caller: Running) -> None:
        """Kill parts at random until the callers are done."""
        clock = self._stage.clock
        begin = said = moved = clock.monotonic()
        given = 0
        next_kill = begin + self._chance.uniform(*self._between)
        while caller.is_alive:
            now = clock.monotonic()
            if now >= next_kill and self._accidents:
                self._accidents -= 1
                self._kill(self._next_part())
                next_kill = clock.monotonic() + self._chance.uniform(*self._between)
            self._revive()
            if now - said >= _PROGRESS:
                said = now
                calls = read_calls(self._calls)
                self._stage.say(f"  {self._in_words(calls)}")
                if (count := sum(line.answer == "given" for line in calls)) != given:
                    given, moved = count, now
                elif now - moved > _STANDSTILL:
                    what = f"no command was taken for {_STANDSTILL:g} s; the last call: {calls[-1:]}"
                    raise BenchError("\n".join((what, *map(self._picture, self._devices))))
            clock.sleep(0.05)
        if len(read_calls(self._calls)) < self._commands:
            raise BenchError(f"the callers ended early; their output ends:\n{caller.log_end()}")

    def _next_part(self) -> str:
        """Choose what is killed: each part once, in random order, and then each again."""
        if not self._bag:
            parts = [*self.kills, _STANDSTILL_OF]
            self._bag = self._chance.sample(parts, len(parts))
        return self._bag.pop()

    def _kill(self, part: str) -> None:
        if part == _STANDSTILL_OF:
            self._stand_still()
            return
        self.kills[part] += 1
        if part != "broker":
            self._running[part].kill()
            return
        local.stop_service(self._stage.state_dir, local.ServiceName.KAFKA, kill=True, clock=self._stage.clock)
        local.start_service(self._stage.state_dir, local.ServiceName.KAFKA, clock=self._stage.clock)

    def _stand_still(self) -> None:
        """Let the broker hang for a while: whether what is on its way arrives, nobody knows meanwhile."""
        self.standstills += 1
        pid = self._stage.broker_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            self._stage.clock.sleep(self._chance.uniform(*_STANDS))
        finally:
            os.kill(pid, signal.SIGCONT)

    def _revive(self) -> None:
        """Start again what has ended, by our hand or by its own fault."""
        for part, process in [*self._running.items()]:
            if not process.is_alive:
                self._start(part)

    def _answers(self) -> bool:
        try:
            # A proxy of its own each time: one that has failed waits before it tries again.
            return bool(tango.DeviceProxy(f"tango://{self._stage.tango_host}/dserver/{SERVER}/subarray").ping() > 0)
        except tango.DevFailed:
            return False

    def _is_quiet(self) -> bool:
        """Return whether no device has a command without an outcome."""
        self._revive()
        return self._ask(lambda proxy: proxy.state() != tango.DevState.UNKNOWN and proxy.commandsPending == 0)

    def _ask(self, question: Callable[[tango.DeviceProxy], bool]) -> bool:
        try:
            return all(question(tango.DeviceProxy(f"tango://{self._stage.tango_host}/{d}")) for d in self._devices)
        except tango.DevFailed:
            return False

    def _picture(self, device: str) -> str:
        """Say what a device shows, for whoever has to find out why nothing goes on."""
        try:
            proxy = tango.DeviceProxy(f"tango://{self._stage.tango_host}/{device}")
            names = ("State", "obsState", "commandsPending", "lastCommand", "healthInfo")
            return f"{device}: {', '.join(str(one.value) for one in proxy.read_attributes(names))}"
        except tango.DevFailed as failed:
            return f"{device}: {failed.args[0].desc}"

    def _in_words(self, calls: Sequence[CallLine]) -> str:
        kills = ", ".join(f"{part} {count}" for part, count in self.kills.items())
        given = sum(line.answer == "given" for line in calls)
        return f"{len(calls):,} calls, {given:,} commands given; killed: {kills}; standstills: {self.standstills}"

    def _found(self) -> Found:
        connection = Connection(self._settings, clock=self._stage.clock)
        reader = KafkaReader(connection, {COMMANDS: None, ACKS: None}, start={}, health=BusHealth())
        records = reader.read_to_end(60.0)
        reader.close()
        shown: dict[str, str] = {}
        for device in self._devices:
            proxy = tango.DeviceProxy(f"tango://{self._stage.tango_host}/{device}")
            shown |= {one["id"]: one["status"] for one in msgspec.json.decode(proxy.GetCommandHistory(2000))}
        return Found(
            calls=read_calls(self._calls),
            commands=[decode(one.value or b"", type=CommandMessage) for one in records if one.topic == COMMANDS],
            acks=[decode(record.value or b"", type=AckMessage) for record in records if record.topic == ACKS],
            shown=shown,
            executions=_executions(self._executions),
        )


def _executions(path: Path) -> list[ExecutionLine]:
    return [msgspec.json.decode(line, type=ExecutionLine) for line in path.read_bytes().split(b"\n") if line]


def require_few(commands: int, subarrays: int) -> None:
    """Make sure that every command of the run is still in the devices' memory at its end.

    Raises
    ------
    BenchError
        There would be too many.
    """
    if commands > 1900 * subarrays:
        raise BenchError(f"--commands: expected at most {1900 * subarrays} with {subarrays} subarrays, got {commands}")
