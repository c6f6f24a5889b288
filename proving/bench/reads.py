"""How fast a client gets answers: under load, with the broker killed, back, frozen, and thawed."""

from collections.abc import Iterable
from itertools import pairwise

from proving.bench.client_roles import Call
from proving.bench.load import NODES, RATE, stream
from proving.bench.report import Outcome, Quantiles, Verdict, at_most, quantiles
from proving.deployment import Deployment
from proving.testbed import Testbed

P99_BAR = 5.0
"""[ms]."""
LONGEST_BAR = 500.0
"""TM's clients give a call so long [ms]."""

_PAUSE = 0.001
_WARM_UP = 4.0


Phases = list[tuple[str, float]]
"""Name and begin [Unix s] of each phase."""


def reads(testbed: Testbed, *, quick: bool) -> Outcome:
    """Read everything again and again while the bus has its troubles."""
    calm, trouble = (12.0, 6.0) if quick else (40.0, 15.0)
    with testbed.system("reads", nodes=NODES) as running:
        devices = running.devices()
        client = running.play("read", devices=devices, pause=_PAUSE)
        running.await_ready(client)
        stream(running, RATE)
        testbed.progress.wait(_WARM_UP, "warm-up")
        phases = _troubles(running, calm, trouble)
        running.processes.check()
        client.call_off()
        calls = running.result(client, list[Call], 30.0)
    by_phase = {name: list(part) for name, part in divide(calls, phases)}
    return Outcome(
        name="reads",
        what="time to answer of State(), read_attribute and read_attributes, by what the bus is doing",
        how=(
            f"{NODES} nodes, {RATE:,.0f} notifications/s together; one client reads all {len(devices)} devices in turn:"
            f" each attribute, all attributes at once, State() after every fifth; {_PAUSE * 1000:g} ms between calls",
            f"{calm:g} s under load, then {trouble:g} s each: broker killed (SIGKILL), started again, frozen (SIGSTOP),"
            " thawed",
        ),
        verdicts=tuple(_verdicts(by_phase)),
        notes=tuple(f"{name}: {_in_words(part)}" for name, part in by_phase.items()),
        figures={name: _figures(part) for name, part in by_phase.items()},
    )


def _troubles(running: Deployment, calm: float, trouble: float) -> Phases:
    phases, broker = Phases(), running.broker

    def phase(name: str, seconds: float) -> None:
        phases.append((name, running.clock.now()))
        running.progress.wait(seconds, name)

    phase("under load", calm)
    broker.kill()
    phase("broker killed", trouble)
    broker.start()
    phase("broker back", trouble)
    with broker.frozen():
        phase("broker frozen", trouble)
    phase("broker thawed", trouble)
    phases.append(("", running.clock.now()))
    return phases


def divide(calls: Iterable[Call], phases: Phases) -> Iterable[tuple[str, list[Call]]]:
    """Return the calls that began in each phase; the last entry of the phases is the end of the one before."""
    kept = list(calls)
    for (name, begin), (_, end) in pairwise(phases):
        yield name, [call for call in kept if begin <= call.began < end]


def _verdicts(by_phase: dict[str, list[Call]]) -> Iterable[Verdict]:
    usual = by_phase.get("under load", [])
    for kind in ("State()", "read_attribute", "read_attributes"):
        found = _spread(call for call in usual if call.kind == kind)
        yield at_most(f"{kind} p99 under load", found.p99 * 1000 if found else None, P99_BAR, "ms")
    for name, part in by_phase.items():
        found = _spread(part)
        yield at_most(f"longest answer, {name}", found.highest * 1000 if found else None, LONGEST_BAR, "ms")
    failed = sum(call.failed for part in by_phase.values() for call in part)
    yield Verdict(what="calls that failed", bar="0", found=str(failed), reached=failed == 0)


def _spread(calls: Iterable[Call]) -> Quantiles | None:
    return quantiles([call.seconds for call in calls])


def _in_words(part: list[Call]) -> str:
    kinds = {kind: _spread(call for call in part if call.kind == kind) for kind in dict.fromkeys(c.kind for c in part)}
    return "; ".join(f"{kind} {found.text(1000, 'ms')}" for kind, found in kinds.items() if found) or "no calls"


def _figures(part: list[Call]) -> dict[str, Quantiles | int | None]:
    kinds = dict.fromkeys(call.kind for call in part)
    return {
        **{kind: _spread(call for call in part if call.kind == kind) for kind in kinds},
        "failed": sum(call.failed for call in part),
    }
