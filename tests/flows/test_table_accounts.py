"""The account of the segments is exact when a write is repeated or storage is lost, or a deviation is named."""

import pytest

from tests.support.tables import Desk, cut


@pytest.fixture
def desk() -> Desk:
    """Return a bench whose worker has announced two tables, and has a third under way between them."""
    desk = Desk()
    a, b, between = cut("a", b"a" * 30), cut("b", b"b" * 30), cut("open", b"o" * 30)
    desk.run([*a[:2], between[0], a[2]])
    desk.run([between[1], *b])
    assert (desk.folded().consumed, desk.folded().overlap, desk.folded().skipped) == (6, 0, 0)
    return desk


def finished(desk: Desk) -> tuple[int, int, int]:
    """Take the end of the third table; return what is consumed, counted twice, and missing."""
    desk.run(cut("open", b"o" * 30)[2:])
    account = desk.folded()
    return account.consumed, account.overlap, account.skipped


def test_what_is_taken_again_as_tables_lost_its_end_is_counted_once(desk):
    for topic in ("tables", "positions"):
        for partition in range(desk.broker.partitions[topic]):
            desk.broker.cut(topic, partition, 0)
    desk.start()
    desk.work()
    consumed, overlap, skipped = finished(desk)
    assert (consumed + skipped, skipped) == (9, 0)
    assert overlap
    assert "calibration, partition 1: offsets " in desk.folded().deviations["overlap"]


def test_a_lost_end_of_accounts_is_a_hole(desk):
    (place,) = (at for at, log in desk.broker.logs.items() if at[0] == "accounts" and log)
    desk.broker.cut(*place, desk.broker.end(*place) - 2)  # a record and the mark of its transaction
    consumed, overlap, skipped = finished(desk)
    assert (consumed, overlap) == (6, 0)
    assert skipped
    assert "calibration, partition 1: offsets " in desk.folded().deviations["skipped"]
