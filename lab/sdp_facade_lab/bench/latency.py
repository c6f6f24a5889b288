"""How late things are shown: from a notification to an event, with as many nodes and devices as possible, and reads."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import tango

from sdp_facade_lab.bench.delays import Delays, Watched, delays_of, keys_of, read_times
from sdp_facade_lab.bench.listening import HeardEvent, Listening, listen
from sdp_facade_lab.bench.load import NODES, RATE, SIMULATOR, stream
from sdp_facade_lab.bench.report import BarVerdict, BenchOutcome, Quantiles, at_most, none_of, quantiles
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.gauges import in_words
from sdp_facade_lab.roles import RoleContext
from sdp_facade_lab.testbed import Testbed

_STATE_EACH = 5
"""Attributes read between two calls of State(); few, so that there are enough answers for a p99."""


class TimedCall(msgspec.Struct, frozen=True, array_like=True):
    """One answer, or its failure."""

    kind: str
    began: float
    """[Unix s]."""
    seconds: float
    failed: bool


def read(context: RoleContext, *, devices: list[str], pause: float) -> list[TimedCall]:
    """Ask for State(), each attribute, and all at once, of one device after the other until called off."""
    proxies = {device: tango.DeviceProxy(f"tango://{context.tango_host}/{device}") for device in devices}
    calls: list[tuple[str, Callable[[], Any]]] = []
    for proxy in proxies.values():
        names = list(proxy.get_attribute_list())
        for number, name in enumerate(names):
            if number % _STATE_EACH == 0:
                calls.append(("State()", proxy.state))
            calls.append(("read_attribute", partial(proxy.read_attribute, name)))
        calls.append(("read_attributes", partial(proxy.read_attributes, names)))
    context.announce()
    made: list[TimedCall] = []
    for kind, call in itertools.cycle(calls):
        if context.called_off:
            break
        began, begin, failed = context.clock.now(), context.clock.monotonic(), False
        try:
            call()
        except tango.DevFailed:
            failed = True
        made.append(TimedCall(kind, began, context.clock.monotonic() - begin, failed))
        context.clock.sleep(pause)
    return made


ATTRIBUTE = "latencyMean"
"""A window's figure that differs from window to window, hence comes as an event for each."""
SLACK = 0.3
"""How much later than the end of its window a notification may be seen [s]."""
WARM_UP = 5.0
_WINDOW: Final = 1.0
"""Length of the windows of heap notifications [s]."""
_FOLLOWED: Final = 10
"""Most nodes whose notifications are all read back."""


