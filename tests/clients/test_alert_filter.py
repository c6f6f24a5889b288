"""Filters of alert subscriptions: what is wanted comes once, and what is not moves the client's place all the same."""

import json
import threading
from types import SimpleNamespace

import msgspec
import pytest

from facade.flows.alerts.filter import AlertFilter, Comparison
from facade.flows.alerts.follower import FollowedAlert
from facade.kernel.errors import ConfigError
from sdp_facade_clients import alert_subscription
from tests.support.waiting import HANG, until

ALERT = {
    "condition": "transientDetected", "source": "lsst/detector-017", "severity": "WARNING", "state": "ACTIVE",
    "text": "5 sigma", "raised_at": 10**15, "sequence": 7, "values": {"snr": 7.5, "psf.width": 0.7},
}  # fmt: skip
ACTION = {"condition": "transientDetected", "source": "lsst/detector-017", "operator": "ann", "action": "ACKNOWLEDGE"}


def only(*fields: str, **names: str) -> AlertFilter:
    return AlertFilter(fields=tuple(map(Comparison.parse, fields)), **names)


@pytest.mark.parametrize(
    ("chosen", "alert", "action"),
    [
        (only(), True, True),
        (only(condition="transientDetected"), True, True),
        (only(condition="transient"), False, False),
        (only(condition="transient*", source="lsst/*-01[0-9]"), True, True),
        (only(source="LSST/*"), False, False),
        (only(severity="INFO"), True, False),
        (only(severity="WARNING"), True, False),
        (only(severity="ALARM"), False, False),
        (only("values.snr >= 7.5"), True, False),
        (only("values.snr > 7.5"), False, False),
        (only("values.snr>7", "values.snr<7.4"), False, False),
        (only("values.psf.width <= 0.7", "values.snr != 7"), True, False),
        (only("values.missing != 1"), False, False),
        (only("sequence == 7", "raised_at < 1e16"), True, False),
        (only("state == ACTIVE", "text != 6 sigma"), True, False),
        (only("state==CLEARED"), False, False),
        (only("traceparent == "), True, False),
    ],
)
def test_all_that_is_named_must_be_so(chosen, alert, action):
    assert chosen.wants(FollowedAlert(sequence=1, previous=0, time=1.0, alert=ALERT)) is alert
    assert chosen.wants(FollowedAlert(sequence=1, previous=0, time=1.0, action=ACTION)) is action


def test_a_filter_of_a_program_is_checked_as_well():
    with pytest.raises(ConfigError, match="expected one of INFO, WARNING, ALARM, CRITICAL, got 'BAD'"):
        AlertFilter(severity="BAD")
    with pytest.raises(ConfigError, match="expected one of >="):
        Comparison("values.snr", "=", 7.0)
    assert msgspec.json.decode(msgspec.json.encode(only("state == ACTIVE")), type=AlertFilter) == only("state==ACTIVE")


class Device:
    """SdpAlerts with some alerts, each event of which comes or is lost; what is up to `gone` it has no more."""

    def __init__(self, alerts: int, *, lost: set[int], gone: int = 0) -> None:
        severities = ("INFO", "ALARM")
        self.entries = [
            {"sequence": n, "previous": n - 1, "time": 1.0, "alert": ALERT | {"severity": severities[n % 2]}}
            for n in range(1, alerts + 1)
        ]
        self._lost, self._gone = lost, gone

    def subscribe_event(self, name, kind, callback):
        for entry in self.entries:
            if entry["sequence"] not in self._lost:
                callback(SimpleNamespace(err=False, attr_value=SimpleNamespace(value=json.dumps(entry))))
        return 1

    def unsubscribe_event(self, subscription):
        pass

    def read_attribute(self, name):
        return SimpleNamespace(value=len(self.entries))

    def command_inout(self, name, since):
        if since < self._gone:
            reason = SimpleNamespace(desc=f"sequence: expected at least {self._gone}, got {since}")
            raise alert_subscription.tango.DevFailed(reason)
        return json.dumps({"newest": len(self.entries), "entries": self.entries[since:]})


@pytest.fixture
def listen(monkeypatch):
    """Return what follows a device until its place is the newest number."""

    def follow(device: Device, chosen: AlertFilter):
        monkeypatch.setattr(alert_subscription.tango, "DeviceProxy", lambda name: device)
        found, lost = [], []
        subscription = alert_subscription.AlertSubscription(
            "a/b/c", lambda entry: found.append(entry.sequence), start=0, on_lost=lost.append, only=chosen
        )
        until(lambda: subscription.place == len(device.entries), "the place is that of the last alert")
        subscription.close()
        return found, lost

    return follow


@pytest.mark.parametrize("lost", [set(), {1, 2, 7, 30}, {*range(1, 41)}, {39, 40}], ids=str)
def test_what_is_left_out_moves_the_place_and_what_is_wanted_comes_once(listen, lost):
    assert listen(Device(40, lost=lost), only(severity="ALARM")) == ([*range(1, 41, 2)], [])
    assert listen(Device(40, lost=lost), only(severity="CRITICAL")) == ([], [])


def test_what_nobody_has_any_more_is_told_and_passed(listen):
    found, lost = listen(Device(40, lost={*range(1, 41)}, gone=20), only(severity="ALARM"))
    assert found == [*range(21, 41, 2)]
    assert lost == ["1 to 20 are no longer in the memory of the device, only on the topic"]


def test_a_failing_callback_moves_the_place(monkeypatch):
    monkeypatch.setattr(alert_subscription.tango, "DeviceProxy", lambda name: Device(3, lost=set()))
    subscription = alert_subscription.AlertSubscription("a/b/c", lambda entry: 1 / 0, start=0)
    until(lambda: subscription.place == 3, "all were called back")
    subscription.close()


def test_the_end_does_not_wait_for_a_call_that_hangs_and_nothing_is_called_back_after_it(monkeypatch):
    """While the Tango database hangs, a call takes 17 s."""
    hanging, goes_on, found = threading.Event(), threading.Event(), []

    class Hanging(Device):
        def command_inout(self, name, since):
            hanging.set()
            goes_on.wait(HANG)
            return super().command_inout(name, since)

    monkeypatch.setattr(alert_subscription, "_LONGEST_END", 0.0)
    monkeypatch.setattr(alert_subscription.tango, "DeviceProxy", lambda name: Hanging(3, lost={1, 2, 3}, gone=2))
    subscription = alert_subscription.AlertSubscription("a/b/c", found.append, start=0, on_lost=found.append)
    assert hanging.wait(HANG)
    subscription.close()
    assert any(thread.is_alive() for thread in subscription._threads), "it has waited"
    goes_on.set()
    for thread in subscription._threads:
        thread.join(HANG)
    assert (found, subscription.place) == ([], 0)


@pytest.mark.parametrize("recent", [0, 5, 40, 99])
def test_a_program_that_starts_gets_the_newest_entries_of_before(monkeypatch, recent):
    """Otherwise the last hour looks quiet after each restart of the page."""
    device = Device(40, lost=set())
    device.subscribe_event = lambda *_: 1  # Tango gives the last value only
    monkeypatch.setattr(alert_subscription.tango, "DeviceProxy", lambda name: device)
    found = []
    subscription = alert_subscription.AlertSubscription(
        "a/b/c", lambda entry: found.append(entry.sequence), recent=recent
    )
    until(lambda: subscription.place == 40 and len(found) == min(recent, 40), "all of them have come")
    subscription.close()
    assert found == [*range(1, 41)][40 - min(recent, 40) :]
