"""Commands and alerts beside the same hops of Kafka and Tango without the facade."""

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import tango
from tango.server import Device, attribute, command
from tango.test_context import DeviceTestContext

from facade.flows.alerts.messages import Alert, alert_record
from facade.flows.commands.messages import ACKS, COMMANDS
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaSender, KafkaWriter
from facade.kernel.bus.kafka.reader import KafkaReader
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.clock import Clock, as_time
from facade.kernel.errors import InfraError
from facade.kernel.icd.load import load
from facade.sdk.controller.api import Controller
from facade.sdk.controller.call import Call
from facade.sdk.controller.process import run
from sdp_facade_lab.bench.load import NODES, RATE, large, stream
from sdp_facade_lab.bench.report import BarVerdict, BenchOutcome, at_most, quantiles
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.roles import Play, RoleContext
from sdp_facade_lab.testbed import Testbed

SUBARRAY, ALERTS = "mid-sdp/subarray/01", "mid-sdp/alerts/0"
RESULT = "longRunningCommandResult"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "AssignResources": {"resources": {"receptors": ["SKA001"]}},
    "Configure": {"interface": "https://schema.skao.int/ska-sdp-configure/0.4", "scan_type": "bench"},
}
ACCEPTED = b"ACCEPTED"
"""Stands for a controller's first acknowledgement in the bare way."""
_LONG_NAME = 2000
NOT_COUNTED = 20
"""Samples before those that count."""
_PATIENCE = 20.0
"""Longest wait for anything [s]."""
_STARTS = 6
"""Tries of the first command, each of which times out while the controller still starts."""
_PAUSE = 0.01
"""Between two alerts, so that they are not queued behind each other [s]."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One command or alert, and both bare hops of its way, made one after the other."""

    whole: float
    """From the call, or the sending, until the event [s]."""
    kafka: float
    """Bare records: of a command one to another process and two back, one after the other, each durable; of an alert
    one until it is read [s]."""
    tango: float
    """Of a command a bare call until the event that it sets off, of an alert a bare event until it has come [s]."""
    call: float = 0.0
    """Until the Tango call returned: the command is durable [s]."""


class BareDevice(Device):
    """A device that answers a call and then pushes one event from a thread of its own."""

    def init_device(self) -> None:
        super().init_device()
        self._poked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.set_change_event("last", True, False)
        threading.Thread(target=self._push, daemon=True).start()

    @attribute(dtype=str)
    def last(self) -> str:
        return ""

    @command(dtype_in=str, dtype_out="DevVarLongStringArray")
    def Poke(self, number: str) -> tuple[list[int], list[str]]:  # noqa: N802 - Tango's style
        self._poked.put(number)
        return [2], [number]

    def _push(self) -> None:
        with tango.EnsureOmniThread():
            while True:
                self.push_change_event("last", self._poked.get())


def bare_device(context: RoleContext) -> None:
    _serve(context, lambda: context.clock.sleep(0.05))


def bare_bridge(context: RoleContext) -> None:
    """Push an event for each record of a topic, and do nothing else; the event says when both were done."""
    reader = _reader(context, COMMANDS)

    def bridge() -> None:
        for record in reader.take(1, 0.1):
            had = context.clock.monotonic()
            device = next(one for one in tango.Util.instance().get_device_list("*") if isinstance(one, BareDevice))
            text = f"{(record.value or b'').decode()} {had:.7f} {context.clock.monotonic():.7f}"
            device.push_change_event("last", text)

    _serve(context, bridge)


def _serve(context: RoleContext, step: Callable[[], None]) -> None:
    def go_on() -> None:
        with tango.EnsureOmniThread():
            while not context.called_off:
                step()

    device = DeviceTestContext(BareDevice, process=False, timeout=30)
    with device:
        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        context.announce(device.get_device_access())
        thread.join()


def controller(context: RoleContext) -> None:
    """Execute every command at once: report the state that it leads to, and nothing else."""
    targets = {c.name: (c.reports, c.targets[0]) for c in load().classes["SdpSubarray"].commands}
    made = Controller("bench", "SdpSubarray")

    @made.command(*targets)
    def execute(call: Call) -> None:
        name, label = targets[call.command]
        call.report(**{name: label})

    run(made, context.settings)


