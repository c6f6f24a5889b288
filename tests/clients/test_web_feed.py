"""Frames of the operator's page: each change once, numbered, and the rest for a browser that was away."""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from facade.flows.alerts.follower import FollowedAlert
from facade.kernel.clock import ManualClock
from facade.kernel.reading import Quality
from sdp_facade_clients.events import DeviceEvent, EventRecord
from sdp_facade_clients.web.feed import HOUR, KEPT_FRAMES, SPANS, Feed, Trend


class Recorded:
    """A recorder and a pulse whose values a test sets."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], EventRecord] = {}
        self.gone: dict[str, float] = {}
        self.away = ""

    def record(self, device: str, attribute: str) -> EventRecord:
        return self.values.get((device, attribute), EventRecord())

    def silent(self) -> Mapping[str, float]:
        return self.gone


class Scene:
    """A feed and what one browser was given."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(1000.0)
        self.recorded = Recorded()
        self.feed = Feed(self.recorded, self.recorded, self.clock)

    def change(
        self, value: Any, quality: Quality = Quality.VALID, attribute: str = "a", device: str = "d", **record: Any
    ) -> None:
        newest = DeviceEvent(value=value, quality=quality, time=self.clock.now(), received=self.clock.now())
        self.recorded.values[device, attribute] = EventRecord(newest=newest, **record)
        self.feed.mark(device, attribute)

    def given(self, seen: str = "", most: int = 100) -> list[tuple[str, str, dict[str, Any]]]:
        """Give id, kind and content of what the stream has for a browser now."""

        async def collect() -> list[bytes]:
            found: list[bytes] = []
            stream = self.feed.stream(seen)
            while len(found) < most:
                try:
                    found.append(await asyncio.wait_for(anext(stream), 0.05))
                except TimeoutError:
                    break
            return found

        events = []
        for text in asyncio.run(collect()):
            fields = dict(line.split(": ", 1) for line in text.decode().strip().splitlines())
            events.append((fields["id"], fields["event"], json.loads(fields["data"])))
        return events


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_new_browser_is_given_everything_and_then_changes(scene: Scene) -> None:
    scene.change(1.5)
    scene.feed.step()
    scene.change("x", attribute="b")
    scene.feed.step()
    ((id, kind, content),) = scene.given()
    assert kind == "snapshot"
    assert content["values"] == {"d": {"a": [1.5, "VALID", 1000.0, ""], "b": ["x", "VALID", 1000.0, ""]}}
    scene.change(2.5)
    scene.feed.step()
    ((_, kind, content),) = scene.given(id)
    assert kind == "news"
    assert content["values"] == {"d": {"a": [2.5, "VALID", 1000.0, ""]}}


def test_between_two_frames_only_the_newest_value_counts_but_each_alert_does(scene: Scene) -> None:
    scene.feed.step()
    ((id, _, _),) = scene.given()
    for number in range(1, 51):
        scene.change(float(number))
        scene.feed.take_alert(FollowedAlert(sequence=number, previous=number - 1, time=1.0, alert={"text": "t"}))
    scene.feed.step()
    ((_, _, content),) = scene.given(id)
    assert content["values"]["d"]["a"][0] == 50.0
    assert [one["sequence"] for one in content["alerts"]] == list(range(1, 51))


@pytest.mark.parametrize(
    ("missed", "kinds"), [(3, ["news"] * 3), (KEPT_FRAMES, ["news"] * KEPT_FRAMES), (KEPT_FRAMES + 1, ["snapshot"])]
)
def test_a_browser_that_was_away_is_given_the_rest_or_everything(scene: Scene, missed: int, kinds: list[str]) -> None:
    scene.feed.step()
    ((id, _, _),) = scene.given()
    for _ in range(missed):
        scene.feed.step()
    assert [kind for _, kind, _ in scene.given(id, most=KEPT_FRAMES + 5)] == kinds


