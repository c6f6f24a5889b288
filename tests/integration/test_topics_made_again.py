"""Topics are deleted and made again, and cleared, under running and stopped readers: all goes on, and it is said."""

import itertools
import json

import numpy as np
import pytest
import tango
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from facade.flows.quality.records import encode_metric
from facade.runtime.snapshots import Snapshot, decode_snapshot
from tests.conftest import Deploy
from tests.support.alerting import alert
from tests.support.deployment import CLOCK, Deployment, subarray_device
from tests.support.tables import cut
from tests.support.waiting import HANG, until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

ALERTS, QUALITY, CALIBRATION = "mid-sdp/alerts/0", "mid-sdp/quality/01", "mid-sdp/calibration/01"
SUBARRAY = subarray_device(1)
INSTANCES = ("alerts", "quality", "calibration", "subarray")
MADE_AGAIN = ("alerts", "quality", "tables", "calibration")
REPORTED = ("command-acks", "state")
"""What controllers report; a device server that is stopped meanwhile knows it from nowhere else."""


class Site:
    """A running system, and all that sends to it."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.rounds = itertools.count(1)
        self._admin = AdminClient({"bootstrap.servers": deployment.bootstrap})

    def start(self) -> None:
        started = {name: self.deployment.server(name, ready=False) for name in INSTANCES}
        started["assemble"] = self.deployment.start("assemble", ["sdp-facade", "tables", "assemble"])
        self.processes = started
        for name in INSTANCES:
            self.deployment.await_server(started[name], name)

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.deployment.forget_proxies()

    def alert(self, text: str) -> None:
        self.deployment.send(alert(CLOCK.now_us(), text=text))

    def newest_alert(self) -> tuple[int, str]:
        entry = json.loads(self.deployment.read_one(ALERTS, "lastAlert") or '{"sequence": 0}')
        return entry["sequence"], entry.get("alert", {}).get("text", "")

    def measured(self, value: float) -> float | None:
        """Send a metric, which is stale after 5 s, and read it."""
        now = CLOCK.now_us()
        self.deployment.send(encode_metric(np.float64(value), subarray=1, metric="flaggedFraction", time=now, unit=""))
        return self.deployment.read_one(QUALITY, "flaggedFraction")

    def tables(self) -> list[str]:
        try:
            return [one["table"] for one in json.loads(self.deployment.proxy(CALIBRATION).ListTables())]
        except tango.DevFailed:
            return []

    def all_goes_on(self) -> None:
        """Send something new through everything, and see it."""
        number = next(self.rounds)
        before, _ = self.newest_alert()
        self.alert(f"round {number}")
        self.deployment.send(*cut(f"table-{number}", b"abcdef", 2, product="subarray/01/other"))
        (state,) = until(self._switched, "a command is taken")
        until(lambda: self.newest_alert()[1] == f"round {number}", "the alert is an event")
        assert self.newest_alert()[0] > before
        until_equal(lambda: self.measured(number / 100), number / 100, "the metric is shown")
        until(lambda: f"table-{number}" in self.tables(), "the table is announced")
        until_equal(lambda: self.deployment.read_one(SUBARRAY, "State"), state, "the subarray has done it")

    def _switched(self) -> list[tango.DevState]:
        """Command the other state, and return it; empty: refused, as the topics are being read, with the State."""
        is_on = self.deployment.read_one(SUBARRAY, "State") == tango.DevState.ON
        try:
            self.deployment.proxy(SUBARRAY).command_inout("Off" if is_on else "On")
        except tango.DevFailed as failed:
            print(failed.args[0].desc)
            return []
        return [tango.DevState.OFF if is_on else tango.DevState.ON]

    def make_again(self, *topics: str) -> None:
        names = [self.deployment.topic(name) for name in topics]
        for future in self._admin.delete_topics(names).values():
            future.result(HANG)
        # A busy broker tells of them for a moment longer: they would not be made.
        until(lambda: not {*names} & self._admin.list_topics(timeout=HANG).topics.keys(), "the topics are gone")

        def made() -> bool:
            try:
                return self.deployment.create_topics() == []
            except Exception as error:  # they are still being deleted
                print(error)
                return False

        until(made, "the topics are made again")

    def remove(self, topic: str, before: int) -> None:
        place = TopicPartition(self.deployment.topic(topic), 0, before)
        for future in self._admin.delete_records([place]).values():
            future.result(HANG)

    def set_group_forward(self) -> None:
        """Set the group of the assembling workers beyond what is to come, once the broker has given the worker up."""
        name = self.deployment.topic("calibration")
        places = [TopicPartition(name, partition, 1000) for partition in range(4)]
        wanted = ConsumerGroupTopicPartitions(self.deployment.topic("tables-assemble"), places)

        def is_set() -> bool:
            try:
                (future,) = self._admin.alter_consumer_group_offsets([wanted]).values()
                return all(place.error is None for place in future.result(HANG).topic_partitions)
            except KafkaException as error:
                print(error)
                return False

        until(is_set, "the group is set forward")

    def snapshot(self, topic: str) -> Snapshot:
        def snapshots() -> list[Snapshot]:
            records = self.deployment.messages("snapshots")
            found = [one for record in records if isinstance(one := decode_snapshot(record.value()), Snapshot)]
            return [one for one in found if one.topic == topic]

        return until(snapshots, f"a snapshot of {topic}")[-1]


def test_readers_go_on_over_topics_that_are_made_again_and_cleared(deploy: Deploy) -> None:
    """While they run and while they are stopped; numbers of alerts rise, and what is missing is told with offsets."""
    deployment = deploy(nodes=1, subarrays=1, patient=True)
    site = Site(deployment)
    site.start()
    deployment.controller()
    for _ in range(2):
        site.all_goes_on()
    site.make_again(*MADE_AGAIN, *REPORTED)
    site.all_goes_on()
    until(lambda: site.snapshot("alerts").account.log_cuts == 1, "it is in the account of the alerts")
    assert "alerts, partition 0: the topic was deleted and made again" in site.snapshot("alerts").account.last_error
    site.kill()
    site.make_again(*MADE_AGAIN)
    site.start()
    site.all_goes_on()
    until(lambda: site.snapshot("alerts").account.log_cuts == 2, "it is in the account of the alerts")
    # Removed while nobody reads: a hole, told with its offsets. The group's place is none of the worker's business.
    site.kill()
    at = site.snapshot("alerts").offsets[0]
    for number in range(3):
        site.alert(f"unread {number}")
    site.remove("alerts", at + 3)
    site.set_group_forward()
    site.start()
    site.all_goes_on()
    until(lambda: site.snapshot("alerts").account.skipped == 3, "the hole is in the account of the alerts")
    account = site.snapshot("alerts").account
    words = f"alerts, partition 0: offsets {at} to {at + 2} were removed before they were read"
    assert words in account.deviations["skipped"]
    assert account.overlap == 0
    assert "the group says 1000; the worker goes on from its own position" in site.processes["assemble"].text
