"""All 1,500 ingest nodes of the telescope on one machine, each updated once a second."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from proving.bench.client_roles import Heard
from proving.bench.listening import listen
from proving.bench.load import rate_kept
from proving.bench.report import Outcome, Verdict, quantiles
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


def scale(testbed: Testbed, *, quick: bool) -> Outcome:
    """Run all nodes and look whether each of them is updated each second."""
    seconds = 15.0 if quick else 40.0
    with testbed.system("scale", within=180.0, nodes=NODES, rack_size=RACK) as running:
        heard = listen(running, ATTRIBUTES, NODES * RATE_PER_NODE, seconds, warm_up=_WARM_UP)
    listened, sent = heard.listened, rate_kept(heard.sent)
    events = [event for event in listened.events if heard.begin <= event.received < heard.end]
    gaps, counts = gaps_between(events)
    complete = [count for count in counts.values() if count >= seconds - 2]
    silent = NODES * len(ATTRIBUTES) - len(counts)
    spread = quantiles(gaps)
    rate = len(events) / seconds
    return Outcome(
        name="scale",
        what=f"{NODES:,} SdpIngestNode devices on one machine, each to be updated at 1 Hz",
        how=(
            f"{NODES:,} nodes in {NODES // RACK} device servers of {RACK}, one per partition of the summary topic;"
            " a site has 30 of 50, spread over its hosts",
            f"{RATE_PER_NODE:g} notifications/s per node; a client subscribed to {' and '.join(ATTRIBUTES)} of all"
            f" nodes through the database; {seconds:g} s after a warm-up of {_WARM_UP:g} s",
        ),
        verdicts=(
            Verdict(
                what=f"attributes with an event each second ({ATTRIBUTES[0]}, {ATTRIBUTES[1]} of each node)",
                bar="all",
                found=f"{len(complete):,} of {NODES * len(ATTRIBUTES):,}",
                reached=len(complete) == NODES * len(ATTRIBUTES),
            ),
            Verdict(what="events at the client", bar="", found=f"{rate:,.0f}/s of {NODES * len(ATTRIBUTES):,}/s"),
            Verdict(what="time between events", bar="", found=spread.text(1, "s") if spread else "-"),
        ),
        notes=(
            f"{silent:,} attributes without any event; {listened.errors} errors at the client"
            + (f", such as: {listened.last_error}" if listened.last_error else ""),
            f"{listened.invalid:,} events were ATTR_INVALID, as those of a device server seconds behind are,"
            f" and not counted; the sender slipped by {sent['slipped_s']:.2f} s",
            in_words(heard.cores),
            f"resident: {', '.join(f'{name} {used:.0f} MB' for name, used in heard.memory.items())}",
        ),
        figures={
            "gaps_s": spread,
            "events_per_s": rate,
            "cores": heard.cores,
            "resident_mb": heard.memory,
            "sent": sent,
        },
    )


def gaps_between(events: Iterable[Heard]) -> tuple[list[float], dict[tuple[str, str], int]]:
    """Return the times between events of one attribute, and how many events each attribute had."""
    received: dict[tuple[str, str], list[float]] = defaultdict(list)
    for heard in events:
        received[heard.device, heard.attribute].append(heard.received)
    gaps = [after - before for times in map(sorted, received.values()) for before, after in pairwise(times)]
    return gaps, {key: len(times) for key, times in received.items()}
