"""The bytes of small tables beside the device: fetched in the background, checked, bounded, and given at once."""

import hashlib
import json
from pathlib import Path
from threading import Event, active_count
from typing import Any

import fsspec
import pytest

from facade.flows.tables.contents import Contents, Held
from facade.flows.tables.fetch import TableFetch
from facade.flows.tables.flow import TablesFlow
from facade.flows.tables.messages import segment_record
from facade.flows.tables.places import parse_roots
from facade.flows.tables.references import References
from facade.kernel.bus.port import Record
from facade.kernel.outcome import TOMBSTONE, USED
from facade.sdp.messages import TableSegment
from tests.support.simulated_bus import MemoryBus, MemoryReader
from tests.support.stores import SCHEME, Faulty, until
from tests.support.tables import Desk, cut

FIRST, SECOND = "subarray/01/", "subarray/02/"
GAINS = f"{FIRST}gains"
MOST = 1000
CONTENT = bytes(range(250))


class Bench:
    """An assembling worker that announces tables, and one device server's side of them."""

    def __init__(self, tmp: Path) -> None:
        self.desk = Desk(tmp)
        self.clock, self.broker = self.desk.broker.clock, self.desk.broker
        self.known = True
        self.tmp = tmp
        self.start()

    def start(self) -> None:
        """Start the device server, as after a kill."""
        self.flow, self.bus, self._read = TablesFlow(), MemoryBus(self.broker), 0
        self.contents = Contents(
            self.flow,
            [FIRST, SECOND],
            self.bus,
            most=MOST,
            references=References([self.tmp]),
            known=lambda: self.known,
            clock=self.clock,
        )
        self.hear()

    def hear(self) -> None:
        """Let the flow take what has been announced since."""
        for record in self.broker.read("tables")[self._read :]:
            self._read += 1
            assert self.flow.fold(record, count=True) in (USED, TOMBSTONE)

    def send(self, *records: Record) -> None:
        self.desk.run(records)
        self.hear()

    def table(self, name: str, content: bytes = CONTENT, product: str = GAINS, **more: Any) -> None:
        """Send a table; what is in it is of a kind that nobody looks into."""
        self.clock.sleep(1.0)
        self.send(*cut(name, content, product=product, kind="sky", **more))

    def fetch(self, most: int = 20) -> int:
        """Fetch all that is wanted; return how many times a table was tried."""
        for tried in range(most):
            if not self.fetch_one():
                return tried
        raise AssertionError("it goes on and on")

    def fetch_one(self) -> bool:
        """Try the next table that is wanted, until it is there or fails; False: there is none."""
        if not self.contents.step():
            return False
        while self.contents._fetching is not None:
            assert self.contents.step()
        return True

    def find(self, name: str = GAINS, prefix: str = FIRST) -> Held | str:
        return self.contents.find(prefix, name)

    def content(self, name: str = GAINS, prefix: str = FIRST) -> bytes:
        found = self.find(name, prefix)
        assert isinstance(found, Held), found
        return found.content


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    with made.desk:
        yield made


def test_a_small_table_is_given_by_its_product_and_its_id_once_it_was_fetched(bench):
    bench.table("t1")
    assert bench.find() == f"t1 of {GAINS} is being fetched; try again"
    assert bench.fetch() == 1
    assert bench.content() == bench.content("t1") == CONTENT
    assert bench.fetch() == 0


def test_it_is_back_after_a_restart_and_not_before_all_is_read(bench):
    bench.table("t1")
    bench.fetch()
    bench.known = False
    bench.start()
    assert bench.fetch() == 0
    bench.known = True
    bench.fetch()
    assert bench.content() == CONTENT


def test_a_larger_one_is_refused_and_never_fetched(bench):
    bench.table("t1", bytes(MOST + 1), segment=500)
    assert bench.fetch() == 0
    wanted = f"expected a table of at most 1000 bytes, got t1 of 1001; fetch it with `sdp-facade tables get {GAINS}`"
    assert bench.find().startswith(wanted)


def test_a_newer_table_takes_the_place_once_it_is_there(bench):
    """Until then the one before it is given by its id: who has asked for its digest has a moment to get it."""
    bench.table("t1")
    bench.fetch()
    bench.table("t2", b"newer")
    assert bench.find() == f"t2 of {GAINS} is being fetched; try again"
    assert bench.content("t1") == CONTENT
    assert "expected the id" in bench.find("t1", SECOND)
    bench.fetch()
    assert bench.content() == bench.content("t2") == b"newer"
    assert "expected the id" in bench.find("t1")


def test_what_does_not_have_the_announced_digest_is_not_given(bench):
    bench.table("t1")
    tamper(bench, lambda value: bytes(len(value)))
    bench.fetch()
    assert "could not be fetched: digest: expected the digest" in bench.find()
    assert "its producer may send it again" in bench.find()


def test_what_is_not_on_the_bus_any_more_is_said_and_not_sought_all_the_time(bench):
    bench.table("t1")
    tamper(bench, lambda value: None)
    assert bench.fetch() == 1
    assert "are not on calibration any more" in bench.find()
    bench.clock.sleep(599.0)
    assert bench.fetch() == 0
    bench.clock.sleep(1.0)
    assert bench.fetch() == 1
    bench.table("t2", b"newer")
    bench.fetch()
    assert bench.content() == b"newer"


