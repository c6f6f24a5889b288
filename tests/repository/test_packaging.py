"""The wheel holds all that the code reads at run time, and works where there is no source tree."""

import ast
import importlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from facade import __version__
from facade.kernel.cli.app import app
from facade.kernel.resources import resource
from tests.support.waiting import HANG
from tests.support.wheels import build

ROOT = Path(__file__).parents[2]
DATA = "facade/_data"
FOLDERS = {
    "facade": ROOT,
    "devices": ROOT,
    "sdp_facade_clients": ROOT / "clients",
    "sdp_facade_lab": ROOT / "lab",
    "sdp_facade_sdk": ROOT,
}
"""Packages, and where they are in the tree."""
SOURCES = {
    file.relative_to(folder).as_posix(): file
    for name, folder in FOLDERS.items()
    for file in (folder / name).rglob("*.py")
}
"""Modules by their path in the wheel."""
PROOFS = re.compile(r"sdp_facade_lab/((bench|containers|fault_runs)/|(gauges|testbed)\.py)")
"""Files that run from the source tree only."""
pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.needs("repository")]


def contents(file: Path) -> dict[str, int]:
    with zipfile.ZipFile(file) as archive:
        return {one.filename: one.CRC for one in archive.infolist() if not one.filename.endswith("/RECORD")}


def asked_for() -> Iterator[tuple[str, ...]]:
    for name, file in SOURCES.items():
        text = file.read_text()
        if "facade.kernel.resources import resource" not in text:
            continue
        calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        for call in (one for one in calls if isinstance(one.func, ast.Name) and one.func.id == "resource"):
            # In the module's own words: whatever is not a constant of the module fails here, and is to become one.
            module = name.removesuffix(".py").replace("/", ".")
            words = ast.Expression(ast.Tuple(call.args, ast.Load()))
            where = vars(importlib.import_module(module))
            yield eval(compile(ast.fix_missing_locations(words), str(file), "eval"), where)


def test_the_wheel_has_every_file_that_the_code_reads(wheel: Path) -> None:
    there, names = contents(wheel), set(asked_for())
    assert ("schemas",) in names
    for parts in names:
        source = resource(*parts)
        files = [source] if source.is_file() else [file for file in source.rglob("*") if file.is_file()]
        assert files
        missing = [str(file) for file in files if f"{DATA}/{file.relative_to(ROOT).as_posix()}" not in there]
        assert missing == [], "add it to force-include in pyproject.toml"


def test_the_wheel_has_the_packages_and_nothing_else(wheel: Path) -> None:
    there = contents(wheel)
    assert {name for name in there if name.endswith(".py")} == {one for one in SOURCES if not PROOFS.match(one)}
    assert any(name.startswith("sdp_facade_lab/demo/") for name in there)
    templates = (file for kind in ("html", "j2", "sql") for file in (ROOT / "facade").rglob(f"*.{kind}"))
    assert {file.relative_to(ROOT).as_posix() for file in templates} <= there.keys()
    rest = {name.split("/")[0] for name in there} - FOLDERS.keys()
    assert rest == {f"sdp_tango_facade-{__version__}.dist-info"}


def test_no_module_of_the_wheel_imports_one_that_it_lacks(wheel: Path) -> None:
    there = [name for name in contents(wheel) if name.endswith(".py")]
    for name in (name for name in there if "sdp_facade_lab." in SOURCES[name].read_text()):
        for node in ast.walk(ast.parse(SOURCES[name].read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sdp_facade_lab"):
                paths = [
                    node.module.replace(".", "/"),
                    *(f"{node.module}.{one.name}".replace(".", "/") for one in node.names),
                ]
                assert not [path for path in paths if PROOFS.match(f"{path}/") or PROOFS.match(f"{path}.py")], name


def test_what_is_imported_says_that_it_has_types(wheel: Path) -> None:
    assert {name for name in contents(wheel) if name.endswith("/py.typed")} == {
        f"{package}/py.typed" for package in FOLDERS
    }


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "sdist").mkdir()
    (tmp_path / "wheel").mkdir()
    with tarfile.open(build("sdist", ROOT, tmp_path / "sdist")) as archive:
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.2 has none
        archive.extractall(tmp_path, **safely)
    again = build("wheel", tmp_path / f"sdp_tango_facade-{__version__}", tmp_path / "wheel")
    assert contents(again) == contents(wheel)


def test_the_demo_says_at_once_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("facade.flows.tables.solution.pa", None)
    refused = CliRunner().invoke(app, ["demo", "--state-dir", str(tmp_path / "state")])
    assert "pip install 'sdp-tango-facade[tables]'" in str(refused.exception)
    assert not (tmp_path / "state").exists()


IN_ONE_PROCESS = """
from facade.kernel.cli.app import app
from facade.kernel.resources import resource
from typer.testing import CliRunner

for words in ("version", "icd check", "demo --help", "--help"):
    print(CliRunner().invoke(app, words.split(), catch_exceptions=False).output)
import sdp_facade_sdk
print("producer in", sdp_facade_sdk.AlertSource.__module__)
print("bench is", CliRunner().invoke(app, ["bench"]).exit_code)
print("schemas in", resource("schemas"))
"""


def test_the_installed_wheel_runs_in_any_folder(wheel: Path, tmp_path: Path) -> None:
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*argv, "--target", str(installed), str(wheel)], timeout=HANG, check=True)
    # Our own site-packages come after: what is imported is the wheel's, not the source tree's.
    environment = {**os.environ, "PYTHONPATH": str(installed)}

    def output_of(*argv: str | Path) -> str:
        done = subprocess.run(
            argv, env=environment, cwd=elsewhere, capture_output=True, text=True, timeout=HANG, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert output_of(installed / "bin" / "sdp-facade", "version").split() == [__version__]
    output = output_of(sys.executable, "-c", IN_ONE_PROCESS)
    assert "SdpMaster" in output
    assert "--stay" in output
    assert "Run the whole system here" in output
    assert "Measure the facade" not in output, "its package is not in the wheel"
    assert "bench is 2" in output.splitlines()
    assert "producer in facade.flows.alerts.source" in output.splitlines()
    assert f"schemas in {installed / DATA / 'schemas'}" in output.splitlines()
