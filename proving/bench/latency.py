"""How late things are shown: from a notification to an event, with as many nodes and devices as possible, and reads."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import tango

from clients.events import EventRecorder
from facade.bus.kafka.transactions import KafkaTransactionalLog
from facade.bus.port import BusHealth
from facade.codec.columns import ColumnDecoder
from facade.errors import InfraError
from facade.flows.telemetry.simulator.ingest import HeapReport
from facade.reading import Quality
from proving import gauges
from proving.bench.load import NODES, RATE, SIMULATOR, TOPIC, rate_kept, stream
from proving.bench.report import BarVerdict, BenchOutcome, Quantiles, at_most, quantiles
from proving.deployment import Deployment
from proving.gauges import cores_used, cpu_of_all, in_words, proportional_memory
from proving.roles import RoleContext
from proving.testbed import Testbed

_STATE_EACH = 5
"""State() is asked for after so many attributes, so that there are enough answers for a p99."""


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
"""After so long the events of the last window are in [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """What was heard, and what it cost."""

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
    """Subscribe, let the notifications come, and listen."""
    progress, clock = system.progress, system.clock
    devices = system.devices("SdpIngestNode")
    progress.step(f"  subscribing to {len(devices) * len(attributes):,} attributes")
    keep = round(seconds + warm_up) * _EVENTS_EACH
    client = system.play("listen", devices=devices, attributes=attributes, keep=keep)
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

Times = npt.NDArray[np.float64]


def latency(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    """Measure the whole path under the full load of four nodes."""
    seconds = 12.0 if quick else 30.0
    with testbed.system("latency", nodes=NODES) as running:
        nodes = {device: number for number, device in enumerate(running.devices("SdpIngestNode"))}
        heard = listen(running, [ATTRIBUTE], RATE, seconds, warm_up=WARM_UP)
        listened, sent = heard.listened, heard.sent
        window = running.icd.topics[TOPIC].window
        if window is None:
            raise InfraError(f"topics.toml: {TOPIC}: expected a [window]")
        testbed.progress.step(f"  reading the {sent.sent:,} notifications again")
        times = notification_times(running, sent.sent)
    events = [(nodes[event.device], event) for event in listened.events]
    first = first_events(events, window.length)
    each, after = latencies(times, first, window.length, heard.begin, heard.end)
    found, behind = quantiles(each), quantiles(after)
    bar = window.length + SLACK
    return BenchOutcome(
        name="latency",
        what="notification to Tango event: from the data time to the event of the window that holds it",
        how=(
            f"{NODES} nodes, {RATE:,.0f} notifications/s together; 2 workers, device servers `control` and `ingest-00`,"
            f" a client subscribed to {ATTRIBUTE} of each node through the database",
            f"{seconds:g} s after a warm-up of {WARM_UP:g} s; events of {len(after)} node windows",
        ),
        verdicts=(
            at_most("p99, notification to event", found.p99 if found else None, bar, "s"),
            BarVerdict(what="p50, notification to event", bar="", found=f"{found.p50:.3f} s" if found else "-"),
            BarVerdict(
                what="event received after the end of its window",
                bar="",
                found=behind.text(1000, "ms") if behind else "-",
            ),
        ),
        notes=(*_doubts(sent, listened, each, len(first) != len(events)), in_words(heard.cores)),
    )


def notification_times(running: Deployment, records: int) -> dict[int, Times]:
    """Read the data times of all notifications again, by node [Unix s].

    Raises
    ------
    InfraError
        They cannot all be found.
    """
    log = KafkaTransactionalLog(running.connection, TOPIC, group="times", slot="0", health=BusHealth())
    message = running.icd.topics[TOPIC].message or ""
    decoder = ColumnDecoder(message, running.icd.messages[message])
    parts: list[tuple[Any, Any]] = []
    left, patience = records, running.clock.monotonic() + 120.0
    while left > 0:
        if running.clock.monotonic() > patience:
            raise InfraError(f"{left} of {records} notifications were not found on the topic again")
        for run in log.take(10_000, 0.5):
            columns = decoder.decode(run.values()).columns
            parts.append((columns["node"], columns["time"] / 1e6))
            left -= len(columns["node"])
    log.close()
    node, time = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {int(number): time[node == number] for number in np.unique(node)}


def first_events(events: Iterable[tuple[int, HeardEvent]], length: float) -> dict[tuple[int, int], float]:
    """Return when the first event of each node and window was received; a window is counted in lengths."""
    first: dict[tuple[int, int], float] = {}
    for node, heard in events:
        key = (node, int(heard.time // length))
        first[key] = min(heard.received, first.get(key, np.inf))
    return first


def latencies(
    times: dict[int, Times], received: dict[tuple[int, int], float], length: float, begin: float, end: float
) -> tuple[Times, list[float]]:
    """Return the latency of each notification of the windows from `begin` to `end`, and of each window's event.

    Returns
    -------
    ndarray of float64, shape (notifications,)
        From the data time; infinite where no event came [s].
    list of float
        From the end of the window, for each node and window of which an event came [s].
    """
    lowest, highest = int(np.ceil(begin / length)), int(end // length)
    each, after = [np.empty(0)], []
    for node, time in times.items():
        window = (time // length).astype(np.int64)
        for number in range(lowest, highest):
            came = received.get((node, number), np.inf)
            each.append(came - time[window == number])
            if np.isfinite(came):
                after.append(came - (number + 1) * length)
    return np.concatenate(each), after


def _doubts(sent: HeapReport, listened: Listened, each: Times, repeated: bool) -> Iterable[str]:
    """Say what would make the figures worth less."""
    lost = int(np.count_nonzero(~np.isfinite(each)))
    if lost:
        yield f"{lost:,} notifications were in windows of which no event came"
    if sent.slipped:
        yield f"the sender itself was held up by {sent.slipped:.2f} s of these: this machine cannot keep the rate"
    if sent.longest_wait > SLACK / 2:
        yield f"a notification waited up to {sent.longest_wait:.2f} s before the broker had it; that is in the figures"
    if listened.errors or listened.invalid:
        yield f"the client got {listened.errors} errors ({listened.last_error}) and {listened.invalid} invalid values"
    if repeated:
        yield "some windows came more than once (corrected by stragglers); the first event of each was counted"


P99_BAR = 5.0
"""[ms]."""
LONGEST_BAR = 500.0
"""TM's clients give a call so long [ms]."""

_PAUSE = 0.001
_WARM_UP = 4.0


PhaseTimes = list[tuple[str, float]]
"""Name and begin [Unix s] of each phase."""


def reads(testbed: Testbed, *, quick: bool) -> BenchOutcome:
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
        calls = running.result(client, list[TimedCall], 30.0)
    by_phase = {name: list(part) for name, part in divide(calls, phases)}
    return BenchOutcome(
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
_EVEN: Final = np.linspace(0.0, 1.0, 100, endpoint=False)
"""A window's notifications, spread evenly over it."""


def live(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    """Run more and more nodes until one limit is passed."""
    seconds, held = 10.0 if quick else 20.0, 0
    tried: list[str] = []
    notes: list[str] = []
    for nodes in _STEPS[::2] if quick else _STEPS:
        with testbed.system(f"live-{nodes}", nodes=nodes) as running:
            heard = listen(
                running, [ATTRIBUTE], nodes * NODE_RATE, seconds, warm_up=WARM_UP, columnar=True, senders=_SENDERS
            )
            exact = _is_exact(running, heard)
            p99 = _p99(running, heard)
        window = running.icd.topics[TOPIC].window
        bar = (window.length if window else 1.0) + SLACK
        kept = heard.sent.slipped == 0
        tried.append(str(nodes))
        notes.append(
            f"{nodes} nodes, {nodes * NODE_RATE:,.0f}/s: p99 {p99:.2f} s, sender slipped by {heard.sent.slipped:.2f}"
            f" s, totals {'exact' if exact else 'NOT exact'}; {in_words(heard.cores)}"
        )
        testbed.progress.step(f"  {notes[-1]}")
        if not (exact and kept):
            break  # more nodes would only be further beyond what the machine can
        if p99 <= bar:
            held = nodes
    return BenchOutcome(
        name="live",
        what="nodes at 31,800 notifications/s each, as columnar batches, with all that belongs to them on this machine",
        how=(
            "two simulators, broker, two workers, device servers, and a client subscribed to one attribute of each"
            f" node; {seconds:g} s after a warm-up of {WARM_UP:g} s; tried: {', '.join(tried)} nodes",
            "held: the sender keeps its rate, the totals of all nodes are exact, and p99 from a notification to the"
            f" event of its window is at most 1 s and {SLACK:g} s; notifications are taken as even over a window",
        ),
        verdicts=(
            BarVerdict(
                what="nodes held", bar="≥ 100", found=f"{held} ({held * NODE_RATE:,.0f}/s)", reached=held >= 100
            ),
        ),
        notes=tuple(notes),
    )


def _is_exact(running: Deployment, heard: Listening) -> bool:
    """Return whether the totals of all nodes become what was sent, and the stream's account balances."""
    proxies = list(map(running.proxy, running.devices("SdpIngestNode")))
    expected = [heard.sent.nodes[str(number)].used for number in range(len(proxies))]

    def is_reached() -> bool:
        return [proxy.read_attribute("heapsTotal").value for proxy in proxies] == expected

    return running.progress.wait_until(is_reached, _DRAINS_WITHIN) is not None


def _p99(running: Deployment, heard: Listening) -> float:
    """Return the 99th percentile from a notification to the event of its window [s]; infinite: windows are missing."""
    nodes = {device: number for number, device in enumerate(running.devices("SdpIngestNode"))}
    first = first_events(((nodes[event.device], event) for event in heard.listened.events), 1.0)
    lowest, highest = int(np.ceil(heard.begin)), int(heard.end)
    ends = [
        first.get((node, number), np.inf) - (number + 1) for node in nodes.values() for number in range(lowest, highest)
    ]
    each = (np.array(ends)[:, np.newaxis] + 1.0 - _EVEN).reshape(-1)
    found = quantiles(each)
    return found.p99 if found else float("inf")


ALL_NODES = 1500
RACK = 375
"""Nodes of one device server: as many servers as the summary topic has partitions, so that none reads another's.

A real site has 30 racks of 50, spread over its hosts; 30 processes on few cores would measure the scheduler.
"""
RATE_PER_NODE = 10.0
"""A node's real 31,800/s is the workers' business; a device sees one window per second whatever the rate."""
ATTRIBUTES = ("heapsTotal", "latencyMean")

_SCALE_WARM_UP = 8.0
_NOT_OURS = ("listen", SIMULATOR)
"""Processes that play the client and the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What one form of notifications came to."""

    verdicts: Sequence[BarVerdict]
    notes: Sequence[str]
    figures: Mapping[str, Any]


def scale(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    """Run all nodes and look whether each of them is updated each second."""
    seconds = 15.0 if quick else 40.0
    runs = {form: _run(testbed, form, seconds) for form in ("JSON", "columnar")}
    return BenchOutcome(
        name="scale",
        what=f"{ALL_NODES:,} SdpIngestNode devices on one machine, each to be updated at 1 Hz",
        how=(
            f"{ALL_NODES:,} nodes in {ALL_NODES // RACK} device servers of {RACK}, one per partition of the summary"
            " topic; a site has 30 of 50, spread over its hosts",
            f"{RATE_PER_NODE:g} notifications/s per node, as records of JSON and again as columnar batches; a client"
            f" subscribed to {' and '.join(ATTRIBUTES)} of all nodes through the database; {seconds:g} s after a"
            f" warm-up of {_SCALE_WARM_UP:g} s; what processes share of memory is divided among them",
        ),
        verdicts=tuple(verdict for run in runs.values() for verdict in run.verdicts),
        notes=tuple(note for run in runs.values() for note in run.notes),
    )


def _run(testbed: Testbed, form: str, seconds: float) -> _Run:
    clock = testbed.progress.clock
    began = clock.monotonic()
    with testbed.system(f"scale-{form.lower()}", within=180.0, nodes=ALL_NODES, rack_size=RACK) as running:
        start = clock.monotonic() - began
        rate = ALL_NODES * RATE_PER_NODE
        heard = listen(running, ATTRIBUTES, rate, seconds, warm_up=_SCALE_WARM_UP, columnar=form == "columnar")
    listened, sent = heard.listened, rate_kept(heard.sent)
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
        f" and not counted; the sender slipped by {sent['slipped_s']:.2f} s",
        f"time between events: {spread.text(1, 's') if spread else '-'}",
        in_words(heard.cores),
        f"memory: {', '.join(f'{name} {used:.0f} MB' for name, used in heard.memory.items())}",
    )
    figures = {
        "gaps_s": spread,
        "events_per_s": rate,
        "cores": heard.cores,
        "memory_mb": heard.memory,
        "start_s": start,
        "sent": sent,
    }
    return _Run(verdicts=verdicts, notes=notes, figures=figures)


def gaps_between(events: Iterable[HeardEvent]) -> tuple[list[float], dict[tuple[str, str], int]]:
    """Return the times between events of one attribute, and how many events each attribute had."""
    received: dict[tuple[str, str], list[float]] = defaultdict(list)
    for heard in events:
        received[heard.device, heard.attribute].append(heard.received)
    gaps = [after - before for times in map(sorted, received.values()) for before, after in pairwise(times)]
    return gaps, {key: len(times) for key, times in received.items()}
