"""The Tango classes derived from the ICD, each in a process of its own, without database and bus."""

import itertools
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import tango
from tango import LockerLanguage
from tango.test_context import DeviceTestContext

from devices import commands
from devices.kernel.base import FacadeDevice, TangoSink, device_class, set_limits
from devices.kernel.classes import device_classes
from devices.kernel.mapping import to_tango
from devices.kernel.queries import as_tango, client_of
from facade.flows.alerts.operator_api import OperatorApi
from facade.flows.commands.gateway import Gateway as CommandGateway
from facade.flows.commands.outcomes import OK, QUEUED, Tracked, command_of
from facade.flows.overview.views import BusView
from facade.flows.tables.contents import Contents as HeldContents
from facade.flows.tables.contents import Held
from facade.flows.tables.flow import TablesFlow
from facade.kernel.clock import ManualClock, SystemClock, as_time
from facade.kernel.errors import CommandRefused, IcdError, NotSent, OutcomeUnknown
from facade.kernel.icd.load import load
from facade.kernel.icd.topic_model import Limits
from facade.kernel.icd.units import unit_of
from facade.kernel.reading import Quality, Reading
from facade.kernel.runtime.columns import ColumnArrays, ReadingColumn, nothing
from facade.kernel.runtime.publisher import Publisher
from facade.sdp.device_state import DeviceSettings, DeviceStates, decode_state
from tests.support.overview import NOW, overview
from tests.support.simulated_bus import Answer
from tests.support.waiting import HANG, until

ICD = load()
NAMES = sorted(ICD.classes)
SAMPLES = {"DevDouble": 1.5, "DevLong": 3, "DevLong64": 2**40, "DevULong64": 3, "DevString": "text", "DevBoolean": True}


QUALITIES = {Quality.VALID: "ATTR_VALID", Quality.WARNING: "ATTR_WARNING", Quality.ALARM: "ATTR_ALARM"}


pytestmark = pytest.mark.forked  # one Tango server per process


def context(name: str) -> DeviceTestContext:
    (made,) = [c for c in device_classes(ICD) if c.__name__ == name]
    return DeviceTestContext(made, process=False, timeout=HANG)


def sample(entry):
    value = ICD.enums[entry.enum][1] if entry.enum else SAMPLES[entry.type]
    row = (value, value)
    return (row, row, row) if entry.height else row if entry.length else value


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, tuple) else value


def device(proxy) -> FacadeDevice:
    return FacadeDevice.present[proxy.dev_name().lower()]


@pytest.mark.parametrize("name", NAMES)
def test_each_attribute_is_what_the_icd_says_and_shows_what_it_is_given(name):
    with context(name) as proxy:
        every_attribute_is_what_the_icd_says(name, proxy)
        before_anything_is_known_every_attribute_is_invalid_and_the_state_unknown(name, proxy)
        what_is_shown_is_read_and_pushed_with_its_time_and_quality(name, proxy)
        for entry in ICD.classes[name].attributes:
            if not entry.is_pushed:
                an_image_is_said_to_be_ready_and_can_be_read(proxy, entry)


def every_attribute_is_what_the_icd_says(name, proxy):
    wanted = {entry.name: entry for entry in ICD.classes[name].attributes}
    assert set(proxy.get_attribute_list()) == {*wanted, "State", "Status"}
    for attribute, entry in wanted.items():
        config = proxy.get_attribute_config(attribute)
        assert (config.label, config.description) == (entry.label, entry.description)
        assert config.unit == unit_of(ICD, entry)
        assert str(tango.CmdArgType.values[config.data_type]) == entry.type
        assert (config.max_dim_x, config.max_dim_y) == (max(entry.length, 1), entry.height)
        assert config.writable == getattr(tango.AttrWriteType, entry.access)
        assert list(config.enum_labels) == list(ICD.enums[entry.enum] if entry.enum else ())
        assert not entry.format or config.format == entry.format
        for limit in ("min_alarm", "min_warning", "max_warning", "max_alarm"):
            value = getattr(entry.limits, limit) if entry.limits else None
            shown = getattr(config.alarms, limit)
            assert shown == "Not specified" if value is None else float(shown) == value


