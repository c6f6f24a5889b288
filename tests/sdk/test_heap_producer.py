"""The producer of heap notifications: whatever fails, each batch that was kept is on the bus once, in its order."""

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.load import load
from facade.sdk.producer.folder import DiskFolder
from facade.sdk.producer.heaps import HeapProducer
from facade.sdk.producer.spool import Spool
from facade.sdp.batches import BatchReader, ReadBatch
from tests.support.columnar import SUMS
from tests.support.waiting import until

pytestmark = pytest.mark.needs("batches")

READER = BatchReader(load().messages["heap"], ["seq", "time"])


class Crash(BaseException):
    """Stands for kill -9."""


@dataclass
class Fate:
    """See `facade.sdk.producer.heaps.Fate`."""

    confirmed: bool
    settled: bool


@dataclass
class Log:
    """A bus whose answers are data: what becomes of each post is said before; after that all goes well."""

    script: list[str] = field(default_factory=list)
    """taken, refused, unheard (it is there, and the producer is told that it failed), full, crash before or after."""
    away: bool = False
    records: list[Record] = field(default_factory=list)
    waiting: list[Fate] = field(default_factory=list)

    def post(self, record: Record) -> Fate:
        act = self.script.pop(0) if self.script else "taken"
        if act == "full":
            raise BusError("the queue is full")
        if act == "crash before":
            raise Crash
        if act != "refused" and not self.away:
            self.records.append(record)
        if act == "crash after":
            raise Crash
        fate = Fate(act == "taken" and not self.away, not self.away)
        self.waiting.append(fate)
        return fate

    def since(self, topic: str, time: float) -> Iterable[Record]:
        if self.away:
            raise BusError("no broker answers")
        return list(self.records)

    def back(self) -> None:
        self.away = False
        for fate in self.waiting:
            fate.settled = True

    def close(self, timeout: float) -> None:
        """Nothing is queued."""

    def batches(self) -> list[ReadBatch]:
        found = [READER.read(record.value or b"", record.headers) for record in self.records]
        assert all(isinstance(one, ReadBatch) for one in found), found
        return found  # type: ignore[return-value]

    def seqs(self) -> list[int]:
        return [int(n) + b.header.bases["seq"] for b in self.batches() for n in b.content.columns["seq"]]


Write = Callable[[DiskFolder, str, int, bytes], None]


class ScriptedFolder(DiskFolder):
    """A folder whose disk does what a test says."""

    def __init__(self, path: Path, write: Write) -> None:
        self.do = write
        super().__init__(path)

    def write(self, name: str, begin: int, content: bytes) -> None:
        self.do(self, name, begin, content)


write_all: Write = DiskFolder.write


