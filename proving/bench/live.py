"""How many nodes at full rate one machine holds, with their senders, broker, workers, device servers and a client."""

from typing import Any, Final

import numpy as np

from proving.bench.latency import ATTRIBUTE, SLACK, WARM_UP, first_events
from proving.bench.listening import Listening, listen
from proving.bench.load import TOPIC
from proving.bench.report import Outcome, Verdict, quantiles
from proving.deployment import Deployment
from proving.gauges import in_words
from proving.testbed import Testbed

RATE: Final = 31_800.0
"""Heaps/s of a node."""
_STEPS: Final = (25, 40, 50, 60, 80, 100)
_SENDERS: Final = 2
"""Simulators, each with half of the nodes: in one process a node would wait for all others before it sends."""
_DRAINS_WITHIN: Final = 60.0
_EVEN: Final = np.linspace(0.0, 1.0, 100, endpoint=False)
"""A window's notifications, spread evenly over it."""


def live(testbed: Testbed, *, quick: bool) -> Outcome:
    """Run more and more nodes until one limit is passed."""
    seconds, held = 10.0 if quick else 20.0, 0
    figures: dict[str, Any] = {}
    notes: list[str] = []
    for nodes in _STEPS[::2] if quick else _STEPS:
        with testbed.system(f"live-{nodes}", nodes=nodes) as running:
            heard = listen(
                running, [ATTRIBUTE], nodes * RATE, seconds, warm_up=WARM_UP, columnar=True, senders=_SENDERS
            )
            exact = _is_exact(running, heard)
            p99 = _p99(running, heard)
        window = running.icd.topics[TOPIC].window
        bar = (window.length if window else 1.0) + SLACK
        kept = heard.sent.slipped == 0
        figures[str(nodes)] = {"p99_s": p99, "slipped_s": heard.sent.slipped, "exact": exact, "cores": heard.cores}
        notes.append(
            f"{nodes} nodes, {nodes * RATE:,.0f}/s: p99 {p99:.2f} s, the sender slipped by {heard.sent.slipped:.2f} s,"
            f" totals {'exact' if exact else 'NOT exact'}; {in_words(heard.cores)}"
        )
        testbed.progress.step(f"  {notes[-1]}")
        if not (exact and kept):
            break  # more nodes would only be further beyond what the machine can
        if p99 <= bar:
            held = nodes
    return Outcome(
        name="live",
        what="nodes at 31,800 notifications/s each, as columnar batches, with all that belongs to them on this machine",
        how=(
            "two simulators, broker, two workers, device servers, and a client subscribed to one attribute of each"
            f" node; {seconds:g} s after a warm-up of {WARM_UP:g} s; tried: {', '.join(figures)} nodes",
            "held: the sender keeps its rate, the totals of all nodes are exact, and p99 from a notification to the"
            f" event of its window is at most 1 s and {SLACK:g} s; notifications are taken as even over a window",
        ),
        verdicts=(
            Verdict(what="nodes held", bar="≥ 100", found=f"{held} ({held * RATE:,.0f}/s)", reached=held >= 100),
        ),
        notes=tuple(notes),
        figures=figures,
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
