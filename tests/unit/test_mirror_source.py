"""What Tango's values become on the bus, and what PyTango must have for it."""

import json
import math
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tango
import tango.green

import devices.mirror
from devices.mirror import TangoSource, _in_json
from facade.flows.mirror.source import Lost, Missed, Seen

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
        source._tell(Seen(name))
    lost = Lost("x", "why")
    source._tell(lost)
    assert sorted(source.take(), key=str) == sorted([Seen("a"), Seen("b"), lost, Missed("c"), Missed("d")], key=str)
    assert source.take() == []


class Proxy:
    """A device whose value Tango reads as it is subscribed to, and that takes no end of a subscription."""

    def __init__(self) -> None:
        self.take: Callable[[Any], None] = lambda event: None
        self.refusal = ""

    def set_transparency_reconnection(self, on: bool) -> None: ...

    def get_attribute_config(self, name: str) -> None: ...

    def subscribe_event(self, name: str, kind: Any, take: Callable[[Any], None], mode: Any) -> int:
        if self.refusal:
            tango.Except.throw_exception(self.refusal, "", "")
        self.take = take
        self.push()
        return 7

    def unsubscribe_event(self, number: int) -> None:
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
    assert told == [Seen("a/b/c/d", 1.0, "DevDouble", "VALID", 5_000_000)]
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


def test_an_event_costs_no_wrapper():
    """The name is PyTango's own business: this fails where another version has another one."""

    def callback() -> None: ...

    assert tango.green.green_callback.__globals__["_forcefully_traced_method"](callback) is callback
