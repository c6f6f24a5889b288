"""What one partition of the assembling worker writes, record by record, and what it recalls after a restart."""

import dataclasses
import json

import pytest
from msgspec.structs import replace as changed

from facade.flows.tables.assembly import PartialTable, Repeated
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.messages import (
    ASSEMBLING,
    CALIBRATION,
    COMPLETE,
    FAILED,
    decode_table,
    failure_of,
    fingerprint,
    table_record,
)
from facade.flows.tables.partition_state import PartitionState
from facade.flows.tables.recall import InFlight, Mark, Recalled, in_flight, recall
from facade.kernel.bus.dead_letters import MOST_BYTES
from facade.kernel.bus.offsets import POSITIONS, Extent, WorkerPosition, position_record
from facade.kernel.bus.port import Record
from facade.kernel.errors import BusError
from facade.kernel.outcome import RecordRejected, Suppressed
from facade.sdp.messages import Table, TableSegment

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


def message(table: PartialTable, segments: int | None = None) -> Table:
    return table.message("log", 1, table.records if segments is None else segments)


def state(position: int = 0, note: str = "", *under_way: Table, **recalled) -> PartitionState:
    tables = {table.table: table for table in under_way}
    mark = Mark("log", position, {name: in_flight(table) for name, table in tables.items()})
    return PartitionState(3, 7, Recalled(mark, "log", note, tables, **recalled), by="tables-0")


def said(records) -> list[tuple]:
    """Return what records say, each as what matters of it."""
    found = []
    for one in records:
        about = json.loads(one.value) if one.value and one.topic != "dead-letters" else {}
        if one.topic == "accounts":
            offsets = about["offset_from"], about["offset_to"], about.get("counted_from", -1)
            found.append(("entry", *offsets, about["consumed"]))
        elif one.topic == POSITIONS:
            found.append(("position", about["next"]))
        elif one.topic == "dead-letters":
            found.append(("letter", int(dict(one.headers)["dl.offset"])))
        elif one.value is None:
            found.append(("gone", one.key.decode()))
        else:
            found.append((about["state"], about["table"], about.get("segments", 0), about.get("last_offset")))
    return found


def due(partition: PartitionState, *tables: PartialTable, is_due: bool = False) -> list[Record]:
    return partition.write(tables, 77, group="g", is_due=is_due)


def written(partition: PartitionState, *tables: PartialTable, is_due: bool = False) -> list[tuple]:
    records = due(partition, *tables, is_due=is_due)
    partition.written()
    return said(records)


def entry_of(records: list[Record]) -> dict:
    (found,) = [one for one in records if one.topic == "accounts"]
    return json.loads(found.value)


def test_a_report_says_all_that_is_known_of_a_table():
    table = partial(first=4, last=6, size=5)
    (report, *_) = due(state(4), table)
    assert decode_table(report.value) == Table(
        table="v1", product="p", kind="gains", content_type="text/plain", state=ASSEMBLING, size=10, received=5,
        sha256="0" * 64, sent_at=1, time=77, partition=3, first_offset=4, log="log", segments=3,
    )  # fmt: skip


def test_a_new_table_is_reported_at_once_and_its_growth_when_a_report_is_due():
    """So what the bus has of the segments in flight always belongs to the position beside it."""
    partition, table, other = state(), partial(), partial("v2", 1, 1)
    partition.position = 2
    first = [(ASSEMBLING, "v1", 1, None), (ASSEMBLING, "v2", 1, None), ("entry", 0, 2, -1, 0), ("position", 2)]
    assert said(due(partition, table, other)) == first
    assert written(partition, table, other) == first, "the first transaction failed"
    partition.position, table.records = 4, 3
    assert written(partition, table, other) == []
    assert partition.tried.next == 2, "the group's offset goes with the position"
    grown = [(ASSEMBLING, "v1", 3, None), ("entry", 2, 4, -1, 0), ("position", 4)]
    assert said(due(partition, table, other, is_due=True)) == grown
    assert partition.tried.next == 4
    partition.written()
    assert written(partition, table, other, is_due=True) == [("entry", 4, 4, -1, 0)]
    assert written(partition, table, other) == []


