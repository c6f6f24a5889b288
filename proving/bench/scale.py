"""All 1,500 ingest nodes of the telescope on one machine, each updated once a second."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from proving.bench.latency import Heard, listen
from proving.bench.load import SIMULATOR, rate_kept
from proving.bench.report import Outcome, Verdict, at_most, quantiles
from proving.gauges import in_words
from proving.testbed import Testbed

NODES = 1500
RACK = 375
"""Nodes of one device server: as many servers as the summary topic has partitions, so that none reads another's.

A real site has 30 racks of 50, spread over its hosts; 30 processes on few cores would measure the scheduler.
"""
RATE_PER_NODE = 10.0
"""A node's real 31,800/s is the workers' business; a device sees one window per second whatever the rate."""
ATTRIBUTES = ("heapsTotal", "latencyMean")

_WARM_UP = 8.0
_NOT_OURS = ("listen", SIMULATOR)
"""Processes that play the client and the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What one form of notifications came to."""

    verdicts: Sequence[Verdict]
    notes: Sequence[str]
    figures: Mapping[str, Any]


def scale(testbed: Testbed, *, quick: bool) -> Outcome:
    """Run all nodes and look whether each of them is updated each second."""
    seconds = 15.0 if quick else 40.0
    runs = {form: _run(testbed, form, seconds) for form in ("JSON", "columnar")}
    return Outcome(
        name="scale",
        what=f"{NODES:,} SdpIngestNode devices on one machine, each to be updated at 1 Hz",
        how=(
            f"{NODES:,} nodes in {NODES // RACK} device servers of {RACK}, one per partition of the summary topic;"
            " a site has 30 of 50, spread over its hosts",
            f"{RATE_PER_NODE:g} notifications/s per node, as records of JSON and again as columnar batches; a client"
            f" subscribed to {' and '.join(ATTRIBUTES)} of all nodes through the database; {seconds:g} s after a"
            f" warm-up of {_WARM_UP:g} s; what processes share of memory is divided among them",
        ),
        verdicts=tuple(verdict for run in runs.values() for verdict in run.verdicts),
        notes=tuple(note for run in runs.values() for note in run.notes),
    )


def _run(testbed: Testbed, form: str, seconds: float) -> _Run:
    clock = testbed.progress.clock
    began = clock.monotonic()
    with testbed.system(f"scale-{form.lower()}", within=180.0, nodes=NODES, rack_size=RACK) as running:
        start = clock.monotonic() - began
        rate = NODES * RATE_PER_NODE
        heard = listen(running, ATTRIBUTES, rate, seconds, warm_up=_WARM_UP, columnar=form == "columnar")
    listened, sent = heard.listened, rate_kept(heard.sent)
    events = [event for event in listened.events if heard.begin <= event.received < heard.end]
    gaps, counts = gaps_between(events)
    complete = [count for count in counts.values() if count >= seconds - 2]
    everything = NODES * len(ATTRIBUTES)
    spread = quantiles(gaps)
    rate = len(events) / seconds
    own = {name: used for name, used in heard.cores.items() if name not in _NOT_OURS}
    memory = {name: used for name, used in heard.memory.items() if name not in _NOT_OURS}
    verdicts = (
        Verdict(
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


def gaps_between(events: Iterable[Heard]) -> tuple[list[float], dict[tuple[str, str], int]]:
    """Return the times between events of one attribute, and how many events each attribute had."""
    received: dict[tuple[str, str], list[float]] = defaultdict(list)
    for heard in events:
        received[heard.device, heard.attribute].append(heard.received)
    gaps = [after - before for times in map(sorted, received.values()) for before, after in pairwise(times)]
    return gaps, {key: len(times) for key, times in received.items()}