def full(folder: DiskFolder, name: str, begin: int, content: bytes) -> None:
    if name.endswith(".spool") and content:
        DiskFolder.write(folder, name, begin, content[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    DiskFolder.write(folder, name, begin, content)


@dataclass
class Bench:
    """A producer that can be crashed and started again."""

    folder: Path
    log: Log = field(default_factory=Log)
    clock: ManualClock = field(default_factory=ManualClock)
    write: Write = write_all
    most_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        self.seq = 0
        self.start()

    def start(self) -> None:
        if "producer" in vars(self):
            self.producer._spool.close()
        self.producer = HeapProducer(
            42, ScriptedFolder(self.folder, lambda *given: self.write(*given)), log=self.log, clock=self.clock, rows=10,
            most_bytes=self.most_bytes,
        )  # fmt: skip

    def send(self, count: int = 10, **changed: object) -> None:
        seq = np.arange(self.seq, self.seq + count)
        self.seq += count
        columns = {name: np.full(count, 1) for name in ("channel_start", "received", "lost", "late")}
        columns |= {name: np.full(count, 0.5) for name in ("flagged_fraction", "latency")}
        self.producer.add_columns(**{
            "scan_id": 7, "channel_count": 64, "seq": seq, "time": 1_795_276_800_000_000 + seq, **columns, **changed
        })  # fmt: skip

    def send_often(self, times: int) -> None:
        for _ in range(times):
            self.send()
            self.producer.step()

    def run(self, seconds: float = 5.0) -> None:
        for _ in range(round(seconds / 0.1)):
            self.producer.step()
            self.clock.sleep(0.1)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "spool")


def test_a_batch_is_cut_by_rows_age_and_scan(bench: Bench) -> None:
    bench.send(13)
    bench.producer.step()
    assert [batch.rows for batch in bench.log.batches()] == [10]
    bench.send(2, scan_id=8)
    bench.clock.sleep(0.2)
    bench.producer.step()
    batches = bench.log.batches()
    assert [batch.rows for batch in batches] == [10, 3, 2]
    assert [batch.header.constants["scan_id"] for batch in batches] == [7, 7, 8]
    assert [batch.header.sequence for batch in batches] == [0, 1, 2]
    assert bench.log.seqs() == list(range(15))
    assert {record.key for record in bench.log.records} == {b"42"}


def test_a_batch_ends_with_its_window(bench: Bench) -> None:
    """It leaves at the end of the window, and not only when it is old: the window is closed 0.1 s later."""
    end = 1_800_000_001_000_000
    bench.clock.sleep(0.97)
    bench.send(4, time=[end - 30_000, end - 20_000, end - 1, end])
    bench.clock.sleep(0.03)
    bench.producer.step()
    assert bench.log.seqs() == [0, 1, 2], "the one of the next window waits for others"
    bench.send(2, time=[end - 2, end + 1])
    bench.clock.sleep(0.02)
    bench.producer.step()
    assert bench.log.seqs() == [0, 1, 2, 4], "a straggler is in time"
    bench.run(1)
    assert bench.log.seqs() == [0, 1, 2, 4, 3, 5]


def test_wrong_times_share_a_batch(bench: Bench) -> None:
    """No window waits for them, and a clock that is wrong must not make a batch of each notification."""
    bench.send(9, time=[1_800_000_000_000_000 + 10**6 * at for at in (-11, 30, -20, 99, 0, -12, 200, -400, 0)])
    bench.run(1)
    assert bench.log.seqs() == [0, 2, 5, 7, 4, 8, 1, 3, 6]
    assert [batch.rows for batch in bench.log.batches()] == [4, 2, 3]


@pytest.mark.parametrize(
    "changed",
    [
        {"lost": [1.5] * 10},
        {"lost": ["x"] * 10},
        {"lost": [1]},
        {"more": [1] * 10},
        {"scan_id": 0},
        {"scan_id": 2**70},
        {"channel_count": float("nan")},
    ],
)
def test_what_is_no_notification_is_refused(bench: Bench, changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        bench.send(10, **changed)
    bench.run(1)
    assert bench.log.records == []


@pytest.mark.parametrize(
    "script",
    [
        ["refused"],
        ["unheard"],
        ["taken", "refused", "taken", "unheard", "full", "refused", "unheard"],
        ["refused", "taken", "refused", "unheard"],
        ["full", "full", "taken", "full"],
    ],
)
def test_what_fails_is_sent_again_unless_it_is_there(bench: Bench, script: list[str]) -> None:
    bench.log.script = script
    for _ in range(6):
        bench.send()
        bench.run(0.2)
    bench.run(20)
    assert sorted(bench.log.seqs()) == list(range(60))
    assert bench.producer.standing.waiting == 0


CRASHES = [*((["taken"] * at) + [kind] for at in range(4) for kind in ("crash before", "crash after"))]


@pytest.mark.parametrize("script", CRASHES, ids=lambda script: f"{script[-1]} {len(script)}")
def test_a_crash_around_each_post(bench: Bench, script: list[str]) -> None:
    bench.log.script = script
    with pytest.raises(Crash):
        bench.send_often(5)
    bench.start()
    bench.send()
    bench.run()
    assert bench.log.seqs() == list(range(bench.seq))
    assert [batch.header.sequence for batch in bench.log.batches()] == list(range(bench.seq // 10))


@pytest.mark.parametrize("part", [0, 1, 8, 30, 100, 10_000])
def test_a_crash_in_the_middle_of_a_frame(bench: Bench, part: int) -> None:
    bench.log.away = True
    bench.send()

    def torn(folder: DiskFolder, name: str, begin: int, content: bytes) -> None:
        write_all(folder, name, begin, content[:part])
        raise Crash

    bench.write = torn
    with pytest.raises(Crash):
        bench.send()
    bench.write = write_all
    bench.start()
    bench.log.back()
    bench.run()
    whole = part > 1000
    assert bench.log.seqs() == list(range(20 if whole else 10))
    assert (bench.producer._spool.cut > 0) == (0 < part < 1000)
    bench.send()
    bench.run()
    assert bench.log.seqs()[-10:] == list(range(20, 30))


def test_a_full_disk_is_told_and_costs_nothing_while_the_bus_takes_all(bench: Bench) -> None:
    bench.write = full
    bench.send_often(5)
    assert "No space left" in bench.producer.standing.disk
    bench.write = write_all
    bench.send()
    bench.run()
    assert bench.producer.standing.disk == ""
    assert bench.log.seqs() == list(range(60))
    bench.start()
    bench.run()
    assert bench.log.seqs() == list(range(60)), "nothing comes again"


def test_a_file_that_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(DiskFolder(tmp_path), segment_bytes=100)
    for number in range(4):
        assert spool.add(b"x" * 90, 1, number)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "unlink", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EROFS, "read-only")))
        assert spool.mark(done=2, posted=2)
    assert (spool.trouble[-9:], len(list(tmp_path.glob("*.spool")))) == ("read-only", 4)
    spool.mark(done=3, posted=3)
    assert len(list(tmp_path.glob("*.spool"))) == 1


def test_nothing_is_sent_that_a_crash_would_repeat(bench: Bench) -> None:
    def broken(folder: DiskFolder, name: str, begin: int, content: bytes) -> None:
        if name == "mark":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        write_all(folder, name, begin, content)

    bench.send_often(1)
    bench.run()
    bench.write = broken
    bench.send_often(2)
    bench.run()
    assert bench.log.seqs() == list(range(10))
    assert "mark cannot be written" in bench.producer.standing.bus
    bench.write = write_all
    bench.start()
    bench.run()
    assert bench.log.seqs() == list(range(30))


def test_what_finds_no_room_is_counted_and_told(bench: Bench) -> None:
    bench.most_bytes = 5_000
    bench.start()
    bench.log.away = True
    for _ in range(20):
        bench.send()
        bench.run(0.1)
    dropped = bench.producer.standing.dropped
    assert 0 < dropped < 200
    bench.log.back()
    bench.run()
    bench.send()
    bench.run()
    batches = bench.log.batches()
    assert [batch.header.sequence for batch in batches] == list(range(len(batches)))
    assert [batch.header.dropped for batch in batches] == [0] * (len(batches) - 1) + [dropped]
    assert bench.log.seqs() == [*range(200 - dropped), *range(200, 210)]


def test_what_the_disk_does_not_give_back_is_counted(bench: Bench) -> None:
    bench.log.away = True
    bench.send_often(100)
    stored = bench.producer._spool.waiting[80]
    with (bench.folder / stored.name).open("r+b") as file:
        file.seek(stored.begin + 200)
        file.write(b"\xff\x00\xff")
    bench.log.back()
    bench.run()
    bench.send()
    bench.run()
    assert bench.producer.standing.dropped == 10
    assert bench.log.batches()[-1].header.dropped == 10
    assert len(bench.log.seqs()) == 1000


@pytest.mark.parametrize(("number", "dropped"), [(errno.EMFILE, 0), (errno.EIO, 10)])
def test_a_batch_that_cannot_be_read_for_a_while_is_not_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int, dropped: int
) -> None:
    bench.log.away = True
    bench.send_often(100)
    read = DiskFolder.read

    def fail(folder: DiskFolder, *given: Any) -> bytes:
        monkeypatch.setattr(DiskFolder, "read", read)
        raise OSError(number, os.strerror(number))

    bench.log.back()
    monkeypatch.setattr(DiskFolder, "read", fail)
    bench.run()
    assert (bench.producer.standing.dropped, bench.producer.standing.bus) == (dropped, "")
    assert len(bench.log.seqs()) == 1000 - dropped