def echo(context: RoleContext) -> None:
    """Send two records for each one, durably and one after the other, as a controller does: ACCEPTED, outcome."""
    sender = KafkaSender(Connection(context.settings, clock=context.clock), health=BusHealth(), client="echo")
    reader = _reader(context, COMMANDS)
    context.announce()
    while not context.called_off:
        for record in reader.take(1, 0.1):
            for value in (ACCEPTED, record.value):
                sender.send(Record(topic=ACKS, key=record.key, value=value), _PATIENCE).result()


def scan_types(size: int) -> list[dict[str, Any]]:
    one = {"beams": {"vis0": {"channels_id": "vis_channels", "field_id": "field-".ljust(_LONG_NAME, "a")}}}
    each = len(msgspec.json.encode({"scan_type_id": "bench-00000", **one})) + 1
    return [{"scan_type_id": f"bench-{number:05}", **one} for number in range(-(-size // each))]


def call_commands(
    context: RoleContext, *, count: int, warm_up: int, bare: str, bare_prefix: str, size: int = 0
) -> list[Sample]:
    """Give commands one after the other, and make the bare hops between them.

    Parameters
    ----------
    size
        Least length of the argument of the commands that count; the bare records are as long [B].
    """
    clock, events, hops = context.clock, Events(context.clock), bare_connection(context, bare_prefix)
    subarray, device = tango.DeviceProxy(f"tango://{context.tango_host}/{SUBARRAY}"), tango.DeviceProxy(bare)
    events.subscribe(subarray, RESULT, lambda value: value[0])
    events.subscribe(device, "last", str)
    sender = KafkaSender(hops, health=BusHealth(), client="round-trip")
    reader = KafkaReader(hops, {ACKS: None}, start={}, health=BusHealth())

    def give(name: str) -> tuple[float, float]:
        argument = ARGUMENTS.get(name)
        if name == "Configure" and size:
            argument = ARGUMENTS[name] | {"new_scan_types": scan_types(size)}
        text = () if argument is None else (msgspec.json.encode(argument).decode(),)
        began = clock.monotonic()
        _, (id,) = subarray.command_inout(name, *text)
        called = clock.monotonic()
        return called - began, events.wait(id)[0] - began

    def poke(number: str) -> float:
        began = clock.monotonic()
        device.command_inout("Poke", number)
        return events.wait(number)[0] - began

    def round_trip(text: str) -> float:
        value, began = text.encode(), clock.monotonic()
        sender.send(Record(topic=COMMANDS, key=b"bench", value=value), _PATIENCE).result()
        while clock.monotonic() - began < _PATIENCE:
            if any(record.value == value for record in reader.take(1, 0.1)):
                return clock.monotonic() - began
        raise InfraError(f"the echo of record {text} did not come within {_PATIENCE:g} s")

    for number in range(warm_up):  # a broker that has just been started spends its time compiling
        round_trip(f"warm-up {number}")
    if subarray.state() == tango.DevState.OFF:
        for _ in range(_STARTS):
            if subarray.state() == tango.DevState.OFF:
                give("On")
        give("AssignResources")
    samples = []
    for text in (str(number).zfill(size) for number in range(NOT_COUNTED + count)):
        called, whole = give("Configure")
        hop = poke(text.lstrip("0") or "0")
        samples.append(Sample(whole, round_trip(text), hop, called))
    return samples[NOT_COUNTED:]


def through_bridge(
    context: RoleContext,
    send: Callable[[int], str],
    numbers: range,
    *,
    shown: tuple[str, str, Callable[[str], str]],
    pause: float,
    bare: str,
    bare_prefix: str,
) -> list[Sample]:
    """Send messages one by one, each followed by a record through the bare bridge, and wait for their events.

    Parameters
    ----------
    send
        Sends a message, and returns the subject of its event.
    shown
        Device and attribute that show it, and how the subject is read from the value.
    pause
        Between two messages [s].
    """
    clock, events = context.clock, Events(context.clock)
    device, attribute, subject = shown
    events.subscribe(tango.DeviceProxy(f"tango://{context.tango_host}/{device}"), attribute, subject)
    events.subscribe(tango.DeviceProxy(bare), "last", lambda text: f"bare {text.split()[0]}")
    records = KafkaWriter(bare_connection(context, bare_prefix), health=BusHealth(), client="bare")
    samples = []
    for number in numbers:
        began = clock.monotonic()
        whole = events.wait(send(number))[0] - began
        began = clock.monotonic()
        records.send(Record(topic=COMMANDS, key=b"bench", value=str(number).encode()))
        came, text = events.wait(f"bare {number}")
        had, pushed = map(float, text.split()[1:])
        samples.append(Sample(whole, had - began, came - pushed))
        clock.sleep(pause)
    return samples[NOT_COUNTED:]


def send_alerts(context: RoleContext, *, count: int, **bridge: Any) -> list[Sample]:
    clock = context.clock
    alerts = KafkaWriter(Connection(context.settings, clock=clock), health=BusHealth(), client="source")

    def send(number: int) -> str:
        alerts.send(alert_record(_alert(number, clock.now())))
        return f"alert {number}"

    numbers, shown = range(1, NOT_COUNTED + count + 1), (ALERTS, "lastAlert", _alert_number)
    return through_bridge(context, send, numbers, shown=shown, pause=_PAUSE, **bridge)


def _alert(number: int, now: float) -> Alert:
    return Alert(
        condition=f"bench{number % 100}",
        source="bench",
        severity="WARNING",
        state="ACTIVE" if number % 2 else "CLEARED",
        text="expected nothing, found something",
        raised_at=as_time(now),
        sequence=number,
    )


def _alert_number(text: str) -> str:
    return f"alert {json.loads(text).get('alert', {}).get('sequence')}"


def _reader(context: RoleContext, topic: str) -> KafkaReader:
    connection = Connection(context.settings, clock=context.clock)
    reader = KafkaReader(connection, {topic: None}, start={}, health=BusHealth())
    while not reader.caught_up(topic):
        reader.take(1, 0.1)
    return reader


def bare_connection(context: RoleContext, prefix: str) -> Connection:
    return Connection(msgspec.structs.replace(context.settings, prefix=prefix), clock=context.clock)


class Events:
    """Events by subject, with their times of arrival."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._came: dict[str, tuple[float, Any]] = {}
        self._changed = threading.Condition()
        self._proxies: list[Any] = []
        """A subscription ends with its proxy."""

    def subscribe(self, proxy: Any, attribute: str, about: Callable[[Any], str]) -> None:

        def on_event(event: Any) -> None:
            now = self._clock.monotonic()
            if not event.err and event.attr_value is not None and (value := event.attr_value.value):
                self.note(about(value), now, value)

        self._proxies.append(proxy)
        proxy.subscribe_event(attribute, tango.EventType.CHANGE_EVENT, on_event)

    def note(self, about: str, time: float, value: Any) -> None:
        with self._changed:
            self._came.setdefault(about, (time, value))
            self._changed.notify_all()

    def wait(self, about: str) -> tuple[float, Any]:
        """Return when the event about something came (monotonic time), and its value."""
        with self._changed:
            if not self._changed.wait_for(lambda: about in self._came, _PATIENCE):
                raise InfraError(f"no event about {about} within {_PATIENCE:g} s")
            return self._came.pop(about)


BAR = 1.5
"""Times the sum of the bare hops, at p99."""
WARM_UP = 20_000
"""Records there and back before the first command."""
_SETTLE = 4.0
_LARGE = 512 * 1024
"""Length of the arguments of Table 1 of SDP memo 052 [B]."""
_LARGE_BAR = 1.0
"""Of the outcome of such a command, at p99 (Table 1) [s]."""


def begin_commands(system: Deployment, bare: Deployment) -> dict[str, Any]:
    """Start the controller and the bare way beside it; return the arguments of a client that gives commands."""
    system.play(controller)
    bare.await_ready(bare.play(echo))
    device = bare.play(bare_device)
    bare.await_ready(device)
    return {"bare": device.address, "bare_prefix": bare.settings.prefix, "warm_up": 0}


def begin_bridge(_: Deployment, bare: Deployment) -> dict[str, Any]:
    """Start the bare bridge; return the arguments of a client that sends through it."""
    bridge = bare.play(bare_bridge)
    bare.await_ready(bridge)
    return {"bare": bridge.address, "bare_prefix": bare.settings.prefix}


Measured = Mapping[str, Sequence[Sample]]
"""Samples of commands or alerts, by kind."""
_COUNTS = {"commands": (200, 1000), "alerts": (300, 2000)}
"""Samples, of a quick measurement and of another one."""


@contextmanager
def commands_and_alerts(
    testbed: Testbed, name: str, *kinds: str, quick: bool
) -> Iterator[tuple[Deployment, Callable[..., Measured]]]:
    """Make a system; give it with a function that measures commands and alerts there, as often as it is called.

    The arguments of the function are a label, and how many records go there and back before the first command.
    `kinds`: by default both.
    """
    ways: dict[str, tuple[Play, dict[str, Any]]] = {}
    with ExitStack() as stack:
        system = stack.enter_context(testbed.system(name, nodes=NODES))
        for kind in kinds or _COUNTS:
            bare = stack.enter_context(testbed.deployment(f"{name}-{kind}-bare"))
            role, begin = (call_commands, begin_commands) if kind == "commands" else (send_alerts, begin_bridge)
            ways[kind] = role, {"count": _COUNTS[kind][not quick], **begin(system, bare)}

        def measure(label: str, warm_up: int = 0) -> Measured:
            found: dict[str, Sequence[Sample]] = {}
            for kind, (role, task) in ways.items():
                testbed.progress.step(f"  {task['count']} {kind}, {label}")
                first = {"warm_up": warm_up} if "warm_up" in task else {}
                found[kind] = system.result(system.play(role, ends=True, **task | first), list[Sample])
            return found

        yield system, measure
        system.processes.check()


def commands(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    what = "Tango call -> durable record -> controller -> final ack -> event in the caller's process"
    return _under_three_loads(testbed, "commands", what, quick=quick)


def large_commands(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    count = 20 if quick else 200
    with testbed.system("large-commands", nodes=NODES) as system, testbed.deployment("large-commands-bare") as bare:
        task = {**begin_commands(system, bare), "warm_up": WARM_UP, "count": count, "size": _LARGE}
        samples = system.result(system.play(call_commands, ends=True, **task), list[Sample])
    whole = quantiles([s.whole for s in samples])
    return BenchOutcome(
        what=f"as commands, with an argument of {_LARGE // 1024} KiB",
        verdicts=(at_most("p99 of the outcome", whole.p99 if whole else None, _LARGE_BAR, "s"),),
    )


def alerts(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    what = "alert on the bus -> event of lastAlert in another process"
    return _under_three_loads(testbed, "alerts", what, quick=quick)


def beside_load(system: Deployment, measure: Callable[..., Measured], label: str) -> tuple[Measured, float]:
    """Measure while the nodes notify at full rate, as they do from then on.

    Returns
    -------
    Measured, float
        Samples by kind, and how many notifications were really sent meanwhile [1/s].
    """
    load, clock = stream(system, RATE), system.clock
    system.progress.wait(_SETTLE, "warm-up")
    begin, before = clock.monotonic(), load.report().sent
    samples = measure(f"{label}, {RATE:,.0f} notifications/s")
    return samples, (load.report().sent - before) / (clock.monotonic() - begin)


def _under_three_loads(testbed: Testbed, kind: str, what: str, *, quick: bool) -> BenchOutcome:
    """Measure in quiet, while four nodes notify at full rate, and beside large things."""
    with commands_and_alerts(testbed, kind, kind, quick=quick) as (system, measure):
        parts = {"quiet": measure("quiet", WARM_UP)[kind]}
        samples, rate = beside_load(system, measure, kind)
        parts[f"{rate:,.0f} notifications/s"] = samples[kind]
        label = large(system)
        testbed.progress.wait(_SETTLE, "warm-up")
        parts[label] = measure(label)[kind]
    return BenchOutcome(
        what=what,
        verdicts=tuple(verdict for label, samples in parts.items() for verdict in hop_verdicts(label, samples)),
    )


def hop_verdicts(label: str, samples: Sequence[Sample]) -> list[BarVerdict]:
    whole, bare = quantiles([s.whole for s in samples]), quantiles([s.kafka + s.tango for s in samples])
    if whole is None or bare is None:
        return []
    ratio = whole.p99 / bare.p99
    found = f"{ratio:.2f} ({whole.p99 * 1e3:.1f} ms beside {bare.p99 * 1e3:.1f} ms)"
    return [BarVerdict(f"p99 / p99 of the bare hops, {label}", found, bar=f"<= {BAR:g}", reached=ratio <= BAR)]
