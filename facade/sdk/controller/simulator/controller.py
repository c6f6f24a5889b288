"""The reference controller: executes the commands of simulated subarrays and of SDP as a whole, with faults on request.

It stores nothing: the state of a subarray is its last report, so the controller may be killed at any time.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from facade.flows.blocks.source import BlockSource
from facade.flows.reservations.source import ReservationSource
from facade.kernel.bus.port import Record, Writer
from facade.kernel.clock import Clock, Time, as_seconds
from facade.kernel.config import MOST_SUBARRAYS
from facade.kernel.errors import ConfigError, FacadeError
from facade.kernel.icd.model import CommandDefinition, Icd
from facade.sdk.controller.api import Controller, Rejected
from facade.sdk.controller.call import Call
from facade.sdk.controller.simulator import observation
from facade.sdk.controller.simulator.faults import ControllerFault, FaultyWriter
from facade.sdk.controller.simulator.observation import Receptors, Subarray

_log = logging.getLogger(__name__)

CRASHED = 70
"""Exit code of a simulated crash."""
_SLOW = 10.0
_LATE = 2.0
_STEPS = 4
_SECONDS = {
    "AssignResources": 2.0,
    "Configure": 1.5,
    "ReleaseResources": 1.0,
    "ReleaseAllResources": 1.0,
    "Restart": 1.0,
}
_QUICK = 0.3
"""Duration of other commands [s]."""


SUBARRAY, MASTER = "SdpSubarray", "SdpMaster"
PROCESSING, WORKER = "ProcessingController", "ProcessingWorker"
ORDERED = (SUBARRAY, PROCESSING, WORKER)
"""Classes and executors that get orders."""
_CASCADE = {"On": ("On", "ON"), "Off": ("Off", "OFF"), "Standby": ("Off", "OFF")}
"""For each command of SDP as a whole: the command of a subarray, and the State that makes it unnecessary."""
_BELOW = {"Configure": (PROCESSING, "Prepare"), "Prepare": (WORKER, "Load")}


class SimulatedFailure(FacadeError):
    """A failure on request."""


class ExecutionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One execution in the report."""

    id: str
    command: str
    device: str
    begun_at: Time
    not_after: Time
    repeatable: bool
    again: bool
    """Whether an earlier execution was interrupted."""


