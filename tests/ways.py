"""How many files one item goes through, from the bus to Tango: ``make ways``.

Two sites stand on simulated brokers, under clocks that only the test moves. Both do the same, but only the second gets
the item. A file counts if one of its functions runs more often there: loops, heartbeats and snapshots that run anyway
do not count. Kafka's client (`facade/kernel/bus/kafka`) is left out, since the simulation answers in its place. Devices
run the code of their classes; only Tango itself is missing.
"""

import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import CodeType, FrameType, FunctionType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tango

from devices.kernel.base import FacadeDevice, TangoSink
from devices.kernel.classes import device_classes
from devices.mirror import _Session
from facade.flows.mirror.choice import Choice
from facade.flows.mirror.composition import own_devices
from facade.flows.mirror.messages import MirrorRule, rule_record
from facade.flows.mirror.mirror import Mirror
from facade.flows.tables.assembly import AssemblyLimits
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.content import ARROW, summarise
from facade.flows.tables.references import References
from facade.flows.tables.solution import Solution, encode
from facade.flows.tables.worker import TableWorker
from facade.flows.telemetry.plan import windowed
from facade.flows.telemetry.worker import telemetry_worker
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.reading import Quality
from facade.kernel.runtime.composition import Server
from tests.flows.test_mirror import AZ, Log, Telescope
from tests.support import alerting, controllers, tables
from tests.support.heaps import BASE_US, encoded, heap
from tests.support.simulated_bus import MemoryBroker, MemoryBus, MemoryTransactionalLog, MemoryTransactionalMember

ROOT = Path(__file__).parents[1]
DEPLOYED = ("facade", "devices", "sdp_facade_sdk", "clients")
CLIENT = "facade/kernel/bus/kafka/"
SETTLED, CYCLES = 20, 60
"""Cycles before an item, and with it; each takes 0.3 s of simulated time, so that windows close."""
ICD = load()


class Site:
    """A device server of one class, and the processes beside it; `send` or `call` gives it the item."""

    instance, device, device_class = "", "", ""

    def __init__(self) -> None:
        self.clock = ManualClock(BASE_US / 1e6)
        self.broker = MemoryBroker(self.clock)
        self.begin()
        self.cycle(SETTLED)

    def begin(self) -> None:
        """Start all processes."""
        self.serve()

    def serve(self) -> None:
        """Start the device server."""
        sink, devices = TangoSink(), {self.device_class: [self.device]}
        self.server = Server(
            *(ICD, Settings(), devices, sink, MemoryBus(self.broker)),
            instance=f"SdpFacade-{self.instance}",
            clock=self.clock,
            versions={},
        )
        self.shown = plugged_out(self.device_class, self.device, self.server)
        self.reader = self.server.event_loop._open()

    def cycle(self, times: int = CYCLES) -> None:
        for _ in range(times):
            self.work()
            self.server.event_loop.cycle(self.reader)
            self.clock.sleep(0.3)

    def work(self) -> None:
        """Let the processes beside the device server take one step."""

    def send(self) -> None:
        """Put the item on the bus, which is not counted."""

    def call(self) -> None:
        """Give the item from Tango, which is."""


def plugged_out(device_class: str, device: str, server: Server) -> Any:
    """Return a device with the code of its class, in the place of Tango's object."""
    (made,) = device_classes(ICD, [device_class])
    bodies: dict[str, Any] = {}
    for base in reversed([one for one in made.__mro__ if issubclass(one, FacadeDevice)]):
        bodies |= {name: body for name, body in vars(base).items() if isinstance(body, FunctionType)}
    bodies |= {
        "entries": made.entries,
        "icd": ICD,
        "clock": server.clock,
        "service": server,
        "__init__": object.__init__,
        "get_name": lambda self: device,
        "get_client_ident": lambda self: None,
        "attribute": lambda self, name: SimpleNamespace(use_zmq_event=lambda: True),
    }
    own = ("set_state", "set_status", "push_change_event", "push_archive_event", "push_alarm_event")
    bodies |= dict.fromkeys((*own, "push_data_ready_event"), lambda self, *given: None)
    found: Any = type(device_class, (), bodies)()
    found._shown, found._made, found._pushed, found._ready = {}, {}, set(), 0
    found._began = server.clock.now_us()
    found._alarmed = dict.fromkeys(made.entries, Quality.INVALID) | {"State": "UNKNOWN"}
    FacadeDevice.present[device] = found
    FacadeDevice.changes += 1
    return found


class Heap(Site):
    """A notification of an ingest node, up to the change event of its window."""

    instance, device, device_class = "ingest-00", "mid-sdp/ingest/0000", "SdpIngestNode"

    def begin(self) -> None:
        log = MemoryTransactionalLog(self.broker, *windowed(ICD), group="aggregate")
        self.worker = telemetry_worker(log, ICD, Settings(), slot="0", clock=self.clock)
        self.serve()

    def work(self) -> None:
        self.worker.step()

    def send(self) -> None:
        (value,) = encoded(heap(at=self.clock.now() - BASE_US / 1e6))
        self.broker.append(Record(topic="ingest.heaps", key=b"0", value=value))


