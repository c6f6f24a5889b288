"""A topic is deleted and made again, and cleared, under a device server that runs and under one that is stopped."""

import itertools
import json
from collections.abc import Callable

import pytest
import tango
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from facade.kernel.icd.load import load
from facade.kernel.runtime.snapshots import Snapshot, decode_snapshot
from facade.sdp.device_state import StateMessage, state_record
from tests.conftest import Deploy
from tests.support.alerting import alert
from tests.support.deployment import CLOCK, Deployment, subarray_device
from tests.support.waiting import HANG, until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

ICD = load()
ALERTS = "mid-sdp/alerts/0"


class Site:
    """A device server of alerts, and all that sends to it."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.rounds = itertools.count(1)
        self._admin = AdminClient({"bootstrap.servers": deployment.bootstrap})

    def start(self) -> None:
        self.server = self.deployment.server("alerts")

    def kill(self) -> None:
        self.server.kill()
        self.deployment.forget_proxies()

    def alert(self, text: str) -> None:
        self.deployment.send(alert(CLOCK.now_us(), text=text))

    def newest_alert(self) -> tuple[int, str]:
        entry = json.loads(self.deployment.read_one(ALERTS, "lastAlert") or '{"sequence": 0}')
        return entry["sequence"], entry.get("alert", {}).get("text", "")

    def goes_on(self) -> None:
        """Send a new alert, and see it under a higher number."""
        number = next(self.rounds)
        before, _ = self.newest_alert()
        self.alert(f"round {number}")
        until(lambda: self.newest_alert()[1] == f"round {number}", "the alert is an event")
        assert self.newest_alert()[0] > before

    def make_again(self, topic: str = "alerts") -> None:
        name = self.deployment.topic(topic)
        for future in self._admin.delete_topics([name]).values():
            future.result(HANG)
        # A busy broker tells of it for a moment longer: it would not be made.
        until(lambda: name not in self._admin.list_topics(timeout=HANG).topics, "the topic is gone")

        def made() -> bool:
            try:
                return self.deployment.create_topics() == []
            except Exception as error:  # it is still being deleted
                print(error)
                return False

        until(made, "the topic is made again")

    def remove(self, before: int) -> None:
        place = TopicPartition(self.deployment.topic("alerts"), 0, before)
        for future in self._admin.delete_records([place]).values():
            future.result(HANG)

    def snapshot(self) -> Snapshot:
        def snapshots() -> list[Snapshot]:
            records = self.deployment.messages("snapshots")
            found = [one for record in records if isinstance(one := decode_snapshot(record.value()), Snapshot)]
            return [one for one in found if one.topic == "alerts"]

        return until(snapshots, "a snapshot")[-1]


def test_readers_go_on_over_topics_that_are_made_again_and_cleared(deploy: Deploy) -> None:
    """Numbers of alerts rise, and what is missing is told with offsets."""
    site = Site(deploy(nodes=1, without="calibration,quality,mirror,logs,alerts-intake,tables-assemble,logs-aggregate"))
    site.start()
    site.goes_on()
    site.make_again()
    site.goes_on()
    until(lambda: site.snapshot().account.log_cuts == 1, "it is in the account of the alerts")
    assert "alerts, partition 0: the topic was deleted and made again" in site.snapshot().account.last_error
    site.kill()
    site.make_again()
    site.start()
    site.goes_on()
    until(lambda: site.snapshot().account.log_cuts == 2, "it is in the account of the alerts")
    # Removed while nobody reads: a hole, told with its offsets.
    site.kill()
    at = site.snapshot().offsets[0]
    for number in range(3):
        site.alert(f"unread {number}")
    site.remove(at + 3)
    site.start()
    site.goes_on()
    until(lambda: site.snapshot().account.skipped == 3, "the hole is in the account of the alerts")
    account = site.snapshot().account
    words = f"alerts, partition 0: offsets {at} to {at + 2} were removed before they were read"
    assert words in account.deviations["skipped"]
    assert account.overlap == 0


def test_what_went_while_the_server_was_stopped_is_invalid_until_it_is_reported_or_set(deploy: Deploy) -> None:
    deployment = deploy(nodes=1, subarrays=1, without="alerts,calibration,quality,mirror,logs,ingest")
    site, device = Site(deployment), subarray_device(1)

    def report(**values: str) -> None:
        said = [
            StateMessage(device=device, attribute=name, value=value, time=CLOCK.now_us(), origin="c")
            for name, value in values.items()
        ]
        deployment.send(*map(state_record, said))

    def shown() -> tuple[str, str]:
        return str(deployment.proxy(device).State()), deployment.quality(device, "obsState")

    def why_refused() -> str:
        with pytest.raises(tango.DevFailed) as error:
            deployment.proxy(device).Off()
        return str(error.value.args[0].desc)

    def insist(call: Callable[[], object]) -> None:
        """Call again while the device refuses, because its heartbeats come late on a busy machine."""

        def is_done() -> bool:
            try:
                call()
            except tango.DevFailed as error:
                if "heartbeats do not come back" not in error.args[0].desc:
                    raise
                return False
            return True

        until(is_done, "the device takes it")

    server = deployment.server("subarray")
    report(State="ON", obsState="READY")
    until_equal(shown, ("ON", "VALID"), "what the controller has reported")
    offline = ICD.enums["AdminMode"].index("OFFLINE")
    insist(lambda: setattr(deployment.proxy(device), "adminMode", offline))
    until_equal(lambda: shown()[0], "DISABLE", "the mode of an operator")
    shown_at = CLOCK.now_us() // 1000
    until(lambda: any(one.timestamp()[1] > shown_at for one in deployment.messages("snapshots")), "a snapshot of it")
    server.kill()
    deployment.forget_proxies()
    for topic in ("state", "settings", "command-acks"):
        site.make_again(topic)
    deployment.server("subarray")
    until(lambda: deployment.quality(device, "commandsPending") == "VALID", "the server has read all topics")
    until(lambda: "obsState is not known" in deployment.proxy(device).Status(), "nobody has reported since")
    assert shown() == ("UNKNOWN", "INVALID")
    assert deployment.quality(device, "adminMode") == "INVALID"
    assert "commands are refused: adminMode is not known" in deployment.proxy(device).Status()
    until(lambda: "alive" not in why_refused(), "nobody else holds the lease")
    assert "Command Off not allowed: adminMode is not known" in why_refused()
    insist(lambda: deployment.proxy(device).SetAdminMode(json.dumps({"mode": "ONLINE", "operator": "ann"})))
    (entry,) = json.loads(deployment.command("audit", "--kind", "mode", "--json"))
    assert (entry["act"], entry["target"], entry["operator"]) == ("adminMode ONLINE", device, "ann")
    report(State="ON", obsState="IDLE")
    until_equal(shown, ("ON", "VALID"), "the controller has reported")
