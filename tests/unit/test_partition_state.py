"""What one partition of the assembling worker writes, record by record: reports, ends, dead letters, entries."""

import dataclasses
import json

import pytest
from msgspec.structs import replace as changed

from facade.bus.dead_letters import MOST_BYTES
from facade.bus.offsets import POSITIONS, CountedOffsets, Extent, WorkerPosition, position_record
from facade.bus.port import Record
from facade.errors import BusError
from facade.flows.tables.assembly import PartialTable, Repeated
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.messages import (
    ASSEMBLING,
    CALIBRATION,
    COMPLETE,
    FAILED,
    decode_table,
    fingerprint,
    table_record,
)
from facade.flows.tables.partition_state import PartitionState, Recalled, failure_of, find, under_way
from facade.messages import Table, TableSegment
from facade.outcome import RecordRejected, Suppressed

WRONG = RecordRejected("size", "$", "too large")


def record(offset: int, value: bytes | None = b"", key: bytes | None = b"p", headers=()) -> Record:
    return Record(topic="calibration", key=key, value=value, headers=headers, partition=3, offset=offset)


def partial(name: str = "v1", first: int = 0, last: int = 0, size: int = 0, **about) -> PartialTable:
    """Return a table of which so many bytes have come, in records with these offsets."""
    header = TableSegment(
        table=name, product="p", kind="gains", content_type="text/plain", index=0, count=2, size=10, sha256="0" * 64,
        sent_at=1, **about,
    )  # fmt: skip
    table = PartialTable(
        header=header, partition=3, first_offset=first, newest=record(last), buffer=BufferPool(99).buffer(),
        touched=0.0, records=last - first + 1,
    )  # fmt: skip
    if size:
        table.buffer.add(0, b"x" * size)
    return table


def state(position: int = 0, note: str = "", frontier: int = 0, **recalled) -> PartitionState:
    past = Recalled(CountedOffsets("log", position, max(position, frontier)), note, **recalled)
    return PartitionState(3, 7, past, by="tables-0")


def taken(partition: PartitionState, offset: int) -> None:
    """Let a partition have looked at records up to this offset."""
    partition.pending += offset + 1 - partition.position
    partition.position = offset + 1


def said(records) -> list[tuple]:
    """Return what records say, each as what matters of it."""
    found = []
    for one in records:
        if one.topic == "accounts":
            entry = json.loads(one.value)
            found.append(("entry", entry["offset_from"], entry["offset_to"], entry.get("counted_from"),
                          entry["consumed"]))  # fmt: skip
        elif one.value is None:
            found.append(("gone", one.key.decode()))
        else:
            table = decode_table(one.value)
            found.append((table.state, table.table, table.received, table.last_offset))
    return found


def written(partition: PartitionState, tables=(), now: float = 0.0) -> list[tuple]:
    records = partition.reports(tables, now, 77)
    partition.written()
    return said(records)


def test_a_report_says_all_that_is_known_of_a_table():
    table = partial(first=4, last=6, size=5)
    (report,) = state(4).reports([table], 0.0, 77)
    assert decode_table(report.value) == under_way(table, "log", 77) == Table(
        table="v1", product="p", kind="gains", content_type="text/plain", state=ASSEMBLING, size=10, received=5,
        sha256="0" * 64, sent_at=1, time=77, partition=3, first_offset=4, log="log",
    )  # fmt: skip


def test_a_table_under_way_is_reported_again_once_it_has_grown_and_a_second_has_passed():
    partition, table, other = state(), partial(size=1), partial("v2", 1, 1)
    taken(partition, 1)
    assert written(partition, [table, other], 5.0) == [(ASSEMBLING, "v1", 1, None), (ASSEMBLING, "v2", 0, None)]
    assert written(partition, [table, other], 6.0) == []
    table.buffer.add(1, b"y")
    assert written(partition, [table, other], 6.0 - 0.01) == []
    assert said(partition.reports([table, other], 6.0, 77)) == [(ASSEMBLING, "v1", 2, 1), ("entry", 0, 2, None, 0)]
    assert written(partition, [table, other], 6.0)[0] == (ASSEMBLING, "v1", 2, 1), "the first write failed"
    other.buffer.add(0, b"z")
    assert written(partition, [table, other], 6.5) == [(ASSEMBLING, "v2", 1, None)]
    table.buffer.add(2, b"y")
    assert written(partition, [table, other], 7.0 - 0.01) == []
    taken(partition, 4)
    assert written(partition, [table, other], 7.0) == [(ASSEMBLING, "v1", 3, 4), ("entry", 2, 5, None, 0)]