def before_anything_is_known_every_attribute_is_invalid_and_the_state_unknown(name, proxy):
    assert proxy.state() == tango.DevState.UNKNOWN
    assert "No data from the bus yet" in proxy.status()
    for entry in ICD.classes[name].attributes:
        reading = proxy.read_attribute(entry.name)
        assert reading.quality == tango.AttrQuality.ATTR_INVALID
        assert reading.value is None


def what_is_shown_is_read_and_pushed_with_its_time_and_quality(name, proxy):
    target = device(proxy)
    at = 1_700_000_000_250_001  # its nearest floating-point number lies below it
    newest, changed = {}, threading.Event()
    entries = [entry for entry in ICD.classes[name].attributes if entry.is_pushed]
    readings = {entry.name: Reading(sample(entry), at) for entry in entries}
    readings |= {"State": Reading("ON", at), "Status": Reading("fine", at)}
    wanted = {(kind, attribute.lower()) for kind in ("change", "archive") for attribute in readings}

    def on_event(event):
        assert not event.err, event.errors
        newest[event.event.partition("_")[0], event.attr_value.name.lower()] = event.attr_value
        changed.set()

    for attribute in readings:
        for kind in (tango.EventType.CHANGE_EVENT, tango.EventType.ARCHIVE_EVENT):
            proxy.subscribe_event(attribute, kind, on_event)
    unknown = (None, tango.DevState.UNKNOWN, proxy.status())
    deadline = time.monotonic() + HANG
    # A subscription gives a first value at once, but reaches the server's event channel a little later.
    while missing := {key for key in wanted if key not in newest or plain(newest[key].value) in unknown}:
        assert time.monotonic() < deadline, sorted(missing)
        for attribute, reading in readings.items():
            target.show(attribute, reading)
            target.push(attribute, reading)
        changed.clear()
        changed.wait(0.2)
    for kind in ("change", "archive"):
        for entry in entries:
            expected = to_tango(ICD, entry, readings[entry.name])[0]
            for got in (newest[kind, entry.name.lower()], proxy.read_attribute(entry.name)):
                assert plain(got.value) == expected
                assert (got.time.tv_sec, got.time.tv_usec) == divmod(at, 1_000_000)
        assert newest[kind, "state"].value == tango.DevState.ON
        assert newest[kind, "status"].value == "fine"


def an_image_is_said_to_be_ready_and_can_be_read(proxy, entry):
    ready = threading.Event()
    proxy.subscribe_event(entry.name, tango.EventType.DATA_READY_EVENT, lambda event: event.err or ready.set())
    reading = Reading(sample(entry), 1_700_000_000_250_000)
    deadline = time.monotonic() + HANG
    while not ready.is_set() and time.monotonic() < deadline:
        device(proxy).show(entry.name, reading)
        device(proxy).push(entry.name, reading)
        ready.wait(0.2)
    assert ready.is_set()
    assert plain(proxy.read_attribute(entry.name).value) == to_tango(ICD, entry, reading)[0]
    with pytest.raises(tango.DevFailed):
        proxy.subscribe_event(entry.name, tango.EventType.CHANGE_EVENT, lambda event: None)


def test_what_nobody_has_subscribed_to_is_shown_and_made_no_event(monkeypatch):
    with context("SdpIngestNode") as proxy:
        target, made = device(proxy), []
        for kind in ("change", "archive", "alarm"):
            monkeypatch.setattr(target, f"push_{kind}_event", lambda name, *event, kind=kind: made.append((kind, name)))
        values = {"heapRate": 1.5, "State": "ON", "Status": "fine"}
        readings = {name: Reading(value, 1_000_000) for name, value in values.items()}

        def push_all():
            for name, reading in readings.items():
                followed[name] = target.show(name, reading)
                target.push(name, reading)

        followed = {}
        push_all()
        assert made == []
        assert not any(followed.values())
        assert proxy.read_attribute("heapRate").value == 1.5
        for name in readings:
            proxy.subscribe_event(name, tango.EventType.CHANGE_EVENT, lambda event: None)
        push_all()
        assert all(followed.values())
        assert made == [(kind, name) for name in readings for kind in ("change", "archive")]  # no quality has changed


