"""One run: a site, its faults, and what did not hold."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.simulation.controllers import Controllers
from tests.simulation.faults import Fault, draw, plan
from tests.simulation.invariants import ALWAYS, AT_THE_END, IN_SILENCE, NeverFall
from tests.simulation.memory import EACH, Growth
from tests.simulation.shown import NAMED_WITHIN, SILENCE, WholeWindows, unnamed
from tests.simulation.site import FLOWS, GROUPS, Site
from tests.simulation.threads import simulated

SECONDS = 120.0
"""Simulated time of a run with faults [s]."""
SETTLED = 90.0
"""After the last fault all must be right within so long [simulated s]."""
_STEPS_PER_SECOND = 200_000
"""More steps in a simulated second are a loop without end."""

Checks = Sequence[tuple[str, list[str]]]
"""What was found wrong with readings, and the rule."""


@dataclass(slots=True)
class Result:
    """What became of a run."""

    seed: int
    faults: list[Fault]
    failures: list[str] = field(default_factory=list)
    digest: str = ""
    simulated: float = 0.0
    """[s]"""
    cpu: float = 0.0
    """Processor time [s]."""
    steps: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """What the run was about: notifications, commands, alerts."""
    lines: list[str] = field(default_factory=list)
    """Of the time line."""


def run(
    seed: int,
    seconds: float = SECONDS,
    *,
    per_second: float = 1.0,
    faults: list[Fault] | None = None,
    flows: Collection[str] | None = None,
    settled: float = SETTLED,
    controllers: Controllers | None = None,
) -> Result:
    """Run a site for some simulated time with faults, and then until all is right again.

    Parameters
    ----------
    faults
        Exactly these; None: drawn from the seed.
    flows
        What runs; None: drawn from the seed.
    settled
        After the last fault all must be right within so long [simulated s].
    controllers
        Those of the commands; None: drawn from the seed.
    """
    began = time.process_time()
    flows = draw_flows(seed) if flows is None else flows
    site = Site(seed, flows=flows, controllers=controllers)
    with site.trace.logs(), simulated(site.scheduler):
        result = _run(site, seed, seconds, per_second, faults, settled)
    result.cpu = time.process_time() - began
    return result


def draw_flows(seed: int) -> list[str]:
    """Draw what runs: all flows in every fourth run, else one or two, which gives more faults to each."""
    random = Random(f"flows-{seed}")
    chosen = set(random.sample(FLOWS, random.choice((1, 2, 2, len(FLOWS)))))
    return [flow for flow in FLOWS if flow in chosen]


def _run(
    site: Site,
    seed: int,
    seconds: float,
    per_second: float,
    faults: list[Fault] | None,
    settled: float,
) -> Result:
    names = [name for name in site.bodies if not name.startswith("node")]
    groups = [GROUPS[flow] for flow in site.flows if flow in GROUPS] or ["none"]
    if faults is None:
        faults = draw(seed, seconds, per_second, names, groups, site.flows)
    plan(site, faults)
    result, falls, growth = Result(seed, faults), NeverFall(), Growth()
    whole = WholeWindows(site)
    checks = ("totals never fall (rule 3)", falls.found), ("a VALID window is whole (rule 20)", whole.found)
    site.watchers += [falls.watch, whole.watch]
    while site.scheduler.now < seconds and not result.failures:
        _second(site, result, checks)
        if round(site.scheduler.now) % EACH == 0:
            growth.look(site)
    site.network.kills.clear()
    site.network.holds.clear()
    site.network.losses.clear()
    site.network.overtakings.clear()
    for process in site.others:
        process.kill()
    for disk in site.disks.values():
        disk.is_full = disk.kills_in_a_write = False
    site.tabling.store.slow_until = site.tabling.store.away_until = 0.0
    site.fall_quiet()
    until = site.scheduler.now + settled
    wrong = ["not looked at"]
    while wrong and site.scheduler.now < until and not result.failures:
        _second(site, result, checks)
        wrong = [text for one in AT_THE_END for text in one.failures(site)]
    if not result.failures:
        result.failures += wrong or _in_silence(site, result, checks, growth)
    for text in result.failures:
        site.trace.note("WRONG", text)
    result.digest, result.simulated, result.steps = site.trace.digest(), site.scheduler.now, site.scheduler.steps
    result.counts = {
        "notifications": sum(site.sent.values()),
        "commands": len(site.commanding.given),
        "executions": sum(map(len, site.commanding.executed.values())),
        "orders": len(site.controllers.orders),
        "alerts": len(site.alerting.raised),
        "actions about alarms": len(site.alerting.acted),
        "alerts and actions seen": len(site.alerting.seen),
        "tables": len(site.tabling.given),
        "tables whose place was away": site.tabling.unavailable,
        "tables whose place has others": len(site.tabling.failed),
        "tables without room": site.tabling.refused,
        "metrics": site.measuring.sent,
        "states of blocks": site.processing.told,
        "records of logs": site.shipping.severities.total(),
        "records of the mirror": site.mirroring.written,
        "batches on disk": len(site.spooling.kept),
        "events": sum(site.pushed.values()),
    }
    result.lines = list(site.trace.lines)
    for process in [*site.processes.values(), *site.others]:
        process.kill()
    return result


def _in_silence(site: Site, result: Result, checks: Checks, growth: Growth) -> list[str]:
    """Let nothing come for a while, then kill a process and keep it away; return what did not hold."""
    for _ in range(round(SILENCE)):
        _second(site, result, checks)
    wrong = [text for one in IN_SILENCE for text in one.failures(site)]
    wrong += [f"memory is bounded: {text}" for text in growth.found()]
    dead = site.scheduler.random.choice(sorted({*site.servers, *site.workers} - {"control"}))
    site.kill(dead, away=2 * NAMED_WITHIN)
    site.scheduler.run(site.scheduler.now + NAMED_WITHIN)
    return [*wrong, *(f"health names who is dead (rule 2): {text}" for text in unnamed(site, dead))]


def _second(site: Site, result: Result, checks: Checks) -> None:
    steps = site.scheduler.steps
    site.scheduler.run(site.scheduler.now + 1.0)
    result.failures += [text for one in ALWAYS for text in one.failures(site)]
    result.failures += [f"{name}: {text}" for name, found in checks for text in found]
    if site.scheduler.steps - steps > _STEPS_PER_SECOND:
        result.failures.append("every loop ends (rule 19): more than 200,000 steps in a simulated second")
