"""The assembling worker goes on from its own position: whatever the group says, and whatever became of its topic."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from facade.flows.tables import assembly
from facade.flows.tables.flow import TablesFlow
from facade.kernel.outcome import Suppressed
from facade.kernel.runtime.accounts import AccountEntry
from tests.support.tables import Desk, cut

AT = 1
"""Partition of the key b"p"."""


@pytest.fixture
def desk() -> Desk:
    """Return a bench whose worker has announced a table, and has another one under way."""
    desk = Desk()
    desk.run([*cut("a", b"a" * 30), *cut("open", b"o" * 30)[:2]])
    desk.broker.clock.sleep(1.0)
    desk.work(1)
    assert (announced(desk), desk.committed(AT)) == (["a"], 5)
    return desk


def announced(desk: Desk) -> list[str]:
    return [one["table"] for one in desk.said("COMPLETE")]


def entries(desk: Desk) -> list[AccountEntry]:
    return [msgspec.json.decode(record.value or b"", type=AccountEntry) for record in desk.broker.read("accounts")]


def notes(desk: Desk) -> list[str]:
    return [entry.last_error for entry in entries(desk) if entry.corrected]


def skipped(desk: Desk) -> int:
    return desk.folded().skipped


def restarted(desk: Desk, change: Callable[[], object]) -> None:
    """Change something while no worker runs."""
    assert desk.worker is not None
    change()
    desk.start()
    desk.work()


@pytest.mark.parametrize(("is_stopped", "more"), [(True, 4), (False, 0)])
def test_a_topic_that_was_made_again_is_read_whole(desk, is_stopped, more):
    """Who was stopped finds it grown beyond the place; what was under way is given up, and may be sent again."""

    def make_again() -> None:
        desk.broker.make_again("calibration")
        if not is_stopped:
            desk.broker.clock.sleep(2.0)  # topics' ids are asked for each 2 s
            desk.work()
        desk.send(*(record for number in range(more) for record in cut(f"more-{number}", b"m" * 30)))
        desk.send(*cut("a", b"a" * 30), *cut("open", b"o" * 30), *cut("b", b"b" * 30))

    if is_stopped:
        restarted(desk, make_again)
    else:
        make_again()
        desk.work()
    desk.work(30)
    assert announced(desk) == ["a", *(f"more-{number}" for number in range(more)), "a", "open", "b"]
    assert [one["table"] for one in desk.said("FAILED")] == ["open"]
    assert desk.totals()["used"] == 3 + 3 * more + 9
    said = notes(desk)
    assert said
    assert all("the topic was deleted and made again: expected offset" in note for note in said)
    # Who shows them takes the newest of each product, though its offsets are smaller.
    shown = TablesFlow()
    assert Suppressed("older") not in {shown.fold(one, count=True) for one in desk.broker.read("tables")}
    restarted(desk, lambda: None)
    assert (desk.totals()["used"], notes(desk)) == (3 + 3 * more + 9, said)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_what_was_removed_before_it_was_read_is_a_hole_with_its_offsets(desk, is_stopped):
    def remove() -> None:
        desk.send(*cut("b", b"b" * 30), *cut("c", b"c" * 30))
        desk.broker.remove("calibration", AT, 8)

    if is_stopped:
        restarted(desk, remove)
    else:
        remove()
        desk.work()
    assert announced(desk) == ["a", "c"]
    assert [one["table"] for one in desk.said("FAILED")] == ["open"]
    assert skipped(desk) == 5  # two of them were of the table under way
    (note,) = notes(desk)
    assert "calibration, partition 1: offsets 5 to 7 were removed before they were read" in note
    assert "calibration, partition 1: table open of p: expected its records from offset 3 on" in note


def test_the_offset_of_the_group_goes_with_the_position():
    """A partition on which a table has only grown is not written with the news of others."""
    with Desk(batch=1) as desk:
        parts = cut("open", b"o" * 30)
        desk.run(parts[:1])
        desk.run([parts[1], *cut("other", b"x", product="q")])
        assert (announced(desk), desk.committed(AT)) == (["other"], 1)
        restarted(desk, lambda: None)
        assert notes(desk) == []
        desk.run(parts[2:])
        assert (announced(desk), desk.folded().consumed, skipped(desk)) == (["other", "open"], 4, 0)


@pytest.mark.parametrize("table", ["t", "failed"])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_table_whose_topic_grows_meanwhile_is_counted_on_both_partitions(table, is_compacted):
    """Its next segments are on another partition, where they are a table of their own."""
    with Desk(expiry=60.0) as desk:
        for partition, parts in ((1, cut(table, b"t" * 60)[:3]), (2, cut(table, b"t" * 60)[3:])):
            desk.run([replace(part, partition=partition) for part in parts])
            desk.broker.clock.sleep(1.0)
            desk.work(1)
        desk.run(cut("other", b"x", sha256="0" * 64))
        if is_compacted:
            desk.broker.model.tidy()
        restarted(desk, lambda: None)
        desk.broker.clock.sleep(61.0)
        desk.work()
        assert sorted((one["table"], one["segments"]) for one in desk.said("FAILED") if one["table"] != "other") == [
            (table, 3), (table, 3)
        ]  # fmt: skip
        assert (desk.folded().consumed, skipped(desk)) == (7, 0)
        assert list(desk.newest()) == [b"p!failed"]


@pytest.mark.parametrize("table", ["t", "failed"])
def test_no_id_is_mistaken_for_the_newest_failed_table(table):
    with Desk() as desk:
        desk.run(cut(table, b"t" * 30)[:2])
        desk.run(cut("other", b"x", sha256="0" * 64))
        restarted(desk, lambda: None)
        desk.run(cut(table, b"t" * 30)[2:])
        assert (announced(desk), desk.folded().consumed) == ([table], 4)
        assert sorted(desk.newest()) == [b"p", b"p!failed"]


def test_a_forgotten_table_that_is_sent_again_goes_on_after_a_restart(monkeypatch):
    """Its complete version is on the bus all the same."""
    monkeypatch.setattr(assembly, "_REMEMBERED", 1)
    again = cut("t", b"t" * 30, sent_at=10**15 + 1)
    with Desk() as desk:
        desk.run([*cut("t", b"t" * 30), *cut("newer", b"x")])
        desk.run(again[:2])
        monkeypatch.setattr(assembly, "_REMEMBERED", 10)
        restarted(desk, lambda: None)
        desk.run(again[2:])
        assert announced(desk) == ["t", "newer", "t"]
        assert (desk.folded().consumed, skipped(desk)) == (7, 0)


AGAIN = {"equal": (b"a" * 30, {}), "other content": (b"b" * 30, {}), "other kind": (b"a" * 30, {"kind": "phases"})}


@pytest.mark.parametrize("second", AGAIN)
@pytest.mark.parametrize("newer", [0, 1, 20])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_complete_table_that_is_sent_again_under_its_id_is_equal_or_refused(second, newer, is_restarted):
    """Also after newer versions of its product, a compaction and a restart."""
    content, fields = AGAIN[second]
    with Desk() as desk:
        desk.run(cut("a", b"a" * 30))
        for number in range(newer):
            desk.run(cut(f"newer-{number}", b"n" * 30))
        if is_restarted:
            desk.broker.model.tidy()
            desk.start()
        before = desk.newest()[b"p"]
        desk.run(cut("a", content, sent_at=10**15 + 1, **fields))
        assert desk.newest()[b"p"] == before
        assert desk.reasons() == ([] if second == "equal" else ["reused-id"])
        totals = desk.totals()
        assert (totals["duplicate"], totals["reused-id"]) == ((3, 0) if second == "equal" else (0, 3))
        assert totals["consumed"] == 6 + 3 * newer


def test_a_table_that_failed_is_refused_under_its_id():
    with Desk(expiry=60.0) as desk:
        desk.run(cut("a", b"a" * 30)[:2])
        desk.broker.clock.sleep(61.0)
        desk.work()
        for _ in range(2):
            desk.run(cut("a", b"a" * 30, sent_at=10**15 + 1))
            desk.start()
        assert [one["state"] for one in desk.said() if one["state"] != "ASSEMBLING"] == ["FAILED"]
        assert desk.totals()["expired"] == 2 + 3 + 3
        assert desk.reasons() == ["expired"]