@pytest.mark.parametrize("seen", ["", "3", "other-3", "x-y-z", "-1"])
def test_an_id_of_another_server_means_a_snapshot(scene: Scene, seen: str) -> None:
    for _ in range(10):
        scene.feed.step()
    assert [kind for _, kind, _ in scene.given(seen)] == ["snapshot"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        ((1.0, math.nan), [1.0, "NaN"]),
        ((np.float64(0.5), np.int64(3), np.bool_(True), np.float64("inf")), [0.5, 3, True, "Infinity"]),
        ((("a",), ("b",)), [["a"], ["b"]]),
        ("<script>", "<script>"),
        (2**63, 2**63),
        (None, None),
    ],
)
def test_values_are_exact(scene: Scene, value: Any, shown: Any) -> None:
    scene.change(value)
    scene.feed.step()
    assert scene.given()[0][2]["values"]["d"]["a"][0] == shown


def test_a_failing_subscription_makes_the_last_value_invalid_and_says_why(scene: Scene) -> None:
    scene.change(1.0, failing=True, last_error="gone")
    scene.recorded.gone = {"d": 990.0}
    scene.recorded.away = "no database"
    scene.feed.step()
    content = scene.given()[0][2]
    assert content["values"]["d"]["a"] == [1.0, "INVALID", 1000.0, "gone"]
    assert (content["silent"], content["away"]) == ({"d": 990.0}, "no database")


def test_a_trend_has_gaps_where_values_were_invalid_and_goes_on_to_now(scene: Scene) -> None:
    for value, quality in ((1.0, Quality.VALID), (2.0, Quality.VALID), (2.0, Quality.INVALID), (4.0, Quality.VALID)):
        scene.change(value, quality)
        scene.feed.step()
        scene.clock.sleep(10.0)
    assert scene.feed.trend("d", "a") == ([1000.0, 1010.0, 1020.0, 1030.0, 1040.0], [1.0, 2.0, None, 4.0, 4.0])
    scene.change(math.nan)  # such as the hottest sensor while none is known
    scene.feed.step()
    scene.clock.sleep(10.0)
    assert scene.feed.trend("d", "a")[1][-2:] == [None, None]


def test_an_attribute_that_is_forgotten_is_told_once_and_is_in_no_snapshot(scene: Scene) -> None:
    """With each node that anybody had looked at, what a new browser was given grew."""
    scene.change(1.0)
    scene.feed.step()
    ((id, _, _),) = scene.given()
    scene.recorded.values.clear()
    scene.feed.forget("d", ["a"])
    scene.feed.step()
    assert scene.given(id)[0][2]["values"] == {"d": {"a": [None, "INVALID", 0.0, ""]}}
    scene.feed.step()
    assert scene.given()[0][2]["values"] == {"d": {}}
    assert scene.feed.trend("d", "a") == ([], [])


def test_a_time_in_the_future_does_not_stop_a_trend(scene: Scene) -> None:
    """After a node whose clock was an hour ahead, nothing was added for an hour."""
    for number, ahead in enumerate((0.0, HOUR, 0.0, 0.0)):
        now = scene.clock.now()
        newest = DeviceEvent(value=number, quality=Quality.VALID, time=now + ahead, received=now)
        scene.recorded.values["d", "a"] = EventRecord(newest=newest)
        scene.feed.mark("d", "a")
        scene.feed.step()
        scene.clock.sleep(10.0)
    assert scene.feed.trend("d", "a") == ([1000.0, 1010.0, 1020.0, 1030.0, 1040.0], [0.0, 1.0, 2.0, 3.0, 3.0])


def test_a_clock_that_is_set_back_stops_no_trend() -> None:
    """All trends stood still until the clock had caught up, and their times were in no order."""
    scene = Scene(ManualClock(10_000.0))
    for back in (0.0, 0.0, HOUR, 0.0):
        scene.clock._now -= back
        scene.clock.sleep(10.0)
        scene.change(scene.clock.now())
        scene.feed.step()
    times, values = scene.feed.trend("d", "a")
    assert times == values == [6430.0, 6440.0, 6440.0]


