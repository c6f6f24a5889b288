"""The recorder of events with a device that is played: an event that was lost is made up for by a read."""

import math
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import tango

from facade.kernel.clock import ManualClock
from facade.kernel.icd.load import load
from facade.kernel.reading import Quality
from sdp_facade_clients import events
from sdp_facade_clients.events import COMPARED_EACH, EventPulse, EventRecorder
from sdp_facade_clients.watch import Watch
from tests.support.waiting import HANG, until

DEVICE = "mid-sdp/calibration/01"


class Proxy:
    """One attribute whose value is read, and whose events come only when they are told."""

    def __init__(self, name: str) -> None:
        self.value, self.time, self.quality = "a", 1.0, tango.AttrQuality.ATTR_VALID
        self.listener: Callable[[Any], None] = lambda event: None
        self.away = False

    def subscribe_event(self, attribute: str, kind: Any, listener: Callable[[Any], None], mode: Any) -> int:
        self.listener = listener
        self.tell(tango.EventReason.SubSuccess)
        return 1

    def shown(self) -> Any:
        value = None if self.quality == tango.AttrQuality.ATTR_INVALID else self.value
        time = SimpleNamespace(totime=lambda at=self.time: at)
        form = tango.AttrDataFormat.SCALAR
        return SimpleNamespace(
            name="digest", value=value, time=time, quality=self.quality, data_format=form, has_failed=False
        )

    def tell(self, reason: Any = tango.EventReason.Update) -> None:
        self.listener(SimpleNamespace(err=False, attr_value=self.shown(), event_reason=reason))

    def read_attributes(self, names: list[str]) -> list[Any]:
        if self.away:
            tango.Except.throw_exception("API_CantConnectToDevice", "away", "here")
        return [self.shown() for _ in names]


@pytest.mark.parametrize(("was", "now"), [("VALID", "INVALID"), ("INVALID", "VALID"), ("VALID", "ALARM")])
def test_a_lost_event_of_a_quality_alone_is_made_up_for(monkeypatch: pytest.MonkeyPatch, was: str, now: str) -> None:
    """The device keeps the time of the data; the old figure was shown as valid for as long as the stream was silent."""
    proxy = Proxy(DEVICE)
    proxy.quality = getattr(tango.AttrQuality, f"ATTR_{was}")
    monkeypatch.setattr(events.tango, "DeviceProxy", lambda name: proxy)
    recorder = EventRecorder("host:1", ManualClock())
    recorder.subscribe(DEVICE, ["digest"])
    proxy.quality = getattr(tango.AttrQuality, f"ATTR_{now}")
    recorder.compare(DEVICE)
    newest = recorder.record(DEVICE, "digest").newest
    assert newest is not None
    assert newest.quality is Quality[now]


def test_an_event_that_came_during_a_read_is_not_replaced_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy(DEVICE)
    monkeypatch.setattr(events.tango, "DeviceProxy", lambda name: proxy)
    recorder = EventRecorder("host:1", ManualClock())
    recorder.subscribe(DEVICE, ["digest"])
    read = proxy.read_attributes

    def read_slowly(names: list[str]) -> list[Any]:
        answers = read(names)
        proxy.quality = tango.AttrQuality.ATTR_INVALID
        proxy.tell()
        return answers

    monkeypatch.setattr(proxy, "read_attributes", read_slowly)
    recorder.compare(DEVICE)
    newest = recorder.record(DEVICE, "digest").newest
    assert newest is not None
    assert newest.quality is Quality.INVALID


def test_a_lost_event_is_made_up_for_by_a_read_and_is_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy(DEVICE)
    monkeypatch.setattr(events.tango, "DeviceProxy", lambda name: proxy)
    clock = ManualClock()
    recorder = EventRecorder("host:1", clock)
    recorder.subscribe(DEVICE, ["digest"])
    pulse = EventPulse("host:1", {}, clock)
    watch = Watch(recorder, {"SdpCalibration": [DEVICE]}, pulse, tango_host="host:1", icd=load(), clock=clock)

    def shown() -> tuple[Any, Quality, int]:
        record = watch.scene().record(DEVICE, "digest")
        assert record.newest is not None
        return record.newest.value, record.newest.quality, len(record.events)

    proxy.value, proxy.time = "b", 2.0  # its event is lost
    watch.step()
    assert shown() == ("a", Quality.VALID, 0)
    clock.sleep(COMPARED_EACH)
    watch.step()
    assert shown() == ("b", Quality.VALID, 0)
    proxy.value, proxy.time = "c", 3.0
    proxy.tell()
    proxy.time = 2.5  # read before, answered late
    clock.sleep(COMPARED_EACH)
    watch.step()
    assert shown() == ("c", Quality.VALID, 1)
    proxy.time, proxy.quality = 4.0, tango.AttrQuality.ATTR_INVALID
    clock.sleep(COMPARED_EACH)
    watch.step()
    assert shown() == ("c", Quality.INVALID, 1)
    proxy.away = True
    clock.sleep(COMPARED_EACH)
    watch.step()
    assert shown() == ("c", Quality.INVALID, 1)


class Server:
    """A server that answers, hangs or is gone."""

    def __init__(self, name: str) -> None:
        self.hangs, self.is_gone = threading.Event(), False
        self.hangs.set()

    def read_attribute(self, name: str) -> None:
        assert self.hangs.wait(HANG)
        if self.is_gone:
            tango.Except.throw_exception("API_CantConnectToDevice", "gone", "here")


@pytest.mark.parametrize("fault", ["hangs", "gone"])
def test_a_server_without_an_answer_is_silent_and_no_other_with_it(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    servers: dict[str, Server] = {}
    monkeypatch.setattr(
        events.tango, "DeviceProxy", lambda name: servers.setdefault(name.rsplit("/", 1)[-1], Server(name))
    )
    monkeypatch.setattr(events, "_PULSE", 0.001)
    clock = ManualClock()
    pulse = EventPulse("host:1", {"a": ["x/y/a", "x/y/a2"], "b": ["x/y/b"]}, clock)
    mine, other = (pulse._asked[name] for name in "ab")

    def asked_again(one: Any) -> None:
        until(lambda: one.answered == clock.now() and one.unanswered == math.inf, "an answer")

    asked_again(mine)
    assert pulse.silent() == {}
    before = clock.now()
    if fault == "hangs":
        servers["a"].hangs.clear()
    else:
        servers["a"].is_gone = True
    until(lambda: mine.unanswered == before, "a question without an answer")
    clock.sleep(3.0)
    asked_again(other)
    assert pulse.silent() == {"x/y/a": before, "x/y/a2": before}
    servers["a"].hangs.set()
    servers["a"].is_gone = False
    asked_again(mine)
    assert pulse.silent() == {}
    pulse.close()


def test_an_attribute_whose_events_fail_is_not_shown_as_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, clock = Proxy(DEVICE), ManualClock()
    monkeypatch.setattr(events.tango, "DeviceProxy", lambda name: proxy)
    recorder = EventRecorder("host:1", clock)
    recorder.subscribe(DEVICE, ["digest"])
    pulse = EventPulse("host:1", {}, clock)
    watch = Watch(recorder, {"SdpCalibration": [DEVICE]}, pulse, tango_host="host:1", icd=load(), clock=clock)

    def quality() -> Quality:
        record = watch.scene().record(DEVICE, "digest")
        assert record.newest is not None
        return record.newest.quality

    assert quality() is Quality.VALID
    proxy.listener(SimpleNamespace(err=True, errors=[SimpleNamespace(desc="no heartbeat")]))
    assert quality() is Quality.INVALID
    proxy.tell()
    assert quality() is Quality.VALID
