"""What Tango's values become on the bus, and what PyTango must have for it."""

import ast
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tango
import tango.green

import devices.mirror
from devices.mirror import TangoSource, _in_json
from facade.flows.mirror.source import (
    AttributeValue,
    DeviceJob,
    DeviceLost,
    DeviceSearch,
    EventsMissed,
    JobResult,
    SearchResult,
)
from tests.fault.test_calls_that_hang import CALLS
from tests.support.waiting import HANG, until

KIND = tango.CmdArgType


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (1.5, KIND.DevDouble, 1.5),
        (math.nan, KIND.DevDouble, "NaN"),
        (math.inf, KIND.DevDouble, "Infinity"),
        (-math.inf, KIND.DevFloat, "-Infinity"),
        (True, KIND.DevBoolean, True),
        (2**64 - 1, KIND.DevULong64, 2**64 - 1),
        ("Vela", KIND.DevString, "Vela"),
        (tango.DevState.ALARM, KIND.DevState, "ALARM"),
        ((tango.DevState.ON, tango.DevState.OFF), KIND.DevState, ["ON", "OFF"]),
        (("a", "b"), KIND.DevString, ["a", "b"]),
        ((("a", "b"), ("c", "d")), KIND.DevString, [["a", "b"], ["c", "d"]]),
        (np.array([1.0, 2.0]), KIND.DevDouble, [1.0, 2.0]),
        (np.array([[1.0, math.nan]]), KIND.DevDouble, [[1.0, "NaN"]]),
        (np.array([], dtype=float), KIND.DevDouble, []),
        (np.array([[1, 2], [3, 4]], dtype=np.uint8), KIND.DevUChar, [[1, 2], [3, 4]]),
        (np.array([True]), KIND.DevBoolean, [True]),
        (("raw", b"\x00\xff"), KIND.DevEncoded, {"format": "raw", "data": "AP8="}),
    ],
    ids=str,
)
def test_each_value_is_one_that_json_has(value: Any, kind: Any, wanted: Any):
    found = _in_json(value, kind)
    assert json.loads(json.dumps(found, allow_nan=False)) == wanted == found


def test_events_that_have_no_room_are_missed(monkeypatch: pytest.MonkeyPatch):
    """Each attribute once, behind what had room."""
    monkeypatch.setattr(devices.mirror, "MOST_WAITING", 2)
    source = TangoSource()
    for name in ("a", "b", "c", "d", "c"):
        source._tell(AttributeValue(name))
    lost = DeviceLost("x", "why")
    source._tell(lost)
    assert sorted(source.take(), key=str) == sorted(
        [AttributeValue("a"), AttributeValue("b"), lost, EventsMissed("c"), EventsMissed("d")], key=str
    )
    assert source.take() == []


class Proxy:
    """A device whose value Tango reads as it is subscribed to, and that takes no end of a subscription."""

    def __init__(self) -> None:
        self.take: Callable[[Any], None] = lambda event: None
        self.refusal = ""
        self.is_away = False
        self.ended: list[int] = []

    def set_transparency_reconnection(self, on: bool) -> None: ...

    def get_attribute_config(self, name: str) -> None:
        if self.is_away:
            tango.Except.throw_exception("API_DeviceTimedOut", "", "")

    def get_attribute_list(self) -> list[str]:
        if self.refusal:
            tango.Except.throw_exception(self.refusal, "", "")
        return ["D"]

    def read_attributes(self, names: list[str]) -> list[Any]:
        self.get_attribute_config(names[0])
        return []

    def subscribe_event(self, name: str, kind: Any, take: Callable[[Any], None], mode: Any) -> int:
        if self.refusal:
            tango.Except.throw_exception(self.refusal, "", "")
        self.take = take
        self.push()
        return 7

    def unsubscribe_event(self, number: int) -> None:
        self.ended.append(number)
        raise tango.DevFailed

    def push(self) -> None:
        value = SimpleNamespace(
            has_failed=False,
            type=KIND.DevDouble,
            quality=tango.AttrQuality.ATTR_VALID,
            value=1.0,
            time=tango.TimeVal(5),
        )
        self.take(SimpleNamespace(err=False, attr_value=value))

    def push_elsewhere(self) -> None:
        """Push as Tango does: in a thread of its own."""
        thread = threading.Thread(target=self.push)
        thread.start()
        thread.join()


def test_only_what_is_pushed_is_an_event(monkeypatch: pytest.MonkeyPatch):
    """Neither the value with which a subscription begins, nor what comes after a connection was given up."""
    proxy, told = Proxy(), list[Any]()
    monkeypatch.setattr(tango, "DeviceProxy", lambda device: proxy)
    session = devices.mirror._Session("a/b/c", told.append)
    assert session.subscribe("a/b/c/d")
    assert told == []
    proxy.push_elsewhere()
    assert told == [AttributeValue("a/b/c/d", 1.0, "DevDouble", "VALID", 5_000_000)]
    session.close()
    proxy.push_elsewhere()
    assert len(told) == 1