def tamper(bench: Bench, change: Any) -> None:
    """Change the values of all segments where they are; None: they are no segments any more."""
    for partition in bench.broker.model.topics["calibration"].partitions:
        for entry in partition.entries:
            entry.value = change(entry.value)
            entry.headers = entry.headers if entry.value is not None else ()


def test_a_broker_that_is_away_is_asked_again_and_again(bench):
    bench.table("t1")
    bench.bus.away = True
    assert bench.fetch() == 1
    assert "could not be fetched: cannot read calibration at 127.0.0.1:9092: no broker answers there" in bench.find()
    bench.bus.away, bench.bus.health.connected = False, False
    bench.clock.sleep(2.0)
    assert bench.fetch() == 0
    bench.bus.health.connected = True
    bench.fetch()
    assert bench.content() == CONTENT


def test_a_broker_that_says_nothing_does_not_hold_up_the_next_table_for_ever(bench, monkeypatch):
    bench.table("t1")
    bench.bus.waits = True
    monkeypatch.setattr(MemoryReader, "take", lambda self, limit, timeout: bench.clock.sleep(timeout) or [])
    monkeypatch.setattr(MemoryReader, "caught_up", lambda self, topic: False)
    assert bench.fetch() == 1
    assert "nothing came from the bus for 10 s" in bench.find()
    bench.clock.sleep(2.0)
    bench.contents.step()
    assert bench.contents.step()
    bench.contents.close()  # told to end meanwhile: nothing more is known to be wrong
    assert "nothing came from the bus for 10 s" in bench.find()


def test_the_newest_ones_are_held_up_to_a_total_for_each_subarray(bench):
    for number in range(6):
        bench.table(f"t{number}", bytes([number]) * MOST, f"{FIRST}p{number}", segment=500)
    bench.table("other", bytes(MOST), f"{SECOND}p", segment=500)
    bench.table("small", b"x", f"{FIRST}small")
    bench.fetch()
    held = [number for number in range(6) if isinstance(bench.find(f"t{number}"), Held)]
    assert held == [3, 4, 5]  # with the small one, a fourth would be more than 4 * MOST
    assert bench.content("small") == b"x"
    assert bench.content("other", SECOND) == bytes(MOST)
    assert "expected one of the newest tables with 4000 bytes in all, got t2; fetch it with" in bench.find("t2")
    bench.table("t2-again", b"y" * MOST, f"{FIRST}p2", segment=500)
    bench.fetch()
    assert [n for n in range(6) if isinstance(bench.find(f"{FIRST}p{n}"), Held)] == [2, 4, 5]


def test_a_product_that_is_removed_is_dropped(bench):
    bench.table("t1")
    bench.fetch()
    bench.broker.append(Record(topic="tables", key=GAINS.encode(), value=None))
    bench.hear()
    bench.fetch()
    assert "expected the id" in bench.find()
    assert "expected the id" in bench.find("t1")


def test_a_reference_is_read_where_it_is(bench, tmp_path):
    file = tmp_path / "gains.arrow"
    file.write_bytes(CONTENT)
    header = TableSegment(
        table="t1",
        product=GAINS,
        kind="sky",
        content_type="x/y",
        index=0,
        count=0,
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        sent_at=1,
        url=file.as_uri(),
    )
    bench.send(segment_record(header, b""))
    bench.fetch()
    assert bench.content() == CONTENT
    bench.start()
    file.write_bytes(CONTENT[::-1])
    bench.fetch()
    assert "could not be fetched: digest: " in bench.find()


def test_a_store_that_hangs_holds_up_no_call_and_no_other_table(bench):
    """Its threads are abandoned, and then it is left alone; calls only look into memory."""
    bench.table("t1")
    said, free = bench.desk.said("COMPLETE")[0], Event()
    for product in ("a", "b", "c", "d"):
        bench.clock.sleep(1.0)
        newer = {"product": FIRST + product, "table": product, "url": f"{SCHEME}://bucket/{product}"}
        document = {**said, **newer, "time": said["time"] + ord(product)}
        bench.broker.append(Record(topic="tables", key=newer["product"].encode(), value=json.dumps(document).encode()))
    fsspec.register_implementation(SCHEME, Faulty, clobber=True)
    Faulty.follow((len(CONTENT), [until(free)]))
    roots = parse_roots(f"{SCHEME}://bucket")
    bench.contents._references = References(roots, clock=bench.clock, patience=0.2, silence=0.2)
    bench.hear()
    before = active_count()
    for _ in range(50):
        bench.fetch_one()
        bench.clock.sleep(2.0)
    assert bench.content() == CONTENT
    assert all("could not be fetched: unavailable" in bench.find(FIRST + product) for product in "abcd")
    assert (len(Faulty.opened), active_count() - before) == (3, 3)
    bench.contents.close()
    free.set()


def test_a_mistake_about_one_table_does_not_hold_up_the_others(bench, monkeypatch, caplog):
    bench.table("t1")
    bench.table("t2", product="subarray/01/other")
    step = TableFetch.step

    def mistaken(self: TableFetch) -> Any:
        if self._table.table == "t2":
            raise RuntimeError("no more threads")
        return step(self)

    monkeypatch.setattr(TableFetch, "step", mistaken)
    for _ in range(3):
        bench.fetch_one()
    assert bench.content() == CONTENT
    assert "could not be fetched: internal error: RuntimeError" in bench.find("subarray/01/other")
    assert sum("fetching failed" in record.message for record in caplog.records) == 1
