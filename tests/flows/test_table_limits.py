"""What each refusal of a segment or a table says."""

import errno
from dataclasses import replace as replaced
from hashlib import sha256
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from facade.flows.tables import assembly as module
from facade.flows.tables.assembly import (
    DUPLICATE,
    Assembly,
    AssemblyLimits,
    PartialTable,
    Repeated,
    SegmentReader,
    complete,
)
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.messages import decode_table
from facade.flows.tables.partition_state import PartitionState
from facade.flows.tables.recall import Mark, Recalled
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.outcome import TOMBSTONE, RecordRejected
from facade.sdp.messages import TableSegment

WHOLE = b"0123456789"
HEADER = TableSegment(
    table="v1", product="p", kind="gains", content_type="text/plain", index=0, count=2, size=len(WHOLE),
    sha256=sha256(WHOLE).hexdigest(), sent_at=1,
)  # fmt: skip


def record(offset: int, value: bytes = b"") -> Record:
    return Record(topic="calibration", key=b"v1", value=value, partition=0, offset=offset)


def assembly(memory: int = 1000, **limits) -> Assembly:
    return Assembly(BufferPool(memory), AssemblyLimits(**{"segments": 4, "disk": 100, "tables": 2, **limits}))


FIRST, LAST = (HEADER, WHOLE[:5]), (replace(HEADER, index=1), WHOLE[5:])


@pytest.mark.parametrize(
    ("segments", "rejected"),
    [
        ([FIRST, (replace(LAST[0], start=5), WHOLE[5:])], None),
        ([(replace(HEADER, count=4), b"01"), (replace(HEADER, count=4, index=1), b"2")], "under way"),
        (
            [(replace(HEADER, count=5), b"0")],
            RecordRejected("too-many-segments", "headers.segment.count", "expected at most 4 segments, got 5"),
        ),
        (
            [(replace(HEADER, size=101), b"0")],
            RecordRejected("size", "headers.segment.size", "expected at most 100 bytes, got 101"),
        ),
        ([FIRST, (LAST[0], b"567890")], RecordRejected("overlong", "$", "expected 10 bytes in all, got 11 up to now")),
        ([FIRST, (LAST[0], b"")], RecordRejected("size", "$", "expected a segment with bytes, got an empty one of 2")),
        (
            [FIRST, (replace(LAST[0], start=4), WHOLE[5:])],
            RecordRejected("contradiction", "headers.segment.start", "expected segment 1 to begin at 5, got 4"),
        ),
        ([FIRST, (LAST[0], b"5678")], RecordRejected("size", "$", "expected 10 bytes in all, got 9")),
        (
            [FIRST, (LAST[0], b"56780")],
            RecordRejected(
                "digest", "$", f"expected the digest {HEADER.sha256}, got {sha256(b'0123456780').hexdigest()}"
            ),
        ),
    ],
)
def test_a_segment_that_ends_its_table_says_what_was_expected_and_came(segments, rejected):
    tables, ended = assembly(), []
    for offset, (header, content) in enumerate(segments):
        assert not ended
        ended = tables.add(header, record(offset, content), 0.0)
    assert [one.rejected for one in ended] == ([] if rejected == "under way" else [rejected])
    if rejected is None:
        assert ended[0].content is not None
        ended[0].close()
        assert tables.judge(HEADER, 0) is DUPLICATE
        assert tables.judge(HEADER, 1) is None
    elif ended:
        again = tables.judge(HEADER, 0)
        assert again == Repeated(rejected.reason, rejected.path, f"the table was given up before: {rejected.detail}")


def test_a_table_that_contradicts_is_refused_by_what_differs():
    tables = assembly()
    tables.add(*FIRST[:1], record(7, FIRST[1]), 0.0)
    assert tables.judge(HEADER, 0) is DUPLICATE
    assert tables.judge(LAST[0], 0) is None
    assert tables.judge(replace(LAST[0], kind="phases", size=11), 0) == RecordRejected(
        "contradiction",
        "headers.segment",
        "expected what the first segment of v1 says, at 7: kind 'gains', got 'phases', size 10, got 11",
    )
    (ended,) = tables.add(LAST[0], record(8, LAST[1]), 0.0)
    ended.close()
    why = ("reused-id", "headers.segment.table")
    what = "expected a new id for another table, got v1, which has been complete before"
    assert tables.judge(replace(HEADER, sha256="0" * 64), 0) == RecordRejected(*why, what)
    assert tables.judge(replace(HEADER, sha256="0" * 64), 0) == Repeated(*why, what)


def test_the_oldest_table_goes_and_one_of_which_nothing_comes_expires():
    tables = assembly(expiry=5.0)
    for number, at in ((1, 0.0), (2, 1.0)):
        assert tables.add(replace(HEADER, table=f"v{number}"), record(number, b"0"), at) == []
    (ended,) = tables.add(replace(HEADER, table="v3"), record(3, b"0"), 2.0)
    assert ended.table.header.table == "v1"
    assert ended.rejected == RecordRejected(
        "evicted", "$", "expected at most 2 tables under way, and this is the oldest"
    )
    tables.wait(1.0)
    assert tables.expire(7.0 - 0.01) == []
    (ended,) = tables.expire(7.0)
    assert ended.table.header.table == "v2"
    assert ended.rejected == RecordRejected("expired", "$", "expected all segments, with at most 5 s between two")
    tables.drop(0)
    assert len(tables) == 0
    assert tables.judge(replace(HEADER, table="v2"), 0) is None


