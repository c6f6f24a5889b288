"""A client that hears events beside the load of a bench."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from facade.flows.telemetry.simulator.ingest import HeapReport
from facade.kernel.reading import Quality
from sdp_facade_clients.events import EventRecorder
from sdp_facade_lab import gauges
from sdp_facade_lab.bench.load import stream
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.gauges import cores_used, cpu_of_all, proportional_memory
from sdp_facade_lab.roles import RoleContext


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
    warnings: int
    """Events with ATTR_WARNING, as those of windows that late records corrected."""
    errors: int
    last_error: str
    cpu: float
    """Of the client since it was ready [s]."""


def hear(context: RoleContext, *, attributes: dict[str, list[str]], keep: int) -> Listened:
    """Subscribe to attributes of devices through the database as any client would, until called off."""
    recorder = EventRecorder(context.tango_host, context.clock, keep=keep)
    for device, names in attributes.items():
        recorder.subscribe(device, names)
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
        warnings=sum(e.quality is Quality.WARNING for _, _, e in events),
        errors=sum(record.errors for _, _, record in records),
        last_error=next((record.last_error for _, _, record in records if record.last_error), ""),
        cpu=cpu,
    )


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
    attributes: Mapping[str, Sequence[str]],
    rate: float,
    seconds: float,
    *,
    warm_up: float,
    last_events: float = _LAST_EVENTS,
    **form: Any,
) -> Listening:
    """Listen to attributes of devices beside notifications.

    `last_events`: time after which the events of the last window have arrived [s]. `form`: of the notifications, as
    `LoadStream` has it.
    """
    progress, clock = system.progress, system.clock
    progress.step(f"  subscribing to {sum(map(len, attributes.values())):,} attributes")
    keep = round(seconds + warm_up) * _EVENTS_EACH
    client = system.play(hear, attributes=attributes, keep=keep)
    system.await_ready(client, 120.0)
    heaps = stream(system, rate, **form)
    progress.wait(warm_up, "warm-up")
    begin, cpu, slipped = clock.now(), cpu_of_all(system), heaps.report().slipped
    progress.wait(seconds, "listening")
    end, cores, memory = clock.now(), cores_used(cpu, cpu_of_all(system), seconds), proportional_memory(system)
    slipped = heaps.report().slipped - slipped
    progress.wait(last_events)
    system.processes.check()
    client.call_off()
    sent = msgspec.structs.replace(heaps.end(), slipped=slipped)
    listened = system.result(client, Listened, 60.0)
    return Listening(listened=listened, sent=sent, cores=cores, memory=memory, begin=begin, end=end)
