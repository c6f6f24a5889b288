"""A worker's own position beside the group's and the log's; what covers offsets twice is refused, holes are counted."""

from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from facade.admin.transaction_writer import KafkaTransactionWriter
from facade.flows.logs import formats as log_formats
from facade.flows.overview.views import BusView
from facade.flows.telemetry.ledger import Coverage
from facade.flows.telemetry.partial import Summary
from facade.flows.telemetry.worker import telemetry_worker
from facade.kernel.bus.kafka import transactions
from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.offsets import (
    POSITIONS,
    CountedOffsets,
    Gap,
    LogCut,
    Overlap,
    PartitionFacts,
    PartitionPositions,
    WorkerPosition,
    begin,
    newest,
)
from facade.kernel.bus.port import Aborted, PartitionBatch, Record
from facade.kernel.clock import ManualClock, as_time
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.outcome import USED, RecordRejected
from facade.kernel.runtime.accounts import MOST_ROWS, AccountEntry
from facade.sdp.stream_accounts import WorkerAccounts
from tests.support.heaps import BASE_US, encoded, heap
from tests.support.overview import overview
from tests.support.simulated_bus import MemoryBroker, MemoryTransactionalLog

ICD = load()
HEAPS = "ingest.heaps"
NOW = BASE_US / 1e6 + 1.0


def position(log: str, offset: int) -> WorkerPosition:
    return WorkerPosition(group="g", topic=HEAPS, partition=1, log=log, next=offset, worker="0")


