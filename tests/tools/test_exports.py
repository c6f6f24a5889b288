"""What is derived from the ICD: the committed files are as it says, and stale ones are noticed."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from facade.kernel.cli.app import app
from facade.kernel.icd.load import _installed, load
from facade.kernel.manifest import Manifest
from facade.tools.exports.files import EXPORTS, derive, stale, write

ROOT = Path(__file__).parents[2]


POGO = {"pogo/SdpBus.xmi": "<bus/>", "pogo/SdpMaster.xmi": "<master/>"}
FILES = {**POGO, "docs/reference/SdpBus.md": "# SdpBus\n", "tango-db/alarms.txt": "rules\n"}
"""Files as some exports make them."""


def test_two_exports_never_own_the_same_file() -> None:
    icd = load()
    paths = [path for name in EXPORTS for path in derive(icd, (name,))]
    assert len(paths) == len({*paths})
    assert FILES.keys() <= {*paths}


def test_a_change_and_a_missing_file_are_stale_and_what_was_just_written_is_not(tmp_path: Path) -> None:
    assert sorted(write(FILES, tmp_path)) == sorted(FILES)
    assert write(FILES, tmp_path) == []
    first = min(FILES)
    (tmp_path / first).write_text(FILES[first] + "\n", encoding="utf-8")
    assert stale(FILES, tmp_path) == [first]
    (tmp_path / first).write_bytes(b"\xff")
    assert stale(FILES, tmp_path) == [first]
    (tmp_path / first).unlink()
    assert stale(FILES, tmp_path) == [first]


def test_a_file_that_is_not_derived_any_more_is_stale_and_removed(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    (tmp_path / "pogo/SdpGone.xmi").write_text("", encoding="utf-8")
    (tmp_path / "docs/reference/SdpGone.md").write_text("", encoding="utf-8")
    (tmp_path / "tango-db/README.md").write_text("", encoding="utf-8")  # written by hand: none of theirs
    assert stale(FILES, tmp_path) == ["pogo/SdpGone.xmi", "docs/reference/SdpGone.md"]
    assert stale(POGO, tmp_path) == ["pogo/SdpGone.xmi"]
    assert stale({"tango-db/alarms.txt": FILES["tango-db/alarms.txt"]}, tmp_path) == []
    assert write(FILES, tmp_path) == ["pogo/SdpGone.xmi", "docs/reference/SdpGone.md"]
    assert stale(FILES, tmp_path) == []
    assert (tmp_path / "tango-db/README.md").exists()


def test_the_command_says_what_is_stale_and_mends_it(tmp_path: Path) -> None:
    run = CliRunner().invoke
    checked = run(app, ["icd", "export", "tango-db", "--check", "--to", str(tmp_path)])
    assert (checked.exit_code, "stale: " in checked.output) == (1, True)
    assert run(app, ["icd", "export", "tango-db", "--to", str(tmp_path)]).exit_code == 0
    assert run(app, ["icd", "export", "tango-db", "--check", "--to", str(tmp_path)]).exit_code == 0
    assert run(app, ["icd", "export", "pogo", "--to", str(tmp_path)]).exit_code == 0
    (tmp_path / "pogo/SdpGone.xmi").write_text("", encoding="utf-8")
    checked = run(app, ["icd", "export", "pogo", "--check", "--to", str(tmp_path)])
    assert (checked.exit_code, "SdpGone" in checked.output) == (1, True)
    removed = run(app, ["icd", "export", "pogo", "--to", str(tmp_path)])
    assert (removed.exit_code, "removed: " in removed.output, "written: " in removed.output) == (0, True, False)
    refused = run(app, ["icd", "export", "nothing"])
    assert "expected any of " in str(refused.exception)


@pytest.mark.needs("repository")
def test_what_else_is_installed_is_in_other_folders_and_never_in_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sdp_storm/icd").mkdir(parents=True)  # a name that no other test has: an import is kept
    (tmp_path / "sdp_storm/__init__.py").touch()
    words = {"label": "Storm", "description": "A storm comes.", "response": "Stow.", "priority": "HIGH"}
    words |= {"check": "Look at the wind.", "ends": "It clears when the wind drops."}
    text = "".join(f'{key} = "{value}"\n' for key, value in words.items()) + 'causes = ["Wind."]\n'
    (tmp_path / "sdp_storm/icd/conditions.toml").write_text(f"[conditions.storm]\n{text}")
    monkeypatch.syspath_prepend(tmp_path)
    flow = Manifest(name="weather", summary="", interface="sdp_storm:")
    monkeypatch.setattr("facade.kernel.icd.load.manifests", lambda: (flow,))
    _installed.cache_clear()
    monkeypatch.chdir(ROOT)
    try:
        assert CliRunner().invoke(app, ["icd", "export", "alarms", "reference", "--check"]).exit_code == 0
        assert CliRunner().invoke(app, ["icd", "export", "reference", "--to", str(tmp_path)]).exit_code == 0
    finally:
        _installed.cache_clear()
    assert "A storm comes." in (tmp_path / "docs/reference/alerts.md").read_text()
    assert "`storm`" in (tmp_path / "docs/reference/SdpAlerts.md").read_text()
