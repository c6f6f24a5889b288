"""The assembling worker on the simulation's brokers: each complete table is announced once, all else has a reason."""

import errno
import json
import tracemalloc
from dataclasses import replace

import jsonschema
import pytest

from facade.flows.tables.messages import SEGMENT
from facade.kernel.bus.port import Record
from facade.kernel.errors import ConfigError
from tests.support.tables import ICD, Desk, cut

CONTENT = bytes(range(256)) * 4
PARTITION = 1
"""Of the key b"p"."""


@pytest.fixture
def desk():
    """Return a maker of benches, whose files are closed at the end."""
    made = []

    def make(*args, **more) -> Desk:
        made.append(Desk(*args, **more))
        return made[-1]

    yield make
    for bench in made:
        bench.worker.finish()


def raw(header: bytes | None, value: bytes | None = b"x", key: bytes = b"p") -> Record:
    headers = () if header is None else ((SEGMENT, header),)
    return Record(topic="calibration", key=key, value=value, headers=headers)


def test_a_table_is_announced_once_with_where_it_is(desk):
    bench = desk()
    bench.run(cut("t1", CONTENT, 100))
    (said,) = bench.said("COMPLETE")
    assert bench.delivered == [("gains", CONTENT)]
    assert (said["table"], said["product"], said["size"], said["received"]) == ("t1", "p", 1024, 1024)
    assert (said["partition"], said["first_offset"], said["last_offset"]) == (PARTITION, 0, 10)
    assert said["summary"] == {"bytes": 1024}
    assert bench.newest().keys() == {b"p"}, "what is under way was not removed"
    assert bench.totals() == {"consumed": 11, "used": 11}
    assert bench.committed(PARTITION) == 11
    assert bench.letters() == []


def test_what_is_written_obeys_the_published_schemas(desk, tmp_path):
    bench = desk(tmp_path)
    bench.run([*cut("a", CONTENT, 100), *cut("b", b"xy", 1, sha256="0" * 64), raw(None), *cut("c", CONTENT, 100)[:4]])
    bench.run(cut("d", b"", count=0, url="file:///nowhere"))
    for topic, schema in (("tables", "table"), ("accounts", "stream-account")):
        values = [record.value for record in bench.broker.read(topic) if record.value is not None]
        assert values
        for value in values:
            jsonschema.validate(json.loads(value), ICD.messages[schema])
    assert {said["state"] for said in bench.said()} == {"ASSEMBLING", "COMPLETE", "FAILED"}


def test_memory_stays_below_its_limit_whatever_is_under_way(desk):
    bench = desk(memory=500)
    tables = [cut(f"t{n}", CONTENT, 100) for n in range(5)]
    for records in zip(*tables, strict=True):
        bench.send(*records)
        bench.work(2)
        assert bench.pool.in_memory <= 500
    assert len(bench.said("COMPLETE")) == 5