@pytest.mark.parametrize(
    ("code", "reason"), [(errno.ENOSPC, "no-space"), (errno.EDQUOT, "no-space"), (errno.EIO, "storage")]
)
def test_a_disk_that_fails_is_told_apart_from_a_table_that_is_wrong(code, reason):
    def fail():
        raise OSError(code, "the disk said")

    tables = Assembly(BufferPool(1, fail), AssemblyLimits())
    (ended,) = tables.add(*FIRST[:1], record(0, FIRST[1]), 0.0)
    assert ended.rejected == RecordRejected(reason, "$", "a temporary file failed: the disk said")


def test_the_oldest_table_on_disk_goes_once_all_take_more_than_the_limit():
    tables = assembly(memory=0, disk=10, tables=3)
    for number in (1, 2):
        assert tables.add(replace(HEADER, table=f"v{number}"), record(number, WHOLE[:5]), 0.0) == []
    (ended,) = tables.add(replace(HEADER, table="v3"), record(3, b"0"), 0.0)
    assert ended.table.header.table == "v1"
    assert ended.rejected == RecordRejected("evicted", "$", "expected at most 10 bytes on disk, and this is the oldest")
    tables.drop(0)


def test_a_table_knows_its_newest_record_and_how_many_came():
    tables = assembly()
    for offset, index in ((3, 0), (4, 1), (9, 2)):
        assert tables.add(replace(HEADER, count=4, index=index), record(offset, b"x"), float(offset)) == []
    (table,) = tables
    assert (table.newest, table.records, table.touched) == (replaced(record(9, b"x"), value=None), 3, 9.0)


def test_an_empty_table_of_one_segment_is_whole():
    empty = replace(HEADER, count=1, size=0, sha256=sha256(b"").hexdigest())
    (ended,) = assembly().add(empty, record(0), 0.0)
    assert (ended.rejected, bytes(ended.content)) == (None, b"")


def test_the_ends_of_the_newest_tables_are_remembered(monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED", 2)
    tables = assembly()
    ends = [replace(HEADER, table=f"v{number}", size=101) for number in range(3)]
    for header in ends:
        assert tables.add(header, record(0), 0.0)[0].rejected is not None
    assert [tables.judge(header, 0) is None for header in ends] == [True, False, False]


def test_of_other_tables_under_one_id_so_many_have_a_dead_letter_each():
    tables = assembly()
    for header, content in (FIRST, LAST):
        ended = tables.add(header, record(0, content), 0.0)
    ended[0].close()
    others = [replace(HEADER, sha256=f"{number:064}") for number in range(17)]
    assert [type(tables.judge(header, 0)) for header in others] == [RecordRejected] * 16 + [Repeated]


@pytest.mark.parametrize(
    ("kept", "error", "unseen"),
    [
        (False, None, "too large to be looked into where it is"),
        (True, OSError(errno.EIO, "the disk said"), "a temporary file failed: the disk said"),
        (True, OSError("the disk said"), "a temporary file failed: the disk said"),
    ],
)
def test_a_whole_table_that_cannot_be_looked_into_says_why(kept, error, unseen):
    def content():
        raise error

    about = SimpleNamespace(buffer=SimpleNamespace(is_kept=kept, content=content))
    ended = complete(about)
    assert (ended.table, ended.rejected, ended.content, ended.unseen) == (about, None, None, unseen)


def test_what_went_wrong_last_is_told_in_bounded_length():
    partition = PartitionState(3, 0, Recalled(Mark("log", 0, {}), "log"), by="tables-0")
    given_up = PartialTable(
        header=HEADER, partition=3, first_offset=0, newest=record(2), buffer=BufferPool(9).buffer(), touched=0.0
    )  # fmt: skip
    partition.position = 3
    partition.end(given_up, 77, RecordRejected("size", "$", "x" * 2000), None)
    _letter, end, _tombstone, entry, _position = partition.write([], 77, group="g", is_due=False)
    assert len(decode_table(end.value).reason) == 1000
    assert len(partition.account.last_error) == 500
    assert b'"tables-0"' in entry.value


def test_a_reader_waits_for_a_first_record_only_and_holds_no_more_than_a_batch():
    records, asked, clock = [replaced(record(offset), value=None) for offset in range(4)], [], ManualClock(0.0)

    def take(room, wait):
        asked.append((room, wait))
        taken, records[:] = records[: min(room, 3)], records[min(room, 3) :]
        return taken

    reader = SegmentReader(take, assembly(), clock, batch=4, is_wanted=lambda one, _: one.offset != 1)
    for _ in range(3):
        reader.take(0.2)
    assert asked == [(4, 0.2), (1, 0.0)]
    assert list(reader.outcomes(clock.monotonic())) == [], "its time is over"
    assert [(one.offset, outcome) for one, outcome in reader.outcomes()] == [(at, TOMBSTONE) for at in (0, 2, 3)]