def test_what_was_reported_before_a_restart_is_not_reported_again_before_it_has_grown():
    before = under_way(partial(first=2, last=3, size=5), "log", 1)
    partition, table = state(2, under_way={"v1": before}, frontier=4), partial(first=2, last=3, size=5)
    assert written(partition, [table], 5.0) == []
    table.buffer.add(1, b"y")
    assert written(partition, [table], 1.0 - 0.01) == []
    assert written(partition, [table], 1.0) == [(ASSEMBLING, "v1", 6, 3)]


def test_single_records_are_counted_and_the_oldest_table_says_how_far():
    partition, table, other = state(), partial(), partial("v2", 1, 1)
    taken(partition, 5)
    partition.decide(record(2), Suppressed("duplicate"))
    partition.decide(record(3), WRONG)
    partition.decide(record(4), Repeated("size", "$", "too large"))
    assert written(partition, [table, other]) == [
        (ASSEMBLING, "v1", 0, None), (ASSEMBLING, "v2", 0, None), (ASSEMBLING, "v1", 0, 5), ("entry", 0, 6, None, 3)
    ]  # fmt: skip
    assert (partition.pending, written(partition, [table, other], 9.0)) == (3, [])


@pytest.mark.parametrize("fits", [True, False])
def test_a_dead_letter_is_the_record_unless_no_topic_takes_it(fits):
    partition = state()
    taken(partition, 0)
    names = (("h" * 5_000_000, b""), ("h" * (MOST_BYTES - 5_000_034 + (not fits)), b""))
    large = record(0, b"v" * 20, b"k" * 10, names)
    partition.decide(large, WRONG)
    (letter,) = partition.letters()
    added = {name: raw.decode() for name, raw in letter.headers}
    assert (letter.topic, letter.value, letter.key) == (
        ("dead-letters", large.value, large.key) if fits else ("dead-letters", None, None)
    )
    assert (names[0][0] in added) is fits
    assert added["dl.detail"] == "too large" + ("" if fits else "; left where it is")
    assert (added["dl.offset"], added["dl.by"], added["dl.reason"]) == ("0", "tables-0", "size")
    bare = state()
    bare.decide(record(0, None, None), WRONG)
    assert len(bare.letters()) == 1
    partition.written()
    assert partition.letters() == []


def test_what_was_counted_before_a_restart_is_only_taken_off():
    partition = state(2, frontier=4)
    taken(partition, 4)
    partition.decide(record(3), WRONG)
    assert (partition.pending, partition.letters(), written(partition)) == (2, [], [])
    partition.decide(record(4), WRONG)
    assert written(partition) == [("entry", 4, 5, None, 1)]
    assert partition.pending == 1


def test_the_end_of_a_table_stands_behind_its_beginning_and_before_the_entry():
    partition, table, other = state(), partial(first=1, last=3, size=5), partial("v2", 2, 2)
    taken(partition, 3)
    partition.end(table, 66, None, {"n": 1})
    records = partition.reports([other], 0.0, 77)
    assert said(records) == [
        (ASSEMBLING, "v1", 5, None), (ASSEMBLING, "v2", 0, None), (COMPLETE, "v1", 5, 3), ("gone", "p!v1"),
        ("entry", 0, 4, None, 3),
    ]  # fmt: skip
    assert (decode_table(records[2].value).time, decode_table(records[2].value).summary) == (66, {"n": 1})
    partition.written()
    assert (partition.pending, written(partition, [other])) == (1, [])


def test_a_table_of_one_record_ends_without_a_beginning():
    partition = state()
    taken(partition, 0)
    partition.end(partial(url="file:///a"), 66, None, None)
    (end, _) = partition.reports([], 0.0, 77)
    assert said([end]) == [(COMPLETE, "v1", 0, 0)]
    assert decode_table(end.value).url == "file:///a"


def test_an_entry_that_counts_records_from_before_it_says_from_where():
    partition, table = state(), partial(first=1, last=3)
    taken(partition, 2)
    partition.decide(record(0), Suppressed("duplicate"))
    assert written(partition, [table])[-1] == ("entry", 0, 3, None, 1)
    taken(partition, 3)
    partition.end(table, 66, None, None)
    assert written(partition)[-1] == ("entry", 3, 4, 1, 3)
    assert said(partition.signs(99.0, 77, 1.0)) == [("entry", 4, 4, None, 0)]