class Column(ReadingColumn):
    """The rates of some devices, which tests put into it."""

    def __init__(self, *devices: str) -> None:
        super().__init__("heapRate", devices)
        self.shown = nothing(len(devices))

    def put(self, value: float, quality: Quality = Quality.VALID) -> None:
        size, at = len(self.devices), list(Quality).index(quality)
        self.shown = ColumnArrays(np.full(size, value), np.full(size, 1.0), np.full(size, at))

    def arrays(self) -> ColumnArrays:
        return self.shown

    def restore(self, position: int, reading: Reading) -> None:
        raise NotImplementedError


def test_a_column_is_read_at_any_time_and_followed_from_the_first_subscription(monkeypatch):
    with context("SdpIngestNode") as proxy:
        sink, column, name = TangoSink(), Column(proxy.dev_name().lower(), "no/such/device"), "heapRate"
        assert sink.show_column(column) == [False, False]
        assert proxy.read_attribute(name).quality is tango.AttrQuality.ATTR_INVALID
        column.put(1.5, Quality.WARNING)
        found = proxy.read_attribute(name)
        assert (found.value, found.quality) == (1.5, tango.AttrQuality.ATTR_WARNING)
        assert sink.show_column(column) == [False, False]
        column.put(2.5)
        # The server hears of it whether the client reads first or not.
        proxy.subscribe_event(name, tango.EventType.CHANGE_EVENT, lambda event: None, sub_mode=tango.EventSubMode.Sync)
        assert sink.show_column(column) == [True, False]
        proxy.subscribe_event(name, tango.EventType.ALARM_EVENT, lambda event: None)
        made = []
        monkeypatch.setattr(device(proxy), "push_alarm_event", lambda name, *event: made.append(event[0]))
        for value, quality in ((3.5, Quality.VALID), (4.5, Quality.INVALID), (5.5, Quality.INVALID)):
            column.put(value, quality)
            assert sink.push(column.devices[0], name, column.reading(0))
        assert made == [4.5], "the subscriber has read VALID"


def test_a_device_that_is_restarted_shows_its_columns_at_once():
    with context("SdpIngestNode") as proxy:
        sink, column = TangoSink(), Column(proxy.dev_name().lower())
        column.put(1.5)
        sink.show_column(column)
        publisher = Publisher(ICD, {column.devices[0]: "SdpIngestNode"}, sink, SystemClock())
        publisher.adopt(column)
        FacadeDevice.begin_anew = publisher.begin_anew
        FacadeDevice.service = SimpleNamespace(classes={column.devices[0]: "SdpIngestNode"})
        tango.DeviceProxy(proxy.adm_name()).DevRestart(proxy.dev_name())
        assert proxy.read_attribute("heapRate").value == 1.5
        column.put(2.5)
        assert proxy.read_attribute("heapRate").value == 2.5
        assert sink.show_column(column) == [False], "of the device that is there now"


def test_a_subscription_is_awaited_until_the_last_device_of_a_restart_has_begun(monkeypatch):
    """A server of hundreds of devices restarts for longer than ten seconds; Tango restores all of them at its end."""
    with context("SdpIngestNode") as proxy:
        clock, name, asked = ManualClock(), proxy.dev_name().lower(), []
        monkeypatch.setattr(FacadeDevice, "clock", clock)
        monkeypatch.setattr(FacadeDevice, "service", SimpleNamespace(classes={name: "SdpIngestNode"}))
        monkeypatch.setattr(FacadeDevice, "begin_anew", lambda name, may_tell: asked.append(may_tell) or {})
        monkeypatch.setattr(FacadeDevice, "_is_followed", lambda self, attribute: asked == [])
        tango.DeviceProxy(proxy.adm_name()).DevRestart(name)
        clock.sleep(9.0)
        FacadeDevice.begun_at = clock.monotonic()  # of the next device
        clock.sleep(9.0)
        assert not asked[0]()
        clock.sleep(2.0)
        assert asked[0]()


