"""The history of attributes in an archive: what one showed over time, and what all showed at a time."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from typer.testing import CliRunner, Result

from facade.archive import files
from facade.archive.files import ArchiveError
from facade.archive.history import SILENT_US, HistoryArchive, draw, sketch
from facade.archive.reading import read_records
from facade.archive.recording import HISTORY, REPEAT, HistoryRecorder
from facade.archive.stores import FolderStore, Store, open_store
from facade.archive.worker import ArchiveLimits
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.bus.port import Record
from facade.kernel.cli.app import app
from facade.kernel.clock import ManualClock
from facade.kernel.reading import Reading
from tests.archive.test_history_recording import Writer
from tests.support.archives import HOUR, START, archive, faults, kept, worker

RATE, LAG = "mid-sdp/ingest/0001/heapRate", "mid-sdp/ingest/0001/lag"
SECOND = 1_000_000
MINUTE = 60 * SECOND


def record(at: int, value: Any, name: str = RATE, *, time: int | None = None, **more: Any) -> Record:
    """Make a record of a value that was recorded some time after `START` [us]."""
    device, _, attribute = name.rpartition("/")
    message = {"schema": "history/1", "device": device, "attribute": attribute, "value": value, **more}
    message["time"] = START + (at if time is None else time)
    return Record(topic=HISTORY, key=name.encode(), value=json.dumps(message).encode(), timestamp_us=START + at)


def archived(store: Store, *batches: Sequence[Record]) -> HistoryArchive:
    """Write records to an archive, each batch to files of its own."""
    log = MemoryLog({HISTORY: 1})
    running = worker(log, store, HISTORY, limits=ArchiveLimits(age=0.0))
    running.step()
    for batch in batches:
        for one in batch:
            log.append(one)
        running.step()
        running.step()
    running.finish()
    return HistoryArchive(store)


@pytest.fixture(params=["folder", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return FolderStore(tmp_path) if request.param == "folder" else open_store(f"memory://{tmp_path.name}-history")


def shown(found: HistoryArchive, begin: int, end: int, name: str = RATE) -> list[Any]:
    return [one.value for _, one in found.read(name, START + begin, START + end).points]


def test_files_are_sorted_by_key_and_read_in_the_order_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_SORTED_GROUP", 3)
    store = FolderStore(tmp_path)
    records = [record(count * SECOND, count, f"a/b/{count % 3}/x") for count in range(20)]
    archived(store, records)
    (name,) = store.names()
    keys = pq.read_table(tmp_path / name)["key"].to_pylist()
    assert keys == sorted(keys)
    assert pq.read_metadata(tmp_path / name).num_row_groups == 7
    assert faults(store) == []
    assert [one.offset for one in read_records(store, HISTORY, 0, 2 * START)] == [*range(20)]
    assert sorted(one.value or b"" for one in kept(store)) == sorted(one.value or b"" for one in records)


def test_values_of_a_time_are_found_with_the_one_before_them(store: Store) -> None:
    batches = [[record(count * MINUTE, count), record(count * MINUTE, -count, LAG)] for count in range(130)]
    found = archived(store, *batches)
    assert shown(found, 0, 3 * MINUTE) == [0, 1, 2]
    assert shown(found, 3 * MINUTE, 6 * MINUTE) == [2, 3, 4, 5]
    assert shown(found, 58 * MINUTE, 62 * MINUTE) == [57, 58, 59, 60, 61]
    assert shown(found, 128 * MINUTE, 999 * MINUTE, LAG) == [-127, -128, -129]
    assert found.extent() == (START, START + 129 * MINUTE)


@pytest.mark.parametrize("files", [1, 2])
def test_what_ended_long_before_a_time_has_no_value_in_it(tmp_path: Path, files: int) -> None:
    """A file that reaches into the time may have older records."""
    ended, going_on = [record(0, 7)], [record(at * MINUTE, at, LAG) for at in range(1, 6)]
    batches = ([*ended, *going_on],) if files == 1 else (ended, going_on)
    found = archived(FolderStore(tmp_path), *batches)
    assert shown(found, SILENT_US, 5 * MINUTE) == [7]
    with pytest.raises(ArchiveError, match="got none"):
        shown(found, SILENT_US + 1000, 5 * MINUTE)


def test_what_is_repeated_is_one_value(store: Store) -> None:
    again = round(REPEAT * SECOND)
    records = [record(count * again, 1.5, time=0) for count in range(4)]
    found = archived(store, [*records, record(3 * again + 1000, 1.5, time=0, quality="INVALID")]).read(
        RATE, START, START + HOUR
    )
    assert [(one.value, one.quality, at) for at, one in found.points] == [
        (1.5, "VALID", START),
        (1.5, "INVALID", START + 3 * again + 1000),
    ]
    assert found.last == START + 3 * again + 1000


def test_gaps_and_silence_are_seen(store: Store) -> None:
    records = [
        record(0, 1, time=0),
        record(MINUTE, 1, time=0, gap=True),
        record(MINUTE + SILENT_US, 2),
        record(MINUTE + 2 * SILENT_US + 1000, 3),
    ]
    series = archived(store, records).read(RATE, START, START + HOUR)
    assert [(one.value, one.gap) for _, one in series.points] == [(1, False), (1, True), (2, False), (3, True)]
    assert {(at - START, before - START) for at, before in series.gaps.items()} == {
        (MINUTE, 0),
        (MINUTE + 2 * SILENT_US + 1000, MINUTE + SILENT_US),
    }


def test_files_that_come_later_are_seen(tmp_path: Path) -> None:
    store, log = FolderStore(tmp_path), MemoryLog({HISTORY: 1})
    log.append(record(0, 1))
    archive(log, store, HISTORY)
    found = HistoryArchive(store)
    assert shown(found, 0, HOUR) == [1]
    log.append(record(SECOND, 2))
    archive(log, store, HISTORY)
    assert shown(found, 0, HOUR) == [1, 2]


def test_what_is_no_message_is_counted(store: Store) -> None:
    def junk(value: bytes | None) -> Record:
        return Record(topic=HISTORY, key=RATE.encode(), value=value, timestamp_us=START + SECOND)

    odd = (b"", None, b"\xff", b'{"schema":"history/2"}', b"1],[2", b"[" * 10_000)
    found = archived(store, [record(0, 1), *map(junk, odd), record(2 * SECOND, 2)])
    series = found.read(RATE, START, START + HOUR)
    assert [one.value for _, one in series.points] == [1, 2]
    assert series.unreadable == len(odd)
    assert found.at(START + SECOND - 1000)[RATE][1].value == 1
    assert found.at(START + SECOND)[RATE][1].value == 1, "a bad record hides no other"
    assert found.at(START + 2 * SECOND)[RATE][1].value == 2


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_all_attributes_at_a_time_are_the_newest_of_each(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    batch = st.lists(st.tuples(st.integers(0, 5 * MINUTE // 1000), st.sampled_from("abcd")), max_size=12)
    begin, batches = 55 * MINUTE, []
    for times in data.draw(st.lists(batch, min_size=1, max_size=5)):
        batches.append([record(begin + at * 1000, at, f"a/b/c/{name}") for at, name in sorted(times)])
        begin += 5 * MINUTE
    flat = [one for batch in batches for one in batch]
    if not flat:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_SORTED_GROUP", data.draw(st.integers(1, 5)))
        found = archived(FolderStore(tmp_path_factory.mktemp("archive")), *batches)
    first, last = flat[0].timestamp_us, flat[-1].timestamp_us
    assert found.extent() == (first, last)
    time = data.draw(st.integers(first, last))
    wanted = {
        (one.key or b"").decode(): json.loads(one.value or b"")["time"]
        for one in flat
        if time - SILENT_US <= one.timestamp_us <= time
    }
    assert {name: one.time for name, (_, one) in found.at(time).items()} == wanted


def test_what_was_silent_for_long_is_not_there(store: Store) -> None:
    found = archived(store, [record(0, 1), record(SILENT_US, 2, LAG)], [record(SILENT_US + 1000, 3, LAG)])
    assert {*found.at(START + SILENT_US)} == {RATE, LAG}
    assert {*found.at(START + SILENT_US + 1000)} == {LAG}


def test_a_time_without_any_file_has_no_values(store: Store) -> None:
    found = archived(store, [record(0, 1)], [record(9 * HOUR, 2)])
    assert not found.find(RATE, START + 20 * HOUR, START + 21 * HOUR).points
    assert found.at(START + 5 * HOUR) == {}
    with pytest.raises(ArchiveError, match=r"got none$"):
        found.read(RATE, START + 4 * HOUR, START + 5 * HOUR)


def test_an_unknown_attribute_is_told_with_near_ones(store: Store) -> None:
    found = archived(store, [record(0, 1), record(0, 1, LAG)])
    with pytest.raises(ArchiveError, match=rf"heaprate.*2027-01-15T08:00:00.*near ones: {RATE}"):
        found.read(RATE.lower(), START, START + HOUR)
    with pytest.raises(ArchiveError, match=r"got none$"):
        found.read("q", START, START + HOUR)


@pytest.mark.parametrize(("begin", "end"), [(-HOUR, 0), (HOUR, 2 * HOUR)])
def test_a_time_outside_the_archive_is_told(tmp_path: Path, begin: int, end: int) -> None:
    found = archived(FolderStore(tmp_path), [record(0, 1), record(MINUTE, 1)])
    with pytest.raises(ArchiveError, match=r"from 2027-01-15T08:00:00.000\+00:00 to 2027-01-15T08:01:00.000"):
        found.read(RATE, START + begin, START + end)
    with pytest.raises(ArchiveError, match="expected a time from"):
        found.at(START + begin if begin < 0 else START + end)


def test_what_a_recorder_writes_is_read(tmp_path: Path) -> None:
    writer, clock = Writer(), ManualClock(START / SECOND)
    recorder = HistoryRecorder(writer, clock)
    recorder.put("a/b/c", "x", Reading(float("nan"), clock.now_us()))
    log = MemoryLog({HISTORY: 1})
    for one in writer.read_all(HISTORY):
        log.append(Record(topic=HISTORY, key=one.key, value=one.value, timestamp_us=START))
    archive(log, FolderStore(tmp_path), HISTORY)
    ((at, one),) = HistoryArchive(FolderStore(tmp_path)).at(START).values()
    assert (at, one.time, one.value, one.quality, one.gap) == (START, START, "NaN", "VALID", True)


# The sub-command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    records = [record(0, 1.5), record(MINUTE, "NaN", quality="ALARM"), record(2 * MINUTE, 3, gap=True)]
    texts = [record(count * MINUTE, text, "a/b/c/State") for count, text in enumerate(("ON", "a\x1b[31m\n$\\é", "ON"))]
    archived(FolderStore(tmp_path / "archive"), [*records, *texts, record(2 * MINUTE, [1, 2], LAG)])
    return tmp_path / "archive"


def run(folder: Path, *arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, ["history", str(folder), *arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return done


SPAN = ("--from", "2027-01-15T08:00:00Z", "--to", "2027-01-15T08:10")


def test_the_command_prints_values(folder: Path) -> None:
    assert run(folder, RATE, *SPAN).stdout.splitlines() == [
        "time (UTC)               quality  value",
        "2027-01-15 08:00:00.000  VALID    1.5",
        "2027-01-15 08:01:00.000  ALARM    NaN",
        "-- values may be missing from 2027-01-15 08:01:00.000 to 2027-01-15 08:02:00.000 --",
        "2027-01-15 08:02:00.000  VALID    3",
    ]


def test_the_command_prints_csv(folder: Path) -> None:
    rows = [*csv.reader(io.StringIO(run(folder, RATE, *SPAN, "--csv").stdout))]
    assert rows[0] == ["time", "recorded", "value", "quality", "gap"]
    time = "2027-01-15T08:02:00+00:00"
    assert rows[1][2:] == ["1.5", "VALID", ""]
    assert rows[3] == [time, time, "3", "VALID", "gap"]


def test_the_command_prints_all_attributes_at_a_time(folder: Path) -> None:
    printed = run(folder, "--at", "2027-01-15T08:01:30").stdout
    assert [line.split(maxsplit=4)[::4] for line in printed.splitlines()[1:]] == [
        ["a/b/c/State", "a\\u001b[31m\\u000a$\\é"],
        [RATE, "NaN"],
    ]
    rows = [*csv.reader(io.StringIO(run(folder, "--at", "2027-01-15T08:02:00Z", "--csv").stdout))]
    assert [row[0] for row in rows] == ["attribute", "a/b/c/State", RATE, LAG]
    assert rows[3][3] == "[1,2]"


@pytest.mark.parametrize("name", [RATE, "a/b/c/State"])
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_command_draws(folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    file = tmp_path / f"picture.{kind}"
    assert name in run(folder, name, *SPAN, "--plot", str(file)).stderr
    assert file.stat().st_size > 5000


def test_the_command_draws_in_the_terminal(folder: Path) -> None:
    title, *lines = run(folder, RATE, *SPAN, "--terminal").stdout.splitlines()
    assert title == f"{RATE} [records/s]"
    assert {"         1", "         3"} & {line[:10] for line in lines}
    assert "08:00:00" in lines[-2]
    assert lines[-1] == "A: ALARM"
    assert "A" not in "".join(lines[:-1]), "NaN is nowhere"
    states = run(folder, "a/b/c/State", *SPAN, "--terminal").stdout.splitlines()
    assert [line.split(" |")[0].strip() for line in states[2:4]] == ["a\\u001b[31", "ON"]


def test_an_archive_without_a_history_is_told(store: Store) -> None:
    with pytest.raises(ArchiveError, match="expected files topic=TOPIC"):
        HistoryArchive(store).at(START)
    store.write("topic=alerts/hour=2027-01-15T08/0000-00000000.parquet", b"PAR1")
    with pytest.raises(ArchiveError, match="SDP_HISTORY=true"):
        HistoryArchive(store).at(START)


def test_what_ends_early_is_noted(folder: Path) -> None:
    archived(FolderStore(folder.parent / "other"), [record(0, 1), record(HOUR, 1, LAG)])
    done = run(folder.parent / "other", RATE, "--from", "2027-01-15T08:00", "--to", "2027-01-15T10:00")
    assert "note: not recorded after 2027-01-15 08:00:00 UTC" in done.stderr
    assert "note" not in run(folder, RATE, *SPAN).stderr


MISTAKES = {
    "nothing": ([], "expected an attribute with --since or --from"),
    "both": ([RATE, "--at", "2027-01-15"], "expected an attribute with"),
    "two begins": ([RATE, "--since", "1h", *SPAN], "expected an attribute with"),
    "and in the terminal": ([RATE, *SPAN, "--csv", "--terminal"], "expected an attribute with"),
    "two forms": ([RATE, *SPAN, "--csv", "--plot", "x.svg"], "expected an attribute with"),
    "no time": (["--at", "yesterday"], "--at: expected a time such as 2027-01-14T18:00 (UTC), got 'yesterday'"),
    "no calendar": (["--at", "0001-01-01T00:00+14:00"], "--at: expected a time such as 2027-01-14T18:00 (UTC)"),
    "too long": ([RATE, "--since", "999999999d", "--to", "2027-01-01"], "expected a time from 2027-01-15T08:00"),
    "backwards": ([RATE, "--from", "2027-01-15T09:00", "--to", "2027-01-15T08:00"], "expected --from before --to"),
    "now": ([RATE], "expected a time from 2027-01-15T08:00"),
    "unknown": ([LAG + "x", *SPAN], f"near ones: {LAG}"),
    "no picture": ([LAG, *SPAN, "--plot", "x.svg"], "expected numbers, or at most 20 different texts"),
    "nothing to draw": ([LAG, *SPAN, "--terminal"], "expected numbers, or at most 20 different texts"),
    "no such form": ([RATE, *SPAN, "--plot", "x.txt"], "expected a file .svg, .png or .pdf"),
    "no place": ([RATE, *SPAN, "--plot", "/nowhere/x.svg"], "/nowhere/x.svg: cannot be written"),
}


@pytest.mark.parametrize(("arguments", "text"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told(folder: Path, arguments: list[str], text: str) -> None:
    done = CliRunner().invoke(app, ["history", str(folder), *arguments])
    assert done.exit_code != 0
    assert text in " ".join(f"{done.output} {done.exception}".split())


@pytest.mark.parametrize("time", [0, 30 * MINUTE])
def test_a_picture_has_nothing_where_values_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, time: int
) -> None:
    """The value after the gap may be one of before it: the device server has it from its snapshot."""
    drawn: list[tuple[Any, Any]] = []
    step = Axes.step
    monkeypatch.setattr(Axes, "step", lambda self, x, y, **more: drawn.append((x, y)) or step(self, x, y, **more))
    records = [record(0, 1), record(MINUTE, 1, time=0), record(30 * MINUTE, 1, time=time, gap=True)]
    series = archived(FolderStore(tmp_path), records).read(RATE, START, START + HOUR)
    draw(tmp_path / "x.svg", RATE, "1/s", series, START, START + HOUR)
    ((times, heights),) = drawn
    assert ((times.astype(int) - START) // MINUTE).tolist() == [0, 1, 1, 30, 30]
    assert [*map(str, heights)] == ["1.0", "1.0", "nan", "1.0", "1.0"]


def test_an_integer_of_any_size_has_no_height(tmp_path: Path) -> None:
    records = [record(0, 1), record(MINUTE, 10**400), record(2 * MINUTE, 3)]
    series = archived(FolderStore(tmp_path), records).read(RATE, START, START + HOUR)
    drawn = sketch(RATE, "1/s", series, START, START + HOUR, 80)
    assert {"         1", "         3"} <= {line[:10] for line in drawn.splitlines()}


def test_a_record_of_two_archives_in_one_folder_counts_once(tmp_path: Path) -> None:
    """The other archive has a file from offset 5 to the end; that of the first from offset 10 on has ended early."""
    records = [
        Record(topic=HISTORY, key=RATE.encode(), value=b"{", timestamp_us=START + 7 * SECOND),
        *(record(at // 2 * SECOND, at, time=at, gap=at == 12) for at in range(1, 31)),  # two in each millisecond
        *(record(at * SECOND, at, time=at) for at in range(31, 31 + 5 * MINUTE // SECOND)),
    ]
    one, other = FolderStore(tmp_path / "one"), FolderStore(tmp_path / "other")
    whole = archived(FolderStore(tmp_path / "whole"), records)
    both = archived(one, records[:10], records[10:25])
    archived(other, records[:5], records[5:])
    _, long = sorted(other.names())
    (tmp_path / "one" / long.replace("00000001", "00000002")).write_bytes((tmp_path / "other" / long).read_bytes())
    assert len(one.names()) == 3
    found, expected = (archive.read(RATE, START, START + HOUR) for archive in (both, whole))
    assert [(at, value.value) for at, value in found.points] == [(at, value.value) for at, value in expected.points]
    assert (found.gaps, found.unreadable, found.last) == (expected.gaps, 1, expected.last)
    assert both.extent() == whole.extent()
    for at in (8, 14, 40, 200):
        assert both.at(START + at * SECOND) == whole.at(START + at * SECOND)
        span = START + at * SECOND, START + (at + 1) * SECOND
        assert both.read(RATE, *span).points == whole.read(RATE, *span).points