class SimulatedController:
    """Handlers for all commands of the ICD.

    Parameters
    ----------
    executes
        Device classes and executors whose commands it executes; empty: the device classes, or with orders all.
    orders
        Whether commands lead to orders; see `facade.sdk.controller.simulator.controller`.
    receptors
        Existing receptors: others, and those of another subarray, are refused; none: all exist.
    report
        File for a line about each execution, written before it has any effect.
    speed
        Speed relative to a real SDP.
    """

    def __init__(
        self,
        icd: Icd,
        *,
        component: str,
        faults: Sequence[ControllerFault],
        report: Path | None,
        seed: int,
        speed: float,
        clock: Clock,
        executes: Sequence[str] = (),
        orders: bool = False,
        receptors: Sequence[str] = (),
    ) -> None:
        self._faults, self._seed, self._speed, self._clock = faults, seed, speed, clock
        self._commands = {(name, c.name): c for name in (SUBARRAY, MASTER) for c in icd.classes[name].commands}
        self._orders = orders
        self._receptors = Receptors(receptors)
        template = icd.classes[SUBARRAY].device
        self._subarrays = [template.format(subarray=number) for number in range(1, MOST_SUBARRAYS + 1)]
        self._report = None
        if report is not None:
            self._report = os.open(report, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        executes = executes or ((SUBARRAY, MASTER, PROCESSING, WORKER) if orders else (SUBARRAY, MASTER))
        self.controller = Controller(component, *executes, orders=ORDERED if orders else ())
        for commands in self.controller.commands(icd).values():
            self.controller.command(*(one for one in commands if one not in self.controller.handlers))(self._execute)
        known = set(self.controller.handlers)
        if strange := {fault.command for fault in faults} - known - {""}:
            raise ConfigError(f"fault: expected one of the commands {', '.join(sorted(known))}, got {strange.pop()!r}")

    def through(self, writer: Writer) -> Writer:
        """Return a writer whose acknowledgements have the requested faults."""
        return FaultyWriter(writer, self.faults_of)

    def faults_of(self, command_id: str, command: str) -> set[str]:
        """Return the kinds of faults of a command."""
        return {fault.kind for fault in self._faults if fault.strikes(self._seed, command_id, command)}

    def _execute(self, call: Call) -> None:
        faults = self.faults_of(call.id, call.command)
        if "reject" in faults:
            raise Rejected("simulated refusal")
        before = observation.subarray(call, again=call.again)  # SDP as a whole and executors have an empty one
        command, changes = self._plan(call, before)
        with self._receptors.claimed(call, changes, self._subarrays):
            self._carry_out(call, before, command, changes, faults)

    def _carry_out(
        self,
        call: Call,
        before: Subarray,
        command: CommandDefinition | None,
        changes: dict[str, Any],
        faults: set[str],
    ) -> None:
        self._write_line(call)
        if command is not None and command.transitional is not None:
            call.report(**{command.reports: command.transitional})
        while "hang" in faults:
            call.wait(60.0)
        if "crash-before" in faults and not call.again:
            self._crash(call)
        if self._orders:
            self._give_orders(call)
        tell = self._telling(call, before, str(changes.get("ebID") or before.eb_id or ""))
        tell(observation.begin_blocks(call.command, call.argument))
        self._work(call, _SLOW if "slow" in faults else 1.0)
        if "fail" in faults:
            raise SimulatedFailure(f"simulated failure of {call.command}")
        # One wait for both, before the outcome: a crash in between repeats the command.
        tell(observation.end_blocks(before, call.command, call.argument, changes), changes)
        if "fail-block" in faults and (failed := observation.fail_block(before)) is not None:
            tell([failed[0]])
            changes = {**failed[1], **changes}
        if changes:
            call.report(**changes)
        if "crash-after" in faults and not call.again:
            call.confirm()
            self._crash(call)
        if "late-acks" in faults:
            call.wait(max(as_seconds(call.message.deadline - self._clock.now_us()) + _LATE, 0.0))

    def _give_orders(self, call: Call) -> None:
        """Give the orders of a command, and wait until all are COMPLETED.

        On, Off and Standby of SDP as a whole go to the subarrays that are in another State. Configure goes to the
        processing controller of the subarray, and from there to its worker.
        """
        if call.command in _CASCADE and "subarray" not in call.device:
            command, state = _CASCADE[call.command]
            behind = [device for device in call.ordered(SUBARRAY) if call.reported_of(device, "State") != state]
            call.follow(call.orders(*((device, command, None) for device in behind)))
        elif call.command in _BELOW:
            executor, command = _BELOW[call.command]
            number = call.device.rpartition("/")[2]
            wanted = [device for device in call.ordered(executor) if device.rpartition("/")[2] == number]
            argument = {"scan_type": call.argument["scan_type"]}
            call.follow(call.orders(*((device, command, argument) for device in wanted)))

    def _plan(self, call: Call, before: Subarray) -> tuple[CommandDefinition | None, dict[str, Any]]:
        """Return a command and the attributes that it changes; an executor has none."""
        if "subarray" in call.device:
            return self._commands[SUBARRAY, call.command], observation.COMMANDS[call.command](before, call.argument)
        command = self._commands.get((MASTER, call.command))
        return command, {} if command is None else {command.reports: command.targets[0]}

    def _telling(self, call: Call, before: Subarray, eb_id: str) -> Callable[..., None]:
        """Return a function that publishes states of processing blocks, and the command's reservation."""
        records: list[Record] = []
        told_of = BlockSource(self.controller.component, records.append, self._clock)
        reserved = ReservationSource(self.controller.component, records.append, self._clock)

        def tell(told: Iterable[observation.BlockState], changes: Mapping[str, Any] = MappingProxyType({})) -> None:
            for one in told if eb_id else ():
                told_of.tell(one.pb_id, eb_id, before.number, one.kind, one.state, **one.more)
            observation.reserve_receptors(reserved, before, changes)
            call.publish(*records)
            records.clear()

        return tell

    def _work(self, call: Call, factor: float) -> None:
        """Take as long as SDP would, with progress for long commands."""
        seconds = _SECONDS.get(call.command, _QUICK) * factor / self._speed
        if call.command not in _SECONDS and factor == 1.0:
            call.wait(seconds)
            return
        for step in range(1, _STEPS + 1):
            call.wait(seconds / _STEPS)
            if step < _STEPS:
                call.progress(100 * step / _STEPS, seconds * (1 - step / _STEPS))

    def _crash(self, call: Call) -> None:
        _log.error("simulated crash id=%s", call.id)
        os._exit(CRASHED)

    def _write_line(self, call: Call) -> None:
        if self._report is None:
            return
        line = ExecutionLine(
            id=call.id,
            command=call.command,
            device=call.device,
            begun_at=self._clock.now_us(),
            not_after=call.message.not_after,
            repeatable=call.message.repeatable,
            again=call.again,
        )
        os.write(self._report, msgspec.json.encode(line) + b"\n")
