"""Records of an archive get their offsets again; what cannot be restored is refused with a reason."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from facade.archive import restore_cli
from facade.archive.files import ArchiveError
from facade.archive.restore import Kind, LogNames, Restored, plan_restore, restore, steps
from facade.archive.stores import FolderStore, open_store
from facade.archive.worker import ArchiveLimits, ArchiveWorker
from facade.flows.alerts.follower import Follower
from facade.flows.commands.messages import (
    ACKS,
    COMMANDS,
    HELD_COMMANDS,
    AckMessage,
    CommandMessage,
    ack_record,
    command_record,
    held_record,
    unapproved_record,
)
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from facade.kernel.bus.offsets import Extent, TopicShape, position_record
from facade.kernel.bus.port import Record
from facade.kernel.cli.app import app
from facade.kernel.clock import SECOND, ManualClock
from facade.kernel.errors import BusError, ConfigError, OutcomeUnknown
from facade.sdp.messages import WorkerPosition
from tests.support.alerting import Bench, Server
from tests.support.archives import HOUR, ICD, START, archive, archive_of, changed, record
from tests.support.simulated_bus import MemoryBus as SimulatedBus

PREFIX = "test."
PLACE = ("alerts", 0)
OLD, NEW = "O" * 22, "N" * 22


class IdBus(MemoryBus):
    """A bus whose topics have ids as those of Kafka."""

    heaps = OLD

    def extents(self, topics: Iterable[str]) -> dict[str, Extent]:
        return {name: replace(one, id=self._id(name)) for name, one in super().extents(topics).items()}

    def step(self, topics: Iterable[str]) -> dict[str, TopicShape]:
        return {name: one._replace(id=self._id(name)) for name, one in super().step(topics).items()}

    def _id(self, topic: str) -> str:
        return self.heaps if topic == "ingest.heaps" else ""


class Brokers:
    """Logs as Kafka has them: each record and each mark gets the next offset."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], list[Record | None]] = defaultdict(list)
        """Records that committed readers get; None: an offset without one."""

    def write(self, records: Sequence[Record]) -> None:
        self._append(records, visible=True)

    def commit(self, records: Sequence[Record]) -> None:
        self._mark(self._append(records, visible=True))

    def abort(self, records: Sequence[Record]) -> None:
        self._mark(self._append(records, visible=False))

    def records(self, topic: str) -> list[Record]:
        return [one for (name, _), log in sorted(self.logs.items()) if name == topic for one in log if one is not None]

    def _append(self, records: Sequence[Record], *, visible: bool) -> set[tuple[str, int]]:
        assert records, "a transaction without a record has no mark"
        for one in records:
            log = self.logs[one.topic, one.partition]
            assert one.offset == len(log), "a record has another offset than it should have"
            log.append(one if visible and one.value is not None else None)
        return {(one.topic, one.partition) for one in records}

    def _mark(self, places: Iterable[tuple[str, int]]) -> None:
        for place in places:
            self.logs[place].append(None)


@given(offsets=st.sets(st.integers(0, 60), max_size=30), behind=st.integers(0, 5))
def test_each_record_gets_its_offset(offsets: set[int], behind: int) -> None:
    kept = [replace(record(), offset=offset) for offset in sorted(offsets)]
    end = (max(offsets) + 1 if offsets else 0) + behind
    brokers = Brokers()
    ways = {Kind.PLAIN: brokers.write, Kind.COMMITTED: brokers.commit, Kind.ABORTED: brokers.abort}
    for step in steps(iter(kept), PLACE, end=end):
        ways[step.kind](step.records)
    log = brokers.logs[PLACE]
    assert [one.offset for one in log if one is not None] == sorted(offsets)
    assert len(log) == end


def test_records_that_fill_a_run_alone_follow_each_other() -> None:
    kept = [replace(record(value=bytes(9_000_000)), offset=offset) for offset in range(3)]
    found = [*steps(iter(kept), PLACE)]
    assert all(step.records for step in found)
    assert [one.offset for step in found for one in step.records] == [0, 1, 2]


def test_a_log_is_filled_up_by_one_more_offset_where_a_mark_has_no_place() -> None:
    (step,) = steps(iter(()), PLACE, at=7, end=9)
    assert (step.kind, [one.offset for one in step.records]) == (Kind.ABORTED, [7])


def restored(store: FolderStore, *, ids: dict[str, str] | None = None, now_us: int = START) -> tuple[Brokers, Restored]:
    plan = plan_restore(store, ICD, prefix=PREFIX, now_us=now_us)
    brokers, clock = Brokers(), ManualClock(now_us / 1e6)
    names = LogNames(ICD, plan.ids, ids or {})
    return brokers, restore(store, plan, names, brokers, clock, lambda *_: None)


