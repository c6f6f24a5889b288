"""How late things are shown: from a notification to an event, with as many nodes and devices as possible, and reads."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import tango

from clients.events import EventRecorder
from facade.flows.telemetry.simulator.ingest import HeapReport
from facade.reading import Quality
from proving import gauges
from proving.bench.load import NODES, RATE, SIMULATOR, stream
from proving.bench.report import BarVerdict, BenchOutcome, Quantiles, at_most, quantiles
from proving.deployment import Deployment
from proving.gauges import cores_used, cpu_of_all, in_words, proportional_memory
from proving.roles import RoleContext
from proving.testbed import Testbed

_STATE_EACH = 5
"""Attributes read between two calls of State(); few, so that there are enough answers for a p99."""


class HeardEvent(msgspec.Struct, frozen=True, array_like=True):
    """One event as it came."""

    device: str
    attribute: str
    time: float
    """Of the data [Unix s]."""
    received: float
    """[Unix s]."""


class Listened(msgspec.Struct, frozen=True, kw_only=True):
    """What a client heard."""

    events: list[HeardEvent]
    """Those with a value."""
    invalid: int
    """Events with ATTR_INVALID, not among the others."""
    errors: int
    last_error: str
    cpu: float
    """Of the client since it was ready [s]."""


class TimedCall(msgspec.Struct, frozen=True, array_like=True):
    """One answer, or its failure."""

    kind: str
    began: float
    """[Unix s]."""
    seconds: float
    failed: bool


def hear(context: RoleContext, *, devices: list[str], attributes: list[str], keep: int) -> Listened:
    """Subscribe through the database as any client would, until called off."""
    recorder = EventRecorder(context.tango_host, context.clock, keep=keep)
    for device in devices:
        recorder.subscribe(device, attributes)
    cpu = gauges.own_cpu()
    context.announce()
    while not context.called_off:
        context.clock.sleep(0.1)
    records = [(d, a, r) for d, found in recorder.records().items() for a, r in found.items()]
    cpu = gauges.own_cpu() - cpu
    events = [(d, a, e) for d, a, record in records for e in record.events]
    return Listened(
        events=[HeardEvent(d, a, e.time, e.received) for d, a, e in events if e.quality is not Quality.INVALID],
        invalid=sum(e.quality is Quality.INVALID for _, _, e in events),
        errors=sum(record.errors for _, _, record in records),
        last_error=next((record.last_error for _, _, record in records if record.last_error), ""),
        cpu=cpu,
    )


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


_EVENTS_EACH = 3
"""Events of an attribute that are kept for each second: a window, and what corrects it."""
_LAST_EVENTS = 2.0
"""Time after which the events of the last window have arrived [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Received events, and the processor time and memory meanwhile."""

    listened: Listened
    sent: HeapReport
    """Of the whole time, but for `slipped`."""
    cores: dict[str, float]
    """By process."""
    memory: dict[str, float]
    """By process; of what processes share, the part of each [MB]."""
    begin: float
    end: float
    """When the measurement, after the warm-up, began and ended [Unix s]."""


def listen(
    system: Deployment,
    attributes: Sequence[str],
    rate: float,
    seconds: float,
    *,
    warm_up: float,
    columnar: bool = False,
    senders: int = 1,
) -> Listening:
    progress, clock = system.progress, system.clock
    devices = system.devices("SdpIngestNode")
    progress.step(f"  subscribing to {len(devices) * len(attributes):,} attributes")
    keep = round(seconds + warm_up) * _EVENTS_EACH
    client = system.play(hear, devices=devices, attributes=attributes, keep=keep)
    system.await_ready(client, 120.0)
    heaps = stream(system, rate, columnar=columnar, senders=senders)
    progress.wait(warm_up, "warm-up")
    begin, cpu, slipped = clock.now(), cpu_of_all(system), heaps.report().slipped
    progress.wait(seconds, "listening")
    end, cores, memory = clock.now(), cores_used(cpu, cpu_of_all(system), seconds), proportional_memory(system)
    slipped = heaps.report().slipped - slipped
    progress.wait(_LAST_EVENTS)
    system.processes.check()
    client.call_off()
    sent = msgspec.structs.replace(heaps.end(), slipped=slipped)
    listened = system.result(client, Listened, 60.0)
    return Listening(listened=listened, sent=sent, cores=cores, memory=memory, begin=begin, end=end)


ATTRIBUTE = "latencyMean"
"""A window's figure that differs from window to window, hence comes as an event for each."""
SLACK = 0.3
"""How much later than the end of its window a notification may be seen [s]."""
WARM_UP = 5.0
_WINDOW: Final = 1.0
"""Length of the windows of heap notifications [s]."""
_EVEN: Final = np.linspace(0.0, 1.0, 100, endpoint=False)

Times = npt.NDArray[np.float64]


def latency(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    seconds = 12.0 if quick else 30.0
    with testbed.system("latency", nodes=NODES) as running:
        heard = listen(running, [ATTRIBUTE], RATE, seconds, warm_up=WARM_UP)
        ends = _ends(running, heard)
    found, behind = _notifications(ends), quantiles(ends)
    return BenchOutcome(
        name="latency",
        what="notification to Tango event: from the data time to the event of the window that holds it",
        verdicts=(
            at_most("p99, notification to event", found.p99 if found else None, _WINDOW + SLACK, "s"),
            BarVerdict(what="p50, notification to event", bar="", found=f"{found.p50:.3f} s" if found else "-"),
            BarVerdict(what="event after its window", bar="", found=behind.text(1e3, "ms") if behind else "-"),
        ),
        notes=(
            f"the sender slipped by {heard.sent.slipped:.2f} s; the client got {heard.listened.errors} errors"
            f" ({heard.listened.last_error}) and {heard.listened.invalid} invalid values",
            in_words(heard.cores),
        ),
    )


def _ends(running: Deployment, heard: Listening) -> Times:
    """Return the time from the end of each window of each node to its first event [s]; infinite: no event came."""
    nodes = running.devices("SdpIngestNode")
    first: dict[tuple[str, int], float] = {}
    for event in heard.listened.events:
        key = (event.device, int(event.time // _WINDOW))
        first[key] = min(event.received, first.get(key, np.inf))
    lowest, highest = int(np.ceil(heard.begin / _WINDOW)), int(heard.end // _WINDOW)
    return np.array(
        [
            first.get((node, number), np.inf) - (number + 1) * _WINDOW
            for node in nodes
            for number in range(lowest, highest)
        ]
    )


def _notifications(ends: Times) -> Quantiles | None:
    """Return the delays of the notifications of windows, which are spread evenly over each window."""
    return quantiles((ends[:, np.newaxis] + _WINDOW * (1.0 - _EVEN)).reshape(-1))


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
        name="reads",
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
    yield BarVerdict(what="calls that failed", bar="0", found=str(failed), reached=failed == 0)


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
    seconds, held = 10.0 if quick else 20.0, 0
    tried: list[str] = []
    notes: list[str] = []
    for nodes in _STEPS[::2] if quick else _STEPS:
        with testbed.system(f"live-{nodes}", nodes=nodes) as running:
            heard = listen(
                running, [ATTRIBUTE], nodes * NODE_RATE, seconds, warm_up=WARM_UP, columnar=True, senders=_SENDERS
            )
            exact = _is_exact(running, heard)
            spread = _notifications(_ends(running, heard))
        p99 = spread.p99 if spread else float("inf")
        kept = heard.sent.slipped == 0
        tried.append(str(nodes))
        notes.append(
            f"{nodes} nodes, {nodes * NODE_RATE:,.0f}/s: p99 {p99:.2f} s, sender slipped by {heard.sent.slipped:.2f}"
            f" s, totals {'exact' if exact else 'NOT exact'}; {in_words(heard.cores)}"
        )
        testbed.progress.step(f"  {notes[-1]}")
        if not (exact and kept):
            break  # more nodes would only be further beyond what the machine can
        if p99 <= _WINDOW + SLACK:
            held = nodes
    return BenchOutcome(
        name="live",
        what="nodes at 31,800 notifications/s each, as columnar batches, with all that belongs to them on this machine",
        verdicts=(
            BarVerdict(
                what="nodes held", bar="≥ 100", found=f"{held} ({held * NODE_RATE:,.0f}/s)", reached=held >= 100
            ),
        ),
        notes=tuple(notes),
    )


def _is_exact(running: Deployment, heard: Listening) -> bool:
    proxies = list(map(running.proxy, running.devices("SdpIngestNode")))
    expected = [heard.sent.nodes[str(number)].used for number in range(len(proxies))]

    def is_reached() -> bool:
        return [proxy.read_attribute("heapsTotal").value for proxy in proxies] == expected

    return running.progress.wait_until(is_reached, _DRAINS_WITHIN) is not None


ALL_NODES = 1500
RACK = 375
"""Nodes of one device server: as many servers as the summary topic has partitions, so that none reads another's.

A real site has 30 racks of 50, spread over its hosts; 30 processes on few cores would measure the scheduler.
"""
RATE_PER_NODE = 10.0
"""A node's real 31,800/s is the workers' business; a device sees one window per second whatever the rate."""
ATTRIBUTES = ("heapsTotal", "latencyMean")

_SCALE_WARM_UP = 8.0
_NOT_OURS = ("hear", SIMULATOR)
"""Processes that play the client and the nodes."""


def scale(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    seconds = 15.0 if quick else 40.0
    runs = [_run(testbed, form, seconds) for form in ("JSON", "columnar")]
    return BenchOutcome(
        name="scale",
        what=f"{ALL_NODES:,} SdpIngestNode devices on one machine, each to be updated at 1 Hz",
        verdicts=tuple(verdict for verdicts, _ in runs for verdict in verdicts),
        notes=tuple(note for _, notes in runs for note in notes),
    )


def _run(testbed: Testbed, form: str, seconds: float) -> tuple[Sequence[BarVerdict], Sequence[str]]:
    clock = testbed.progress.clock
    began = clock.monotonic()
    with testbed.system(f"scale-{form.lower()}", within=180.0, nodes=ALL_NODES, rack_size=RACK) as running:
        start = clock.monotonic() - began
        rate = ALL_NODES * RATE_PER_NODE
        heard = listen(running, ATTRIBUTES, rate, seconds, warm_up=_SCALE_WARM_UP, columnar=form == "columnar")
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
            what=f"{form}: attributes with an event each second",
            bar="all",
            found=f"{len(complete):,} of {everything:,}; {rate:,.0f} events/s",
            reached=len(complete) == everything,
        ),
        at_most(f"{form}: p99 of the time between events", spread.p99 if spread else None, 1.3, "s"),
        at_most(f"{form}: cores of workers, device servers and broker", sum(own.values()), 1.0, "cores"),
        at_most(f"{form}: registered and all device servers up after", start, 20.0, "s"),
        at_most(f"{form}: memory of workers and device servers", sum(memory.values()) / 1e3, 1.0, "GB"),
    )
    notes = (
        f"{form}: {everything - len(counts):,} attributes without any event; {listened.errors} errors at the client"
        + (f", such as: {listened.last_error}" if listened.last_error else ""),
        f"{listened.invalid:,} events were ATTR_INVALID, as those of a device server seconds behind are,"
        f" and not counted; the sender slipped by {heard.sent.slipped:.2f} s",
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
