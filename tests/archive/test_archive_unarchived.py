"""The brokers of a lost site are back: what the archive lacks is listed, record by record, and can be added to it."""

import json
from pathlib import Path

import pytest

from facade.archive.cli import chosen_topics
from facade.archive.files import ArchiveError, inspect
from facade.archive.open_commands import TOPICS, describe_commands
from facade.archive.stores import FolderStore
from facade.archive.unarchived import Unarchived, describe_alerts, unarchived
from facade.archive.worker import ArchiveLimits, ArchiveWorker
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.errors import ConfigError
from sdp_facade_lab.fault_runs.fuzz_records import documents, record
from tests.support.archives import ICD, changed, kept
from tests.support.heaps import BASE_US
from tests.support.simulated_bus import MemoryBroker, MemoryBus
from tests.support.waiting import until

pytestmark = pytest.mark.needs("sdp_facade_lab")

SENT = {"commands": "command", "command-acks": "command-ack", "alerts": "alert", "ingest.heaps": "heap"}


class Core:
    """The brokers of one site."""

    def __init__(self, *without: str) -> None:
        self.clock = ManualClock(BASE_US / 1e6)
        shown = {name: topic.partitions for name, topic in ICD.topics.items() if name not in without}
        self.broker = MemoryBroker(self.clock, shown)

    def send(self, *numbers: int) -> None:
        for number in numbers:
            for topic, message in SENT.items():
                document = documents(BASE_US, number)[message] | ({"attachments": []} if message == "alert" else {})
                one = record(topic, message, document)
                self.broker.append(Record(topic=topic, key=one.key, value=one.value, headers=one.headers))

    def archive(self, store: FolderStore, *topics: str) -> None:
        limits = ArchiveLimits(wait=0.01, age=0.0)
        worker = ArchiveWorker(
            MemoryBus(self.broker), store, ICD, topics, deployment="", clock=self.clock, limits=limits
        )
        until(lambda: worker.step() or self.has_all(store, *topics), "all is in the archive", every=0.0)
        worker.finish()

    def lacks(self, store: FolderStore) -> dict[str, Unarchived]:
        bus = MemoryBus(self.broker)
        return {one.topic: one for one in unarchived(store, bus.watch(), self.broker.connection(), ICD.topics)}

    def has_all(self, store: FolderStore, *topics: str) -> bool:
        return bool(store.names()) and not self.lacks(store).keys() & {*topics}


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "archive")


def test_what_came_after_the_newest_file_is_listed(store):
    core = Core()
    core.send(1, 2)
    core.archive(store, *SENT)
    assert core.lacks(store) == {}
    core.clock.sleep(5.0)
    core.send(3, 4)
    found = core.lacks(store)
    assert {topic: one.records for topic, one in found.items()} == dict.fromkeys(SENT, 2)
    assert {one.oldest for one in found.values()} == {BASE_US + 5_000_000}
    assert [json.loads(one.value)["sequence"] for one in found["alerts"].kept] == [3, 4]
    commands = describe_commands([one for topic in TOPICS if topic in found for one in found[topic].kept], ended=True)
    assert len(commands) == 2
    assert all("-0000000" in line and "COMPLETED" in line for line in commands)
    assert len(describe_alerts(found["alerts"].kept)) == 2
    assert not found["ingest.heaps"].kept, "millions of heaps are counted only"


def test_the_archive_worker_adds_what_is_listed(store):
    core = Core()
    core.send(1)
    core.archive(store, *SENT)
    core.send(2, 3)
    core.archive(store, *SENT)
    assert core.lacks(store) == {}
    assert len(kept(store)) == 3 * len(SENT)


def test_a_topic_without_files_is_listed_whole(store):
    core = Core()
    core.send(1, 2)
    core.archive(store, "alerts")
    assert {topic: one.records for topic, one in core.lacks(store).items()} == dict.fromkeys(
        SENT.keys() - {"alerts"}, 2
    )


def test_brokers_of_another_site_are_refused(store):
    core = Core()
    core.send(1)
    core.archive(store, *SENT)
    core.broker.make_again("alerts")
    core.send(1)
    with pytest.raises(ConfigError, match=r"alerts, .*: name the brokers whose records the archive has"):
        core.lacks(store)


def test_topics_that_the_brokers_do_not_show_are_no_whole_archive(store):
    """With a wrong prefix, or without rights, the command said that the archive had every record."""
    core = Core()
    core.send(1)
    core.archive(store, *SENT)
    with pytest.raises(ConfigError, match=r"^alerts, commands: the archive has records, but .*SDP_TOPIC_PREFIX"):
        Core("alerts", "commands").lacks(store)
    with pytest.raises(ArchiveError, match="expected files topic="):
        core.lacks(FolderStore(store._root / "mistyped"))


def test_an_archive_of_another_deployment_is_refused(store):
    core = Core()
    core.send(1)
    core.archive(store, *SENT)
    for name in store.names("alerts"):
        raw = store.read(name)
        store.remove(name)
        store.write(name, changed(raw, deployment="low."))
    with pytest.raises(ConfigError, match=r"expected an archive of the deployment '', got one of 'low\.'"):
        core.lacks(store)


def test_a_log_that_ends_before_the_archive_is_no_whole_archive(store):
    """The brokers were put back to a former state of their disks: the same log, but shorter."""
    core = Core()
    core.send(1)
    core.archive(store, "alerts")
    (name,) = store.names("alerts")
    raw = store.read(name)
    store.remove(name)
    entry = inspect(raw)
    store.write(name, changed(raw, next=entry.next + 5))
    with pytest.raises(ConfigError, match=f"expected offset {entry.next + 5} or later as the end of the log"):
        core.lacks(store)


def test_only_the_topics_that_are_named_are_read(store):
    core = Core()
    core.send(1, 2)
    core.archive(store, "alerts")
    core.send(3)
    bus = MemoryBus(core.broker)
    found = unarchived(store, bus.watch(), core.broker.connection(), chosen_topics(["alerts"], ICD))
    assert [(one.topic, one.records) for one in found] == [("alerts", 1)]
    with pytest.raises(ConfigError, match="--only: expected some of"):
        chosen_topics(["alert"], ICD)
