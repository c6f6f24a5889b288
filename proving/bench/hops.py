"""A command's and an alert's whole way through the facade, beside the bare hops of the same way."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from facade.clock import SystemClock
from facade.flows.commands.arguments import Arguments
from facade.icd.load import load
from proving.bench import telescope_arguments
from proving.bench.hop_roles import Sample
from proving.bench.load import NODES, RATE, large, stream
from proving.bench.report import Outcome, Quantiles, Verdict, at_most, quantiles
from proving.deployment import Deployment
from proving.testbed import Testbed

BAR = 1.5
"""Times the sum of the bare hops, at p99."""
_WARM_UP = 20_000
"""Records there and back before the first command."""
_SETTLE = 4.0
_LARGE = 512 * 1024
"""Length of the arguments of Table 1 of SDP memo 052 [B]."""
_CHECK_BAR = 0.25
"""Of the check of an argument: half of the time that TM's clients give a call [s]."""
_LARGE_BAR = 1.0
"""Of the outcome of such a command, at p99 (Table 1) [s]."""


def commands(testbed: Testbed, *, quick: bool) -> Outcome:
    """Measure from a Tango call to the event with the command's outcome."""

    def begin(system: Deployment, bare: Deployment) -> str:
        system.play("controller")
        bare.await_ready(bare.play("echo"))
        device = bare.play("bare-device")
        bare.await_ready(device)
        return device.address

    return _measure(
        testbed,
        "commands",
        "Tango call -> durable record -> controller -> final ack -> event in the caller's process",
        "Configure commands, one after the other, to a controller that only reports the new state; between"
        " them, in the same process, the bare hops: a durable Kafka record to another process, two back one after the"
        " other, as ACCEPTED and the outcome are, and a"
        f" Tango call to another process until the event that it sets off. Before all that, {_WARM_UP:,} records"
        " there and back: a broker that has just been started spends a core on compiling itself",
        begin,
        "call-commands",
        200 if quick else 1000,
        _WARM_UP,
    )


def large_commands(testbed: Testbed, *, quick: bool) -> Outcome:
    """Measure commands with arguments of 512 KB, from the Tango call to the event with the outcome."""
    count = 20 if quick else 200
    with testbed.system("large-commands", nodes=NODES) as system, testbed.deployment("large-commands-bare") as bare:
        system.play("controller")
        bare.await_ready(bare.play("echo"))
        device = bare.play("bare-device")
        bare.await_ready(device)
        task: dict[str, Any] = {"bare": device.address, "bare_prefix": bare.settings.prefix, "size": _LARGE}
        client = system.play("call-commands", ends=True, warm_up=_WARM_UP, count=count, **task)
        samples = system.result(client, list[Sample])
    whole = quantiles([s.whole for s in samples])
    found = None if whole is None else whole.p99
    checks = _checks(count)
    return Outcome(
        name="large-commands",
        what=f"as commands, with an argument of {_LARGE // 1024} KiB",
        how=(f"{count} Configure commands, one after the other, quiet; the bare records are as long",),
        verdicts=(
            at_most("p99 of the outcome", found, _LARGE_BAR, "s"),
            *(at_most(f"p50 of a check, {label}", found.p50, _CHECK_BAR, "s") for label, found in checks.items()),
        ),
        notes=(
            hop_notes("quiet", samples),
            *(f"check, {label}: {one.text(1e3, 'ms')}" for label, one in checks.items()),
        ),
        figures={"quiet": samples},
    )


def _checks(count: int) -> dict[str, Quantiles]:
    """Measure how long the check of an argument of a whole telescope takes [s]."""
    arguments, clock, found = Arguments(load()), SystemClock(), dict[str, Quantiles]()
    for telescope, document in telescope_arguments.arguments().items():
        text, seconds = json.dumps(document), list[float]()
        for _ in range(count):
            began = clock.monotonic()
            arguments.check("assignres", text)
            seconds.append(clock.monotonic() - began)
        if (measured := quantiles(seconds)) is not None:
            found[f"AssignResources of {telescope}, {len(text):,} characters"] = measured
    return found


def alerts(testbed: Testbed, *, quick: bool) -> Outcome:
    """Measure from an alert on the bus to its event."""

    def begin(system: Deployment, bare: Deployment) -> str:
        bridge = bare.play("bare-bridge")
        bare.await_ready(bridge)
        return bridge.address

    return _measure(
        testbed,
        "alerts",
        "alert on the bus -> event of lastAlert in another process",
        "alerts, one after the other; between them, through a bare bridge in a process of its own: a"
        " record on Kafka until it is read, and a Tango event until it has come",
        begin,
        "send-alerts",
        300 if quick else 2000,
        0,
    )


def _measure(
    testbed: Testbed,
    name: str,
    what: str,
    how: str,
    begin: Callable[[Deployment, Deployment], str],
    role: str,
    count: int,
    warm_up: int,
) -> Outcome:
    """Measure in quiet, while four nodes notify at full rate, and beside large things."""
    parts: dict[str, Sequence[Sample]] = {}
    with testbed.system(name, nodes=NODES) as system, testbed.deployment(f"{name}-bare") as bare:
        task: dict[str, Any] = {"count": count, "bare": begin(system, bare), "bare_prefix": bare.settings.prefix}

        def run(label: str, warm_up: int = 0) -> None:
            testbed.progress.step(f"  {count} {name}, {label}")
            client = system.play(role, ends=True, warm_up=warm_up, **task)
            parts[label] = system.result(client, list[Sample])

        run("quiet", warm_up)
        stream(system, RATE)
        testbed.progress.wait(_SETTLE, "warm-up")
        run(f"{RATE:,.0f} notifications/s")
        label = large(system)
        testbed.progress.wait(_SETTLE, "warm-up")
        run(label)
        system.processes.check()
    return Outcome(
        name=name,
        what=what,
        how=(f"{count} {how}",),
        verdicts=tuple(verdict for label, samples in parts.items() for verdict in hop_verdicts(label, samples)),
        notes=tuple(hop_notes(label, samples) for label, samples in parts.items()),
        figures=dict(parts),
    )


def hop_verdicts(label: str, samples: Sequence[Sample]) -> list[Verdict]:
    """Judge the whole way beside the bare hops."""
    whole, bare = quantiles([s.whole for s in samples]), quantiles([s.kafka + s.tango for s in samples])
    if whole is None or bare is None:
        return []
    ratio = whole.p99 / bare.p99
    found = f"{ratio:.2f} ({whole.p99 * 1e3:.1f} ms beside {bare.p99 * 1e3:.1f} ms)"
    return [Verdict(what=f"p99 / p99 of the bare hops, {label}", bar=f"<= {BAR:g}", found=found, reached=ratio <= BAR)]


def hop_notes(label: str, samples: Sequence[Sample]) -> str:
    """Say how long the whole way and each of the bare hops took."""

    def text(values: Sequence[float]) -> str:
        found = quantiles(values)
        return "-" if found is None else found.text(1e3, "ms")

    call = f" (the call alone {text([s.call for s in samples])})" if any(s.call for s in samples) else ""
    return (
        f"{label}: the whole way {text([s.whole for s in samples])}{call}; bare hops together"
        f" {text([s.kafka + s.tango for s in samples])} (Kafka {text([s.kafka for s in samples])}; Tango"
        f" {text([s.tango for s in samples])})"
    )
