"""From a notification's data time to the event of the window that holds it, at a client in another process.

Exact: after the run the topic is read again, so the latency is that of each notification and not
of an assumed stream. A notification whose window never came as an event counts as infinitely late.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from facade.bus.kafka.transactions import KafkaTransactionalLog
from facade.bus.port import BusHealth
from facade.codec.columns import ColumnDecoder
from facade.errors import InfraError
from facade.flows.telemetry.simulator.report import Report
from proving.bench.client_roles import Heard, Listened
from proving.bench.listening import listen
from proving.bench.load import NODES, RATE, TOPIC, rate_kept
from proving.bench.report import Outcome, Quantiles, Verdict, at_most, quantiles
from proving.deployment import Deployment
from proving.gauges import in_words
from proving.testbed import Testbed

ATTRIBUTE = "latencyMean"
"""A window's figure that differs from window to window, hence comes as an event for each."""
SLACK = 0.3
"""How much later than the end of its window a notification may be seen [s]."""
WARM_UP = 5.0

Times = npt.NDArray[np.float64]


def latency(testbed: Testbed, *, quick: bool) -> Outcome:
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
    return Outcome(
        name="latency",
        what="notification to Tango event: from the data time to the event of the window that holds it",
        how=(
            f"{NODES} nodes, {RATE:,.0f} notifications/s together; 2 workers, device servers `control` and `ingest-00`,"
            f" a client subscribed to {ATTRIBUTE} of each node through the database",
            f"{seconds:g} s after a warm-up of {WARM_UP:g} s; events of {len(after)} node windows",
        ),
        verdicts=(
            at_most("p99, notification to event", found.p99 if found else None, bar, "s"),
            Verdict(what="p50, notification to event", bar="", found=f"{found.p50:.3f} s" if found else "-"),
            Verdict(
                what="event received after the end of its window",
                bar="",
                found=behind.text(1000, "ms") if behind else "-",
            ),
        ),
        notes=(*_doubts(sent, listened, each, len(first) != len(events)), in_words(heard.cores)),
        figures=_figures(found, behind, sent, listened, heard.cores),
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


def first_events(events: Iterable[tuple[int, Heard]], length: float) -> dict[tuple[int, int], float]:
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


def _doubts(sent: Report, listened: Listened, each: Times, repeated: bool) -> Iterable[str]:
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


def _figures(
    found: Quantiles | None, behind: Quantiles | None, sent: Report, listened: Listened, cores: dict[str, float]
) -> dict[str, Any]:
    return {
        "notification_to_event_s": found,
        "window_end_to_event_s": behind,
        "sent": rate_kept(sent),
        "client_errors": listened.errors,
        "cores": cores,
    }
