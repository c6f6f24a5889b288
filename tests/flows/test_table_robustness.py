"""Tables under workers that lost their partition, full disks, files that change, and hostile content."""

from hashlib import sha256

import pytest

import facade.flows.tables.worker
from facade.flows.tables.assembly import AssemblyLimits
from facade.flows.tables.buffers import BufferPool
from facade.flows.tables.references import ReferenceReader, References
from facade.flows.tables.worker import TableWorker
from tests.support.simulated_bus import MemoryBus, MemoryTransactionalMember
from tests.support.tables import ICD, Desk, cut


@pytest.fixture
def bench():
    with Desk(memory=1000, batch=100) as made:
        yield made


def test_who_has_lost_its_partition_announces_nothing(bench):
    """It stood still before its transaction for longer than its session; its successor has announced two tables."""
    write = bench.member.write
    bench.send(*cut("v1", b"1" * 30))
    member = MemoryTransactionalMember(bench.broker, "calibration", group="tables-assemble", slot="1")
    member.assign([])
    successor = TableWorker(
        member,
        MemoryBus(bench.broker),
        ICD,
        slot="1",
        group="tables-assemble",
        clock=bench.broker.clock,
        summarise=lambda kind, content_type, content: {"note": ""},
        references=References([]),
        pool=BufferPool(1000),
        limits=AssemblyLimits(),
        batch=100,
    )

    def stand_still(records, offsets):
        bench.member.assign([])  # it will hear of it with its next take
        bench.broker.clock.sleep(8.0)
        successor.step()
        bench.send(*cut("v2", b"2" * 30))
        for _ in range(2):
            successor.step()
        bench.member.write = write
        write(records, offsets)

    bench.member.write = stand_still
    for _ in range(5):
        bench.worker.step()
    complete = [one["table"] for one in bench.said() if one["state"] == "COMPLETE"]
    assert complete == ["v1", "v2"]
    assert bench.totals()["used"] == 6


def test_what_a_file_holds_is_a_copy(tmp_path):
    """A mapped file that somebody cuts short would end the process."""
    file = tmp_path / "t"
    file.write_bytes(b"x" * 1000)
    reader = ReferenceReader(
        References([tmp_path]), file.as_uri(), 1000, sha256(file.read_bytes()).hexdigest(), BufferPool(1000)
    )
    while not reader.step():
        pass
    content = reader.buffer.content()
    file.write_bytes(b"")
    assert bytes(content) == b"x" * 1000
    reader.close()


def test_a_large_reference_is_verified_and_not_looked_into(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(facade.flows.tables.worker, "MOST_LOOKED_INTO", 999)
    (tmp_path / "t").write_bytes(b"x" * 1000)
    bench.roots = [tmp_path]
    bench.start()
    digest = sha256(b"x" * 1000).hexdigest()
    for name, checksum in (("good", digest), ("bad", digest[::-1])):
        fields = {"count": 0, "size": 1000, "sha256": checksum, "url": (tmp_path / "t").as_uri()}
        bench.run(cut(name, b"", **fields))
    (said,) = bench.said("COMPLETE")
    assert (said["table"], said["summary"]) == ("good", {"note": "too large to be looked into where it is"})
    assert bench.reasons() == ["digest"]
    assert bench.delivered == []
