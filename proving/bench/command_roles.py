"""The processes of the command measurement: the caller, a controller that does nothing, and both bare hops."""

import os
import queue
import threading
from typing import Any

import msgspec
import tango
from tango.server import Device, attribute, command
from tango.test_context import DeviceTestContext

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.reader import KafkaReader
from facade.bus.kafka.sender import KafkaSender
from facade.bus.port import BusHealth, Record
from facade.clock import Clock
from facade.controller import Call, Controller, run
from facade.flows.commands.messages import ACKS, COMMANDS
from facade.icd.load import load
from proving.bench.roles import Desk
from proving.testbed import BenchError

DEVICE = "mid-sdp/subarray/01"
RESULT = "longRunningCommandResult"
ARGUMENTS = {
    "AssignResources": {"resources": {"receptors": ["SKA001"]}},
    "Configure": {"interface": "https://schema.skao.int/ska-sdp-configure/0.4", "scan_type": "bench"},
}
_NOT_COUNTED = 20
"""Commands before those that count."""
_PATIENCE = 20.0
"""Longest wait for anything [s]."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One command and both bare hops, made one after the other."""

    call: float
    """Until the Tango call returned: the command is durable [s]."""
    whole: float
    """Until the event with its outcome came [s]."""
    kafka: float
    """A durable record to another process and one back [s]."""
    tango: float
    """A Tango call to another process until the event that it sets off came [s]."""


def controller(desk: Desk) -> None:
    """Execute every command at once: report the state that it leads to, and nothing else."""
    targets = {c.name: (c.reports, c.targets[0]) for c in load().classes["SdpSubarray"].commands}
    made = Controller("bench", "SdpSubarray")

    @made.command(*targets)
    def execute(call: Call) -> None:
        name, label = targets[call.command]
        call.report(**{name: label})

    run(made, desk.settings)


def echo(desk: Desk) -> None:
    """Send every record back, durably: two bare Kafka hops."""
    connection, health = Connection(desk.settings, clock=desk.clock), BusHealth()
    sender = KafkaSender(connection, health=health, client="echo")
    reader = KafkaReader(connection, {COMMANDS: None}, start={}, health=health)
    while not reader.caught_up(COMMANDS):
        reader.take(1, 0.1)
    desk.announce()
    while not desk.called_off:
        for record in reader.take(1, 0.1):
            sender.send(Record(topic=ACKS, key=record.key, value=record.value), _PATIENCE)


class Bare(Device):
    """A device that answers a call and then pushes one event from a thread of its own."""

    def init_device(self) -> None:
        """Start the pushing thread."""
        super().init_device()
        self._poked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.set_change_event("last", True, False)
        threading.Thread(target=self._push, daemon=True).start()

    @attribute(dtype=(str,), max_dim_x=2)
    def last(self) -> list[str]:
        """Return nothing: it is only pushed."""
        return []

    @command(dtype_in=str, dtype_out="DevVarLongStringArray")
    def Poke(self, number: str) -> tuple[list[int], list[str]]:  # noqa: N802 - Tango's style
        """Set off an event."""
        self._poked.put(number)
        return [2], [number]

    def _push(self) -> None:
        with tango.EnsureOmniThread():
            while True:
                self.push_change_event("last", [self._poked.get(), ""])


def bare_device(desk: Desk) -> None:
    """Serve one bare device."""
    context = DeviceTestContext(Bare, process=False, timeout=30)
    with context:
        desk.result.with_suffix(".address").write_text(context.get_device_access())
        desk.announce()
        while not desk.called_off:
            desk.clock.sleep(0.05)


def call_commands(desk: Desk, *, commands: int, warm_up: int, bare_device: str, echo_prefix: str) -> list[Sample]:
    """Give commands one after the other, and make both bare hops between them."""
    caller = _Caller(desk.clock)
    proxy = tango.DeviceProxy(f"tango://{os.environ['TANGO_HOST']}/{DEVICE}")
    bare = tango.DeviceProxy(bare_device)
    proxy.subscribe_event(RESULT, tango.EventType.CHANGE_EVENT, caller.on_event)
    bare.subscribe_event("last", tango.EventType.CHANGE_EVENT, caller.on_event)
    kafka = _KafkaRoundTrip(desk, echo_prefix)
    if proxy.state() == tango.DevState.OFF:
        for name in ("On", "AssignResources"):
            caller.command(proxy, name)
    desk.announce()
    for number in range(warm_up):  # a broker that has just been started spends its time compiling
        kafka.round_trip(f"warm-up {number}")
    samples = []
    for number in range(_NOT_COUNTED + commands):
        called, whole = caller.command(proxy, "Configure")
        hop = caller.poke(bare, str(number))
        samples.append(Sample(called, whole, kafka.round_trip(str(number)), hop))
    return samples[_NOT_COUNTED:]


class _Caller:
    """Gives commands and waits for the event that tells the outcome."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._came: dict[str, float] = {}
        self._changed = threading.Condition()

    def on_event(self, event: Any) -> None:
        """Take an event: its first text is an id."""
        now = self._clock.monotonic()
        if event.err or event.attr_value is None or not event.attr_value.value:
            return
        with self._changed:
            self._came.setdefault(event.attr_value.value[0], now)
            self._changed.notify_all()

    def command(self, proxy: Any, name: str) -> tuple[float, float]:
        """Return a command; returns the times of the call and of everything [s]."""
        argument = ARGUMENTS.get(name)
        text = () if argument is None else (msgspec.json.encode(argument).decode(),)
        began = self._clock.monotonic()
        _, (id,) = proxy.command_inout(name, *text)
        called = self._clock.monotonic()
        return called - began, self._await(id, name) - began

    def poke(self, proxy: Any, number: str) -> float:
        """Make a bare call and wait for its event [s]."""
        began = self._clock.monotonic()
        proxy.command_inout("Poke", number)
        return self._await(number, "Poke") - began

    def _await(self, id: str, name: str) -> float:
        with self._changed:
            if not self._changed.wait_for(lambda: id in self._came, _PATIENCE):
                raise BenchError(f"{name}: no event about {id} within {_PATIENCE:g} s")
            return self._came.pop(id)


class _KafkaRoundTrip:
    """Sends a record to the echo and waits for its return."""

    def __init__(self, desk: Desk, prefix: str) -> None:
        connection = Connection(msgspec.structs.replace(desk.settings, prefix=prefix), clock=desk.clock)
        health = BusHealth()
        self._clock = desk.clock
        self._sender = KafkaSender(connection, health=health, client="round-trip")
        self._reader = KafkaReader(connection, {ACKS: None}, start={}, health=health)

    def round_trip(self, text: str) -> float:
        """Return how long it took [s]."""
        value, began = text.encode(), self._clock.monotonic()
        self._sender.send(Record(topic=COMMANDS, key=b"bench", value=value), _PATIENCE)
        while self._clock.monotonic() - began < _PATIENCE:
            if any(record.value == value for record in self._reader.take(1, 0.1)):
                return self._clock.monotonic() - began
        raise BenchError(f"the echo of record {text} did not come within {_PATIENCE:g} s")
