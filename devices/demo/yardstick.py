"""How slow this machine is, under the demo's own load: a bare device server is started, and limits judged by it.

What a restart takes depends first of all on how fast the machine is and what else it has to do. The start of a
server that has nothing of this project in it suffers from both in the same way, so a limit that grows with it
still finds a restart that has become slow through a fault of ours.
"""

import sys
from collections.abc import Iterable
from typing import Final

import tango

from devices.demo.bare import DEVICE
from devices.demo.options import FLOWS_WITHIN, YARDSTICK
from devices.demo.report import DemoReport
from devices.demo.show import Show
from devices.demo.stage import Stage
from facade.clock import Clock
from facade.infra.ports import HOST, choose_port

NAME: Final = "yardstick"


def slowness(yardsticks: Iterable[float]) -> float:
    """Give the factor on limits of time; a machine that is faster than need be has no shorter ones.

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
    stage.processes.start(NAME, [sys.executable, "-m", "devices.demo.bare", str(port)])
    show.demand(lambda: _answers(device), FLOWS_WITHIN, "yardstick: a device server with nothing in it answers")
    took = clock.monotonic() - began
    stage.processes.kill(NAME)
    report.yardsticks.append(took)
    report.slowness = slowness(report.yardsticks)
    show.patience = max(stage.options.patience, report.slowness)
    show.step(f"yardstick: a device server with nothing in it answers {took:.2f} s after its start")


def _answers(device: str) -> bool:
    try:
        # A proxy of its own each time: one that has failed waits before it tries again.
        tango.DeviceProxy(device).ping()
    except tango.DevFailed:
        return False
    return True
