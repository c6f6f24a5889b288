"""Tango clients in processes of their own: one that listens to events, one that reads."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import tango

from clients.events import EventRecorder
from facade.reading import Quality
from proving import gauges
from proving.roles import RoleContext

_STATE_EACH = 5
"""State() is asked for after so many attributes, so that there are enough answers for a p99."""


class Heard(msgspec.Struct, frozen=True, array_like=True):
    """One event as it came."""

    device: str
    attribute: str
    time: float
    """Of the data [Unix s]."""
    received: float
    """[Unix s]."""


class Listened(msgspec.Struct, frozen=True, kw_only=True):
    """What a client heard."""

    events: list[Heard]
    """Those with a value."""
    invalid: int
    """Events with ATTR_INVALID, not among the others."""
    errors: int
    last_error: str
    cpu: float
    """Of the client since it was ready [s]."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """One answer, or its failure."""

    kind: str
    began: float
    """[Unix s]."""
    seconds: float
    failed: bool


def listen(context: RoleContext, *, devices: list[str], attributes: list[str], keep: int) -> Listened:
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
        events=[Heard(d, a, e.time, e.received) for d, a, e in events if e.quality is not Quality.INVALID],
        invalid=sum(e.quality is Quality.INVALID for _, _, e in events),
        errors=sum(record.errors for _, _, record in records),
        last_error=next((record.last_error for _, _, record in records if record.last_error), ""),
        cpu=cpu,
    )


def read(context: RoleContext, *, devices: list[str], pause: float) -> list[Call]:
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
    made: list[Call] = []
    for kind, call in itertools.cycle(calls):
        if context.called_off:
            break
        began, begin, failed = context.clock.now(), context.clock.monotonic(), False
        try:
            call()
        except tango.DevFailed:
            failed = True
        made.append(Call(kind, began, context.clock.monotonic() - begin, failed))
        context.clock.sleep(pause)
    return made
