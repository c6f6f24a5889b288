"""What windows must show, counted again from the raw records with nothing of ours but the JSON.

On a busy machine a sender may be held up for longer than the disorder that the interface allows. What the broker had by
then is in the window when it is shown first; what came later may be in it or not.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import Message

from facade.kernel.icd.load import load

Heap = dict[str, Any]


def heaps_by_window(messages: Iterable[Message], length: float = 1.0) -> dict[int, dict[int, list[Heap]]]:
    """Return the heaps by node and window; only for streams without late or malformed records."""
    found: dict[int, dict[int, list[Heap]]] = defaultdict(lambda: defaultdict(list))
    for message in messages:
        heap = json.loads(message.value())
        heap["appended"] = message.timestamp()[1] / 1e3
        found[heap["node"]][int(heap["time"] // (length * 1e6))].append(heap)
    return found


def in_time(heaps: Sequence[Heap], window: int) -> list[Heap]:
    """Return the heaps of a window of 1 s that the broker had soon enough for it to be whole with them."""
    rule = load().topics["ingest.heaps"].window
    assert rule is not None
    return [heap for heap in heaps if heap["appended"] < window + rule.length + rule.disorder]


def node_values(heaps: Sequence[Heap]) -> dict[str, float]:
    """Return what a node's device must show of one window of 1 s."""
    latency = sorted(heap["latency"] for heap in heaps)
    newest = max(heaps, key=lambda heap: heap["time"])
    packets = {name: sum(heap[name] for heap in heaps) for name in ("received", "lost", "late")}
    return {
        "heapRate": len(heaps),
        "packetsReceivedRate": packets["received"],
        "packetsLost": packets["lost"],
        "packetsLate": packets["late"],
        "packetLossFraction": packets["lost"] / sum(packets.values()),
        "worstHeapLoss": max(heap["lost"] for heap in heaps),
        "flaggedFractionMean": statistics.fmean(heap["flagged_fraction"] for heap in heaps),
        "flaggedFractionMax": max(heap["flagged_fraction"] for heap in heaps),
        "latencyMean": statistics.fmean(latency),
        "latencyStd": statistics.pstdev(latency),
        "latencyMin": latency[0],
        "latencyMax": latency[-1],
        "latencyP50": latency[int(0.5 * (len(latency) - 1))],
        "latencyP99": latency[int(0.99 * (len(latency) - 1))],
        "scanID": newest["scan_id"],
        "channelStart": newest["channel_start"],
        "channelCount": newest["channel_count"],
    }


ROUGH = {"latencyP50": 0.01, "latencyP99": 0.01}
"""Relative error that the ICD allows; all others are exact but for rounding."""


def all_nodes_values(heaps: Sequence[Heap]) -> dict[str, float]:
    """Return what SdpMaster must show of one window over all nodes."""
    names = ("heapRate", "packetsReceivedRate", "packetsLost", "packetLossFraction", "flaggedFractionMean")
    found = node_values(heaps)
    return {name: found[name] for name in (*names, "latencyP99")}