def latency(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    seconds = 12.0 if quick else 30.0
    with testbed.system("latency", nodes=NODES) as running:
        heard = listen(running, _of_nodes(running, ATTRIBUTE), RATE, seconds, warm_up=WARM_UP)
        found = quantiles(_delays(running, heard))
    return BenchOutcome(
        what="each notification: from its own time to the Tango event of the window that holds it",
        verdicts=(
            at_most("p99, notification to event", found.p99 if found else None, _WINDOW + SLACK, "s"),
            BarVerdict("all, notification to event", found.text(1, "s") if found else "-"),
        ),
        notes=(
            f"the sender slipped by {heard.sent.slipped:.2f} s; the client got {heard.listened.errors} errors"
            f" ({heard.listened.last_error}) and {heard.listened.invalid} invalid values",
            in_words(heard.cores),
        ),
    )


def _of_nodes(running: Deployment, *attributes: str) -> dict[str, list[str]]:
    return {device: [*attributes] for device in running.devices("SdpIngestNode")}


def _delays(running: Deployment, heard: Listening) -> Delays:
    """Return the delays of all notifications of some nodes."""
    nodes = running.devices("SdpIngestNode")
    chosen = [
        Watched("ingest.heaps", f"{number}", nodes[number], ATTRIBUTE, _WINDOW)
        for number in range(0, len(nodes), -(-len(nodes) // _FOLLOWED))
    ]
    sent = read_times(running.connection, keys_of(chosen), lambda reader: reader.caught_up("ingest.heaps"))
    return np.concatenate([*delays_of(heard, chosen, sent).values()])


P99_BAR = 5.0
"""[ms]."""
LONGEST_BAR = 500.0
"""Time-out of a call by TM's clients [ms]."""

_PAUSE = 0.001
_WARM_UP = 4.0


PhaseTimes = list[tuple[str, float]]
"""Name and begin [Unix s] of each phase."""


def reads(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    calm, trouble = (12.0, 6.0) if quick else (40.0, 15.0)
    with testbed.system("reads", nodes=NODES) as running:
        devices = running.devices()
        client = running.play(read, devices=devices, pause=_PAUSE)
        running.await_ready(client)
        stream(running, RATE)
        testbed.progress.wait(_WARM_UP, "warm-up")
        phases = _troubles(running, calm, trouble)
        running.processes.check()
        client.call_off()
        calls = running.result(client, list[TimedCall], 30.0)
    by_phase = {name: list(part) for name, part in divide(calls, phases)}
    return BenchOutcome(
        what="time to answer of State(), read_attribute and read_attributes, by what the bus is doing",
        verdicts=tuple(_verdicts(by_phase)),
        notes=tuple(f"{name}: {_in_words(part)}" for name, part in by_phase.items()),
    )


def _troubles(running: Deployment, calm: float, trouble: float) -> PhaseTimes:
    phases, broker = PhaseTimes(), running.broker

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


def divide(calls: Iterable[TimedCall], phases: PhaseTimes) -> Iterable[tuple[str, list[TimedCall]]]:
    """Return the calls that began in each phase; the last entry of the phases is the end of the one before."""
    kept = list(calls)
    for (name, begin), (_, end) in pairwise(phases):
        yield name, [call for call in kept if begin <= call.began < end]


def _verdicts(by_phase: dict[str, list[TimedCall]]) -> Iterable[BarVerdict]:
    usual = by_phase.get("under load", [])
    for kind in ("State()", "read_attribute", "read_attributes"):
        found = _spread(call for call in usual if call.kind == kind)
        yield at_most(f"{kind} p99 under load", found.p99 * 1000 if found else None, P99_BAR, "ms")
    for name, part in by_phase.items():
        found = _spread(part)
        yield at_most(f"longest answer, {name}", found.highest * 1000 if found else None, LONGEST_BAR, "ms")
    failed = sum(call.failed for part in by_phase.values() for call in part)
    yield none_of("calls that failed", failed)


def _spread(calls: Iterable[TimedCall]) -> Quantiles | None:
    return quantiles([call.seconds for call in calls])


def _in_words(part: list[TimedCall]) -> str:
    kinds = {kind: _spread(call for call in part if call.kind == kind) for kind in dict.fromkeys(c.kind for c in part)}
    return "; ".join(f"{kind} {found.text(1000, 'ms')}" for kind, found in kinds.items() if found) or "no calls"


NODE_RATE: Final = 31_800.0
"""Heaps/s of a node."""
_STEPS: Final = (25, 40, 50, 60, 80, 100)
_SENDERS: Final = 2
"""Simulators, each with half of the nodes: in one process a node would wait for all others before it sends."""
_DRAINS_WITHIN: Final = 60.0


def live(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    notes: list[str] = []
    found = {form: _held(testbed, notes, quick=quick, summed=form == "summed") for form in ("columns", "summed")}
    return BenchOutcome(
        what="nodes at 31,800 notifications/s each, as columnar batches, with all that belongs to them on this machine",
        verdicts=tuple(
            BarVerdict(f"nodes held, {form}", f"{held} ({held * NODE_RATE:,.0f}/s)", bar="≥ 100", reached=held >= 100)
            for form, held in found.items()
        ),
        notes=tuple(notes),
    )


def _held(testbed: Testbed, notes: list[str], *, quick: bool, summed: bool) -> int:
    """Return the most nodes that are shown in time; `summed`: whether producers sum up their batches."""
    seconds, held, form = 10.0 if quick else 20.0, 0, "summed " * summed
    for nodes in _STEPS[::2] if quick else _STEPS:
        with testbed.system(f"live-{'summed-' * summed}{nodes}", nodes=nodes) as running:
            heard = listen(
                running,
                _of_nodes(running, ATTRIBUTE),
                nodes * NODE_RATE,
                seconds,
                warm_up=WARM_UP,
                columnar=True,
                summed=summed,
                senders=_SENDERS,
            )
            exact = _is_exact(running, heard)
            delays = _delays(running, heard)
        spread = quantiles(delays)
        p99 = spread.p99 if spread else float("inf")
        kept = heard.sent.slipped == 0
        notes.append(
            f"{form}{nodes} nodes, {nodes * NODE_RATE:,.0f}/s: p99 {p99:.2f} s,"
            f" {np.isinf(delays).sum():,} of {len(delays):,} in windows without an event,"
            f" sender slipped by {heard.sent.slipped:.2f} s,"
            f" totals {'exact' if exact else 'NOT exact'}; {in_words(heard.cores)}"
        )
        testbed.progress.step(f"  {notes[-1]}")
        if not (exact and kept):
            break  # more nodes would only be further beyond what the machine can
        if p99 <= _WINDOW + SLACK:
            held = nodes
    return held


def _is_exact(running: Deployment, heard: Listening) -> bool:
    proxies = list(map(running.proxy, running.devices("SdpIngestNode")))
    expected = [heard.sent.nodes[str(number)].used for number in range(len(proxies))]

    def is_reached() -> bool:
        return [proxy.read_attribute("heapsTotal").value for proxy in proxies] == expected

    return running.progress.wait_until(is_reached, _DRAINS_WITHIN) is not None


ALL_NODES = 1500
_SCALES: Final = (("JSON", 375), ("columnar", 375), ("JSON", 50))
"""Form of the notifications, and nodes of each device server.

With 375 there are as many servers as the summary topic has partitions, so that none reads another's. A site has 30 of
50 nodes, spread over its hosts: here they share the cores, so this row measures the scheduler as well.
"""
RATE_PER_NODE = 10.0
"""A node's real 31,800/s is the workers' business; a device sees one window per second whatever the rate."""
ATTRIBUTES = ("heapsTotal", "latencyMean")

_SCALE_WARM_UP = 8.0
_NOT_OURS = ("hear", SIMULATOR)
"""Processes that play the client and the nodes."""


def scale(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    seconds = 15.0 if quick else 40.0
    runs = [_run(testbed, form, rack, seconds) for form, rack in _SCALES]
    return BenchOutcome(
        what=f"{ALL_NODES:,} SdpIngestNode devices on one machine, each to be updated at 1 Hz;"
        f" {RATE_PER_NODE:g} notifications/s of each node, and {ALL_NODES * len(ATTRIBUTES):,} attributes watched",
        verdicts=tuple(verdict for verdicts, _ in runs for verdict in verdicts),
        notes=tuple(note for _, notes in runs for note in notes),
    )


def _run(testbed: Testbed, form: str, rack: int, seconds: float) -> tuple[Sequence[BarVerdict], Sequence[str]]:
    clock = testbed.progress.clock
    began = clock.monotonic()
    with testbed.system(f"scale-{form.lower()}-{rack}", within=180.0, nodes=ALL_NODES, rack_size=rack) as running:
        start = clock.monotonic() - began
        rate, watched, is_columnar = ALL_NODES * RATE_PER_NODE, _of_nodes(running, *ATTRIBUTES), form == "columnar"
        heard = listen(running, watched, rate, seconds, warm_up=_SCALE_WARM_UP, columnar=is_columnar)
    name = f"{form}, {ALL_NODES // rack} device servers of {rack} nodes"
    listened = heard.listened
    events = [event for event in listened.events if heard.begin <= event.received < heard.end]
    gaps, counts = gaps_between(events)
    complete = [count for count in counts.values() if count >= seconds - 2]
    everything = ALL_NODES * len(ATTRIBUTES)
    spread = quantiles(gaps)
    rate = len(events) / seconds
    own = {name: used for name, used in heard.cores.items() if name not in _NOT_OURS}
    memory = {name: used for name, used in heard.memory.items() if name not in _NOT_OURS}
    verdicts = (
        BarVerdict(
            f"{name}: attributes with an event each second",
            f"{len(complete):,} of {everything:,}; {rate:,.0f} events/s",
            bar="all",
            reached=len(complete) == everything,
        ),
        at_most(f"{name}: p99 of the time between events", spread.p99 if spread else None, 1.3, "s"),
        at_most(f"{name}: cores of workers, device servers and broker", sum(own.values()), 1.0, "cores"),
        at_most(f"{name}: registered and all device servers up after", start, 20.0, "s"),
        at_most(f"{name}: memory of workers and device servers", sum(memory.values()) / 1e3, 1.0, "GB"),
    )
    notes = (
        f"{name}: {everything - len(counts):,} attributes without any event; {listened.errors} errors at the client"
        + (f", such as: {listened.last_error}" if listened.last_error else ""),
        f"{listened.invalid:,} events were ATTR_INVALID, as those of a device server seconds behind are,"
        f" and not counted; {listened.warnings:,} were ATTR_WARNING, as when late records correct a shown window;"
        f" the sender slipped by {heard.sent.slipped:.2f} s",
        f"time between events: {spread.text(1, 's') if spread else '-'}",
        in_words(heard.cores),
        f"memory: {', '.join(f'{name} {used:.0f} MB' for name, used in heard.memory.items())}",
    )
    return verdicts, notes


def gaps_between(events: Iterable[HeardEvent]) -> tuple[list[float], dict[tuple[str, str], int]]:
    """Return the times between events of one attribute, and how many events each attribute had."""
    received: dict[tuple[str, str], list[float]] = defaultdict(list)
    for heard in events:
        received[heard.device, heard.attribute].append(heard.received)
    gaps = [after - before for times in map(sorted, received.values()) for before, after in pairwise(times)]
    return gaps, {key: len(times) for key, times in received.items()}