def test_the_growth_of_a_table_is_reported_with_a_single_record():
    partition, table = state(), partial()
    partition.position = 1
    written(partition, table)
    partition.position, table.records = 6, 2
    partition.decide(record(2), Suppressed("duplicate"))
    partition.decide(record(3), WRONG)
    partition.decide(record(4), Repeated("size", "$", "too large"))
    assert said(due(partition, table)) == [
        ("letter", 3), (ASSEMBLING, "v1", 2, None), ("entry", 1, 6, 0, 3), ("position", 6)
    ]  # fmt: skip


@pytest.mark.parametrize("fits", [True, False])
def test_a_dead_letter_is_the_record_unless_no_topic_takes_it(fits):
    partition = state()
    names = (("h" * 5_000_000, b""), ("h" * (MOST_BYTES - 5_000_034 + (not fits)), b""))
    large = record(0, b"v" * 20, b"k" * 10, names)
    partition.decide(large, WRONG)
    letter = due(partition)[0]
    added = {name: raw.decode() for name, raw in letter.headers}
    assert (letter.topic, letter.value, letter.key) == (
        ("dead-letters", large.value, large.key) if fits else ("dead-letters", None, None)
    )
    assert (names[0][0] in added) is fits
    assert added["dl.detail"] == "too large" + ("" if fits else "; left where it is")
    assert (added["dl.offset"], added["dl.by"], added["dl.reason"]) == ("0", "tables-0", "size")
    partition.written()
    assert due(partition) == []


def test_what_was_counted_before_a_restart_is_not_counted_again():
    table = partial(first=2, last=2)
    partition = state(4, "", message(table))
    assert partition.position == 2
    partition.position = 4
    partition.decide(record(3), WRONG)
    assert written(partition, table) == []
    partition.position = 5
    partition.decide(record(4), WRONG)
    assert written(partition, table) == [("letter", 4), ("entry", 4, 5, 2, 1), ("position", 5)]


def test_the_end_of_a_table_counts_its_segments():
    partition, table, other = state(), partial(first=1, last=3, size=5), partial("v2", 2, 2)
    partition.position = 4
    partition.end(table, 66, None, {"n": 1})
    records = due(partition, other)
    assert said(records) == [
        (COMPLETE, "v1", 3, 3), ("gone", "p!3!v1"), (ASSEMBLING, "v2", 1, None), ("entry", 0, 4, -1, 3), ("position", 4)
    ]  # fmt: skip
    assert (decode_table(records[0].value).time, decode_table(records[0].value).summary) == (66, {"n": 1})
    partition.written()
    partition.end(other, 66, None, None)
    assert written(partition) == [(COMPLETE, "v2", 1, 2), ("gone", "p!3!v2"), ("entry", 4, 4, 2, 1)]


def test_a_table_by_reference_says_where_it_is():
    partition = state()
    partition.end(partial(url="file:///a"), 66, None, None)
    assert decode_table(due(partition)[0].value).url == "file:///a"


def test_a_table_that_is_given_up_has_one_dead_letter_for_all_its_records():
    partition = state()
    partition.position = 6
    partition.end(partial(first=1, last=3, size=5, url="file:///a?key=1"), 66, WRONG, None)
    letter, *records = due(partition)
    added = {name: raw.decode() for name, raw in letter.headers}
    where = "table v1 of p, 3 of 2 segments and 5 of 10 bytes, from offset 1 to 3: too large"
    assert (added["dl.detail"], added["dl.offset"]) == (where, "3")
    assert said(records) == [(FAILED, "v1", 3, 3), ("gone", "p!3!v1"), ("entry", 0, 6, -1, 3), ("position", 6)]
    end, entry = decode_table(records[0].value), entry_of(records)
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
def test_a_record_before_the_position_is_done_unless_its_table_was_under_way(offset, name, done):
    known = message(partial(first=2, last=2))
    partition = state(6, "", known, changed(known, table="v3", first_offset=None))
    header = WRONG if name is None else partial(name).header
    assert partition.is_done(record(offset), header) is done


def test_an_entry_without_records_is_a_sign_of_life():
    (sign,) = due(state(5), is_due=True)
    entry = json.loads(sign.value)
    assert (sign.key, entry["worker"], entry["stream"], entry["partition"]) == (b"calibration/3", "tables-0",
                                                                             "calibration", 3)  # fmt: skip
    assert (entry["time"], entry["log"], entry["offset_from"], entry["offset_to"]) == (77, "log", 5, 5)


