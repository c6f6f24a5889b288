"""What goes wrong in a demo on purpose, and how long until clients see that it is over."""

from proving.demo.options import FLOWS_WITHIN, SERVER_SETTLES, WORKER_SETTLES
from proving.demo.system import CONTROLLER, SUBARRAY_SERVER, WORKERS, Demo

_RENEWED = 10
"""Devices whose subscriptions are renewed at once; with more of them Tango's own ten seconds are sooner over."""
_DOWN = 1.0
"""How long the worker is away [s]."""


def kill_worker(demo: Demo) -> None:
    """Kill a worker in the middle of a transaction, start it again, and wait for its output."""
    victim = f"aggregate-{WORKERS - 1}"
    began = demo.clock.now()

    def is_back(_: float, started: float) -> bool:
        return demo.tango_side.windows_since(started) and _workers(demo) == WORKERS

    demo.report.worker_recovery = demo.restart(victim, victim, is_back, "data flow", lambda: demo.progress.wait(_DOWN))
    settled = demo.clock.now() + WORKER_SETTLES * demo.progress.patience
    demo.report.restarts.append((began, settled))
    demo.progress.step(
        f"all nodes show data from after that, {demo.report.worker_recovery:.2f} s after the start of {victim}"
    )


def kill_server(demo: Demo) -> None:
    """Kill a device server of ingest nodes, start it again at once, and wait for its values."""
    side = demo.tango_side
    victim = next(name for name in demo.deployment.instances if name.startswith("ingest-"))
    before, killed = side.totals(), demo.clock.now()

    def is_back(began: float, _: float) -> bool:
        totals = side.totals()
        return all(totals.get(node, -1) >= total for node, total in before.items()) and side.windows_since(began)

    demo.report.server_recovery = demo.restart(
        victim, f"the device server {victim}", is_back, "totals and a new window"
    )
    demo.recorder.renew(list(side.nodes.values())[:_RENEWED])
    demo.report.restarts.append((killed, demo.clock.now() + SERVER_SETTLES))
    demo.progress.step(f"its totals and a new window are back, {demo.report.server_recovery:.2f} s after the start")


def kill_subarray_server(demo: Demo) -> None:
    """Kill the device server of the subarrays while a command is executed, and start it again at once."""
    side, command = demo.tango_side, "AssignResources"
    first = _await_execution(demo, command)
    demo.report.subarray_recovery = demo.restart(
        SUBARRAY_SERVER,
        f"the device server {SUBARRAY_SERVER} while {first} executes {command}",
        lambda *_: side.subarrays_known(),
        "state of the subarrays",
    )
    demo.recorder.renew(side.subarrays)
    demo.progress.step(
        f"the subarrays' state and commands are back, {demo.report.subarray_recovery:.2f} s after the start"
    )


def kill_controller(demo: Demo) -> None:
    """Kill the controller in the middle of a command that must not be repeated, and start it again at once."""
    command = "Configure"
    demo.configure_file.touch()
    first = _await_execution(demo, command)
    demo.report.controller_recovery = demo.restart(
        CONTROLLER,
        f"the controller while {first} executes {command}",
        lambda *_: not demo.tango_side.executes(first, command),
        f"an outcome of {command} of {first}",
    )
    demo.progress.step(f"the command has its outcome, {demo.report.controller_recovery:.2f} s after the start")


def _await_execution(demo: Demo, command: str) -> str:
    """Wait until the first subarray executes a command, and return its device."""
    first = demo.tango_side.subarrays[0]
    demo.progress.demand(lambda: demo.tango_side.executes(first, command), FLOWS_WITHIN, f"{first} executes {command}")
    return first


def _workers(demo: Demo) -> int:
    shown = demo.tango_side.bus("workersAlive").get("workersAlive")
    return 0 if shown is None or shown.value is None else int(shown.value)
