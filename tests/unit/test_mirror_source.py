"""What Tango's values become on the bus, and what PyTango must have for it."""

import json
import math
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
    source = TangoSource(lambda device: False)
    for name in ("a", "b", "c", "d", "c"):
        source._tell(Seen(name))
    lost = Lost("x", "why")
    source._tell(lost)
    assert sorted(source.take(), key=str) == sorted([Seen("a"), Seen("b"), lost, Missed("c"), Missed("d")], key=str)
    assert source.take() == []


def test_an_event_costs_no_wrapper():
    """The name is PyTango's own business: this fails where another version has another one."""

    def callback() -> None: ...

    assert tango.green.green_callback.__globals__["_forcefully_traced_method"](callback) is callback
