"""A client that listens to all ingest nodes of a system while notifications come at a steady rate."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from facade.flows.telemetry.simulator.report import Report
from proving.bench.client_roles import Listened
from proving.bench.load import stream
from proving.deployment import Deployment
from proving.gauges import cores_used, cpu_of_all, proportional_memory

_EVENTS_EACH = 3
"""Events of an attribute that are kept for each second: a window, and what corrects it."""
_LAST_EVENTS = 2.0
"""After so long the events of the last window are in [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """What was heard, and what it cost."""

    listened: Listened
    sent: Report
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