def test_a_table_that_is_given_up_has_one_dead_letter_for_all_its_records():
    partition = state()
    taken(partition, 5)
    partition.end(partial(first=1, last=3, size=5, url="file:///a?key=1"), 66, WRONG, None)
    (letter,) = partition.letters()
    added = {name: raw.decode() for name, raw in letter.headers}
    where = "table v1 of p, 3 of 2 segments and 5 of 10 bytes, from offset 1 to 3: too large"
    assert (added["dl.detail"], added["dl.offset"]) == (where, "3")
    records = partition.reports([], 0.0, 77)
    assert said(records) == [
        (ASSEMBLING, "v1", 5, None), (FAILED, "v1", 5, 5), ("gone", "p!v1"), ("entry", 0, 6, None, 3)
    ]  # fmt: skip
    end, entry = decode_table(records[1].value), json.loads(records[-1].value)
    assert (end.reason, end.url) == ("size: too large", "file:///a?***")
    assert entry["time"] == 77
    assert (entry["dead_lettered"], entry["reasons"], entry["last_error"]) == (3, {"size": 3}, f"size: $: {where}")
    assert failure_of(end) == WRONG
    assert failure_of(changed(end, state=COMPLETE)) is None
    assert failure_of(changed(end, reason="size: of: what")) == RecordRejected("size", "$", "of: what")
    assert failure_of(changed(end, reason=": what")) == RecordRejected("failed", "$", "what")


@pytest.mark.parametrize(
    ("offset", "name", "done"),
    [(6, "v1", False), (6, "v2", False),
     (5, "v1", False), (2, "v1", False), (1, "v1", True), (5, "v2", True), (5, "v3", False),
     (5, None, True)],
)  # fmt: skip
def test_a_record_is_done_before_the_frontier_unless_its_table_was_under_way(offset, name, done):
    known = under_way(partial(first=2), "log", 1)
    partition = state(0, under_way={"v1": known, "v3": changed(known, table="v3", first_offset=None)}, frontier=6)
    header = WRONG if name is None else partial(name).header
    assert partition.is_done(record(offset), header) is done


def test_a_sign_of_life_counts_nothing_and_comes_in_an_interval_without_entries():
    partition = state()
    assert said(partition.signs(5.0, 77, 10.0)) == [("entry", 0, 0, None, 0)]
    assert partition.signs(15.0 - 0.01, 77, 10.0) == []
    (sign,) = partition.signs(15.0, 77, 10.0)
    entry = json.loads(sign.value)
    assert (sign.key, entry["worker"], entry["stream"], entry["partition"]) == (b"calibration/3", "tables-0",
                                                                             "calibration", 3)  # fmt: skip
    assert (entry["time"], entry["log"]) == (77, "log")
    taken(partition, 0)
    partition.end(partial(), 66, None, None)
    assert partition.signs(30.0, 77, 10.0) == [], "an entry is due"
    partition.reports([], 30.0, 77)
    assert partition.signs(50.0, 77, 10.0) == [], "an entry waits"
    partition.written()
    assert partition.signs(40.0 - 0.01, 77, 10.0) == []
    assert said(partition.signs(40.0, 77, 10.0)) == [("entry", 1, 1, None, 0)]


@pytest.mark.parametrize(("count", "where"), [(0, ""), (1, "table v1 of p, 1 of 1 segments and ")])
def test_a_dead_letter_of_a_reference_speaks_of_no_segments(count, where):
    partition, table = state(), partial()
    table.header = changed(table.header, count=count)
    partition.end(table, 66, WRONG, None)
    detail = dict(partition.letters()[0].headers)["dl.detail"].decode()
    assert detail.startswith(where or "too large")


def test_all_that_ends_before_an_entry_is_in_it():
    partition = state()
    taken(partition, 5)
    for number, rejected in enumerate((None, WRONG, None, WRONG)):
        partition.end(partial(f"v{number}", number, number), 66, rejected, None)
    entry = json.loads(partition.reports([], 0.0, 77)[-1].value)
    assert [entry[name] for name in ("consumed", "used", "dead_lettered", "reasons")] == [4, 2, 2, {"size": 2}]


def test_a_complete_table_names_the_newest_versions_before_it():
    """Those of its product, from before a restart as well; one that has failed is none."""
    before = {f"v{number}": "0" * 16 for number in range(19)}
    partition = state(complete={"p": dict(before), "q": {"w": "1" * 16}})
    taken(partition, 22)
    for number, rejected in ((19, None), (20, WRONG), (21, None), (22, None)):
        partition.end(partial(f"v{number}", number, number), 66, rejected, None)
    tables = [decode_table(one.value) for one in partition.reports([], 0.0, 77) if one.topic == "tables"]
    own = fingerprint(partial().header)
    assert [(one.table, one.earlier) for one in tables] == [
        ("v19", before),
        ("v20", {}),
        ("v21", before | {"v19": own}),
        ("v22", {name: mark for name, mark in before.items() if name != "v0"} | {"v19": own, "v21": own}),
    ]