def test_a_table_that_lacks_a_segment_is_read_again_after_a_restart_and_then_expires(desk):
    bench = desk(expiry=60.0)
    bench.run([*cut("other", b"x"), *cut("t", CONTENT, 100)[:-1]])
    bench.broker.clock.sleep(1.0)
    bench.work(1)
    assert (bench.committed(PARTITION), bench.totals()) == (11, {"consumed": 1, "used": 1})
    (said,) = [one for key, one in bench.newest().items() if key == b"p!1!t"]
    assert (said["state"], said["segments"], said["received"]) == ("ASSEMBLING", 10, 1000)
    bench.start()
    bench.work()
    bench.broker.clock.sleep(59.0)
    bench.work(2)
    assert bench.letters() == []
    bench.broker.clock.sleep(2.0)
    bench.work(2)
    (letter,) = bench.letters()
    assert (letter["reason"], letter["bytes"], letter["offset"]) == ("expired", "0", "10")
    assert "10 of 11 segments" in letter["detail"]
    assert "from offset 1 to 10" in letter["detail"]
    assert bench.committed(PARTITION) == 11
    assert bench.newest()[b"p!failed"]["reason"].startswith("expired")
    assert b"p!1!t" not in bench.newest()
    assert bench.totals() == {"consumed": 11, "used": 1, "dead_lettered": 10, "expired": 10}
    bench.run(cut("t", CONTENT, 100)[-1:])
    assert bench.totals()["expired"] == 11, "what comes late is counted, and no letter more is written"
    assert len(bench.letters()) == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (raw(None), "no-header"),
        (raw(b"{"), "not-json"),
        (raw(b"\xff\xfe"), "not-json"),
        (raw(b'{"schema":"table-segment/9"}'), "version"),
        (raw(b'{"schema":"table-segment/1"}'), "schema"),
        (cut("t", b"x", count=10**9)[0], "schema"),
        (cut("t", b"x", size=2**50)[0], "schema"),
        (cut("t", b"x", index=5)[0], "overlong"),
        (cut("t", b"x", count=0)[0], "schema"),
        (cut("t", b"x", url="file:///x")[0], "schema"),
        (replace(cut("t", b"x")[0], key=b"other"), "key"),
        (replace(cut("t", b"x")[0], key=None), "key"),
    ],
)
def test_what_is_no_segment_is_set_aside_and_hides_no_neighbour(desk, record, reason):
    bench = desk()
    bench.run([record, *cut("good", CONTENT, 600), record])
    assert bench.reasons() == [reason, reason]
    assert bench.delivered == [("gains", CONTENT)]
    assert bench.totals() == {"consumed": 4, "used": 2, "dead_lettered": 2, reason: 2}


def test_nothing_is_allocated_because_of_what_a_header_claims(desk):
    bench = desk()
    claims = [cut(f"t{n}", b"x", count=200_000, size=2 * 10**10)[0] for n in range(100)]
    bench.send(*claims)
    tracemalloc.start()
    try:
        bench.work(30)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert bench.worker.account.uncommitted == 100


def test_what_a_full_disk_did_not_take_may_be_sent_again_under_its_id(desk):
    """What is left of the first sending is dealt with; the second one, which tells another time, is a table."""
    bench = desk(memory=200)

    def refuse():
        raise OSError(errno.ENOSPC, "No space left on device")

    working, bench.open_file = bench.open_file, refuse
    bench.run(cut("t", CONTENT, 100))
    bench.open_file = working
    bench.run(cut("t", CONTENT, 100))
    assert (bench.reasons(), bench.delivered) == (["no-space"], [])
    again = cut("t", CONTENT, 100, sent_at=10**15 + 1)
    bench.run([again[0], *cut("t", CONTENT, 100)[:1], *again[1:]])
    assert (bench.reasons(), bench.delivered) == (["no-space"], [("gains", CONTENT)])
    assert bench.totals()["suppressed"] == 1, "the second sending has that segment"
    bench.run(cut("t", CONTENT, 100, sent_at=10**15 + 2))
    assert len(bench.delivered) == 1, "it is complete now"
    assert (bench.pool.in_memory, bench.pool.on_disk) == (0, 0)


def test_a_summary_that_fails_or_is_too_large_stops_nothing(desk):
    bench = desk()
    bench.verdict = lambda content: 1 // 0
    bench.run(cut("t", CONTENT, 100))
    assert bench.reasons() == ["content"]
    bench.verdict = lambda content: {"image": [1] * 2_000_000}
    bench.run(cut("u", CONTENT, 100))

    def unable(content):
        raise ConfigError("played: a library is not installed")

    bench.verdict = unable
    bench.run(cut("v", CONTENT, 100))
    too_large, no_library = (said["summary"]["note"] for said in bench.said("COMPLETE"))
    assert "too large" in too_large
    assert "not installed" in no_library


def test_a_bus_that_is_away_for_a_while_loses_nothing(desk):
    bench = desk(batch=3)
    bench.send(*cut("t", CONTENT, 100), raw(None))
    for step in range(60):
        bench.bus.away = step % 15 < 3
        bench.work(1)
    assert len(bench.said("COMPLETE")) == 1
    assert bench.reasons() == ["no-header"]
    assert bench.totals() == {"consumed": 12, "used": 11, "dead_lettered": 1, "no-header": 1}