def test_records_are_as_they_were(tmp_path: Path) -> None:
    log, store = MemoryLog({"alerts": 2, "state": 1}), FolderStore(tmp_path)
    for number in range(5):
        log.append(record(value=b"%d" % number, partition=number % 2))
        log.append(record(value=b"%d" % number, topic="state"))
    archive(log, store, "alerts", "state")
    brokers, done = restored(store)
    assert brokers.records("alerts") == log.records("alerts")
    assert brokers.records("state") == log.records("state")[-1:], "only the newest of a key, as of compacted topics"
    assert done.ends == {("alerts", 0): 3, ("alerts", 1): 2, ("state", 0): 5}


def test_records_that_kafka_would_have_removed_leave_a_beginning_to_be_deleted(tmp_path: Path) -> None:
    old, new = replace(record(), timestamp_us=START), replace(record(), timestamp_us=START + 10 * HOUR)
    log, store = MemoryLog({"flagging": 1}), FolderStore(tmp_path)
    for one in (old, old, new):
        log.append(replace(one, topic="flagging"))
    archive(log, store, "flagging")
    brokers, done = restored(store, now_us=START + round(ICD.topics["flagging"].retention * 1e6) + HOUR)
    assert [one.offset for one in brokers.records("flagging")] == [2]
    assert done.begins == {("flagging", 0): 2}


def summary(begin: int, end: int) -> Record:
    value = {"schema": "ingest-summary/1", "worker": "w", "node": 1, "partition": 0, "partials": []}
    value |= {"log": OLD, "offset_from": begin, "offset_to": end}
    return Record(topic="ingest.summary", key=b"1", value=msgspec.json.encode(value), partition=0, timestamp_us=START)


def position(at: int, log: str = OLD) -> Record:
    return position_record(
        WorkerPosition(group="aggregate", topic="ingest.heaps", partition=0, log=log, next=at, worker="w")
    )


def test_positions_are_on_the_new_log_and_not_behind_results(tmp_path: Path) -> None:
    """Results have counted 9 offsets, of which the archive has 2."""
    names = ("ingest.heaps", "ingest.summary", "positions")
    log, store = MemoryLog(dict.fromkeys(names, 1)), FolderStore(tmp_path)
    for one in (record(topic="ingest.heaps"), record(topic="ingest.heaps"), summary(0, 9), position(4)):
        log.append(replace(one, partition=0, timestamp_us=START))
    archive(IdBus(log), store, *names)
    brokers, done = restored(store, ids={"ingest.heaps": NEW})
    assert len(brokers.logs["ingest.heaps", 0]) == 9, "no other record gets an offset that is counted"
    assert done.positions == 1
    assert [one.value for one in brokers.records("positions")] == [position(4, NEW).value, position(9, NEW).value]
    (found,) = brokers.records("ingest.summary")
    assert found.value == (summary(0, 9).value or b"").replace(OLD.encode(), NEW.encode())


