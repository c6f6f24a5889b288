"""How slow this machine is, under the demo's own load: a bare device server is started, and limits judged by it.

What a restart takes depends first of all on how fast the machine is and what else it has to do. The start of a
server that has nothing of this project in it suffers from both in the same way, so a limit that grows with it
still finds a restart that has become slow through a fault of ours.
"""

import sys
from collections.abc import Iterable
from typing import Final

import tango

from facade.clock import Clock
from facade.infra.ports import HOST, choose_port
from proving.demo.bare import DEVICE
from proving.demo.options import FLOWS_WITHIN, YARDSTICK
from proving.demo.report import DemoReport
from proving.demo.show import Show
from proving.demo.stage import Stage

NAME: Final = "baseline"


def slowness(yardsticks: Iterable[float]) -> float:
    """Return the factor on limits of time; a machine that is faster than need be has no shorter ones.

    Parameters
    ----------
    yardsticks
        How long the bare server took each time [s]. The longest counts: the load of a machine changes.
    """
    return max([1.0, *(one / YARDSTICK for one in yardsticks)])


def measure(stage: Stage, show: Show, report: DemoReport, clock: Clock) -> None:
    """Start the bare server, wait for its first answer, and end it.

    Raises
    ------
    InfraError
        It does not answer.
    """
    port = choose_port()
    device = f"tango://{HOST}:{port}/{DEVICE}#dbase=no"
    began = clock.monotonic()
    stage.processes.start(NAME, [sys.executable, "-m", "proving.demo.bare", str(port)])
    show.demand(lambda: _answers(device), FLOWS_WITHIN, "baseline: a device server with nothing in it answers")
    took = clock.monotonic() - began
    stage.processes.kill(NAME)
    report.yardsticks.append(took)
    report.slowness = slowness(report.yardsticks)
    show.patience = max(stage.options.patience, report.slowness)
    show.step(f"baseline: a device server with nothing in it answers {took:.2f} s after its start")


def _answers(device: str) -> bool:
    try:
        # A proxy of its own each time: one that has failed waits before it tries again.
        tango.DeviceProxy(device).ping()
    except tango.DevFailed:
        return False
    return True
