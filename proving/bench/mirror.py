"""The mirror: rate and recovery with 5,000 attributes."""

import threading
from typing import Any

import msgspec
import tango
from tango.server import Device, DeviceMeta, attribute, run

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.producer import KafkaWriter
from facade.bus.kafka.reader import KafkaReader
from facade.bus.port import BusHealth
from facade.clock import SystemClock
from facade.errors import InfraError
from facade.flows.mirror.messages import MODEL, MirrorRule, TelescopeAttribute, decode_attribute, rule_record
from proving.bench.report import BarVerdict, BenchOutcome, at_most, quantiles
from proving.deployment import Deployment
from proving.gauges import cores_used, cpu_of_all, in_words
from proving.roles import RoleContext
from proving.testbed import Testbed

SERVER, FAMILY = "BenchDishes", "bench/dish"
_AT_MOST = 120.0
"""Longest wait for all attributes after a restart [s]."""
_TICKS = 20
"""Times a second at which devices push a part of their attributes."""


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the values of all attributes for a while."""

    seconds: float
    records: int
    """Records of new values."""
    unsaid: int
    """Values that are missing without a word."""
    gaps: int
    """Records that say that values are missing before them."""
    latencies: list[float]
    """From the push of a value to its record in the reader's hand [s]."""


class Dish(Device):
    """A device whose attributes have a number each, that of their last push."""

    clock = SystemClock()
    count = 0

    def init_device(self) -> None:
        """Say that all is pushed by code."""
        super().init_device()
        self._numbers = dict.fromkeys(self.names, 0.0)
        for name in self.names:
            self.set_change_event(name, True, False)

    @property
    def names(self) -> list[str]:
        """Return the names of the attributes."""
        return [f"a{number:03}" for number in range(self.count)]

    def read_number(self, attr: Any) -> float:
        return self._numbers[attr.get_name()]

    def push(self, name: str, number: float) -> None:
        self._numbers[name] = number
        self.push_change_event(name, number, self.clock.now(), tango.AttrQuality.ATTR_VALID)


def dishes(context: RoleContext, *, devices: int, attributes: int) -> None:
    """Serve devices, which push each of their attributes once a second from the moment that the gate opens."""
    made = [attribute(name=f"a{number:03}", dtype=float, fget="read_number") for number in range(attributes)]
    kind = DeviceMeta("BenchDish", (Dish,), {"count": attributes, **{one.name: one for one in made}})
    database = tango.Database()
    for number in range(devices):
        info = tango.DbDevInfo()
        info.server, info._class, info.name = f"{SERVER}/1", "BenchDish", f"{FAMILY}/{number:03}"  # noqa: SLF001
        database.add_device(info)

    def load() -> None:
        with tango.EnsureOmniThread():
            while not context.released:
                context.clock.sleep(0.05)
            found = [one for one in tango.Util.instance().get_device_list("*") if isinstance(one, Dish)]
            each = [(device, f"a{number:03}") for number in range(attributes) for device in found]
            begin, turn = context.clock.monotonic(), 0
            while True:
                number, tick = divmod(turn, _TICKS)
                for device, name in each[tick::_TICKS]:
                    device.push(name, number + 1.0)
                turn += 1
                context.clock.sleep(max(begin + turn / _TICKS - context.clock.monotonic(), 0.0))

    def start() -> None:
        threading.Thread(target=load, daemon=True).start()
        context.announce()

    run((kind,), args=[SERVER, "1"], post_init_callback=start, raises=True)


def follow(context: RoleContext, *, seconds: float) -> Followed:
    """Read the telescope model for a while."""
    reader, clock = _reader(context, MODEL), context.clock
    newest: dict[str, TelescopeAttribute] = {}
    records = unsaid = gaps = 0
    latencies: list[float] = []
    begin = clock.monotonic()
    while clock.monotonic() - begin < seconds:
        for record in (*reader.take(1, 0.1), *reader.take(500, 0.0)):
            now, message = clock.now(), decode_attribute(record.value)
            if not isinstance(message, TelescopeAttribute) or not isinstance(message.value, float):
                continue
            if not message.name.startswith(FAMILY):
                continue
            before = newest.get(message.name)
            newest[message.name] = message
            if before is None or before.number == message.number:
                continue
            records += 1
            gaps += message.gap
            latencies.append(now - message.time / 1e6)
            if not message.gap and isinstance(before.value, float):
                unsaid += round(message.value - before.value) - 1
    took = clock.monotonic() - begin
    return Followed(seconds=took, records=records, unsaid=unsaid, gaps=gaps, latencies=latencies)