@pytest.mark.parametrize(("count", "where"), [(0, ""), (1, "table v1 of p, 1 of 1 segments and ")])
def test_a_dead_letter_of_a_reference_speaks_of_no_segments(count, where):
    partition, table = state(), partial()
    table.header = changed(table.header, count=count)
    partition.end(table, 66, WRONG, None)
    detail = dict(due(partition)[0].headers)["dl.detail"].decode()
    assert detail.startswith(where or "too large")


def test_all_that_ends_before_an_entry_is_in_it():
    partition = state()
    partition.position = 6
    for number, rejected in enumerate((None, WRONG, None, WRONG)):
        partition.end(partial(f"v{number}", number, number), 66, rejected, None)
    entry = entry_of(due(partition))
    assert [entry[name] for name in ("consumed", "used", "dead_lettered", "reasons")] == [4, 2, 2, {"size": 2}]


def test_a_complete_table_names_the_newest_versions_before_it():
    """Those of its product, from before a restart as well; one that has failed is none."""
    before = {f"v{number}": "0" * 16 for number in range(19)}
    partition = state(complete={"p": dict(before), "q": {"w": "1" * 16}})
    partition.position = 23
    for number, rejected in ((19, None), (20, WRONG), (21, None), (22, None)):
        partition.end(partial(f"v{number}", number, number), 66, rejected, None)
    tables = [decode_table(one.value) for one in due(partition) if one.topic == "tables" and one.value]
    own = fingerprint(partial().header)
    assert [(one.table, one.earlier) for one in tables] == [
        ("v19", before),
        ("v20", {}),
        ("v21", before | {"v19": own}),
        ("v22", {name: mark for name, mark in before.items() if name != "v0"} | {"v19": own, "v21": own}),
    ]


def test_what_comes_of_a_table_after_its_end_is_done():
    partition = state(6, "", message(partial(first=2, last=2)))
    assert not partition.is_done(record(5), partial().header)
    partition.end(partial(first=2, last=5), 66, None, None)
    assert partition.is_done(record(5), partial().header)


@pytest.mark.parametrize("rejected", [None, WRONG])
def test_a_table_that_ends_while_it_is_read_again_counts_all_its_segments(rejected):
    """It had three before a restart; now our disk takes one of them, and what comes later is skipped as done."""
    partition = state(6, "", message(partial(first=2), 3))
    partition.position = 3
    partition.end(partial(first=2), 66, rejected, None)
    assert written(partition)[-1] == ("entry", 6, 6, 2, 3)


def test_a_table_that_is_read_again_stays_on_the_bus_as_it_was():
    known, other = message(partial(first=2, last=3, size=5)), message(partial("v2", 1, 1))
    partition, table = state(4, "", known, other), partial(first=2)
    assert written(partition) == []
    assert written(partition, table, is_due=True) == [("entry", 4, 4, -1, 0)], "v2 has not come yet"
    table.records = 3
    assert written(partition, table, is_due=True)[0] == (ASSEMBLING, "v1", 3, None)


def test_a_partition_goes_on_where_it_was_told_and_says_what_did_not_agree():
    partition = state(5, "n" * 600)
    assert (partition.partition, partition.assigned, partition.position, partition.tried.next, partition.log) == (
        3, 7, 5, 5, "log"
    )  # fmt: skip
    for _ in range(2):  # the first transaction failed
        entry = entry_of(due(partition))
        assert (entry["corrected"], entry["last_error"], entry["offset_from"]) == (1, "n" * 500, 5)
    partition.written()
    assert due(partition) == []


def test_outcomes_that_were_not_written_are_in_the_next_entry():
    partition = state()
    partition.position = 1
    partition.decide(record(0), WRONG)
    assert said(due(partition)) == [("letter", 0), ("entry", 0, 1, -1, 1), ("position", 1)]
    partition.position = 2
    partition.decide(record(1), WRONG)
    assert written(partition) == [("letter", 0), ("letter", 1), ("entry", 0, 2, -1, 2), ("position", 2)]
    assert (partition.account.consumed, due(partition)) == (0, [])


