"""The producer's SDK, and reading a table back: what arrives is byte for byte what was sent."""

import errno

import pytest

import facade.flows.tables.buffers
from facade.flows.tables.fetch import fetch, find
from facade.flows.tables.messages import SEGMENT
from facade.flows.tables.producer import TableProducer
from facade.kernel.errors import BusError, ConfigError
from tests.support.tables import ICD, Desk, cut

CONTENT = bytes(range(256)) * 50
MEDIA = "application/octet-stream"


@pytest.fixture
def desk():
    bench = Desk(memory=1_000_000)
    bench.bus.waits = True
    yield bench
    bench.worker.finish()


def producer(bench: Desk) -> TableProducer:
    return TableProducer(bench.bus.writer(), bench.broker.clock, icd=ICD)


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 12_800])
@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, "path"])
def test_what_is_sent_is_assembled_and_can_be_fetched(desk, tmp_path, size, form):
    content = CONTENT[:size]
    (tmp_path / "in").write_bytes(content)
    source = tmp_path / "in" if form == "path" else form(content)
    sent = producer(desk).send("subarray/01/gains", "gains", source, MEDIA, segment=1000)
    desk.work()
    assert desk.delivered == [("gains", content)]
    for name in ("subarray/01/gains", sent.table):
        output = tmp_path / "out"
        fetch(desk.bus, find(desk.bus, name), output, desk.broker.clock)
        assert output.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_the_headers_say_where_each_segment_begins(desk):
    producer(desk).send("p", "gains", CONTENT, MEDIA, table="t", segment=5000)
    headers = [dict(record.headers)[SEGMENT] for record in desk.broker.read("calibration")]
    assert [b'"start":%d' % start in header for start, header in zip((0, 5000, 10_000), headers, strict=True)] == [
        True
    ] * 3
    assert {record.key for record in desk.broker.read("calibration")} == {b"p"}


def test_a_table_that_was_sent_in_part_is_sent_again_with_the_same_id(desk):
    desk.send(*cut("t", CONTENT, 1000, kind="gains")[:7])
    producer(desk).send("p", "gains", CONTENT, MEDIA, table="t", segment=1000)
    desk.work(30)
    assert desk.delivered == [("gains", CONTENT)]
    assert desk.totals() == {"consumed": 20, "used": 13, "suppressed": 7, "duplicate": 7}


@pytest.mark.parametrize(
    "wrong", [{"product": "a!b"}, {"product": ""}, {"kind": "Gains"}, {"table": "../x"}, {"segment": 0}]
)
def test_what_nobody_could_use_is_refused_before_it_is_sent(desk, wrong):
    said = {"product": "p", "kind": "gains", "table": "t", "segment": 1000, **wrong}
    with pytest.raises(ValueError, match=r"(?i)expected"):
        producer(desk).send(said["product"], said["kind"], CONTENT, MEDIA, table=said["table"], segment=said["segment"])
    assert desk.broker.read("calibration") == []


def test_a_file_that_changes_while_it_is_sent_is_never_complete(desk, tmp_path):
    file = tmp_path / "in"
    file.write_bytes(CONTENT)
    with pytest.raises(ValueError, match="has changed"):
        producer(desk).send(
            "p", "gains", file, MEDIA, segment=1000, progress=lambda *_: file.write_bytes(CONTENT[::-1])
        )
    with pytest.raises(ValueError, match="has changed"):
        producer(desk).send("p", "gains", file, MEDIA, segment=1000, progress=lambda *_: file.write_bytes(b"short"))
    desk.work(30)
    assert desk.said("COMPLETE") == []


def test_disordered_and_interleaved_segments_are_fetched_in_order(desk, tmp_path):
    one, two = cut("one", CONTENT, 1000), cut("two", CONTENT[::-1], 1000, product="t")
    desk.run([record for pair in zip(reversed(one), two, strict=True) for record in pair])
    fetch(desk.bus, find(desk.bus, "one"), tmp_path / "out", desk.broker.clock)
    assert (tmp_path / "out").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_disk_that_fills_up_while_segments_are_put_in_order_leaves_no_file(desk, tmp_path, monkeypatch):
    """The table was found right before, and only a part of it would stand under its name."""
    desk.run(list(reversed(cut("t", CONTENT, 1000))))
    output, written = tmp_path / "out", 0
    write = facade.flows.tables.buffers.write_all

    def fill_up(file, content):
        nonlocal written
        written += len(content)
        if written > len(CONTENT) + 2000:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, content)

    monkeypatch.setattr(facade.flows.tables.buffers, "write_all", fill_up)
    with pytest.raises(ConfigError, match="cannot be written"):
        fetch(desk.bus, find(desk.bus, "t"), output, desk.broker.clock)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_is_said(desk, tmp_path):
    desk.run([*cut("t", CONTENT, 1000), *cut("u", CONTENT, 1000, product="q")[:3]])
    with pytest.raises(BusError, match="products p"):
        find(desk.bus, "nothing")
    with pytest.raises(BusError, match="u is ASSEMBLING"):
        find(desk.bus, "q")
    table = find(desk.bus, "p")
    with pytest.raises(ConfigError, match="cannot be written"):
        fetch(desk.bus, table, tmp_path / "no" / "out", desk.broker.clock)
    (log,) = (one.entries for one in desk.broker.model.topics["calibration"].partitions if len(one.entries) > 3)
    log[2].value, log[2].headers = log[3].value, log[3].headers
    with pytest.raises(BusError, match="expected 12800 bytes"):
        fetch(desk.bus, table, tmp_path / "out", desk.broker.clock)
    assert list(tmp_path.iterdir()) == []
