"""Other ways of building the facade, each in its own process; timed from the first record, as ours is."""

import asyncio
import json
import os
from typing import Any

import msgspec
import tango
from tango.server import Device, attribute, run

from proving import gauges
from proving.bench.load import TOPIC
from proving.roles import RoleContext

DEVICE = "bench/sdp/1"

_PATIENCE_MS = 15_000


class PeerTiming(msgspec.Struct, frozen=True, kw_only=True):
    """How fast another way was."""

    records: int
    seconds: float
    cpu: float
    """Of the process that consumes [s]."""

    @property
    def rate(self) -> float:
        """Return the speed [records/s]."""
        return self.records / self.seconds

    @property
    def rate_per_core(self) -> float:
        """Return the speed by the processor time of the process [records/s]."""
        return self.records / self.cpu


class SdpNode(Device):
    """The device that section 11 of SDP memo 052 sketches: one attribute that a client writes."""

    def init_device(self) -> None:
        """Begin at zero."""
        super().init_device()
        self._value = 0
        self.set_change_event("widgetx", True, False)

    @attribute(dtype="DevLong64", access=tango.AttrWriteType.READ_WRITE)
    def widgetx(self) -> int:
        """Return what was written last."""
        return self._value

    @widgetx.write
    def set_widgetx(self, value: int) -> None:
        """Take a value and tell subscribers."""
        self._value = value
        self.push_change_event("widgetx", value)


def sink(context: RoleContext, *, port: int) -> None:
    """Serve the device to which the facade of SDP memo 052 writes, without a database."""
    run((SdpNode,), args=_without_database("SdpNode", port), post_init_callback=context.announce)


def write_one_by_one(context: RoleContext, *, device: str, records: int) -> PeerTiming:
    """Do what SDP memo 052 sketches, line by line: one attribute write per message."""
    from kafka import KafkaConsumer  # of the folder that the measurement puts on the path

    sdp_node = tango.DeviceProxy(device)
    consumer = KafkaConsumer(
        context.settings.prefix + TOPIC,
        bootstrap_servers=context.settings.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=_PATIENCE_MS,
    )
    done, began, cpu = 0, 0.0, 0.0
    for message in consumer:
        if not done:
            began, cpu = context.clock.monotonic(), gauges.own_cpu()
        msg = json.loads(str(message.value, "utf-8"))
        sdp_node.widgetx = msg["seq"]
        done += 1
        if done > records:
            break
    return _timing(context, done, began, cpu)


class _Heap(msgspec.Struct):
    node: int
    seq: int


def one_at_a_time(context: RoleContext, *, port: int, records: int) -> None:
    """Consume inside an asyncio device and push an event per message; delivers by itself and ends."""

    class Pushing(Device):
        """One attribute, pushed for every message."""

        green_mode = tango.GreenMode.Asyncio

        async def init_device(self) -> None:
            """Start consuming."""
            await super().init_device()
            self._newest = 0
            self.set_change_event("seq", True, False)
            self._task = asyncio.get_running_loop().create_task(self._consume())

        @attribute(dtype="DevLong64")
        async def seq(self) -> int:
            """Return the newest value."""
            return self._newest

        async def _consume(self) -> None:
            try:
                context.deliver(await _push_each(context, records, self))
            finally:
                os._exit(0)  # a Tango server that ends itself in order takes seconds

    run((Pushing,), args=_without_database("Pushing", port), green_mode=tango.GreenMode.Asyncio)


async def _push_each(context: RoleContext, records: int, device: Any) -> PeerTiming:
    from aiokafka import AIOKafkaConsumer  # of the extra `bench`

    decode = msgspec.json.Decoder(_Heap).decode
    consumer = AIOKafkaConsumer(
        context.settings.prefix + TOPIC,
        bootstrap_servers=context.settings.bootstrap,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    done, began, cpu = 0, 0.0, 0.0
    async for message in consumer:
        if not done:
            began, cpu = context.clock.monotonic(), gauges.own_cpu()
        device.push_change_event("seq", decode(message.value).seq)
        done += 1
        if done > records:
            break
    return _timing(context, done, began, cpu)


def _timing(context: RoleContext, done: int, began: float, cpu: float) -> PeerTiming:
    return PeerTiming(records=done - 1, seconds=context.clock.monotonic() - began, cpu=gauges.own_cpu() - cpu)


def _without_database(server: str, port: int) -> list[str]:
    return [server, "bench", "-nodb", "-dlist", DEVICE, "-ORBendPoint", f"giop:tcp:127.0.0.1:{port}"]