def test_the_quality_is_the_one_of_the_reading_and_an_init_command_forgets_nothing():
    with context("SdpMaster") as proxy:
        for quality, shown in QUALITIES.items():
            device(proxy).show("heapRate", Reading(2.0, 1_000_000, quality))
            assert str(proxy.read_attribute("heapRate").quality) == shown
        device(proxy).show("heapRate", Reading(2.0, 1_000_000))
        proxy.Init()
        assert proxy.heapRate == 2.0


def test_a_limit_that_a_client_sets_is_told_by_quality_and_leaves_the_state():
    with context("SdpMaster") as proxy:
        target, told = device(proxy), {}
        for name in ("heapRate", "State"):

            def on_event(event, name=name):
                told[name] = event.err or (event.attr_value.value, event.attr_value.quality)

            proxy.subscribe_event(name, tango.EventType.CHANGE_EVENT, on_event)
        numbers = itertools.count(101)

        def tell():
            readings = {"heapRate": Reading(float(next(numbers)), 1_000_000), "State": Reading("ON", 1_000_000)}
            for name, reading in readings.items():
                target.show(name, reading)
                target.push(name, reading)
            return told["heapRate"][1], told["State"][0]

        config = proxy.get_attribute_config("heapRate")
        for limit, quality in (("100", tango.AttrQuality.ATTR_ALARM), ("Not specified", tango.AttrQuality.ATTR_VALID)):
            config.alarms.max_alarm = limit
            proxy.set_attribute_config(config)
            until(lambda quality=quality: tell() == (quality, tango.DevState.ON), str(quality))
            assert proxy.read_attribute("heapRate").quality == quality
            assert proxy.state() == tango.DevState.ON


def test_the_state_of_the_bus_follows_a_limit_that_a_client_sets():
    with context("SdpBus") as proxy:
        name = "ingestHeapsLag"
        (entry,) = (one for one in ICD.classes["SdpBus"].attributes if one.name == name)
        assert set_limits(proxy.dev_name(), entry) == entry.limits
        config = proxy.get_attribute_config(name)
        config.alarms.max_alarm, config.alarms.max_warning = "70", "Not specified"
        proxy.set_attribute_config(config)
        found = set_limits(proxy.dev_name(), entry)
        assert found == Limits(max_alarm=70.0)
        shown = overview(lagging=(("ingest.heaps", 80),))
        shown.streams()["ingest.heaps"].heard = as_time(NOW)
        assert [one.text for one in shown.issues(as_time(NOW)) if "lags" in one.text] == []
        shown.limits = lambda one: set_limits(proxy.dev_name(), one)
        seen = {what: one for _, what, one in BusView("bus", ICD.classes["SdpBus"], shown).readings(as_time(NOW))}
        assert (seen["State"].value, seen[name].quality) == ("ALARM", Quality.ALARM)
        assert [one.text for one in shown.issues(as_time(NOW)) if "lags" in one.text]


@pytest.mark.parametrize("name", [name for name in NAMES if ICD.classes[name].commands])
def test_every_command_is_what_the_icd_says_and_answers_before_the_bus_is_there(name):
    built_in = {"Init", "State", "Status"}
    entries = ICD.classes[name]
    with context(name) as proxy:
        found = {config.cmd_name: config for config in proxy.get_command_config()}
        assert set(found) - built_in == {entry.name for entry in (*entries.commands, *entries.queries)}
        for entry in entries.commands:
            config = found[entry.name]
            wanted = "DevVoid" if entry.argument is None else "DevString"
            assert (str(config.in_type), str(config.out_type)) == (wanted, "DevVarLongStringArray")
            assert entry.argument is None or entry.argument in config.in_type_desc
            with pytest.raises(tango.DevFailed, match="still starting"):
                proxy.command_inout(entry.name, *(() if entry.argument is None else ("{}",)))
        for query in entries.queries:
            config = found[query.name]
            assert (str(config.in_type), str(config.out_type)) == (query.argument, query.result)
            assert (config.in_type_desc, config.out_type_desc) == (query.argument_description, query.result_description)