@pytest.mark.parametrize(
    ("refusal", "answer"), [("API_AttributePollingNotStarted", False), ("API_DeviceTimedOut", None)]
)
def test_only_a_device_that_says_so_does_not_push(monkeypatch: pytest.MonkeyPatch, refusal: str, answer: bool | None):
    proxy = Proxy()
    proxy.refusal = refusal
    monkeypatch.setattr(tango, "DeviceProxy", lambda device: proxy)
    assert devices.mirror._Session("a/b/c", lambda news: None).subscribe("a/b/c/d") is answer


def test_nobody_subscribes_beside_the_first_subscription_of_the_process(monkeypatch: pytest.MonkeyPatch):
    """Tango makes its event consumer then, without a lock: of two, one is lost with its subscriptions."""
    has_consumer, under_way, most = threading.Event(), list[str](), list[int]()
    goes_on = threading.Barrier(3)

    class Subscribed(Proxy):
        def subscribe_event(self, name: str, kind: Any, take: Callable[[Any], None], mode: Any) -> int:
            under_way.append(name)
            if has_consumer.is_set():
                goes_on.wait(HANG)  # all others at once
            else:
                threading.Event().wait(0.2)  # others would come
            most.append(len(under_way))
            has_consumer.set()
            under_way.remove(name)
            return 7

    api = SimpleNamespace(is_zmq_event_consumer_created=has_consumer.is_set)
    monkeypatch.setattr(tango, "ApiUtil", SimpleNamespace(instance=lambda: api))
    monkeypatch.setattr(tango, "DeviceProxy", lambda device: Subscribed())
    source = TangoSource()
    for number in range(4):
        source.begin(DeviceJob(f"a/b/{number}", subscribe=(f"a/b/{number}/d",)))
    done: list[Any] = []
    until(lambda: len(done.extend(source.take()) or done) == 4, "all have been subscribed to")
    assert [len(one.pushed) for one in done] == [1, 1, 1, 1]
    assert most[0] == 1
    source.close()


ROOT = Path(__file__).parents[2]


def calls_of(file: Path) -> set[str]:
    """Return the names of all methods and classes that a file calls by a dot."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return {one.func.attr for one in nodes if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)}


def calls_to_tango(file: Path) -> set[str]:
    """Return those that a proxy, a database or the module `tango` has."""
    of_tango = {*dir(tango.DeviceProxy), *dir(tango.Database), *dir(tango)} - {
        *dir(dict),
        *dir(list),
        *dir(str),
        *dir(threading.Semaphore),
    }
    return calls_of(file) & of_tango - {"EnsureOmniThread"}


def test_the_mirror_makes_only_calls_that_were_tried_with_a_server_that_hangs():
    """Any other may keep Python's lock while it uses the network, and with it the whole device server."""
    assert calls_to_tango(ROOT / "devices" / "mirror.py") == {*CALLS}


@pytest.mark.parametrize("folder", ["devices", pytest.param("clients", marks=pytest.mark.needs("repository"))])
def test_nobody_sets_a_time_limit_of_a_proxy(folder: str):
    """It connects, and keeps Python's lock meanwhile."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert [str(one) for one in files if "set_timeout_millis" in calls_of(one)] == []


@pytest.mark.parametrize("what", ["read", "check"])
def test_a_device_that_does_not_answer_loses_its_subscriptions_at_once(monkeypatch: pytest.MonkeyPatch, what: str):
    """Else Tango itself subscribes again, and lets no event of any device through while it waits."""
    proxy, name = Proxy(), "a/b/c/d"
    monkeypatch.setattr(tango, "DeviceProxy", lambda device: proxy)
    source = TangoSource()
    assert source._do(DeviceJob("a/b/c", subscribe=(name,))).pushed == {name}
    proxy.is_away = True
    assert source._do(DeviceJob("a/b/c", read=(name,) if what == "read" else ())).trouble
    assert proxy.ended == [7]
    proxy.push_elsewhere()
    assert [one for one in source.take() if isinstance(one, AttributeValue)] == []


def test_a_thread_that_waits_for_a_device_holds_up_no_other(monkeypatch: pytest.MonkeyPatch):
    """There are as many as are needed at once, and no more than that."""
    answers = threading.Event()
    monkeypatch.setattr(TangoSource, "_do", lambda self, job: JobResult(job) if answers.wait(HANG) else None)
    monkeypatch.setattr(TangoSource, "_search", lambda self, search: SearchResult(search.pattern))
    source = TangoSource()
    for number in range(20):
        source.begin(DeviceJob(f"a/b/{number}"))
    source.begin(DeviceSearch("a/*/c"))
    assert until(source.take, "the search is made") == [SearchResult("a/*/c")]
    answers.set()
    done: list[Any] = []
    until(lambda: len(done.extend(source.take()) or done) == 20, "all have been asked")
    before = len(source._threads)
    for number in range(20):
        source.begin(DeviceSearch(f"a/{number}/*"))
        until(source.take, "the search is made")
    assert len(source._threads) == before == 21
    source.close()
