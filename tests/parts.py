"""The borders of the parts, proven: ``make parts``.

Each part gets a fresh virtual environment with the packages of its extra only, and a tree with its own packages and
those that it may import. There the tests pass that import nothing else. They are found by what they import, also
through other modules of the tests.
"""

import ast
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = ("greenlet", "pytest", "pytest-timeout", "pytest-forked", "pytest-xdist", "hypothesis")
OURS = ("facade", "devices", "sdp_facade_clients", "sdp_facade_lab", "sdp_facade_sdk", "tests", "examples")


CONFTEST = """from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)  # as in tests/conftest.py
settings.load_profile("fixed")
"""


class Part(NamedTuple):
    """A part, and what its tests have."""

    packages: tuple[str, ...]
    """Its own, and those that it may import."""
    extra: str
    """Empty: the distribution without extras."""
    own: tuple[str, ...]
    """Packages of which a test imports one, to count as the part's."""


PARTS = {
    "kernel": Part(("facade/kernel", "devices/kernel"), "server", ("facade.kernel", "devices.kernel")),
    "sdk": Part(
        ("facade/kernel", "facade/admin", "facade/sdp", "facade/flows", "facade/sdk", "sdp_facade_sdk"),
        "",
        ("facade.sdk", "sdp_facade_sdk"),
    ),
}


ELSEWHERE = {
    **dict.fromkeys(
        (
            "test_admin_client",
            "test_client_settings",
            "test_clock",
            "test_docker_image",
            "test_grafana",
            "test_other_languages",
            "test_packaging",
            "test_parts",
            "test_position_places",
            "test_release",
            "test_table_settings",
        ),
        "reads the sources of all parts",
    ),
    "test_heap_producer": "takes the extra batches",
    "test_logs": "takes a device class of a flow",
    "test_sdk": "has an example of each name, for all extras",
    "test_trace_context": "takes the extra telemetry",
}
"""Tests of a part that need more than it has."""


def main() -> int:
    """Run the tests of the named parts, or of all, side by side; return how many parts failed."""
    with ThreadPoolExecutor() as pool:
        return sum(not passed for passed in pool.map(passes, sys.argv[1:] or PARTS))


def passes(name: str) -> bool:
    """Make the environment and the tree of a part, and run its tests."""
    part, began = PARTS[name], time.monotonic()
    tests = [path for path in sorted(ROOT.glob("tests/unit/test_*.py")) if belongs(path, part)]
    tests = [path for path in tests if path.stem not in ELSEWHERE]
    print(f"{name}: {len(tests)} files of tests, extra {part.extra or 'none'}", flush=True)
    with TemporaryDirectory(prefix=f"parts-{name}-") as folder:
        tree, environment = Path(folder, "tree"), Path(folder, "environment")
        fill(tree, part, tests)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        python = environment / "bin" / "python"
        wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(part.extra, ()), *TOOLS]
        subprocess.run(install(python, wanted), check=True)
        argv = [python, "-m", "pytest", "-q", "--numprocesses=0", "--durations=0", "--durations-min=5", "tests/unit"]
        clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        # The parts write at the same time: each says at its end what its tests have said.
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        done = subprocess.run(argv, cwd=tree, env=clean, check=False, stdout=pipe, stderr=both, text=True)
    outcome = f"{name}: {'passed' if done.returncode == 0 else 'FAILED'}, {time.monotonic() - began:.0f} s"
    print(f"{done.stdout}{outcome}", flush=True)
    return done.returncode == 0


def install(python: Path, wanted: list[str]) -> list[str | Path]:
    """Return the command that installs packages."""
    if uv := shutil.which("uv", path=str(Path(sys.executable).parent)):
        return [uv, "pip", "install", "--quiet", "--python", python, *index(), *wanted]
    return [sys.executable, "-m", "pip", "--quiet", "--python", python, "install", *wanted]


def index() -> list[str]:
    """Return uv's option for the index that pip was told to use."""
    asked = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [line.partition("=")[2].strip("'") for line in lines if ".index-url=" in line]
    return ["--index-url", found[-1]] if found else []


def fill(tree: Path, part: Part, tests: list[Path]) -> None:
    """Copy the packages and the tests of a part, and what describes their distribution."""
    for package in part.packages:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
        for parent in Path(package).parents[:-1]:
            shutil.copy(ROOT / parent / "__init__.py", tree / parent)
    for folder in ("docs/how-to", "schemas", "tests/simulation", "tests/support"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*tests, ROOT / "pyproject.toml"):
        (tree / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tree / file.relative_to(ROOT))
    (tree / "tests" / "conftest.py").write_text(CONFTEST)
    about = tree / f"{PROJECT['name'].replace('-', '_')}-{PROJECT['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.3\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n")
    lines = []
    for group, entries in PROJECT["entry-points"].items():
        there = [f"{key} = {value}" for key, value in entries.items() if (tree / path_of(value)).exists()]
        lines += [f"[{group}]", *there]
    (about / "entry_points.txt").write_text("\n".join([*lines, ""]))


def path_of(reference: str) -> str:
    """Return the file of an entry point."""
    return reference.partition(":")[0].replace(".", "/") + ".py"


def belongs(test: Path, part: Part) -> bool:
    """Return whether a test is of a part: it imports the part, and nothing that the tree lacks."""
    allowed = tuple(package.replace("/", ".") for package in part.packages)
    modules = {one for one in imported(test) if not one.startswith("tests")}
    is_own = any(is_in(one, part.own) for one in modules)
    return is_own and all(is_in(one, (*allowed, "facade.__version__")) for one in modules)


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    """Return whether a module is, or is inside, one of some packages."""
    return any(module == one or module.startswith(f"{one}.") for one in packages)


def imported(test: Path) -> set[str]:
    """Return our modules that a test imports, also through modules of the tests."""
    found, waiting = set[str](), [test]
    while waiting:
        for name in _imported(waiting.pop()) - found:
            found.add(name)
            support = ROOT / f"{name.replace('.', '/')}.py"
            waiting += [support] if name.startswith("tests.") and support.exists() else []
    return found


@cache
def _imported(file: Path) -> frozenset[str]:
    return frozenset(name for name in names(ast.parse(file.read_text())) if name.partition(".")[0] in OURS)


def names(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports; a name from a package of ours that is a module itself, as this module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                whole = f"{node.module}.{one.name}"
                is_module = (ROOT / whole.replace(".", "/")).is_dir() or (
                    ROOT / f"{whole.replace('.', '/')}.py"
                ).exists()
                yield whole if is_module or node.module == "facade" else node.module


if __name__ == "__main__":
    sys.exit(main())
