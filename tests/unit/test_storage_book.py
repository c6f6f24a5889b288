"""What the fault run of the storage calls exact, named and silent."""

import math

import pytest

from proving.fault_runs.storage_book import Book, Finding, Ledger, Verdict


def values(first: int, after: int) -> set[bytes]:
    return {b"%d" % number for number in range(first, after)}


def log(first: int, after: int) -> dict[bytes, int]:
    return dict.fromkeys(values(first, after), 1)


@pytest.mark.parametrize(
    ("on_log", "shown", "wrong", "lost", "missing"),
    [
        pytest.param(log(0, 20), 20, 0, 0, 0, id="exact"),
        pytest.param(log(0, 20), 27, 7, 0, 0, id="counted twice"),
        pytest.param(log(0, 20), 15, -5, 0, 0, id="not counted"),
        pytest.param(log(0, 16), 20, 0, 4, 0, id="counted, then lost by the log"),
        pytest.param(log(0, 16), 16, 0, 4, 4, id="lost before anyone had read them"),
        pytest.param(log(0, 16), 21, 1, 4, 0, id="more than there ever were"),
        pytest.param(log(0, 16), 15, -1, 4, 0, id="less than stand on the log"),
    ],
)
def test_a_total_is_held_against_log_and_producer(
    on_log: dict[bytes, int], shown: int, wrong: int, lost: int, missing: int
) -> None:
    """Ten records are counted before; ten more are confirmed, and something is done."""
    ledger = Ledger("ingest.heaps")
    ledger.close(values(0, 10), log(0, 10), 10)
    assert ledger.judge(values(0, 20), on_log, shown) == (wrong, lost, missing)


def test_what_was_wrong_once_is_not_wrong_again() -> None:
    """Each act is judged by itself."""
    ledger = Ledger("ingest.heaps")
    ledger.close(values(0, 10), log(0, 8), 13)
    assert ledger.judge(values(0, 15), log(0, 8) | log(10, 15), 18) == (0, 0, 0)


def test_a_record_that_comes_once_more_is_counted_once_more() -> None:
    """A device server was killed, and raised its alert again in the same words."""
    ledger = Ledger("alerts")
    ledger.close(values(0, 3), log(0, 4), 4)
    assert ledger.judge(values(0, 3), log(0, 4) | {b"3": 2}, 5) == (0, 0, 0)


def test_what_was_missing_may_come_later() -> None:
    """A snapshot was lost, and the next one is written when something comes."""
    ledger = Ledger("alerts")
    assert ledger.judge(values(0, 10), log(0, 10), 9)[0] == -1
    ledger.close(values(0, 10), log(0, 10), 9)
    assert ledger.judge(values(0, 12), log(0, 12), 12)[0] == 0
    ledger.close(values(0, 12), log(0, 12), 12)
    assert ledger.judge(values(0, 14), log(0, 14), 15)[0] == 1, "made good once only"


def test_only_what_nobody_has_named_is_silent() -> None:
    """The verdict of an act is that of its worst total."""
    book, said = Book(), ["ingest.heaps, partition 0: offsets 3 to 9 were not taken"]
    heaps = ("ingest.heaps",)
    right, wrong, unread = Finding("a", 0, 0, 0), Finding("b", -7, 0, 0, topics=heaps), Finding("c", 0, 4, 4)
    worse = Finding("b", -8, 0, 0, topics=heaps)
    assert book.enter([("kill", "")], [right], []) is Verdict.EXACT
    assert book.enter([("kill", "")], [right, unread], []) is Verdict.UNREAD
    assert book.enter([("kill", "")], [right, wrong], said) is Verdict.NAMED
    assert not book.silent
    assert book.enter([("kill", "")], [wrong, right], []) is Verdict.SILENT
    assert book.enter([("kill", "")], [right, worse], said) is Verdict.SILENT, (
        "one more than the offsets that are named"
    )
    assert len(book.silent) == 2
    assert book.unread == 4
    assert book.verdicts["kill"].total() == 5


@pytest.mark.parametrize(
    ("finding", "said", "verdict"),
    [
        pytest.param(None, [], Verdict.SILENT, id="no total could be read"),
        pytest.param(Finding("a", -5, 0, 0, is_behind=True), [], Verdict.BEHIND, id="comes later"),
        pytest.param(Finding("a", 5, 0, 0, True, ("t",)), ["t was made again"], Verdict.WHOLE, id="a whole topic"),
        pytest.param(Finding("a", 5, 0, 0, False, ("t", "u")), ["u, partition 0: offsets 1 to 2"], Verdict.WHOLE,
                     id="records that stand for many"),
        pytest.param(Finding("a", 0, 9, 9, False, ("t",)), ["t, partition 0: offsets 1 to 2"], Verdict.UNREAD,
                     id="two of nine"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_no_good_verdict(finding: Finding | None, said: list[str], verdict: Verdict) -> None:
    book = Book()
    assert book.enter([("kill", "")], [finding] if finding else [], said) is verdict
    assert bool(book.silent) == (verdict is Verdict.SILENT)


@pytest.mark.parametrize(
    ("line", "records"),
    [
        ("ingest.heaps, partition 1: offsets 3 to 4 were not taken", 2),
        ("skipped of ingest.heaps: ingest.heaps, partition 1: offsets 3 to 4 were not taken", 2),
        ("ingest.summary, partition 1: offsets 3 to 4 were not taken", math.inf),
        ("overlap: $.offset_from: ingest.heaps, partition 1, offsets 3 to 4, part 0: expected offset 9 or later", 2),
        ("ingest.heaps was deleted and made again", math.inf),
        ("6 records of ingest.heaps became dead letters", 0),
        ("ingest.summary lags by 12 records", 0),
        ("calibration, partition 0: offsets 3 to 9 were not taken", 0),
        ("6 records of accounts: calibration, partition 0: offsets 3 to 9 came again", 0),
        ("calibration was deleted and made again", 0),
    ],
)
def test_a_line_names_records_of_a_total(line: str, records: float) -> None:
    """Records of another topic that a total depends on stand for many."""
    assert Finding("nodes", -700, 0, 0, topics=("ingest.heaps", "ingest.summary")).named([line]) == records


def test_offsets_that_two_lines_name_count_once() -> None:
    lines = [
        "calibration, partition 1: offsets 3 to 9 were not taken",
        "skipped of calibration: calibration, partition 1: offsets 8 to 12",
    ]
    assert Finding("segments", -10, 0, 0, topics=("calibration", "accounts")).named(lines) == 10
