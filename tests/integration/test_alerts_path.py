"""Alerts through real processes: every one an event, operators' actions on the bus, all of it back after a kill."""

import json
from typing import Any

import pytest
import tango

from tests.conftest import Deploy
from tests.support.alerting import alert
from tests.support.deployment import ICD, Deployment
from tests.support.events import Subscriber
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

ALERTS = "mid-sdp/alerts/0"


class Source:
    """Sends alerts of one source."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.sent = 0

    def send(self, *conditions: str, state: str = "ACTIVE") -> None:
        first = self.sent + 1
        self.sent += len(conditions)
        self._deployment.send(*(alert(first + n, condition=one, state=state) for n, one in enumerate(conditions)))


def events(subscriber: Subscriber, kind: str = "change") -> list[dict]:
    """Return what came on lastAlert; before the first alert it has no value."""
    return [json.loads(event.value) for event in subscriber.by_attribute(kind)[ALERTS, "lastAlert"] if event.value]


def sequences(subscriber: Subscriber, kind: str = "change") -> list[int]:
    return [one["sequence"] for one in events(subscriber, kind) if "previous" in one]


def alarms(deployment: Deployment) -> dict[str, str] | None:
    """Return the state of each alarm that is not at rest; None while not all alerts have been read."""
    try:
        found = json.loads(deployment.proxy(ALERTS).GetAlarms())
    except tango.DevFailed as failed:
        if any(text in failed.args[0].desc for text in ("have not all been read", "is still starting")):
            return None
        raise
    return {one["condition"]: one["state"] for one in found}


def state_of(deployment: Deployment, condition: str) -> str:
    """Return the state of a condition as its attribute has it; empty: it has no value."""
    found = deployment.read_one(ALERTS, condition)
    return "" if found is None else ICD.enums["AlarmState"][found]


def hears(subscriber: Subscriber, source: Source, condition: str, state: str = "ACTIVE") -> None:
    """Send alerts until the client has two of them as events of each kind.

    Tango loses events of a connection that is still being made. A subscriber also gets the newest value when the
    connection is made again, so the first one that comes may be no event.
    """
    begin = {kind: len(sequences(subscriber, kind)) for kind in ("change", "archive")}

    def heard() -> bool:
        source.send(condition, state=state)
        return all(len({*sequences(subscriber, kind)[count:]}) >= 2 for kind, count in begin.items())

    until(heard, "the client hears", every=0.5)


def act(deployment: Deployment, command: str, condition: str, state: str, **argument: Any) -> None:
    """Act as an operator, and see the state that it leads to; what the bus did not confirm in time is repeated."""
    text = json.dumps({"condition": condition, "operator": "ann", **argument})

    def acts() -> bool:
        try:
            return bool(deployment.proxy(ALERTS).command_inout(command, text))
        except tango.DevFailed as failed:
            unconfirmed = failed.args[0].reason == "API_CommandTimedOut" or "was not sent" in failed.args[0].desc
            is_done = state_of(deployment, condition) == state
            if not unconfirmed and not is_done:
                raise
            return is_done

    until(acts, command)
    until_equal(lambda: state_of(deployment, condition), state, command)


def test_a_client_sees_every_alert_and_acts_through_a_kill(deploy: Deploy) -> None:
    """A burst arrives whole as change and archive events, in order; the states of the conditions, the lists and what an
    operator did are there after kill -9, and the place on the log goes on."""
    deployment = deploy(nodes=1)
    server = deployment.server("alerts")
    until(lambda: deployment.proxy(ALERTS).state() == tango.DevState.ON, "the alerts are read")
    subscriber, source = Subscriber(deployment, [ALERTS]), Source(deployment)
    hears(subscriber, source, "storageLow")
    source.send("storageLow", state="CLEARED")
    first = source.sent + 1
    source.send(*["receiveOverrun"] * 998)
    last = source.sent
    for kind in ("change", "archive"):
        until(lambda kind=kind: set(sequences(subscriber, kind)) >= {*range(first, last + 1)}, f"all as {kind} events")
        found = sequences(subscriber, kind)
        assert found[-998:] == [*range(first, last + 1)]
    proxy = deployment.proxy(ALERTS)
    until_equal(lambda: state_of(deployment, "receiveOverrun"), "UNACK", "the alarm that is active")
    until_equal(lambda: state_of(deployment, "storageLow"), "LTUNK", "the alarm that is over")
    until_equal(proxy.state, tango.DevState.ALARM, "the worst of them")
    until(lambda: proxy.activeCount == 1, "one alarm is active")
    # The lists are made anew behind the events; who acknowledges what is older is refused.
    until(lambda: json.loads(proxy.activeAlerts[0])["occurrence"] == last, "the newest occurrence is shown")
    act(deployment, "Acknowledge", "receiveOverrun", "ACKED", occurrence=last, comment="seen")
    again = {"condition": "receiveOverrun", "operator": "ann", "occurrence": last, "comment": "seen"}
    with pytest.raises(tango.DevFailed, match="needs no acknowledgement"):
        proxy.Acknowledge(json.dumps(again))
    act(deployment, "Shelve", "storageLow", "SHLVD", duration=86_400, comment="known")
    before = {"receiveOverrun": "ACKED", "storageLow": "SHLVD"}
    assert alarms(deployment) == before

    server.kill()
    deployment.forget_proxies()
    deployment.server("alerts")
    until_equal(lambda: alarms(deployment), before, "the alarms are back")
    until_equal(deployment.proxy(ALERTS).state, tango.DevState.ALARM, "the State is back")
    entries = json.loads(deployment.proxy(ALERTS).GetAlertsSince(last - 10))["entries"]
    assert [entry["sequence"] for entry in entries[:11]] == [*range(last - 9, last + 2)]
    actions = [entry["action"] for entry in entries[10:]]
    assert {(one["action"], one["operator"]) for one in actions} == {("ACKNOWLEDGE", "ann"), ("SHELVE", "ann")}
    hears(subscriber, source, "receiveOverrun", state="CLEARED")
    until(lambda: "receiveOverrun" not in (alarms(deployment) or ("receiveOverrun",)), "it is at rest")
    id = deployment.proxy(ALERTS).RefreshAlerts()

    def refreshed() -> list[dict]:
        return [one for one in events(subscriber) if one.get("refresh") == id]

    until(lambda: [one.get("mark") for one in refreshed()] == ["START", None, "END"], "all that is not at rest")
    assert refreshed()[1]["alarm"]["condition"] == "storageLow"
    until_equal(lambda: deployment.read_one(ALERTS, "alertsTotal"), source.sent, "the alerts are counted")
    assert len(deployment.messages("dead-letters")) == 0