class On(Site):
    """The command On() of a subarray, up to the event of its outcome."""

    instance, device, device_class = "subarray", controllers.FIRST, "SdpSubarray"

    def begin(self) -> None:
        of_controller = controllers.Site()
        of_controller.clock, of_controller.broker = self.clock, self.broker
        self.life = controllers.Life(of_controller)
        self.life.start()
        self.serve()

    def work(self) -> None:
        self.life.step()
        self.life.loop.execute_next(self.device)

    def call(self) -> None:
        self.shown.give("On", None)


class Alert(Site):
    """An alert of a component, up to its own event."""

    instance, device, device_class = "alerts", "mid-sdp/alerts/0", "SdpAlerts"

    def send(self) -> None:
        self.broker.append(alerting.alert(raised_at=self.clock.now_us()))


class Table(Site):
    """A calibration table in segments, up to the events of the device that shows it."""

    instance, device, device_class = "calibration", "mid-sdp/calibration/01", "SdpCalibration"

    def begin(self) -> None:
        self.worker = TableWorker(
            MemoryTransactionalMember(self.broker, "calibration", group="tables-assemble"),
            MemoryBus(self.broker),
            ICD,
            slot="0",
            clock=self.clock,
            group="tables-assemble",
            summarise=summarise,
            references=References([], clock=self.clock),
            pool=BufferPool(1_000_000),
            limits=AssemblyLimits(),
        )
        self.serve()

    def work(self) -> None:
        self.worker.step()

    def send(self) -> None:
        shape, begin = (2, 2, 1), self.clock.now_us()
        solution = Solution(
            solution_id="s1",
            kind="gains",
            source_model="model",
            valid_from=begin,
            valid_until=begin + 600_000_000,
            antennas=("SKA001", "SKA002"),
            frequencies=np.array([1e9, 2e9]),
            polarisations=("XX",),
            gains=np.ones(shape, complex),
            flags=np.zeros(shape, bool),
            snr=np.ones(shape[:2]),
        )
        fields = {"product": "subarray/01/gains", "content_type": ARROW, "sent_at": begin}
        for record in tables.cut("t1", encode(solution), 1000, **fields):
            self.broker.append(record)


class MirroredValue(Site):
    """An event of a device of the telescope, up to its record."""

    def begin(self) -> None:
        self.log = Log()
        self.telescope = Telescope(self.clock, {AZ: 1.0})
        choice = Choice(own_devices(ICD))
        choice.fold(rule_record(MirrorRule(rule="r", patterns=[AZ], time=1, origin="test")), count=True)
        self.mirror = Mirror(
            *(self.telescope, self.log, choice), known=lambda: True, clock=self.clock, incarnation="first"
        )
        self.session = object.__new__(_Session)
        self.session._tell, self.session._device, self.session._labels = self.telescope.news.append, "", {}

    def cycle(self, times: int = CYCLES) -> None:
        for _ in range(times):
            self.telescope.answer()
            self.mirror.step()
            self.clock.sleep(0.05)

    def call(self) -> None:
        seconds, us = divmod(self.clock.now_us(), 1_000_000)
        value = SimpleNamespace(
            has_failed=False,
            type=tango.CmdArgType.DevDouble,
            quality=tango.AttrQuality.ATTR_VALID,
            value=1.5,
            time=SimpleNamespace(tv_sec=seconds, tv_usec=us),
        )
        self.session._tell = self.telescope.news.append
        self.session._event(AZ, SimpleNamespace(err=False, attr_value=value))


class Way(NamedTuple):
    """The way of one kind of item."""

    site: type[Site]
    most: int
    """Most files that it should go through."""


WAYS = {
    "heap": Way(Heap, 20),
    "command": Way(On, 24),
    "alert": Way(Alert, 14),
    "table": Way(Table, 18),
    "mirrored value": Way(MirroredValue, 6),
}


def files_of(site: type[Site]) -> list[str]:
    """Return the files of which a function runs for one item."""
    _calls(site, is_sent=True)  # what is imported or kept at a first use is no part of the way
    without, with_item = _calls(site, is_sent=False), _calls(site, is_sent=True)
    found = {code.co_filename for code in with_item - without if code.co_name != "<module>"}
    names = {Path(one).relative_to(ROOT).as_posix() for one in found if Path(one).is_relative_to(ROOT)}
    return sorted(name for name in names if name.startswith(DEPLOYED) and not name.startswith(CLIENT))


def _calls(site: type[Site], *, is_sent: bool) -> Counter[CodeType]:
    """Return how often each function runs after the start of a site."""
    begun, found = site(), Counter[CodeType]()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found[frame.f_code] += 1

    if is_sent:
        begun.send()
    sys.setprofile(count)
    try:
        if is_sent:
            begun.call()
        begun.cycle()
    finally:
        sys.setprofile(None)
    return found


def main() -> int:
    """Print the files of each way; return 1 if there are more than its bar."""
    is_long = False
    with mock.patch("tango.AutoTangoAllowThreads", return_value=nullcontext()):
        for name, way in WAYS.items():
            files = files_of(way.site)
            is_long |= len(files) > way.most
            print(f"{name}: {len(files)} files, at most {way.most} are wanted", *files, sep="\n  ")
    return int(is_long)


if __name__ == "__main__":
    sys.exit(main())