UNOWNED = "the group says 30; the worker has no position of its own and begins at 0"
GONE = "offsets 50 to 69 were removed before they were read"
CASES = {
    # own position, facts: topic's id, first, end, group's offset; what comes of it: log, offset, words
    "all agree": (("a", 50), ("a", 0, 90, 50), ("a", 50, "")),
    "the group was set back": (
        ("a", 50),
        ("a", 0, 90, 20),
        ("a", 50, "the group says 20; the worker goes on from its"),
    ),
    "the group was set forward": (("a", 50), ("a", 0, 90, 80), ("a", 50, "the group says 80; the worker goes on from")),
    "the group forgot": (("a", 50), ("a", 0, 90, -1), ("a", 50, "the group has no position; the worker goes on from")),
    "retention was faster": (("a", 50), ("a", 70, 90, 50), ("a", 70, GONE)),
    "retention was faster, and the group says so": (("a", 50), ("a", 70, 90, 70), ("a", 70, GONE)),
    "the end is lost": (
        ("a", 50),
        ("a", 0, 40, 50),
        ("a#1", 40, "was cut: expected offset 50 next, it goes on at 40"),
    ),
    "the end is lost again": (
        ("a#1", 50),
        ("a", 0, 40, 50),
        ("a#2", 40, "was cut: expected offset 50 next, it goes on at 40"),
    ),
    "after the end was lost": (("a#1", 40), ("a", 0, 90, 40), ("a#1", 40, "")),
    "made again, shorter": (
        ("a#1", 50),
        ("b", 0, 10, 50),
        ("b", 0, "made again: expected offset 50 next, it goes on at 0"),
    ),
    "made again, longer": (
        ("a", 50),
        ("b", 0, 90, 50),
        ("b", 0, "made again: expected offset 50 next, it goes on at 0"),
    ),
    "made again before anything was read": (("a", 0), ("b", 0, 10, -1), ("b", 0, "")),
    "brokers without ids": (("?", 50), ("", 0, 90, 20), ("?", 50, "the group says 20")),
    "brokers learned ids": (("?", 50), ("a", 0, 90, 50), ("a", 50, "")),
    "the first start": (None, ("a", 0, 90, -1), ("a", 0, "")),
    "the first start without ids": (None, ("", 0, 0, -1), ("?", 0, "")),
    "the first start, too late": (None, ("a", 5, 90, -1), ("a", 5, "offsets 0 to 4 were removed")),
    "the first start of a group that was set": (None, ("a", 0, 90, 30), ("a", 0, UNOWNED)),
    "the first start of a group that was set to the beginning": (None, ("a", 0, 90, 0), ("a", 0, "")),
    "the first start of a group that was set behind the end": (None, ("a", 0, 90, 95), ("a", 0, "the group says 95")),
    "the first start of a group that was set, too late": (
        None,
        ("a", 40, 90, 60),
        ("a", 40, "offsets 0 to 39 were removed"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_own_position_holds_unless_the_log_has_changed(case):
    own, ground, (log, offset, words) = CASES[case]
    found = begin((HEAPS, 1), own and position(*own), PartitionFacts(*ground))
    assert (found.log, found.offset) == (log, offset)
    assert words in found.note
    assert bool(words) == bool(found.note)
    assert not words or found.note.startswith(HEAPS)


def test_a_transaction_has_the_offset_of_each_partition_that_moved_wherever_the_group_was_set():
    """Without offsets the group does not refuse a worker that has lost its partitions."""
    place, positions = (HEAPS, 1), PartitionPositions("g", "0")
    positions.begin({}, {place: PartitionFacts("a", 0, 90, group=40)})
    positions.take(place, 40)
    assert positions.offsets() == {place: 40}
    positions.committed()
    assert positions.offsets() == {}


def test_positions_of_other_groups_and_broken_ones_are_left_out():
    good, encode = position("a", 5), msgspec.json.encode
    records = [
        Record(topic=POSITIONS, key=key, value=value)
        for key, value in [
            (b"g/ingest.heaps/1", encode(position("a", 3))),
            (b"g/ingest.heaps/1", encode(good)),
            (b"g/ingest.heaps/1", b"junk"),
            (b"g/ingest.heaps/1", encode(position("a#x", 9))),
            (b"g/ingest.heaps/0", encode(position("a", 9))),
            (b"other/ingest.heaps/1", encode(position("a", 9))),
            (None, b"{}"),
        ]
    ]
    found, troubles = newest(records, "g")
    assert found == {(HEAPS, 1): good}
    assert len(troubles) == 3


class Site:
    """A worker, and what the overview makes of its accounts."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.broker = MemoryBroker(self.clock)
        self.accounts, self.read = WorkerAccounts(), 0
        self.sent = 0
        self.fault = lambda: None

    def send(self, partition: int, count: int) -> None:
        for value in encoded(*(heap(seq=self.sent + n) for n in range(count))):
            self.broker.append(Record(topic=HEAPS, key=b"0", value=value, partition=partition))
        self.sent += count

    def work(self, seconds: float = 1.2) -> None:
        """Run one life of a worker."""
        log = MemoryTransactionalLog(self.broker, HEAPS, group="aggregate", fault=lambda: self.fault())
        worker = telemetry_worker(log, ICD, Settings(nodes=2), slot="0", clock=self.clock)
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            worker.step()
            self.clock.sleep(0.05)
        records = self.broker.read("accounts")
        self.outcomes = Counter(type(self.accounts.fold(one, count=True)) for one in records[self.read :])
        self.read = len(records)

    @property
    def stream(self):
        return self.accounts.streams[HEAPS]

    @property
    def figures(self) -> tuple[int, int, int, int]:
        account = self.stream.account
        return account.consumed, account.overlap, account.skipped, account.corrected


def test_whatever_becomes_of_the_group_each_record_is_counted_once():
    site = Site()
    site.send(0, 100)
    site.work()
    for offset in (20, None, 90):
        place = ("aggregate", HEAPS, 0)
        site.broker.committed.pop(place) if offset is None else site.broker.committed.update({place: offset})
        site.send(0, 10)
        site.work()
    assert site.figures == (130, 0, 0, 3)
    assert "the worker goes on from its own position 120" in site.stream.account.last_error
    assert site.broker.committed["aggregate", HEAPS, 0] == 130, "the group is right again"


def test_a_worker_without_a_position_reads_all_records_wherever_the_group_was_set():
    site = Site()
    site.send(0, 100)
    site.send(1, 50)
    site.broker.committed.update({("aggregate", HEAPS, 0): 70, ("aggregate", HEAPS, 1): 999})
    site.work()
    assert site.figures == (150, 0, 0, 2)
    assert "no position of its own and begins at 0" in site.stream.account.deviations["corrected"]
    assert site.broker.committed["aggregate", HEAPS, 0] == 100


COUNTED = {
    # ranges: log, begin, end, part; what comes of each
    "in order": ([("a", 0, 10, 0), ("a", 10, 20, 0), ("a", 20, 20, 0)], [None, None, None]),
    "from the middle": ([("a", 5, 10, 0), ("a", 10, 20, 0)], [None, None]),
    "in parts": ([("a", 0, 10, 0), ("a", 0, 10, 1), ("a", 0, 10, 1)], [None, None, Overlap(10)]),
    "again": (
        [("a", 0, 10, 0), ("a", 0, 10, 0), ("a", 9, 12, 0), ("a", 10, 12, 0)], [None, Overlap(10), Overlap(10), None]
    ),
    "a gap": ([("a", 0, 10, 0), ("a", 13, 20, 0), ("a", 20, 30, 0)], [None, Gap(10, 13), None]),
    "what is refused leaves a gap": (
        [("a", 0, 10, 0), ("a", 8, 20, 0), ("a", 20, 30, 0)], [None, Overlap(10), Gap(10, 20)]
    ),
    "the log was cut": ([("a", 0, 10, 0), ("a#1", 7, 12, 0), ("a#1", 12, 13, 0)], [None, LogCut(10, 7), None]),
    "and again": ([("a#1", 0, 10, 0), ("a#2", 7, 12, 0)], [None, LogCut(10, 7)]),
    "made again": ([("a", 0, 10, 0), ("b", 0, 30, 0)], [None, LogCut(10, 0, made_again=True)]),
    "made again without counted offsets": ([("a", 0, 0, 0), ("b", 0, 0, 0), ("b", 0, 9, 0)], [None, None, None]),
    "made again without counted offsets, and not from its beginning": (
        [("a", 0, 0, 0), ("b", 5, 9, 0)], [None, Gap(0, 5)]
    ),
    "cut without counted offsets": ([("a", 0, 0, 0), ("a#1", 2, 9, 0)], [None, LogCut(0, 2)]),
    "brokers learn ids": ([("?", 0, 10, 0), ("a", 10, 30, 0)], [None, None]),
}  # fmt: skip


@pytest.mark.parametrize("case", COUNTED)
def test_a_range_continues_overlaps_leaves_a_gap_or_begins_an_epoch(case):
    ranges, wanted = COUNTED[case]
    counted, found = CountedOffsets(ranges[0][0], ranges[0][1], ranges[0][1], -1), []
    for one in ranges:
        found.append(counted.take(*one))
        counted = msgspec.convert(msgspec.to_builtins(counted), CountedOffsets)  # as after a restart
    assert found == wanted
    cuts = sum(isinstance(one, LogCut) for one in found)
    assert (counted.epoch, counted.begin) == (
        1 + cuts,
        next((one.begin for one in found[::-1] if isinstance(one, LogCut)), ranges[0][1]),
    )
    assert counted.end == ranges[-1][2]


def summary(log: str = "a", offsets: tuple[int, int] = (0, 10), part: int = 0, partition: int = 0) -> Summary:
    first, after = offsets
    return Summary(
        worker="0", partition=partition, group=3, partials=[], log=log, offset_from=first, offset_to=after, part=part
    )


REFUSED = {
    # ranges of the summaries of two groups, in turns; which offsets are lost with what is refused
    "again": ([(0, 10), (0, 10), (0, 10)], []),
    "in part": ([(0, 10), (0, 10), (5, 15), (5, 15)], [Gap(10, 15)]),
    "in part, each time": ([(0, 10), (5, 12), (8, 14), (8, 20)], [Gap(10, 14), Gap(14, 20)]),
    "of one group more": ([(0, 10), (0, 12), (5, 11), (5, 15)], [Gap(10, 11), Gap(12, 15)]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_offsets_that_are_lost_with_a_refused_summary_are_found_once(case):
    ranges, wanted = REFUSED[case]
    coverage, found = Coverage(), []
    for number, offsets in enumerate(ranges):
        one = summary(offsets=offsets)
        if isinstance(refused := coverage.take(number % 2, one), Overlap) and (
            lost := coverage.lost_with(one, refused)
        ):
            found.append(lost)
    assert found == wanted


def entry(begins: int, ends: int, log: str = "a", **changes) -> AccountEntry:
    count = ends - begins
    values = {
        "worker": "0", "stream": HEAPS, "partition": 0, "time": BASE_US, "offset_from": begins, "offset_to": ends,
        "high_watermark": ends, "consumed": count, "used": count, "late": 0, "suppressed": 0, "dead_lettered": 0,
        "in_flight": 0, "reasons": {}, "log": log,
    }  # fmt: skip
    return AccountEntry(**values | changes)


def fold(accounts: WorkerAccounts, one: AccountEntry, at: float = BASE_US / 1e6):
    record = Record(topic="accounts", key=b"k", value=msgspec.json.encode(one), timestamp_us=round(at * 1e6))
    return accounts.fold(record, count=True)


def test_an_entry_counts_all_rows_that_a_worker_takes_of_a_record():
    """A shipper of logs may put 100,000 of them into one record."""
    accounts, rows = WorkerAccounts(), log_formats.MOST_ROWS
    assert rows == MOST_ROWS
    assert fold(accounts, entry(0, 1, consumed=1 + rows, used=1 + rows, batches=1)) is USED
    assert accounts.streams[HEAPS].account.consumed == 1 + rows
    assert isinstance(fold(accounts, entry(1, 2, consumed=2 + rows, used=2 + rows, batches=1)), RecordRejected)


def test_a_total_that_begins_behind_records_says_so_also_after_a_restart():
    """Entries before are not on `accounts` any more, and no snapshot has them."""
    accounts = WorkerAccounts()
    assert fold(accounts, entry(70, 90)) is USED
    assert fold(accounts, entry(0, 5, partition=1)) is USED
    restored = WorkerAccounts()
    restored.restore(msgspec.json.decode(msgspec.json.encode(accounts.as_dict())))
    view = BusView("bus", ICD.classes["SdpBus"], overview(streams=restored.streams))
    shown = {name: reading.value for _, name, reading in view.readings(as_time(NOW))}
    lines = str(shown["Status"]).splitlines()
    assert [one for one in lines if "in no total" in one] == [
        "ingest.heaps, partition 0: offsets 0 to 69 are in no total, which begins behind them"
    ]
    assert shown["ingestHeapsConsumed"] == 25


FORGED = {
    "more than its offsets": {"consumed": 11},
    "2^53": {"offset_to": 2**53 - 1, "high_watermark": 2**53 - 1, "consumed": 2**53 - 1, "used": 2**53 - 1},
    "2^53 of one outcome": {"late": 2**53 - 1},
    "2^53 of one reason": {"reasons": {"schema": 2**53 - 1}},
    "an older worker": {"log": ""},
    "the year 2255": {"time": 9_000_000_000_000_000},
    "backwards": {"offset_from": 30},
    "behind the newest record": {"high_watermark": 15},
}


@pytest.mark.parametrize("case", FORGED)
def test_an_account_that_cannot_be_true_shifts_nothing(case):
    accounts = WorkerAccounts()
    assert fold(accounts, entry(0, 10)) is USED
    before = accounts.as_dict()
    outcome = fold(accounts, msgspec.structs.replace(entry(10, 20), **FORGED[case]))
    assert isinstance(outcome, RecordRejected)
    assert outcome.reason == "inconsistent"
    assert accounts.as_dict() == before
    assert fold(accounts, entry(10, 20)) is USED
    assert accounts.streams[HEAPS].account.consumed == 20


def test_accounts_follow_on_each_other_or_it_is_said():
    accounts = WorkerAccounts()
    for one in (entry(0, 10), entry(10, 10), entry(10, 25), entry(30, 40)):
        assert fold(accounts, one) is USED
    assert isinstance(fold(accounts, entry(20, 50)), RecordRejected)
    assert fold(accounts, entry(5, 5)) is USED, "it says nothing but where a worker stands"
    restored = WorkerAccounts()
    restored.restore(msgspec.json.decode(msgspec.json.encode(accounts.as_dict())))
    assert fold(restored, entry(50, 60)) is USED
    account = restored.streams[HEAPS].account
    assert (account.consumed, account.overlap, account.skipped) == (45, 30, 5 + 10)
    assert account.deviations["skipped"].startswith("ingest.heaps, partition 0: offsets 40 to 49")
    assert "offsets 25 to 29" in account.deviations["skipped"], "the older hole is named as well"


def faults_of(seen) -> dict[str, str]:
    """Return the text of each fault of the heaps, by condition."""
    found = seen.find(as_time(NOW)) or {}
    return {condition: fault.text for (condition, source), fault in found.items() if source.endswith(HEAPS)}


def test_the_lag_of_a_partition_that_nobody_takes_is_not_known():
    """Its worker is dead; the other one is alive and says nothing of it."""
    accounts, at = WorkerAccounts(), BASE_US / 1e6
    fold(accounts, entry(0, 10, partition=1, high_watermark=10), at)
    for second in range(20):
        fold(accounts, entry(second, second + 1), at + second)
        late = second - 5.0 > 0
        assert accounts.streams[HEAPS].untaken(as_time(at + second), 5.0) == ([1] if late else [])
    seen = overview(streams=accounts.streams)
    view = BusView("bus", ICD.classes["SdpBus"], seen)
    shown = {name: reading for _, name, reading in view.readings(as_time(at + 19))}
    assert shown["ingestHeapsLag"].quality.value == "INVALID"
    assert any(
        "partitions [1] of ingest.heaps have no worker that reads them" in text
        for _, text, *_ in seen.issues(as_time(at + 19))
    )
    fold(accounts, entry(19, 21, "b"), at + 20)  # the topic was made again, with one partition
    assert accounts.streams[HEAPS].untaken(as_time(at + 20), 5.0) == []


def test_overlap_and_hole_are_alarms_that_name_partition_and_offsets():
    accounts = WorkerAccounts()
    for one in (entry(0, 10), entry(5, 12), entry(12, 20)):
        fold(accounts, one)
    seen = overview(streams=accounts.streams)
    seen.issues(as_time(NOW))
    faults = faults_of(seen)
    assert "partition 0: offsets 5 to 11 came again" in faults["streamOverlap"]
    assert "partition 0: offsets 10 to 11 were not taken" in faults["streamSkipped"]
    view = BusView("bus", ICD.classes["SdpBus"], seen)
    shown = {name: reading for _, name, reading in view.readings(as_time(NOW))}
    assert (shown["ingestHeapsOverlap"].value, shown["ingestHeapsSkipped"].value) == (7, 2)
    assert {shown[f"ingestHeaps{name}"].quality.value for name in ("Overlap", "Skipped")} == {"ALARM"}
    assert "offsets 10 to 11" in shown["Status"].value
    assert "balance" not in shown["Status"].value
    assert shown["State"].value == "ALARM"


def test_the_lag_of_a_partition_of_which_the_end_is_not_known_is_not_known():
    """Its worker is alive, holds it, and gets nothing from the broker."""
    accounts, at = WorkerAccounts(), BASE_US / 1e6
    fold(accounts, entry(0, 10, high_watermark=12), at)
    stream = accounts.streams[HEAPS]
    for second in range(1, 10):
        fold(accounts, entry(10, 10, high_watermark=-1), at + second)
        assert stream.lag == 2
        assert stream.untaken(as_time(at + second), 5.0) == ([0] if second > 5 else [])
    fold(accounts, entry(10, 12, high_watermark=12), at + 10)
    assert (stream.untaken(as_time(at + 10), 5.0), stream.lag) == ([], 0)


def test_a_partition_that_was_added_and_that_nobody_takes_is_named():
    accounts, at = WorkerAccounts(), BASE_US / 1e6
    fold(accounts, entry(0, 10, high_watermark=10, partitions=1), at)
    stream = accounts.streams[HEAPS]
    for second in range(1, 10):
        fold(accounts, entry(10, 10, high_watermark=10, partitions=2), at + second)
        assert stream.untaken(as_time(at + second), 5.0) == ([1] if second > 6 else [])
    fold(accounts, entry(0, 3, partition=1, high_watermark=3, partitions=2), at + 10)
    assert stream.untaken(as_time(at + 10), 5.0) == []


@pytest.mark.parametrize(("log", "cause"), [("a#1", "the log was cut"), ("b", "the topic was deleted and made again")])
def test_a_log_that_was_cut_is_one_alarm_and_a_new_epoch_that_is_shown(log, cause):
    accounts = WorkerAccounts()
    for one in (entry(0, 10), entry(7, 12, log, corrected=1, last_error="said by the worker"), entry(12, 20, log)):
        assert fold(accounts, one) is USED
    restored = WorkerAccounts()
    restored.restore(msgspec.json.decode(msgspec.json.encode(accounts.as_dict())))
    assert restored.streams[HEAPS].account.log_cuts == 1
    seen = overview(streams=restored.streams)
    seen.issues(as_time(NOW))
    told = f"{HEAPS}, partition 0: {cause}: expected offset 10 next, it goes on at 7"
    faults = faults_of(seen)
    assert faults.keys() == {"logCut"}
    assert told in faults["logCut"]
    view = BusView("bus", ICD.classes["SdpBus"], seen)
    shown = {name: str(reading.value) for _, name, reading in view.readings(as_time(NOW))}
    assert "partition 0: totals are of epoch 2, which began at offset 7 after the log was cut" in shown["Status"]
    assert (shown["State"], "All streams balance" in shown["Status"]) == ("ALARM", False)


def test_a_worker_learns_that_the_log_is_not_as_it_was():
    """The client's event leads to a new comparison, and to no reset of the client's own."""
    settings = settings_of("consumer", "member", "worker")
    assert settings["auto.offset.reset"] == "error"
    log = SimpleNamespace(
        _connection=SimpleNamespace(note=lambda *_: None), _health=None, _must_rewind=False, _slot="s"
    )
    error = transactions.KafkaError(transactions.KafkaError._AUTO_OFFSET_RESET, "out of range")
    with pytest.raises(Aborted, match="where to go on is asked again"):
        transactions.KafkaTransactionalLog._on_event(log, SimpleNamespace(error=lambda: error))
    assert log._must_rewind


_TAKEN_WRONGLY: Mapping[str, Callable[[list[Any]], list[Any]]] = {
    "without the first": lambda found: found[1:],
    "without two": lambda found: [*found[:2], *found[4:]],
    "without the last": lambda found: found[:4],
    "without any": lambda found: [],
    "the batch twice": lambda found: found * 2,
    "one record twice": lambda found: [*found[:3], *found[2:]],
}


@pytest.mark.parametrize("taken", _TAKEN_WRONGLY)
def test_records_that_the_client_leaves_out_or_delivers_twice_are_taken_again(taken: str) -> None:
    """A defect of the client, wherever in a batch, costs a repetition and no record; the account tells it."""
    site = Site()
    site.send(0, 5)
    log = MemoryTransactionalLog(site.broker, HEAPS, group="aggregate")
    consume, faults = log._consumer.consume, [_TAKEN_WRONGLY[taken]]

    def consume_some(limit: int, timeout: float) -> list[Any]:
        found = consume(limit, timeout)
        records = [one for one in found if one.error() is None]
        wrong = faults.pop()(records) if faults and len(records) == 5 else records
        return [*wrong, *(one for one in found if one.error() is not None)]

    log._consumer.consume = consume_some
    told, batches = "", list[PartitionBatch]()
    while not told:
        try:
            log.take(10, 0.0)
        except Aborted as reason:
            told = str(reason)
    assert "a defect of Kafka's client" in told
    while not batches:
        batches += log.take(10, 0.0)
    assert [(one.first_offset, one.last_offset) for one in batches] == [(0, 4)]
    assert ("came again" if "twice" in taken else "were not delivered") in log.ranges()[HEAPS, 0].note


def test_offsets_of_transactions_are_no_records_that_the_client_leaves_out() -> None:
    site = Site()
    redrive = KafkaTransactionWriter(site.broker.connection(), "redrive")
    for _ in range(3):
        redrive.write([Record(topic=HEAPS, key=b"0", value=b"")])
    place = HEAPS, site.broker.model.place_of(HEAPS, b"0")
    log, values = MemoryTransactionalLog(site.broker, HEAPS, group="aggregate"), list[bytes | None]()
    while len(values) < 3:
        values += [value for batch in log.take(10, 0.0) for value in batch.values()]
    log.take(10, 0.0)
    assert (log.ranges()[place].end, log.ranges()[place].note) == (6, "")
