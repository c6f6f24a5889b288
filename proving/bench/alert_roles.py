"""The processes of the alert measurement: the source that is also the client, and a bare bridge from Kafka to Tango."""

import json
import os
import queue
import threading
from typing import Any

import msgspec
import tango
from tango.server import Device, attribute
from tango.test_context import DeviceTestContext

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.reader import KafkaReader
from facade.bus.kafka.writer import KafkaWriter
from facade.bus.port import BusHealth, Record
from facade.clock import Clock
from facade.flows.alerts.messages import Alert, alert_record
from proving.bench.roles import Desk
from proving.testbed import BenchError

DEVICE = "mid-sdp/alerts/0"
_BARE_TOPIC = "commands"
"""Any topic of a deployment in which nobody else reads."""
_PATIENCE = 20.0
_PAUSE = 0.01
"""Between two samples, so that they are not queued behind each other [s]."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One alert, and one record through the bare bridge, sent one after the other."""

    whole: float
    """From the alert's sending to its event [s]."""
    kafka: float
    """From the bare record's sending to another process's having it [s]."""
    tango: float
    """From the push of a bare event to its arrival [s]."""


class Bridge(Device):
    """A device that pushes what it is given."""

    def init_device(self) -> None:
        """Declare the event."""
        super().init_device()
        self.set_change_event("last", True, False)

    @attribute(dtype=str)
    def last(self) -> str:
        """Return nothing: it is only pushed."""
        return ""


def bare_bridge(desk: Desk) -> None:
    """Push an event for each record of a topic, and do nothing else; the event says when both were done."""
    context = DeviceTestContext(Bridge, process=False, timeout=30)
    with context:
        connection = Connection(desk.settings, clock=desk.clock)
        reader = KafkaReader(connection, {_BARE_TOPIC: None}, start={}, health=BusHealth())
        while not reader.caught_up(_BARE_TOPIC):
            reader.take(1, 0.1)
        desk.result.with_suffix(".address").write_text(context.get_device_access())
        thread = threading.Thread(target=_bridge, args=(desk, reader), daemon=True)
        thread.start()
        desk.announce()
        thread.join()


def _bridge(desk: Desk, reader: KafkaReader) -> None:
    with tango.EnsureOmniThread():
        device = next(one for one in tango.Util.instance().get_device_list("*") if isinstance(one, Bridge))
        while not desk.called_off:
            for record in reader.take(1, 0.1):
                had = desk.clock.now()
                text = f"{(record.value or b'').decode()} {had:.7f} {desk.clock.now():.7f}"
                device.push_change_event("last", text)


def send_alerts(desk: Desk, *, alerts: int, warm_up: int, bridge: str, bare_prefix: str) -> list[Sample]:
    """Send alerts one by one, each followed by a record through the bare bridge, and wait for their events."""
    source = _Source(desk, bare_prefix)
    events = _Events(desk.clock)
    bare = tango.DeviceProxy(bridge)
    device = tango.DeviceProxy(f"tango://{os.environ['TANGO_HOST']}/{DEVICE}")
    device.subscribe_event("lastAlert", tango.EventType.CHANGE_EVENT, events.of_alerts)
    bare.subscribe_event("last", tango.EventType.CHANGE_EVENT, events.of_bridge)
    desk.announce()
    samples = []
    for number in range(1, warm_up + alerts + 1):
        began = source.alert(number)
        whole = events.wait_alert(number) - began
        began = source.record(number)
        had, pushed, came = events.wait_bridge(number)
        samples.append(Sample(whole, had - began, came - pushed))
        desk.clock.sleep(_PAUSE)
    return samples[warm_up:]


class _Source:
    """Sends alerts and bare records, each at once."""

    def __init__(self, desk: Desk, bare_prefix: str) -> None:
        self._clock = desk.clock
        connection = Connection(desk.settings, clock=desk.clock)
        bare = Connection(msgspec.structs.replace(desk.settings, prefix=bare_prefix), clock=desk.clock)
        self._alerts = KafkaWriter(connection, health=BusHealth(), client="source")
        self._records = KafkaWriter(bare, health=BusHealth(), client="bare")

    def alert(self, number: int) -> float:
        began = self._clock.now()
        alert = Alert(
            condition=f"bench{number % 100}",
            source="bench",
            severity="WARNING",
            state="ACTIVE" if number % 2 else "CLEARED",
            text="expected nothing, found something",
            raised_at=round(began * 1e6),
            sequence=number,
        )
        self._alerts.send(alert_record(alert))
        return began

    def record(self, number: int) -> float:
        began = self._clock.now()
        self._records.send(Record(topic=_BARE_TOPIC, key=b"bench", value=str(number).encode()))
        return began


class _Events:
    """What came, with the time at which it did."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._alerts: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
        self._bridge: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()

    def of_alerts(self, event: Any) -> None:
        came = self._clock.now()
        if not event.err:
            self._alerts.put((event.attr_value.value, came))

    def of_bridge(self, event: Any) -> None:
        came = self._clock.now()
        if not event.err:
            self._bridge.put((event.attr_value.value, came))

    def wait_alert(self, number: int) -> float:
        while True:
            text, came = self._get(self._alerts)
            if text and json.loads(text).get("alert", {}).get("sequence") == number:
                return came

    def wait_bridge(self, number: int) -> tuple[float, float, float]:
        while True:
            text, came = self._get(self._bridge)
            if text and text.split()[0] == str(number):
                return float(text.split()[1]), float(text.split()[2]), came

    @staticmethod
    def _get(events: "queue.SimpleQueue[tuple[str, float]]") -> tuple[str, float]:
        try:
            return events.get(timeout=_PATIENCE)
        except queue.Empty:
            raise BenchError(f"no event within {_PATIENCE:g} s") from None