@pytest.mark.parametrize("damaged", [{3}, {0, 3, 4}])
def test_a_batch_that_was_damaged_before_a_start_costs_no_other(bench: Bench, damaged: set[int]) -> None:
    bench.log.away = True
    bench.send(1000)
    bench.producer.step()
    for stored in [bench.producer._spool.waiting[number] for number in damaged]:
        with (bench.folder / stored.name).open("r+b") as file:
            file.seek(stored.begin + 200)
            file.write(b"\xff\x00\xff")
    bench.start()
    bench.log.back()
    bench.run()
    bench.send()
    bench.run()
    assert bench.log.seqs() == [seq for seq in range(1010) if seq // 10 not in damaged]
    assert (bench.producer.standing.missing, bench.producer._spool.cut) == (len(damaged), 0)


def test_a_spool_has_one_owner(tmp_path: Path) -> None:
    first = DiskFolder(tmp_path)
    with pytest.raises(ConfigError, match="another process"):
        HeapProducer(42, tmp_path)
    first.close()
    DiskFolder(tmp_path).close()


def test_wrong_settings_do_not_keep_the_spool_from_the_next_attempt(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"no\.such\.property"):
            HeapProducer(42, tmp_path, settings=Settings(kafka={"no.such.property": "1"}))


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can be written"):
        HeapProducer(42, tmp_path / "file")


@pytest.mark.parametrize("content", [b"", b"torn", bytes(20)])
def test_a_mark_that_cannot_be_read(bench: Bench, content: bytes) -> None:
    for _ in range(3):
        bench.send()
        bench.run(0.3)
    (bench.folder / "mark").write_bytes(content)
    bench.start()
    bench.run()
    bench.send()
    bench.run()
    assert bench.log.seqs() == list(range(40))


def test_old_files_are_removed_and_nothing_comes_again(tmp_path: Path) -> None:
    spool = Spool(DiskFolder(tmp_path), segment_bytes=100)
    for number in range(10):
        assert spool.add(b"x" * 60, 1, number)
        spool.mark(done=number - 2, posted=number)
    assert len(list(tmp_path.glob("*.spool"))) < 5
    spool.mark(done=9, posted=9)
    spool.close()
    again = Spool(DiskFolder(tmp_path))
    assert (again.next, len(again.waiting), again.size) == (10, 0, 0)


def test_the_end(bench: Bench) -> None:
    with bench.producer as producer:
        producer.start()
        bench.send(25)
        bench.log.away = True
        bench.send(5)
    producer.close()
    bench.log.back()
    again = HeapProducer(42, bench.folder, log=bench.log, clock=bench.clock)
    bench.clock.sleep(1)
    again.close(60)
    assert bench.log.seqs() == list(range(30))


def test_values_that_need_more_bits_get_them(bench: Bench) -> None:
    bench.send(10, lost=[70_000] * 10, received=[-1] * 10)
    bench.producer.step()
    (batch,) = bench.log.batches()
    assert batch.content.columns["lost"].tolist() == [70_000] * 10
    assert batch.content.columns["received"].tolist() == [-1] * 10, "the worker refuses it, by row"


@pytest.mark.parametrize("value", [-1, -(2**62), 2**62])
@pytest.mark.parametrize("name", ["seq", "time"])
def test_an_impossible_number_costs_no_other_notification(bench: Bench, name: str, value: int) -> None:
    columns = {"seq": np.arange(10), "time": 1_795_276_800_000_000 + np.arange(10)}
    for scan, column in enumerate((columns[name].copy(), columns[name][:1].copy()), 1):
        column[0] = value
        bench.send(len(column), **{"scan_id": scan, "seq": np.arange(len(column)), name: column})
    bench.run()
    batches = bench.log.batches()
    found = [x + one.header.bases[name] for one in batches for x in one.content.columns[name].tolist()]
    assert sorted(found) == sorted([value, value, *columns[name][1:].tolist()])


def test_a_batch_keeps_its_frame_through_a_crash(bench: Bench) -> None:
    """It is in the spool with the batch, beside batches without one."""
    bench.log.away = True
    bench.send()
    bench.producer._sums = SUMS
    bench.send()
    bench.producer.step()
    bench.start()
    bench.log.back()
    bench.run()
    plain, summed = (record.headers for record in bench.log.records)
    assert [name for name, _ in plain] == ["content-type", "batch"]
    assert summed == SUMS.with_frame(summed[:2], bench.log.records[1].value)
    assert summed[2][0] == "frame"


def test_a_producer_sums_up_if_it_is_told_to(tmp_path: Path) -> None:
    log = Log()
    with HeapProducer(42, tmp_path, log=log, clock=ManualClock(), summed=True) as producer:
        producer.add(
            scan_id=7, channel_count=64, seq=0, time=1_795_276_800_000_000, channel_start=0, received=64, lost=0,
            late=0, flagged_fraction=0.25, latency=0.5,
        )  # fmt: skip
    assert [name for name, _ in log.records[0].headers] == ["content-type", "batch", "frame"]


def test_nothing_is_taken_after_the_end(bench: Bench) -> None:
    bench.log.away = True
    bench.send(15)
    bench.producer.close()
    owner = Spool(DiskFolder(bench.folder))
    before = {path.name: path.read_bytes() for path in bench.folder.iterdir()}
    with pytest.raises(ValueError, match="closed"):
        bench.send(10)
    bench.producer.flush()
    bench.log.away = False
    bench.run()
    assert {path.name: path.read_bytes() for path in bench.folder.iterdir()} == before
    assert sum(stored.rows for stored in owner.head(9)) == 15
    owner.close()


def test_a_mistake_of_ours_does_not_end_the_sending(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.log, "post", MagicMock(side_effect=RuntimeError("no such thing")))
    with bench.producer as producer:
        producer.start()
        bench.send()
        until(lambda: producer.standing.bus == "internal error: RuntimeError: no such thing", "the mistake is told")
        monkeypatch.undo()
        bench.clock.sleep(1.0)
        until(lambda: bench.log.seqs() == list(range(10)), "the batch is sent")