@pytest.mark.parametrize("former", [0, 1])
def test_of_a_topic_made_again_within_an_hour_the_newest_log_is_restored(former: int, tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for after, (id, partition) in enumerate({OLD: former, NEW: 1 - former}.items()):
        log = MemoryLog({"ingest.heaps": 2})
        log.append(record(START + after * SECOND, topic="ingest.heaps", partition=partition))
        bus = IdBus(log)
        bus.heaps = id
        archive(bus, store, "ingest.heaps")
    plan = plan_restore(store, ICD, prefix=PREFIX, now_us=START + SECOND)
    assert (plan.ids, [*plan.partitions]) == ({"ingest.heaps": NEW}, [("ingest.heaps", 1 - former)])


def test_an_id_that_is_no_log_stays() -> None:
    """Clients of alerts take another numbering for numbers that begin again."""
    value = b'{"topic_id":"%b","ledger":{"numbering":"%b","counted":{"0":{"log":"%b#2","end":7}}}}'
    names = LogNames(ICD, {"alerts": OLD}, {"alerts": NEW})
    old, new = OLD.encode(), NEW.encode()
    found = names.rename(Record(topic="snapshots", key=b"alerts/alerts", value=value % (old, old, old)))
    assert found.value == value % (new, old, new)


def test_what_cannot_be_restored_is_refused(tmp_path: Path) -> None:
    def refused(store: FolderStore, prefix: str = PREFIX, **options: object) -> str:
        with pytest.raises((ConfigError, ArchiveError)) as found:
            plan_restore(store, ICD, prefix=prefix, now_us=START, **options)
        return str(found.value)

    assert "got none" in refused(FolderStore(tmp_path / "nothing"))
    store = archive_of(tmp_path / "whole", 3, 3, 3)
    assert "expected the one of the archive's deployment, 'test.', got 'other.'" in refused(store, "other.")
    assert "--without: expected some of alerts, got 'state'" in refused(store, without=["state"])
    first, second, third = sorted(store.names())
    whole = store.read(second)
    (tmp_path / "whole" / second).write_bytes(whole[:-9] + b"x" + whole[-8:])
    assert second in refused(store)
    store.remove(second)
    assert f"{third}: expected number 1, got 2: a file is missing" in refused(store)
    store.remove(first)
    assert "alerts, partition 0: 6" in refused(store, most_fillers=5)
    plan = plan_restore(store, ICD, prefix=PREFIX, now_us=START, most_fillers=6)
    assert plan.partitions[PLACE][0].first == 6


def test_an_archive_that_would_need_fillers_without_end_is_refused(tmp_path: Path) -> None:
    """Its last file says that 10^15 offsets have no record; `archive verify` takes that for aborted transactions."""
    store = archive_of(tmp_path, 3, 3)
    plan_restore(store, ICD, prefix=PREFIX, now_us=START, most_fillers=0)
    file = tmp_path / sorted(store.names())[-1]
    file.write_bytes(changed(file.read_bytes(), next=10**15))
    with pytest.raises(
        ConfigError, match=r"at most 5,000,000 offsets without .* alerts, partition 0: 999,999,999,999,991"
    ):
        plan_restore(store, ICD, prefix=PREFIX, now_us=START)


@pytest.mark.parametrize("topic", ["ingest.heaps", "state"])
def test_records_that_kafka_would_have_removed_count_as_fillers(topic: str, tmp_path: Path) -> None:
    """A week of heaps, which are kept for an hour, would take 1.8e9 fillers."""
    log, store, now_us = MemoryLog({topic: 1}), FolderStore(tmp_path), START + 10 * HOUR
    for at_us in (*[START] * 7, now_us):
        log.append(record(at_us, topic=topic))
    archive(log, store, topic)
    with pytest.raises((ConfigError, ArchiveError), match=rf"{topic}, partition 0: .*7"):
        refill(store, now_us, 6)
    assert refill(store, now_us, 7).records == 1


def refill(store: FolderStore, now_us: int, most_fillers: int) -> Restored:
    plan = plan_restore(store, ICD, prefix=PREFIX, now_us=now_us, most_fillers=most_fillers)
    clock, names = ManualClock(now_us / 1e6), LogNames(ICD, plan.ids, {})
    return restore(store, plan, names, Brokers(), clock, lambda *_: None)


def test_a_position_far_behind_the_archive_is_refused(tmp_path: Path) -> None:
    names = ("ingest.heaps", "positions")
    log, store = MemoryLog(dict.fromkeys(names, 1)), FolderStore(tmp_path)
    for one in (record(topic="ingest.heaps"), position(10**9)):
        log.append(replace(one, partition=0, timestamp_us=START))
    archive(IdBus(log), store, *names)
    with pytest.raises(
        ArchiveError, match=r"ingest\.heaps, partition 0: the archive ends at offset 1, positions are at"
    ):
        restored(store, ids={"ingest.heaps": NEW})


# The command


class Said:
    """What the command tells operators; the brokers confirm no alert before some have failed."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.texts: list[tuple[str, str]] = []

    def raise_alert(self, condition: str, severity: str, text: str) -> None:
        self._take(severity, text)

    def clear(self, condition: str, text: str) -> None:
        self._take("CLEARED", text)

    def _take(self, state: str, text: str) -> None:
        if self.fails:
            self.fails -= 1
            raise OutcomeUnknown("not confirmed")
        self.texts.append((state, text))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """Put brokers in memory for those that `archive restore` writes to."""
    found, clock = Said(), ManualClock(START / 1e6)
    none = {name: lambda *_, **__: None for name in ("create_topics", "delete_records", "set_timestamps")}
    stand_ins = none | {
        "SystemClock": lambda: clock,
        "inspect_topics": lambda *_: {},
        "KafkaTopicWatch": lambda _: IdBus(MemoryLog(dict.fromkeys(ICD.topics, 1))),
        "KafkaPlacingWriter": lambda *_: Brokers(),
        "KafkaWriter": Mock(),
        "open_alerts": lambda *_: found,
    }
    for name, one in stand_ins.items():
        monkeypatch.setattr(restore_cli, name, one)
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("SDP_TOPIC_PREFIX", PREFIX)
    return found


def by_command(place: object, *words: str) -> Result:
    return CliRunner().invoke(app, ["archive", "restore", str(place), *words])


def test_no_secret_of_the_place_is_in_the_alarm(said: Said) -> None:
    place = "memory://key:secret@restored"
    log = MemoryLog({"alerts": 1})
    log.append(record())
    archive(log, open_store(place), "alerts")
    done = by_command(place)
    assert (done.exception, len(said.texts)) == (None, 2)
    assert "secret" not in f"{said.texts}{done.output}"
    assert all("were filled from memory://***@restored" in text for _, text in said.texts)


def test_the_alarm_has_the_time_up_to_which_all_topics_are_there(said: Said, tmp_path: Path) -> None:
    """The archive worker of heaps ended earlier than the one of alerts; times of dead letters are not the brokers'."""
    times = {"dead-letters": 1, "ingest.heaps": 5, "commands": 60, "alerts": 70}
    log = MemoryLog(dict.fromkeys(times, 1))
    for topic, seconds in times.items():
        for at in (0, seconds):
            log.append(record(START + at * 1_000_000, topic=topic))
    archive(log, FolderStore(tmp_path), *times)
    done = by_command(tmp_path)
    assert done.exception is None
    assert [state for state, _ in said.texts] == ["WARNING", "CLEARED"]
    assert all("the earliest of these is of 2027-01-15 08:00:05 UTC, on ingest.heaps" in one[1] for one in said.texts)
    assert [line.split() for line in done.output.splitlines() if line.startswith("  ")] == [
        ["2027-01-15", "08:00:05", "ingest.heaps"],
        ["2027-01-15", "08:01:00", "commands"],
        ["2027-01-15", "08:01:10", "alerts"],
    ]


def test_an_alarm_that_is_not_confirmed_is_told_again(said: Said, tmp_path: Path) -> None:
    archive_of(tmp_path, 1)
    said.fails = 3
    done = by_command(tmp_path)
    assert (done.exception, [state for state, _ in said.texts]) == (None, ["WARNING", "CLEARED"])


def test_without_the_alarm_the_topics_are_complete_and_said_to_be(said: Said, tmp_path: Path) -> None:
    archive_of(tmp_path, 1)
    said.fails = 1000
    done = by_command(tmp_path)
    assert "1 records of 1 topics are on the topics" in done.output
    assert isinstance(done.exception, BusError)
    assert "the topics are complete, and only the alarm topicsRestored, or its end, is missing" in str(done.exception)
    assert 0 < said.fails < 999, "tried for a time"


@pytest.mark.parametrize(
    ("topics", "words", "warned"),
    [
        (["alerts", "state"], [], 0),
        (["alerts", "state"], ["--without", "alerts"], 2),
        (["state"], [], 2),
    ],
)
def test_numbers_of_alerts_that_may_be_given_again_are_warned_of(
    topics: list[str], words: list[str], warned: int, said: Said, tmp_path: Path
) -> None:
    log = MemoryLog(dict.fromkeys(topics, 1))
    for topic in topics:
        log.append(record(topic=topic))
    archive(log, FolderStore(tmp_path), *topics)
    done = by_command(tmp_path, *words)
    assert done.exception is None
    assert done.output.count("WARNING: the topic alerts is not restored") == warned, "before and after the work"


# Device servers


def archived(lost: Bench, store: FolderStore, *names: str) -> None:
    """Archive all that topics have."""
    bus, limits = SimulatedBus(lost.broker), ArchiveLimits(wait=0.0)
    worker = ArchiveWorker(bus, store, ICD, names, deployment=PREFIX, clock=lost.clock, limits=limits)
    for _ in range(10):
        worker.step()
    worker.finish()


def on_other_brokers(lost: Bench, store: FolderStore, **options: int) -> Bench:
    """Restore an archive, as of now."""
    found = Bench()
    found.clock.sleep(lost.clock.monotonic() - found.clock.monotonic())
    ids = {}
    for name, topic in found.broker.model.topics.items():
        ids[name] = topic.id = f"new-{topic.id[4:]}"
    plan = plan_restore(store, ICD, prefix=PREFIX, now_us=START, **options)
    brokers = Brokers()
    restore(store, plan, LogNames(ICD, plan.ids, ids), brokers, found.clock, lambda *_: None)
    for (topic, partition), log in brokers.logs.items():
        for one in log:
            found.broker.append(one or Record(topic=topic, key=b"none", value=None, partition=partition))
    return found


def test_a_device_server_goes_on_over_restored_topics(tmp_path: Path) -> None:
    """Numbers and states continue, and no log is another one."""
    lost, store = Bench(), FolderStore(tmp_path)
    server = lost.server()
    for number in range(3):
        lost.alert(text=f"{number}")
        server.cycle()
    server.acknowledge()
    server.cycle(40)  # a snapshot, among others
    lost.alert(state="CLEARED", text="not read")
    archived(lost, store, "alerts", "alert-state", "snapshots")
    found = on_other_brokers(lost, store)
    assert [one.value for one in found.broker.read("alerts")] == [one.value for one in lost.broker.read("alerts")]
    again = found.server()
    again.cycle(10)
    before, after = server.flow, again.flow
    assert (before.sequence, after.sequence) == (4, 5)
    assert after.numbering == before.numbering
    assert again.state() == "NORM"
    account = again.service.event_loop._progress["alerts"].account
    assert (account.log_cuts, account.skipped, account.overlap) == (0, 0, 0)


def test_numbers_of_lost_alerts_are_not_given_again(tmp_path: Path) -> None:
    """A client has seen two alerts that the archive does not have; the state of one of them it has."""
    lost, store = Bench(), FolderStore(tmp_path)
    server, client = lost.server(), Follower(0)

    def heard(server: Server) -> list[tuple[int, str]]:
        asked = client.seen
        entries = client.add_page(asked, server.api.since(asked))
        return [(one.sequence, one.alert["text"]) for one in entries if one.alert]

    for number in (1, 2):
        lost.alert(text=f"alert {number}")
    server.cycle(40)
    archived(lost, store, "alerts", "snapshots")
    for number in (3, 4):
        lost.alert(text=f"alert {number}")
    server.cycle()
    archived(lost, store, "alert-state")
    before = heard(server)
    assert before == [(number, f"alert {number}") for number in (1, 2, 3, 4)]

    found = on_other_brokers(lost, store, reserve=10)
    again = found.server()
    found.alert(condition="topicsRestored", source="archive/restore", text="records are lost")
    again.cycle()
    (entry,) = heard(again)
    assert entry == (13, "records are lost"), "in order, and behind all that the client has"
    assert client.made_anew == 0
    client = Follower(0)
    assert heard(again) == [*before[:2], entry], "alerts have the numbers that they had"


def test_commands_without_an_outcome_are_listed(said: Said, tmp_path: Path) -> None:
    log, device = MemoryLog(dict.fromkeys((COMMANDS, ACKS, HELD_COMMANDS), 1)), "mid-sdp/subarray/01"

    def command(number: int) -> CommandMessage:
        at = START + number * 1_000_000
        return CommandMessage(
            id=f"id-{number}",
            device=device,
            command="Scan",
            argument=None,
            transaction_id=f"txn-{number}",
            issued=at,
            not_after=at,
            deadline=at,
            ceiling=at,
            repeatable=False,
            origin="server",
        )

    def ack(number: int, status: str) -> AckMessage:
        at = START + number * 1_000_000
        return AckMessage(id=f"id-{number}", device=device, command="Scan", status=status, time=at, origin="c")

    given = [command_record(command(number)) for number in (1, 2, 3, 4)]
    held = [held_record(command(number)) for number in (5, 6, 4)]
    acks = [ack(1, "ACCEPTED"), ack(1, "COMPLETED"), ack(2, "ACCEPTED"), ack(7, "IN_PROGRESS"), ack(4, "REJECTED")]
    ended = unapproved_record(ack(6, "UNDELIVERED"))
    for one in [*given, *held, ended, *map(ack_record, acks), record(topic=COMMANDS, value=b"no command")]:
        log.append(replace(one, partition=0, timestamp_us=START))
    archive(log, FolderStore(tmp_path), COMMANDS, ACKS, HELD_COMMANDS)
    done = by_command(tmp_path)
    assert done.exception is None
    text = " ".join(done.output.split())
    assert "may have been executed" in text
    assert f"{device} Scan id id-2, transaction_id txn-2, issued 2027-01-15 08:00:02 UTC: ACCEPTED at" in text
    assert f"{device} Scan id id-3, transaction_id txn-3, issued 2027-01-15 08:00:03 UTC: not acknowledged" in text
    assert f"{device} Scan id id-5, transaction_id txn-5" in text
    assert "id id-7: IN_PROGRESS at 2027-01-15 08:00:07 UTC; its own record is lost" in text
    assert [number for number in range(1, 8) if f" id-{number}" in text] == [2, 3, 5, 7]
