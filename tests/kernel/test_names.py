"""A facility brings its own names: they are read once, when a process imports them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import HANG

ROOT = Path(__file__).parents[2]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FACADE_INTERFACE": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=HANG, check=False
    )


def of_facility(folder: Path) -> str:
    code = "from facade.kernel import manifest, names; print(names.PROGRAM, manifest.GROUP, names.FAMILIES)"
    done = run(folder, "-c", code)
    return done.stdout or done.stderr.splitlines()[-1]


def test_a_facility_has_its_own_names(tmp_path: Path) -> None:
    keys = ("distribution", "program", "about", "server", "variables", "entry_points", "short", "schemas", "other_side")
    lines = [*(f'{key} = "{key}-here"' for key in keys), "[families]"]
    lines.append('dish = { word = "dish", first = 1, setting = "nodes" }')
    (tmp_path / "names.toml").write_text("\n".join(lines))
    found = of_facility(tmp_path)
    assert found == "program-here entry_points-here.flows {'dish': ('dish', 1, 'nodes')}\n"


def test_a_folder_without_names_is_refused(tmp_path: Path) -> None:
    what = f"{tmp_path / 'names.toml'}: expected a TOML file with the names of the facility, got: "
    assert what in of_facility(tmp_path)
    (tmp_path / "names.toml").write_text("program = ")
    assert what in of_facility(tmp_path)


def test_the_program_says_in_one_line_that_the_folder_is_wrong(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "facade.kernel.cli", "version")
    assert done.stderr.startswith(f"error: {tmp_path / 'names.toml'}: expected a TOML file with the names of the")
    assert done.stderr.endswith("if FACADE_INTERFACE is set, it names the folder\n")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_a_name_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "names.toml").write_text('distribution = "here"\nprogram = 7\n')
    assert of_facility(tmp_path).endswith(f"{tmp_path / 'names.toml'}: program: expected a text, got 7")
