"""Alerts through real processes: every one an event, operators' actions on the bus, all of it back after a kill."""

import json

import pytest
import tango

from tests.conftest import Deploy
from tests.support.alerting import alert
from tests.support.deployment import ICD, Deployment
from tests.support.events import Subscriber
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

ALERTS = "mid-sdp/alerts/0"


class Source:
    """Sends alerts of one source."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._sequence = 0

    def send(self, *conditions: str, state: str = "ACTIVE") -> None:
        first = self._sequence + 1
        self._sequence += len(conditions)
        self._deployment.send(*(alert(first + n, condition=one, state=state) for n, one in enumerate(conditions)))


def events(subscriber: Subscriber, kind: str = "change") -> list[dict]:
    """Return what came on lastAlert; before the first alert it has no value."""
    return [json.loads(event.value) for event in subscriber.by_attribute(kind)[ALERTS, "lastAlert"] if event.value]


def sequences(subscriber: Subscriber, kind: str = "change") -> list[int]:
    return [one["sequence"] for one in events(subscriber, kind) if "previous" in one]


def alarms(deployment: Deployment) -> dict[str, str]:
    return {one["condition"]: one["state"] for one in json.loads(deployment.proxy(ALERTS).GetAlarms())}


def test_a_client_sees_every_alert_and_acts_through_a_kill(deploy: Deploy) -> None:
    """A burst arrives whole as change and archive events, in order; the states of the conditions, the lists and what an
    operator did are there after kill -9, and the place on the log goes on."""
    deployment = deploy(nodes=1)
    server = deployment.server("alerts")
    until(lambda: deployment.proxy(ALERTS).state() == tango.DevState.ON, "the alerts are read")
    subscriber, source = Subscriber(deployment, [ALERTS]), Source(deployment)
    source.send("storageLow")
    source.send("storageLow", state="CLEARED")
    source.send(*["receiveOverrun"] * 998)
    for kind in ("change", "archive"):
        until(lambda kind=kind: set(sequences(subscriber, kind)) >= {*range(1, 1001)}, f"all as {kind} events")
        found = sequences(subscriber, kind)
        assert found[-1000:] == [*range(1, 1001)]
    proxy = deployment.proxy(ALERTS)
    labels = ICD.enums["AlarmState"]
    assert labels[proxy.receiveOverrun] == "UNACK"
    assert labels[proxy.storageLow] == "LTUNK"
    assert proxy.state() == tango.DevState.ALARM
    until(lambda: proxy.activeCount == 1, "one alarm is active")
    # The lists are made anew behind the events; who acknowledges what is older is refused.
    until(lambda: json.loads(proxy.activeAlerts[0])["occurrence"] == 1000, "the newest occurrence is shown")
    argument = {"condition": "receiveOverrun", "operator": "ann", "occurrence": 1000, "comment": "seen"}
    assert proxy.Acknowledge(json.dumps(argument))
    until(lambda: labels[proxy.receiveOverrun] == "ACKED", "it is acknowledged")
    with pytest.raises(tango.DevFailed, match="needs no acknowledgement"):
        proxy.Acknowledge(json.dumps(argument))
    proxy.Shelve(json.dumps({"condition": "storageLow", "operator": "ann", "duration": 600, "comment": "known"}))
    until(lambda: labels[proxy.storageLow] == "SHLVD", "it is shelved")
    before = {"receiveOverrun": "ACKED", "storageLow": "SHLVD"}
    assert alarms(deployment) == before

    server.kill()
    deployment.forget_proxies()
    deployment.server("alerts")
    until(lambda: deployment.proxy(ALERTS).state() == tango.DevState.ALARM, "the alerts are back")
    assert alarms(deployment) == before
    page = json.loads(deployment.proxy(ALERTS).GetAlertsSince(990))
    assert [entry["sequence"] for entry in page["entries"]] == [*range(991, 1003)]
    assert page["entries"][-2]["action"]["operator"] == "ann"
    source.send("receiveOverrun", state="CLEARED")
    until(lambda: 1003 in sequences(subscriber), "the client hears on")
    assert "receiveOverrun" not in alarms(deployment)
    id = deployment.proxy(ALERTS).RefreshAlerts()

    def refreshed() -> list[dict]:
        return [one for one in events(subscriber) if one.get("refresh") == id]

    until(lambda: [one.get("mark") for one in refreshed()] == ["START", None, "END"], "all that is not at rest")
    assert refreshed()[1]["alarm"]["condition"] == "storageLow"
    assert deployment.read_one(ALERTS, "alertsTotal") == 1001
    assert len(deployment.messages("dead-letters")) == 0