def test_a_position_whose_transaction_failed_is_not_taken_for_written():
    """The next transaction has news of other partitions only."""
    partition = state()
    partition.position = 3
    due(partition, is_due=True)
    assert (written(partition), partition.tried.next) == ([], 0)
    assert written(partition, is_due=True) == [("entry", 0, 3, -1, 0), ("position", 3)]


@pytest.mark.parametrize(("log", "skipped"), [("log", 2), ("other", 0)])
def test_a_lost_table_is_reported_and_its_segments_are_skipped(log, skipped):
    """Those of another log are in the totals of no epoch."""
    known = changed(message(partial(first=1, last=2)), log=log)
    partition = state(3, lost=[known])
    what = "expected its records from offset 1 on, got none any more"
    assert partition.lose(known, 77) == RecordRejected("lost", "$", what)
    end, gone, entry = due(partition)
    assert said([end, gone]) == [(FAILED, "v1", 2, None), ("gone", "p!3!v1")]
    assert decode_table(end.value).log == "log"
    account = json.loads(entry.value)
    assert (account.get("skipped", 0), account.get("corrected", 0)) == (skipped, 1 if skipped else 0)
    assert account.get("last_error", "") == (f"calibration, partition 3: table v1 of p: {what}" if skipped else "")


def recalled(position: int, **in_flight: InFlight) -> Recalled:
    return Recalled(Mark("log", position, in_flight), "log")


@pytest.mark.parametrize(
    ("past", "happened"),
    [
        (recalled(2, v1=InFlight(0, 1)), True),
        (recalled(0), False),
        (recalled(1, v1=InFlight(0, 1)), None),
        (recalled(2), None),
        (Recalled(Mark("log#1", 2, {"v1": InFlight(0, 1)}), "log#1"), None),
    ],
)
def test_whether_a_failed_transaction_has_happened_shows_by_what_it_leaves(past, happened):
    partition = state()
    partition.position = 2
    due(partition, partial())
    assert partition.has_happened(past) is happened


def test_a_transaction_that_changes_only_what_is_in_flight_shows_as_well():
    """A table expires: no record was read."""
    partition = state(3, "", message(partial(first=1, last=2)))
    partition.end(partial(first=1, last=2), 66, WRONG, None)
    due(partition)
    assert partition.has_happened(recalled(3)) is True
    assert partition.has_happened(recalled(3, v1=InFlight(1, 2))) is False


@pytest.mark.parametrize(("note", "happened"), [("", True), ("the group says 4", None)])
def test_a_transaction_that_changes_nothing_has_happened_unless_it_has_a_note(note, happened):
    partition = state(3, note)
    due(partition, is_due=True)
    assert partition.has_happened(recalled(3)) is happened


class Past:
    """A bus with messages about tables, and a worker that has read up to offset 3 of partition 3."""

    def __init__(self, *tables: Table, log: str = "log", begin: int = 0, end: int = 6) -> None:
        self.tables = [dataclasses.replace(table_record(one), offset=at) for at, one in enumerate(tables)]
        position = WorkerPosition(group="g", topic=CALIBRATION, partition=3, log=log, next=3, worker="tables-0")
        self.positions = [position_record(position)]
        self.there = {CALIBRATION: Extent("log", {3: (begin, end)})}

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
        found, notes = recall(self, self, "g", [3])
        assert notes == [note for note in [found[3].note] if note]
        return found[3]


def test_a_topic_that_is_not_there_is_named():
    past = Past()
    past.there = {}
    with pytest.raises(BusError, match=r"partitions \[3\] of calibration are assigned; expected them to exist"):
        past.found()


def test_the_last_message_about_a_table_counts():
    first, second = (message(partial(name, 3, 3)) for name in ("v1", "v2"))
    ends = [changed(one, state=FAILED, last_offset=2) for one in (first, second)]
    found = Past(first, *ends, second).found()
    assert (found.under_way, found.ended) == ({"v2": second}, {"v1": ends[0]})


def test_a_table_with_a_tombstone_is_not_under_way():
    """Its end was compacted in favour of a newer version's, and its earlier message was not yet."""
    past = Past(message(partial()))
    past.tables.append(dataclasses.replace(past.tables[0], value=None, offset=1))
    assert past.found().under_way == {}


