"""The worker and references in stores: what was not the table's fault may be sent again, and the group hears of it."""

import logging

import fsspec
import pytest

from facade.flows.tables.places import parse_roots
from tests.support.simulated_bus import MemoryTransactionalMember
from tests.support.stores import IO_ERROR, SCHEME, Faulty
from tests.support.tables import TABLE, Desk, refer

URL = f"{SCHEME}://bucket/tables/a"
GOOD = (len(TABLE), [TABLE])


@pytest.fixture
def desk():
    fsspec.register_implementation(SCHEME, Faulty, clobber=True)
    with Desk() as bench:
        bench.roots = parse_roots(f"{SCHEME}://bucket/tables")
        bench.start()
        yield bench


def test_what_was_complete_before_a_newer_version_is_known_after_a_compaction_and_a_restart(desk):
    """The first of two copies fails, its owner sends a third one, and meanwhile the second copy is complete."""
    Faulty.follow(*[IO_ERROR] * 6, *[GOOD] * 3)
    desk.run([refer(URL), refer(URL, sent_at=2), refer(URL, "newer")])
    assert [(one["state"], one["table"]) for one in desk.said()] == [
        ("FAILED", "t"), ("COMPLETE", "t"), ("COMPLETE", "newer")
    ]  # fmt: skip
    desk.broker.model.tidy()
    assert [one["table"] for one in desk.said("COMPLETE")] == ["newer"]
    desk.start()
    desk.run([refer(URL, sent_at=3), refer(URL, sent_at=4, kind="phases")])
    assert [one["table"] for one in desk.said("COMPLETE")] == ["newer"]
    assert desk.reasons() == ["unavailable", "reused-id"]
    assert desk.totals()["duplicate"] == 1


def test_no_secret_is_written_down(desk, caplog):
    caplog.set_level(logging.DEBUG)
    Faulty.follow(OSError("HUSHHUSH"))
    desk.run(
        [
            refer(URL),
            refer(f"{SCHEME}://me:HUSHHUSH@bucket/tables/a", "u"),
            refer(f"{URL}?X-Amz-Signature=HUSHHUSH", "v"),
            refer("s3://me:HUSHHUSH@bucket/a", "w"),
            refer("file://me:HUSHHUSH@host/a", "x"),
        ]
    )
    written = [*desk.broker.read("tables"), *desk.broker.read("accounts")]
    assert len(desk.said("FAILED")) == 5
    assert b"HUSHHUSH" not in b"".join(record.value or b"" for record in written)
    assert "HUSHHUSH" not in repr(desk.letters())
    assert "HUSHHUSH" not in caplog.text


def test_the_group_hears_of_a_worker_between_references_that_take_long(desk, monkeypatch):
    """It gives up on a member that takes nothing for five minutes."""
    clock, silences = desk.broker.clock, []
    heard = clock.monotonic()

    def take(self, limit, timeout):
        nonlocal heard
        silences.append(clock.monotonic() - heard)
        heard = clock.monotonic()
        return taken(self, limit, timeout)

    def slow():
        clock.sleep(140)
        return TABLE

    taken = MemoryTransactionalMember.take
    monkeypatch.setattr(MemoryTransactionalMember, "take", take)
    desk.start()
    Faulty.follow((len(TABLE), [slow]))
    records = [refer(URL, f"t{number}", product=f"p{number}") for number in range(20)]
    desk.run(records)
    assert len(desk.said("COMPLETE")) == 20
    assert max(silences) < 200
    assert desk.totals()["used"] == 20
    assert sum(desk.committed(partition) for partition in range(8)) == 20


def test_what_waits_is_forgotten_with_its_partition(desk):
    clock = desk.broker.clock

    def slow():
        clock.sleep(140)
        return TABLE

    Faulty.follow((len(TABLE), [slow]))
    desk.send(*[refer(URL, f"t{number}", product=f"p{number}") for number in range(12)])
    while not desk.said("COMPLETE"):
        desk.worker.step()
    assert len(desk.said("COMPLETE")) == 1
    partitions = set(desk.member.assignment)
    desk.member.assign([])
    desk.member.take(0, 0.0)
    desk.member.assign(partitions)
    desk.work(40)
    assert sorted(one["table"] for one in desk.said("COMPLETE")) == sorted(f"t{number}" for number in range(12))
    assert desk.totals() == {"consumed": 12, "used": 12}, "none came twice"
