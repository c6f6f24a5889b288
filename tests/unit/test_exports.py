"""What is derived from the ICD: the committed files are as it says, and stale ones are noticed."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from facade.cli.app import app
from facade.exports.files import EXPORTS, derive, stale, write
from facade.icd.load import load
from facade.icd.model import Icd

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def icd() -> Icd:
    return load()


@pytest.mark.parametrize("name", EXPORTS)
def test_the_committed_files_are_as_the_icd_says(icd: Icd, name: str) -> None:
    files = derive(icd, (name,))
    assert files
    assert stale(files, ROOT) == [], "run: sdp-facade icd export"


def test_two_exports_never_own_the_same_file(icd: Icd) -> None:
    owned = [path for name in EXPORTS for path in derive(icd, (name,))]
    assert len(owned) == len(set(owned))


def test_what_is_written_is_not_stale_and_not_written_twice(icd: Icd, tmp_path: Path) -> None:
    files = derive(icd)
    assert sorted(write(files, tmp_path)) == sorted(files)
    assert stale(files, tmp_path) == []
    assert write(files, tmp_path) == []


def test_a_change_and_a_missing_file_are_stale(icd: Icd, tmp_path: Path) -> None:
    files = derive(icd)
    write(files, tmp_path)
    first = min(files)
    (tmp_path / first).write_text(files[first] + "\n", encoding="utf-8")
    assert stale(files, tmp_path) == [first]
    (tmp_path / first).write_bytes(b"\xff")
    assert stale(files, tmp_path) == [first]
    (tmp_path / first).unlink()
    assert stale(files, tmp_path) == [first]


def test_the_command_says_what_is_stale_and_mends_it(tmp_path: Path) -> None:
    run = CliRunner().invoke
    checked = run(app, ["icd", "export", "tango-db", "--check", "--to", str(tmp_path)])
    assert (checked.exit_code, "stale: " in checked.output) == (1, True)
    assert run(app, ["icd", "export", "tango-db", "--to", str(tmp_path)]).exit_code == 0
    assert run(app, ["icd", "export", "tango-db", "--check", "--to", str(tmp_path)]).exit_code == 0
    refused = run(app, ["icd", "export", "nothing"])
    assert "expected any of tango-db" in str(refused.exception)
