"""`archive verify`: whatever is wrong with the files of an archive is found, and said clearly."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from facade.archive import files
from facade.archive.files import VERSION, ArchiveError, inspect, verify
from facade.archive.reading import read_records
from facade.archive.stores import FolderStore, open_store
from facade.kernel.bus.memory import MemoryLog
from facade.kernel.cli.app import app
from tests.support.archives import HOUR, START, archive_of, changed, faults, worker

FOLDER = "topic=alerts/hour=2027-01-15T08"


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[100] ^= 1
    file.write_bytes(raw)


def plain_parquet(file: Path) -> None:
    pq.write_table(pa.table({"offset": [1]}), file)


def rewrite(**changes: int) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(changed(file.read_bytes(), **changes))


def rename(file: Path) -> None:
    file.rename(file.with_name("0001-00000001.parquet"))


def move(file: Path) -> None:
    other = Path(str(file).replace("T08", "T09"))
    other.parent.mkdir()
    file.rename(other)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def endless(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (cut, "expected a whole Parquet file"),
    "empty": (lambda file: file.write_bytes(b""), "expected a whole Parquet file, got 0 bytes"),
    "bit flip": (flip, "the digest differs"),
    "another program's": (plain_parquet, "a Parquet file without a digest"),
    "future": (rewrite(version=VERSION + 1), "expected version 1 or older, got 2: use a newer release"),
    "count": (rewrite(records=9), "expected 9 ascending offsets from 2 to 4, got 3"),
    "gone": (lambda file: file.unlink(), "expected number 1, got 2: a file is missing"),
    "other name": (rename, "expected the file that its name says, got topic=alerts"),
    "other hour": (move, "expected the file that its name says, got topic=alerts/hour=2027-01-15T08"),
    "pipe": (pipe, "expected a regular file"),
    "device": (endless, "expected a regular file"),
    "hole": (
        lambda file: os.truncate(file, 2**40),
        "at most 256,000,000 bytes, got 1,099,511,627,776",
    ),
    "no name": (lambda file: file.rename(file.with_name("a.parquet")), "expected a name as of an archive's files"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_has_a_clear_fault(damage: str, tmp_path: Path) -> None:
    archive_of(tmp_path, 2, 3, 1)
    act, text = DAMAGES[damage]
    act(tmp_path / FOLDER / "0000-00000001.parquet")
    done = CliRunner().invoke(app, ["archive", "verify", str(tmp_path)])
    assert done.exit_code == 1
    assert text in done.stderr
    said = done.stderr.splitlines()
    assert all(line.startswith("fault: topic=alerts/") for line in said)
    assert any("offsets 2 to 4 were not taken" in line for line in said)


def test_a_file_of_more_records_than_a_worker_writes_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 0.8 MB had 30,000,000, and took 795 MB."""
    store = archive_of(tmp_path, 2, 3, 1)
    monkeypatch.setattr(files, "MOST_ROWS", 2)
    assert [one for one in faults(store) if "not taken" not in one] == [
        f"{FOLDER}/0000-00000001.parquet: expected at most 2 records in a file, got 3"
    ]
    with pytest.raises(ArchiveError, match="at most 2 records"):
        [*read_records(store, "alerts", START, START + HOUR)]


def test_offsets_without_a_record_are_said(tmp_path: Path) -> None:
    store = archive_of(tmp_path, 2, 3)
    file = tmp_path / FOLDER / "0000-00000001.parquet"
    file.write_bytes(changed(file.read_bytes(), next=10**15))
    (report,) = verify(store)
    assert report.faults == []
    assert report.notes == [
        f"{FOLDER}/{file.name}: 999,999,999,999,992 of its offsets have no record: a restore would write a filler for"
        " each"
    ]


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_bit_that_flips_is_found(place: float, bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    raw = bytearray(sample(tmp_path_factory))
    raw[int(place * len(raw))] ^= 1 << bit
    with pytest.raises(ArchiveError):
        inspect(bytes(raw))


@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_that_is_cut_anywhere_is_found(share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    raw = sample(tmp_path_factory)
    with pytest.raises(ArchiveError):
        inspect(raw[: int(share * len(raw))])


def sample(factory: pytest.TempPathFactory, kept: list[bytes] = []) -> bytes:  # noqa: B006 - made once
    if not kept:
        store = archive_of(factory.mktemp("sample"), 3, value=b'{"x":1}')
        kept.append(store.read(store.names()[0]))
    return kept[0]


def test_two_archives_in_one_folder_overlap(tmp_path: Path) -> None:
    archive_of(tmp_path / "a", 2, 3)
    archive_of(tmp_path / "b", 1, 2, at_us=START + HOUR)
    shutil.copytree(tmp_path / "b", tmp_path / "a", dirs_exist_ok=True)
    found = faults(FolderStore(tmp_path / "a"))
    assert any("expected number 1, got 0: it is there twice" in one for one in found)
    assert any("archives overlap" in one for one in found)


def test_an_archive_that_is_whole_is_exit_code_0(tmp_path: Path) -> None:
    archive_of(tmp_path, 2, 3)
    done = CliRunner().invoke(app, ["archive", "verify", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split() == ["alerts", "0", "2", "5", "0-4", "0"]
    (tmp_path / FOLDER / "0000-00000000.parquet").unlink()
    assert faults(FolderStore(tmp_path)) == [], "an archive may begin anywhere"


def test_where_there_is_no_archive_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=f"^{tmp_path / 'nothing'}: expected files topic=TOPIC/.* got none"):
        [*verify(FolderStore(tmp_path / "nothing"))]
    with pytest.raises(ArchiveError, match=r"^memory://nothing: expected files"):
        [*verify(open_store("memory://nothing"))]


def test_a_worker_does_not_go_on_behind_a_damaged_file(tmp_path: Path) -> None:
    store = archive_of(tmp_path, 2, 3)
    cut(tmp_path / FOLDER / "0000-00000001.parquet")
    with pytest.raises(ArchiveError, match="if it is damaged, move it away to write its records again"):
        worker(MemoryLog({"alerts": 1}), store).step()


@pytest.mark.parametrize("removed", [1, 2, 3])
def test_files_that_retention_removes_meanwhile_are_no_faults(removed: int, tmp_path: Path) -> None:
    store, are_gone = archive_of(tmp_path, 1, 2, 3, 4), threading.Event()

    class Removing(FolderStore):
        def read(self, name: str) -> bytes:
            if not name.endswith("-00000000.parquet"):
                are_gone.wait(30.0)  # files are read at the same time
                return super().read(name)
            found = super().read(name)
            for one in sorted(store.names())[:removed]:
                store.remove(one)
            are_gone.set()
            return found

    (report,) = verify(Removing(tmp_path))
    assert report.faults == []
    assert len(report.notes) == removed - 1
    if removed > 1:
        assert (len(report.entries), report.offsets) == (4 - removed, f"{(1, 3, 6)[removed - 1]}-9")
