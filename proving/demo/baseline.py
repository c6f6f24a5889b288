"""How slow this machine is, under the demo's own load: a bare device server is started, and limits judged by it.

What a restart takes depends first of all on how fast the machine is and what else it has to do. The start of a
server that has nothing of this project in it suffers from both in the same way, so a limit that grows with it
still finds a restart that has become slow through a fault of ours.
"""

import sys
from collections.abc import Iterable
from typing import Final

from facade.infra.ports import HOST, choose_port
from proving.demo.bare import DEVICE
from proving.demo.options import BASELINE
from proving.demo.system import Demo
from proving.deployment import answers

NAME: Final = "baseline"
_ANSWERS_WITHIN: Final = 120.0
"""Longest wait for the bare server [s]: how slow the machine is, is not known before."""


def slowness(baselines: Iterable[float]) -> float:
    """Return the factor on limits of time; a machine that is faster than need be has no shorter ones.

    Parameters
    ----------
    baselines
        How long the bare server took each time [s]. The longest counts: the load of a machine changes.
    """
    return max([1.0, *(one / BASELINE for one in baselines)])


def measure(demo: Demo, *, judges: bool = True) -> None:
    """Start the bare server, wait for its first answer, and end it; waits last the longer, the longer that took.

    Parameters
    ----------
    judges
        Whether limits are judged by it as well. While all else starts, the machine is slower than later on.

    Raises
    ------
    InfraError
        It does not answer.
    """
    port, report = choose_port(), demo.report
    address, device = f"{HOST}:{port}", f"{DEVICE}#dbase=no"
    began = demo.clock.monotonic()
    demo.deployment.start(NAME, [sys.executable, "-m", "proving.demo.bare", str(port)])
    what = "baseline: a device server with nothing in it answers"
    demo.progress.demand(lambda: answers(address, device), _ANSWERS_WITHIN, what)
    took = demo.clock.monotonic() - began
    demo.processes.kill(NAME)
    if judges:
        report.baselines.append(took)
        report.slowness = slowness(report.baselines)
    demo.progress.patience = max(demo.progress.patience, slowness([took]))
    demo.progress.step(f"{what} {took:.2f} s after its start")