def await_all(context: RoleContext, *, attributes: int) -> float:
    """Return how long it takes until each attribute has a value of after the beginning [s]."""
    reader, clock = _reader(context, MODEL), context.clock
    context.announce()
    while not context.released:
        clock.sleep(0.01)
    begin, found = clock.now(), set[str]()
    while len(found) < attributes:
        for record in (*reader.take(1, 0.1), *reader.take(500, 0.0)):
            message = decode_attribute(record.value)
            if isinstance(message, TelescopeAttribute) and message.time / 1e6 > begin:
                found.add(message.name)
        if clock.now() - begin > _AT_MOST:
            raise InfraError(f"{attributes - len(found)} of {attributes} attributes have no value after {_AT_MOST:g} s")
    return clock.now() - begin


def _reader(context: RoleContext, topic: str) -> KafkaReader:
    reader = KafkaReader(Connection(context.settings, clock=context.clock), {topic: None}, start={}, health=BusHealth())
    while not reader.caught_up(topic):
        reader.take(500, 0.1)
    return reader


DEVICES, ATTRIBUTES = 50, 100
"""Devices, and attributes of each, which are pushed once a second."""
BACK_WITHIN = 5.0
"""From a kill of the mirror, which is started again at once, until the value of each attribute is newer [s]."""
_WITHIN = 180.0
_SETTLE = 5.0


def mirror(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    """Mirror 5,000 attributes at 1 Hz."""
    seconds = 10.0 if quick else 60.0
    with testbed.deployment("mirror", without="") as made:
        made.register()
        dishes = made.play("dishes", devices=DEVICES, attributes=ATTRIBUTES)
        try:
            made.await_ready(dishes)
            server = made.server("mirror")
            progress, begin = testbed.progress, testbed.progress.clock.monotonic()
            progress.demand(lambda: made.answers("mirror"), _WITHIN, "the device server mirror")
            _write_rule(made)
            progress.demand(lambda: _present(made) >= DEVICES * ATTRIBUTES, _WITHIN, "all has been read")
            took = progress.clock.monotonic() - begin
            dishes.release()
            progress.wait(_SETTLE, "warm-up")
            before = cpu_of_all(made)
            followed = made.result(made.play("follow-mirror", ends=True, seconds=seconds), Followed)
            cores = cores_used(before, cpu_of_all(made), followed.seconds)
            waits = made.play("await-mirror", attributes=DEVICES * ATTRIBUTES)
            made.await_ready(waits)
            made.processes.kill(server.name)
            waits.release()
            made.server("mirror", name="mirror-again")
            back = made.result(waits, float)
        finally:
            database = tango.Database(*made.tango_host.split(":"))
            database.delete_server(f"{SERVER}/1")
    rate = followed.records / followed.seconds
    spread = quantiles(followed.latencies)
    return BenchOutcome(
        name="mirror",
        what="Tango attributes on the bus: event of a device -> record on telescope.model in another process",
        verdicts=(
            at_most(f"cores of the mirror at {rate:,.0f} values/s", cores.get("mirror"), 1.0, "cores"),
            BarVerdict(
                what=f"values missing without a word, of {followed.records:,}",
                bar="0",
                found=f"{followed.unsaid}; said: {followed.gaps}",
                reached=followed.unsaid == 0,
            ),
            BarVerdict(
                what="each of these values, from its push to its record",
                bar="",
                found=spread.text(1e3, "ms") if spread else "-",
            ),
            at_most("from kill -9 until the newest values are right", back, BACK_WITHIN, "s"),
            BarVerdict(what="from the rule until all has been read", bar="", found=f"{took:.1f} s"),
        ),
        notes=(in_words(cores),),
    )


def _write_rule(made: Deployment) -> None:
    rule = MirrorRule(rule="bench", patterns=[f"{FAMILY}/*/a*"], time=1, origin="bench")
    writer = KafkaWriter(made.connection, health=BusHealth(), client="rule")
    writer.send_durably(rule_record(rule), 30.0)


def _present(made: Deployment) -> int:
    (device,) = made.devices("SdpMirror")
    try:
        mirrored, polled, disconnected = made.proxy(device).read_attributes(["mirrored", "polled", "disconnected"])
    except tango.DevFailed:
        return 0
    return int(mirrored.value or 0) - int(polled.value or 0) - int(disconnected.value or 0)
