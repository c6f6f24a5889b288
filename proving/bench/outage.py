"""How soon callers are refused, and processes end, while no broker answers."""

from collections.abc import Callable, Sequence
from typing import Any

import tango

from facade.infra.processes import Process
from proving.bench.report import Outcome, Verdict, at_most
from proving.deployment import Deployment
from proving.testbed import Testbed

ANSWER_BAR = 500.0
"""TM's clients give a call so long [ms]."""
END_BAR = 5.0
"""From SIGTERM to the end of a process [s]; supervisors kill after ten."""


def outage(testbed: Testbed, *, quick: bool) -> Outcome:
    """Give commands and write adminMode while the broker is frozen, then killed; end all processes without it."""
    calls = 10 if quick else 40
    with testbed.system("outage", nodes=1, subarrays=1) as running:
        (master,), (subarray,) = running.devices("SdpMaster"), running.devices("SdpSubarray")
        one, other = running.proxy(master), running.proxy(subarray)
        running.progress.demand(lambda: _may_command(one) and _may_command(other), 60.0, "commands may be given")
        tried: dict[str, Callable[[], Any]] = {
            "a command": lambda: other.command_inout("On"),
            "adminMode": lambda: one.write_attribute("adminMode", 1),
        }
        with running.broker.frozen():
            took = {f"{name}, broker frozen": _refused(running, call, calls) for name, call in tried.items()}
        running.broker.kill()
        try:
            took |= {f"{name}, broker killed": _refused(running, call, calls) for name, call in tried.items()}
            ends = {process.name: _end(running, process) for process in list(running.processes)}
        finally:
            running.broker.start()
    slowest = max(ends, key=lambda name: ends[name])
    return Outcome(
        name="outage",
        what="time until a call is refused, and until a process has ended after SIGTERM, with no broker to ask",
        how=(f"{calls} calls each, one after the other; then SIGTERM to {len(ends)} processes, one after the other",),
        verdicts=(
            *(at_most(f"longest refusal of {name}", _longest(part), ANSWER_BAR, "ms") for name, part in took.items()),
            at_most(f"longest end ({slowest})", ends[slowest], END_BAR, "s"),
            Verdict(
                what="calls that were taken",
                bar="0",
                found=str(sum(calls - len(part) for part in took.values())),
                reached=all(len(part) == calls for part in took.values()),
            ),
        ),
        figures={"refusals": took, "ends": ends},
    )


def _may_command(proxy: Any) -> bool:
    refused = any("commands are refused" in line for line in proxy.healthInfo or ())
    return bool(proxy.state() != tango.DevState.UNKNOWN) and not refused


def _refused(running: Deployment, call: Callable[[], Any], calls: int) -> list[float]:
    """Return how long each call took that was refused [s]."""
    took = []
    for _ in range(calls):
        begin = running.clock.monotonic()
        try:
            call()
        except tango.DevFailed:
            took.append(running.clock.monotonic() - begin)
    return took


def _end(running: Deployment, process: Process) -> float:
    begin = running.clock.monotonic()
    process.stop(60.0)
    return running.clock.monotonic() - begin


def _longest(seconds: Sequence[float]) -> float | None:
    return max(seconds) * 1e3 if seconds else None
