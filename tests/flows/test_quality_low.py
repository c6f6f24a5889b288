"""A metric beyond its limits is an alert: told once it lasts, cleared when it is back or not measured any more."""

import json
import math
from itertools import groupby
from typing import Any

import pytest

from facade.flows.alerts.messages import decode_alert
from facade.kernel.icd.load import load
from tests.support.commanding import DeviceServers
from tests.support.metrics import metric

ICD = load()
METRIC = "flaggedFraction"
SOURCE = f"subarray/01/{METRIC}"


class Bench(DeviceServers):
    pause = 0.25

    def __init__(self) -> None:
        super().__init__(q={"SdpQuality": ["mid-sdp/quality/01", "mid-sdp/quality/02"]})

    def measure(self, *values: float | None, seconds: float = 6.0, **changes: Any) -> list[tuple[str, str, str]]:
        """Measure values in turn, four a second (None: nothing); gives all alerts so far."""
        for number in range(round(seconds * 4)):
            value = values[number % len(values)]
            if value is not None:
                now_us = self.clock.now_us()
                self.broker.append(metric(METRIC, value, **{"time": now_us, **changes}))
            self.cycle(1)
        # One of the same state and severity has a newer text, and no more.
        return [key for key, _ in groupby((one.source, one.state, one.severity) for one in self.alerts())]

    def alerts(self) -> list[Any]:
        return [decode_alert(record.value) for record in self.broker.read("alerts")]


RAISED, WORSE, CLEARED = (
    (SOURCE, *rest) for rest in (("ACTIVE", "WARNING"), ("ACTIVE", "ALARM"), ("CLEARED", "ALARM"))
)


@pytest.fixture
def bench():
    return Bench()


def test_beyond_its_limits_worse_and_back(bench):
    assert bench.measure(0.1) == []
    assert bench.measure(0.4) == [RAISED]
    assert bench.measure(0.9) == [RAISED, WORSE]
    assert bench.measure(0.1) == [RAISED, WORSE, CLEARED]
    raised, worse, _ = bench.alerts()
    assert raised.condition in ICD.conditions
    assert raised.text == f"{METRIC}: expected below 0.3, below 0.7 in any case, got 0.4"
    assert raised.raised_at == worse.raised_at


def test_what_only_flickers_is_no_alert_and_no_worse_one(bench):
    assert bench.measure(0.1, 0.1, 0.1, 0.1, 0.4, 0.4, 0.4, 0.4, seconds=20.0) == []
    assert bench.measure(0.4) == [RAISED]
    assert bench.measure(*[0.4] * 4, *[0.9] * 4, seconds=20.0) == [RAISED]


@pytest.mark.parametrize("then", [None, math.nan])
def test_what_nobody_measures_any_more_is_cleared(bench, then):
    bench.measure(0.9)
    assert bench.measure(then, seconds=12.0) == [WORSE, CLEARED]


def test_while_no_metric_can_come_nothing_is_cleared(bench):
    bench.measure(0.9)
    bench.bus.away = True
    assert bench.measure(None, seconds=20.0) == [WORSE]


def test_nothing_is_cleared_before_producers_are_back_too(bench):
    bench.measure(0.9)
    bench.bus.away = True
    bench.measure(None, seconds=30.0)
    bench.bus.away = False
    bench.measure(None, seconds=9.0)
    assert bench.measure(0.9, seconds=20.0) == [WORSE]
    assert bench.measure(0.1, seconds=20.0) == [WORSE, CLEARED]


def test_each_subarray_has_its_own(bench):
    other = "subarray/02/flaggedFraction"
    assert bench.measure(0.9, seconds=5.0, subarray=2) == [(other, "ACTIVE", "ALARM")]
    assert bench.measure(0.9, seconds=12.0)[1:] == [WORSE, (other, "CLEARED", "ALARM")]


def test_metrics_that_have_stopped_are_in_the_signs_of_life(bench):
    """SdpMaster tells of them while the subarray scans."""

    def complaints():
        (*_, newest) = bench.broker.read("heartbeats")
        return json.loads(newest.value).get("complaints", [])

    bench.measure(0.1, seconds=8.0)
    assert complaints() == []
    bench.measure(None, seconds=8.0)
    text = f"metrics have stopped: {METRIC}"
    assert complaints() == [{"device": "mid-sdp/quality/01", "text": text, "subarray": "mid-sdp/subarray/01"}]
    bench.measure(0.9, seconds=8.0)
    (one,) = complaints()
    assert one["text"].startswith("state is ALARM: Beyond their limits")