def test_the_bytes_of_a_table_come_through_tango_as_they_are():
    (entry,) = (one for one in ICD.classes["SdpCalibration"].queries if one.name == "GetTableContent")
    content = bytes(range(256)) * (entry.max_bytes // 256)

    class Contents:
        def find(self, prefix, name):
            assert prefix.startswith("subarray/")
            if name == "nothing":
                return "expected é"
            return Held(SimpleNamespace(content_type="text/plain; charset=é"), content if name == "t1" else b"")

    parts = {TablesFlow: TablesFlow(), HeldContents: Contents()}
    service = SimpleNamespace(find=parts.get, has_read=lambda topic: True)

    with context("SdpCalibration") as proxy:
        found = {config.cmd_name: config for config in proxy.get_command_config()}
        for query in ICD.classes["SdpCalibration"].queries:
            config = found[query.name]
            assert (str(config.in_type), str(config.out_type)) == (query.argument, query.result)
            assert config.out_type_desc == query.result_description
        with pytest.raises(tango.DevFailed, match="not read from the bus yet; try again"):
            proxy.GetTableContent("t1")
        FacadeDevice.service = service
        assert proxy.GetTableContent("t1") == ("text/plain; charset=\\u00e9", content)
        assert proxy.GetTableContent("t2")[1] == b""
        with pytest.raises(tango.DevFailed, match=r"expected \\u00e9"):
            proxy.GetTableContent("nothing")


def test_after_a_call_state_and_obs_state_are_read_as_the_command_has_made_them():
    class Gateway:
        def __init__(self):
            self.state, self.label, self.known = "ON", "IDLE", True
            self.classes = {"test/nodb/sdpsubarray": None}

        def ready(self):
            return self.known

        def give(self, *_, client, operator):
            self.label = "RESOURCING"
            return "1_1_ReleaseAllResources"

        def show(self, _):
            return self.state, self.label

    gateway = Gateway()

    def read():
        found = proxy.read_attribute("obsState")
        return ICD.enums["ObsState"][found.value], found.time.totime()

    with context("SdpSubarray") as proxy:
        FacadeDevice.service = SimpleNamespace(find={CommandGateway: gateway}.get, has_read=lambda *topics: False)
        subarray = device(proxy)
        subarray.show("obsState", Reading("IDLE", 1_000_000))
        assert read() == ("IDLE", 1.0)
        proxy.ReleaseAllResources()
        assert read()[0] == "RESOURCING"
        assert int(subarray._shown["obsState"][1]) == 1, "the thread of the call shows nothing itself"
        subarray.show("obsState", Reading("RESOURCING", 5_000_000))
        assert read() == ("RESOURCING", 5.0)
        gateway.label = "EMPTY"  # an event of it is still to come
        assert read()[0] == "EMPTY"
        assert str(proxy.state()) == "UNKNOWN"
        subarray.show("State", Reading("OFF", 6_000_000))
        subarray.show("Status", Reading("The device is in OFF state; health is OK.", 6_000_000))
        assert proxy.status() == proxy.read_attribute("Status").value == "The device is in ON state; health is OK."
        assert (str(proxy.state()), str(proxy.read_attribute("State").value)) == ("ON", "ON")
        gateway.known = False  # half of the log tells of states that are long over
        assert read() == ("RESOURCING", 5.0)
        assert str(proxy.state()) == "OFF"
        assert "in OFF state" in proxy.status()


def test_a_command_is_given_with_tangos_identity_of_its_client_and_its_refusal_is_read_at_once(monkeypatch):
    class Gateway:
        def __init__(self):
            self.classes, self.given = {"test/nodb/sdpsubarray": ICD.classes["SdpSubarray"]}, []
            self.refusals = SimpleNamespace(reading=lambda device: Reading(f"{device} refused", 5_000_000))
            message = command_of("1_1_Scan", "test/nodb/sdpsubarray", "Scan")
            waiting = Tracked.of(msgspec.structs.replace(message, argument={"scan_id": 7}), "HELD")
            self.tracker = SimpleNamespace(find={waiting.id: waiting}.get)

        def give(self, device, name, argument, headers, *, client, operator):
            self.given.append((name, argument, client.rpartition(", ")[2], operator))
            return f"1_1_{name}"

    def decide(gateway, device, decision, headers, *, client):
        gateway.given.append((decision.id, None, client.rpartition(", ")[2], decision.operator))
        return decision.id

    gateway = Gateway()
    for name in ("approve", "withdraw"):
        monkeypatch.setattr(commands, name, decide)
    with context("SdpSubarray") as proxy:
        FacadeDevice.service = SimpleNamespace(find={CommandGateway: gateway}.get, has_read=lambda *topics: False)
        proxy.ReleaseAllResources()
        proxy.Scan("{}")
        scan = json.dumps({"command": "Scan", "argument": "{}", "operator": "Åsa"})
        assert [list(part) for part in proxy.GiveCommand(scan)] == [[QUEUED], ["1_1_Scan"]]
        with pytest.raises(tango.DevFailed, match="expected none, as Abort takes none"):
            proxy.GiveCommand(json.dumps({"command": "Abort", "argument": "{}", "operator": "Åsa"}))
        approval = json.dumps({"id": "1_1_Scan", "operator": "ben"})
        assert [list(part) for part in proxy.ApproveCommand(approval)] == [[QUEUED], ["1_1_Scan"]]
        assert [list(part) for part in proxy.WithdrawCommand(approval)] == [[OK], ["1_1_Scan"]]
        assert json.loads(proxy.GetCommand("1_1_Scan"))["argument"] == {"scan_id": 7}, "who approves it sees it"
        process = f"process {os.getpid()}"
        assert gateway.given == [
            ("ReleaseAllResources", None, process, ""),
            ("Scan", "{}", process, ""),
            ("Scan", "{}", process, "Åsa"),
            *[("1_1_Scan", None, process, "ben")] * 2,
        ]
        assert proxy.lastRefusal == "test/nodb/sdpsubarray refused"


@pytest.mark.parametrize(
    ("client", "text"),
    [
        (None, ""),
        (SimpleNamespace(client_ident=False), ""),
        (("giop:tcp:10.0.0.7:40000", LockerLanguage.CPP_6), "10.0.0.7, process 42"),
        (("giop:tcp:[fd00::7]:40000", LockerLanguage.CPP), "fd00::7, process 42"),
        (("giop:tcp:[::ffff:10.0.0.7]:40000", LockerLanguage.CPP_6), "10.0.0.7, process 42"),
        (("giop:unix:/tmp/omni-1/2", LockerLanguage.CPP_6), f"this host ({socket.gethostname()}), process 42"),
        (("giop:tcp:10.0.0.7:40000", LockerLanguage.JAVA, "org.Jive"), "10.0.0.7, Java program org.Jive"),
        (("giop:tcp:10.0.0.7:40000", LockerLanguage.JAVA, "x" * 250), "10.0.0.7, Java program " + "x" * 177),
    ],
)
def test_a_client_is_named_by_host_and_process(client, text):
    if isinstance(client, tuple):
        address, language, *java_main_class = client
        client = SimpleNamespace(
            client_ident=True,
            client_ip=address,
            client_lang=language,
            client_pid=42,
            java_main_class="".join(java_main_class),
        )
    assert client_of(SimpleNamespace(get_client_ident=lambda: client)) == text


def test_a_query_without_a_handler_and_commands_of_a_class_that_takes_none_stop_the_server():
    class SdpSubarray(FacadeDevice):
        def write_adminMode(self, value):
            """As in the ICD."""

        def query_GetCommand(self, id):
            """As in the ICD."""

    with pytest.raises(IcdError, match=r"SdpSubarray\.toml.*query_GetCommandHistory"):
        device_class(ICD, "SdpSubarray", SdpSubarray)
    for name in ("GetCommandHistory", "GiveCommand", "ApproveCommand", "WithdrawCommand", "SetAdminMode"):
        setattr(SdpSubarray, f"query_{name}", SdpSubarray.query_GetCommand)
    with pytest.raises(IcdError, match="commands: expected none"):
        device_class(ICD, "SdpSubarray", SdpSubarray)


class HeldBus:
    """What a call waits for: the bus, which the test holds."""

    def __init__(self):
        self.reached, self.free = threading.Semaphore(0), threading.Event()

    def __call__(self, *_, **__):
        self.reached.release()
        assert self.free.wait(HANG)
        return "the id"


def set_mode(proxy, mode="OFFLINE", operator=""):
    """Set adminMode: by a command, or without an operator by a write."""
    if operator:
        answer = proxy.SetAdminMode(json.dumps({"mode": mode, "operator": operator}))
        assert [list(part) for part in answer] == [[OK], [mode]]
    else:
        proxy.write_attribute("adminMode", ICD.enums["AdminMode"].index(mode))


OPERATORS = itertools.cycle(["", "ann"])
WAITING = {
    "SdpSubarray": lambda proxy: proxy.End(),
    "SdpMaster": lambda proxy: set_mode(proxy, operator=next(OPERATORS)),
    "SdpAlerts": lambda proxy: proxy.Comment("{}"),
}
"""A call of each kind that waits for the bus."""


@pytest.mark.parametrize("name", WAITING)
def test_a_device_is_read_and_pushes_while_calls_wait_for_the_bus(name):
    held, server = HeldBus(), context(name)
    with server as proxy, ThreadPoolExecutor(12) as pool:
        target, device_name = device(proxy), proxy.dev_name().lower()
        gateway = SimpleNamespace(
            give=held, classes={device_name: None}, ready=lambda: False, why_not_held=lambda: "", timeout=0.4,
            sender=SimpleNamespace(send=held),
        )  # fmt: skip
        operators = SimpleNamespace(act=held)
        FacadeDevice.service = SimpleNamespace(
            find={CommandGateway: gateway, OperatorApi: operators}.get,
            has_read=lambda *topics: True,
            share=lambda kind, make: DeviceStates(ICD, {device_name: "SdpMaster"}),
        )
        proxies = [tango.DeviceProxy(server.get_device_access()) for _ in range(12)]
        for one in proxies:  # their calls wait for as long as this test looks
            one.set_timeout_millis(round(HANG * 1000))
        calls = [pool.submit(WAITING[name], one) for one in proxies]
        try:
            for _ in calls if name != "SdpMaster" else [0]:
                assert held.reached.acquire(timeout=HANG)
            if name == "SdpMaster":  # whose mode one client at a time may set
                until(lambda: sum(call.done() for call in calls) == 11, "the others are refused")
                assert all("another write waits" in str(call.exception()) for call in calls if call.done())
            proxy.subscribe_event("State", tango.EventType.CHANGE_EVENT, lambda event: None)
            target.show("State", Reading("ON", 1_000_000))
            target.push("State", Reading("ON", 1_000_000))
            assert proxy.state() == tango.DevState.ON
            assert proxy.read_attribute(ICD.classes[name].attributes[0].name) is not None
            proxy.Init()
        finally:
            held.free.set()
        assert not any(call.exception() for call in calls if name != "SdpMaster")


@pytest.mark.parametrize("operator", ["", "ann"])
def test_a_mode_is_read_as_the_call_has_set_it_and_shown_by_the_event_loop(operator):
    written, troubles = [], ["another device server is alive", "", "", "", ""]
    errors = [NotSent("no broker took it"), OutcomeUnknown("no broker confirmed it"), None]

    def send(record, timeout):
        error = errors.pop(0)
        if error is None:
            written.append((record, timeout))
        return Answer(error)

    with context("SdpMaster") as proxy:
        name, offline = proxy.dev_name().lower(), ICD.enums["AdminMode"].index("OFFLINE")
        states = DeviceStates(ICD, {name: "SdpMaster"})
        gateway = SimpleNamespace(
            classes={name: None}, ready=lambda: False, why_not_held=lambda: troubles.pop(0), timeout=0.4,
            sender=SimpleNamespace(send=send),
        )  # fmt: skip
        FacadeDevice.service = SimpleNamespace(
            find={CommandGateway: gateway}.get,
            has_read=lambda *topics: True,
            share=lambda kind, make: states,
        )
        before = device(proxy)._shown["adminMode"]
        with pytest.raises(tango.DevFailed, match="adminMode OFFLINE was not sent: another device server is alive"):
            set_mode(proxy, operator=operator)
        with pytest.raises(tango.DevFailed, match="from ONLINE the SKA control model does not lead to RESERVED"):
            set_mode(proxy, "RESERVED", operator)
        for text in (
            "was not sent, and will not take effect: no broker took it",
            "outcome unknown: no broker confirmed",
        ):
            with pytest.raises(tango.DevFailed, match=text):
                set_mode(proxy, operator=operator)
            assert proxy.adminMode != offline
        set_mode(proxy, operator=operator)
        assert proxy.adminMode == offline
        assert len(written) == 1
        assert device(proxy)._shown["adminMode"] is before
        settings = DeviceSettings(states).readings(1.0)
        assert [reading.value for _, one, reading in settings if one == "adminMode"] == ["OFFLINE"]
        ((record, _),) = written
        assert record.topic == "settings", "where no controller may write"
        assert decode_state(record.value).operator == operator


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("OFFLINE", "expected a JSON object with the keys mode and operator, got 'OFFLINE'"),
        ('{"mode": "OFFLINE"}', "expected a JSON object with the keys mode and operator, got"),
        ('{"mode": "OFFLINE", "operator": "\\n"}', r"\$\.operator: expected a name without control characters, got"),
        ('{"mode": "AWAY", "operator": "ann"}', r"\$\.mode: expected one of ONLINE, OFFLINE, .*, got 'AWAY'"),
    ],
)
def test_a_mode_is_set_by_its_label_and_in_a_name(argument, text):
    with context("SdpMaster") as proxy, pytest.raises(tango.DevFailed, match=text):
        proxy.SetAdminMode(argument)


def test_a_handler_without_an_entry_stops_the_server():
    class SdpBus(FacadeDevice):
        def write_colour(self, value):
            """Not in the ICD."""

    with pytest.raises(IcdError, match=r"SdpBus\.toml.*write_colour"):
        device_class(ICD, "SdpBus", SdpBus)


def test_an_entry_without_a_handler_stops_the_server():
    class SdpMaster(FacadeDevice):
        pass

    with pytest.raises(IcdError, match=r"SdpMaster\.toml.*write_adminMode"):
        device_class(ICD, "SdpMaster", SdpMaster)


@pytest.mark.parametrize(
    ("faults", "text"),
    [((), "Scan: one; two\\u000athree"), (("Scan: one", "two\nthree"), "Scan: one\ntwo\\u000athree")],
)
def test_each_fault_of_a_refusal_has_a_line_and_none_begins_one_itself(faults: tuple[str, ...], text: str) -> None:
    with pytest.raises(tango.DevFailed) as failed, as_tango("here"):
        raise CommandRefused("API_CommandFailed", "Scan: one; two\nthree", "SdpSubarray.Scan", faults)
    assert failed.value.args[0].desc == text