def test_what_comes_of_a_table_after_its_end_is_done():
    partition = state(0, under_way={"v1": under_way(partial(first=2), "log", 1)}, frontier=6)
    assert not partition.is_done(record(5), partial().header)
    partition.end(partial(first=2, last=5), 66, None, None)
    assert partition.is_done(record(5), partial().header)
    assert partition.lost() == []


def test_a_partition_goes_on_where_it_was_told_and_says_what_did_not_agree():
    partition = state(5, "n" * 600)
    assert (partition.partition, partition.assigned, partition.position, partition.counted.begin) == (3, 7, 5, 5)
    assert (partition.pending, partition.committed, partition.counted.log) == (0, -1, "log")
    entry = json.loads(partition.reports([], 0.0, 77)[0].value)
    assert (entry["corrected"], entry["last_error"], entry["offset_from"]) == (1, "n" * 500, 5)
    assert partition.offset([]) == 5
    assert partition.offset([partial(first=3), partial(first=9)]) == 3


def test_a_leftover_of_a_table_that_has_ended_is_taken_away():
    partition = state(leftover=[under_way(partial(), "log", 1)])
    assert written(partition) == [("gone", "p!v1")]
    assert written(partition) == []


def test_an_entry_that_was_not_written_is_written_again_as_it_was():
    partition = state()
    taken(partition, 0)
    partition.decide(record(0), WRONG)
    first = partition.reports([], 0.0, 77)
    taken(partition, 1)
    partition.decide(record(1), WRONG)
    again = partition.reports([], 1.0, 78)
    assert again[: len(first)] == first
    assert partition.account.consumed == 2
    partition.written()
    assert (partition.pending, partition.account.consumed) == (0, 0)


@pytest.mark.parametrize(("position", "reached"), [(0, None), (1, 0)])
def test_what_is_lost_says_how_far_the_partition_was_dealt_with(position, reached):
    partition = state(position, under_way={"v1": changed(under_way(partial(), "log", 1), first_offset=None)})
    (gone,) = partition.lost()
    assert partition.lost() == []
    partition.lose(gone, 77)
    assert written(partition)[:2] == [(FAILED, "v1", 0, reached), ("gone", "p!v1")]


class Past:
    """A bus with messages about tables, and a group whose worker has got as far as offset 3 on partition 3."""

    def __init__(self, *tables: Table, log: str = "log", end: int = 6) -> None:
        self.tables = [dataclasses.replace(table_record(one), offset=at) for at, one in enumerate(tables)]
        position = WorkerPosition(group="g", topic=CALIBRATION, partition=3, log=log, next=3, worker="tables-0")
        self.positions = [position_record(position)]
        self.there = {CALIBRATION: Extent("log", {3: (0, end)})}

    def watch(self):
        return self

    def extents(self, topics):
        return self.there

    def committed(self, partitions):
        return dict.fromkeys(partitions, 3)

    def read_all(self, topic, *, settled=False):
        assert settled, "the newest message may be in a transaction that is still open"
        return self.positions if topic == POSITIONS else self.tables

    def found(self) -> Recalled:
        found, notes = find(self, self, "g", [3])
        assert notes == [note for note in [found[3].note] if note]
        return found[3]


def test_a_topic_that_is_not_there_is_named():
    past = Past()
    past.there = {}
    with pytest.raises(BusError, match=r"partitions \[3\] of calibration are assigned; expected them to exist"):
        past.found()


def test_a_table_that_has_ended_leaves_its_entry_and_one_that_was_sent_again_is_under_way():
    first, second = (under_way(partial(name, first=3), "log", 1) for name in ("v1", "v2"))
    ends = [changed(one, state=FAILED, last_offset=4, first_offset=at) for one, at in ((first, 3), (second, 2))]
    found = Past(first, second, *ends).found()
    assert (found.leftover, found.under_way) == ([first], {"v2": second})
    assert found.ended == {"v1": ends[0]}


@pytest.mark.parametrize(
    ("end", "log", "note", "counted"),
    [
        (6, "log", "", (3, 6)),
        (4, "log", "the log was cut: expected offset 6 next, it goes on at 4", (4, 4)),
        (4, "other", "", (3, 3)),
    ],
)
def test_records_that_tables_says_are_settled_were_on_the_log(end, log, note, counted):
    """The position stays at the oldest table under way; an end behind it is news, unless it is of another log."""
    ended = changed(under_way(partial(first=3), log, 1), state=FAILED, last_offset=5)
    found = Past(ended, end=end).found()
    assert note in found.note
    assert bool(found.note) == bool(note)
    assert (found.counted.begin, found.counted.end) == counted