def test_kept_frames_have_a_bound_in_bytes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 16 subarrays whose spectra are shown took 200 MB."""
    most = 20_000
    monkeypatch.setattr("sdp_facade_clients.web.feed.KEPT_BYTES", most)
    for number in range(20):
        scene.change((float(number),) * 500)
        scene.feed.step()
    assert most // 2 < sum(len(one.text) for one in scene.feed._frames) <= most
    assert [kind for _, kind, _ in scene.given(f"{scene.feed._boot}-1")] == ["snapshot"]


def test_a_longer_trend_has_as_many_points_further_apart() -> None:
    scene = Scene()
    for minute in range(3 * 60):
        scene.change(float(minute))
        scene.feed.step()
        scene.clock.sleep(60.0)
    (_, hour), (_, hours) = (scene.feed.trend("d", "a", span) for span in SPANS)
    assert len(hour) == pytest.approx(60, abs=3)
    assert hours[:-1] == [*map(float, range(3 * 60))]
    trend = Trend(span=SPANS[-1])
    for second in range(100_000):
        trend.add(float(second), float(second))
    assert HOUR <= len(trend.points(0.0)[0]) <= 2 * HOUR


def test_a_trend_is_bounded_and_keeps_the_last_value_of_each_second() -> None:
    trend = Trend()
    for tenth in range(10 * 3 * int(HOUR)):
        trend.add(tenth / 10, float(tenth))
    times, values = trend.points(0.0)
    assert HOUR <= len(times) <= 2 * HOUR
    assert values[-1] == 10 * 3 * HOUR - 1
    assert times == sorted(times)


def test_a_browser_that_takes_a_snapshot_for_minutes_gets_another_one() -> None:
    scene = Scene()

    async def slow() -> list[bytes]:
        scene.feed.step()
        stream = scene.feed.stream()
        first = await anext(stream)
        for number in range(KEPT_FRAMES + 10):
            scene.change(float(number))
            scene.feed.step()
        return [first, await anext(stream)]

    kinds = [text.split(b"\n")[1] for text in asyncio.run(slow())]
    assert kinds == [b"event: snapshot", b"event: snapshot"]


def test_a_browser_that_is_stuck_at_one_frame_keeps_no_other() -> None:
    """It kept all that were new before, and was given them minutes later."""
    scene = Scene()

    async def stuck() -> list[bytes]:
        scene.feed.step()
        stream = scene.feed.stream()
        found = [await anext(stream)]
        for _ in range(3):
            scene.feed.step()
        found.append(await anext(stream))
        for _ in range(KEPT_FRAMES):
            scene.feed.step()
        return [*found, await anext(stream)]

    kinds = [text.split(b"\n")[1] for text in asyncio.run(stuck())]
    assert kinds == [b"event: snapshot", b"event: news", b"event: snapshot"]


@pytest.mark.parametrize("number", ["9" * 5000, "\u0663", "1_0", ""])
def test_an_id_that_is_no_number_of_ours_means_a_snapshot(scene: Scene, number: str) -> None:
    for _ in range(10):
        scene.feed.step()
    ((id, _, _),) = scene.given()
    scene.feed.step()
    assert [kind for _, kind, _ in scene.given(f"{id.partition('-')[0]}-{number}")] == ["snapshot"]


def test_frames_come_without_news_too() -> None:
    """A browser learns from the silence of its stream that the server has gone."""
    scene = Scene()

    async def two_frames() -> list[bytes]:
        task = asyncio.create_task(scene.feed.run())
        stream = scene.feed.stream()
        found = [await anext(stream) for _ in range(3)]
        task.cancel()
        return found

    kinds = [text.split(b"\n")[1] for text in asyncio.run(two_frames())]
    assert kinds == [b"event: snapshot", b"event: news", b"event: news"]


def test_a_count_that_grows_without_a_newer_time_is_a_trend_too(scene: Scene) -> None:
    """Such as of records that came too late: the trend showed the newest count at the time of the first."""
    for number in (0, 10, 20):
        newest = DeviceEvent(value=number, quality=Quality.VALID, time=0.0, received=scene.clock.now())
        scene.recorded.values["d", "a"] = EventRecord(newest=newest)
        scene.feed.mark("d", "a")
        scene.feed.step()
        scene.clock.sleep(5.0)
    assert scene.feed.trend("d", "a") == ([1000.0, 1005.0, 1010.0, 1015.0], [0.0, 10.0, 20.0, 20.0])


def test_a_value_that_has_not_changed_for_an_hour_is_a_line() -> None:
    """It was an empty plot."""
    trend = Trend()
    trend.add(1000.0, 5.0)
    assert trend.points(900.0) == ([1000.0], [5.0])
    assert trend.points(5000.0) == ([5000.0], [5.0])
    trend.add(6000.0, 6.0)
    assert trend.points(5000.0) == ([5000.0, 6000.0], [5.0, 6.0])
