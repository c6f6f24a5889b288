"""What goes wrong in a demo on purpose, and how long until clients see that it is over."""

from clients.events import EventRecorder
from facade.clock import Clock
from proving.demo.options import FLOWS_WITHIN, SERVER_SETTLES, WORKER_SETTLES
from proving.demo.report import DemoReport, Kill
from proving.demo.show import Show
from proving.demo.stage import CONTROLLER, SUBARRAY_SERVER, WORKERS, Stage

_RENEWED = 10
"""Devices whose subscriptions are renewed at once; with more of them Tango's own ten seconds are sooner over."""
_DOWN = 1.0
"""How long the worker is away [s]."""


def kill_worker(stage: Stage, show: Show, report: DemoReport, clock: Clock) -> None:
    """Kill a worker in the middle of a transaction, start it again, and wait for its output.

    Raises
    ------
    InfraError
        Its output does not come back.
    """
    victim, side = WORKERS[1], stage.tango_side
    began = clock.now()
    stage.processes.kill(victim)
    report.kills.append(Kill(began, victim))
    show.step(f"kill -9 {victim}")
    show.wait(_DOWN)
    stage.processes.start_again(victim)
    started = clock.now()
    show.step(f"{victim} started again")
    show.demand(
        lambda: side.windows_since(started) and _workers(stage) == len(WORKERS),
        FLOWS_WITHIN,
        f"data flow again after the restart of {victim}",
    )
    report.worker_recovery = clock.now() - started
    report.restarts.append((began, clock.now() + WORKER_SETTLES * show.patience))
    show.step(f"all nodes show data from after that, {report.worker_recovery:.2f} s after the start")


def kill_server(stage: Stage, show: Show, report: DemoReport, recorder: EventRecorder, clock: Clock) -> None:
    """Kill a device server of ingest nodes, start it again at once, and wait for its values.

    Raises
    ------
    InfraError
        They do not come back.
    """
    side = stage.tango_side
    victim = next(name for name in stage.instances if name.startswith("ingest-"))
    before = side.totals()
    began = clock.now()
    stage.processes.kill(victim)
    report.kills.append(Kill(began, victim))
    show.step(f"kill -9 the device server {victim}")
    stage.processes.start_again(victim)
    started = clock.now()

    def is_back() -> bool:
        totals = side.totals()
        return all(totals.get(node, -1) >= total for node, total in before.items()) and side.windows_since(began)

    show.demand(is_back, FLOWS_WITHIN, f"totals and a new window after the restart of {victim}")
    report.server_recovery = clock.now() - started
    recorder.renew(list(side.nodes.values())[:_RENEWED])
    report.restarts.append((began, clock.now() + SERVER_SETTLES))
    show.step(f"its totals and a new window are back, {report.server_recovery:.2f} s after the start")


def kill_subarray_server(stage: Stage, show: Show, report: DemoReport, recorder: EventRecorder, clock: Clock) -> None:
    """Kill the device server of the subarrays while a command is executed, and start it again at once.

    Raises
    ------
    InfraError
        No command is executed, or the subarrays' state does not come back.
    """
    side, command = stage.tango_side, "AssignResources"
    first = side.subarrays[0]
    show.demand(lambda: side.executes(first, command), FLOWS_WITHIN, f"{first} executes {command}")
    report.kills.append(Kill(clock.now(), SUBARRAY_SERVER))
    stage.processes.kill(SUBARRAY_SERVER)
    show.step(f"kill -9 the device server {SUBARRAY_SERVER} while {first} executes {command}")
    stage.processes.start_again(SUBARRAY_SERVER)
    started = clock.now()
    show.demand(side.subarrays_known, FLOWS_WITHIN, f"state of the subarrays after the restart of {SUBARRAY_SERVER}")
    report.subarray_recovery = clock.now() - started
    recorder.renew(side.subarrays)
    show.step(f"the subarrays' state and commands are back, {report.subarray_recovery:.2f} s after the start")


def kill_controller(stage: Stage, show: Show, report: DemoReport, clock: Clock) -> None:
    """Kill the controller in the middle of a command that must not be repeated, and start it again at once.

    Raises
    ------
    InfraError
        The command is not executed, or has no outcome after that.
    """
    side, command = stage.tango_side, "Configure"
    first = side.subarrays[0]
    show.demand(lambda: side.executes(first, command), FLOWS_WITHIN, f"{first} executes {command}")
    report.kills.append(Kill(clock.now(), CONTROLLER))
    stage.processes.kill(CONTROLLER)
    show.step(f"kill -9 the controller while {first} executes {command}")
    stage.processes.start_again(CONTROLLER)
    started = clock.now()
    show.demand(lambda: not side.executes(first, command), FLOWS_WITHIN, f"an outcome of {command} of {first}")
    report.controller_recovery = clock.now() - started
    show.step(f"the command has its outcome, {report.controller_recovery:.2f} s after the start")


def _workers(stage: Stage) -> int:
    shown = stage.tango_side.bus("workersAlive").get("workersAlive")
    return 0 if shown is None or shown.value is None else int(shown.value)