def test_reading_goes_on_at_the_first_segment_in_flight():
    found = Past(message(partial(first=1, last=2)), message(partial("v2", 2, 2))).found()
    assert (found.begin, found.mark, found.log) == (
        1, Mark("log", 3, {"v1": InFlight(1, 2), "v2": InFlight(2, 1)}), "log"
    )  # fmt: skip


def test_what_an_older_release_left_is_read_on():
    """Its position was the first segment in flight, and the message about this table said how far it had read."""
    older = changed(message(partial(first=3), 0), last_offset=4)
    found = Past(older).found()
    assert (found.begin, found.mark.next, found.note) == (3, 5, "")
    partition = PartitionState(3, 7, found, by="tables-0")
    (*_, position) = due(partition, partial(first=3, last=4), is_due=True)
    assert partition.has_happened(found) is False
    assert partition.tried.next == 5
    assert said([position]) == [("position", 5)]


def test_the_key_of_an_older_release_is_replaced():
    """It has no partition; the message of an ended table, or of a lost one, needs only a tombstone."""
    older, ended, lost = (message(partial(name, first, first)) for name, first in (("v1", 2), ("v2", 2), ("v3", 0)))
    past = Past(older, ended, lost, changed(ended, state=FAILED, last_offset=2), begin=1)
    for at in range(3):
        past.tables[at] = dataclasses.replace(past.tables[at], key=f"p!v{at + 1}".encode())
    found = past.found()
    partition = PartitionState(3, 7, found, by="tables-0")
    records = due(partition)
    assert said(records)[:-1] == [("gone", "p!v1"), (ASSEMBLING, "v1", 1, None), ("gone", "p!v2"), ("gone", "p!v3")]
    assert (records[1].key, decode_table(records[1].value)) == (b"p!3!v1", older)
    past.tables += [dataclasses.replace(one, offset=4 + at) for at, one in enumerate(records[:-1])]
    assert past.found().renamed == []
    assert list(past.found().under_way) == ["v1"]


def test_whether_only_a_key_was_replaced_does_not_show():
    past = Past(message(partial(first=2, last=2)))
    past.tables[0] = dataclasses.replace(past.tables[0], key=b"p!v1")
    partition = PartitionState(3, 7, past.found(), by="tables-0")
    due(partition)
    assert partition.has_happened(past.found()) is None


@pytest.mark.parametrize(("position", "losses"), [(4, []), (5, [(FAILED, "v1", 2, None), ("gone", "p!3!v1")])])
def test_a_table_under_way_that_is_not_opened_again_is_lost(position, losses):
    """As soon as all that was to be read again has been."""
    known, other = message(partial(first=2, last=3)), partial("v2", 3, 3)
    partition = state(5, "", known, message(other))
    partition.position = position
    assert said(due(partition, other, is_due=True)) == [*losses, ("entry", 5, 5, -1, 0)]
    assert partition.account.skipped == (2 if losses else 0)


def test_tables_whose_first_segments_have_gone_are_lost():
    first, second = message(partial(first=1, last=2)), message(partial("v2", 2, 2))
    found = Past(first, second, begin=2).found()
    assert (found.begin, found.lost, list(found.under_way)) == (2, [first], ["v2"])
    former = changed(first, log="before")
    other = Past(former, log="before", end=4).found()
    assert (other.begin, other.lost, other.under_way, other.log) == (0, [former], {}, "log")


@pytest.mark.parametrize(
    ("end", "log", "note", "begin"),
    [
        (6, "log", "", 6),
        (4, "log", "the log was cut: expected offset 6 next, it goes on at 4", 4),
        (4, "other", "", 3),
    ],
)
@pytest.mark.parametrize("has_position", [True, False])
def test_records_that_tables_says_are_settled_were_on_the_log(end, log, note, begin, has_position):
    """It tells as well where a worker goes on if `positions` has lost its newest records."""
    ended = changed(message(partial(first=3, last=3)), log=log, state=FAILED, last_offset=5)
    past = Past(ended, end=end)
    if not has_position:
        past.positions = []
        begin = 0 if log == "other" else begin
    found = past.found()
    assert note in found.note
    assert found.begin == begin
