"""The borders of the parts, proven: ``make parts``.

Each part gets a fresh virtual environment with the packages of its extras only, and a tree with its own packages and
those that it may import. There the tests in the folder of ``tests/`` with the name of the part pass. What else a test
or a module of tests needs, it says itself: ``pytest.mark.needs("batches")`` names an extra, ``needs("facade.sdk")`` a
package, and ``needs("repository")`` files that no part has.

Without names, the kernel and the SDK are tried, and each other part of which a file has changed since the branch left
``main``; on ``main`` itself, since the commit before; a clone without that commit tries these two only.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
TOOLS = ("greenlet", "httpx2", "hypothesis", "pytest", "pytest-forked", "pytest-timeout", "pytest-xdist")
"""Packages of the extra test."""
SHIPPED = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
"""Folders that a wheel has beside the packages."""


CONFTEST = """import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)  # as in tests/conftest.py
settings.load_profile("fixed")


def pytest_collection_modifyitems(items):
    for item in items:
        if lacking := {{what for mark in item.iter_markers("needs") for what in mark.args}} - {has}:
            item.add_marker(pytest.mark.skip(f"the part has no {{', '.join(sorted(lacking))}}"))
"""


class Part(NamedTuple):
    """A part, and what its tests have."""

    packages: tuple[str, ...]
    """Folders of its own packages."""
    below: tuple[str, ...] = ()
    """Folders of packages that it may import."""
    extras: tuple[str, ...] = ()
    """None: the distribution without extras."""

    @property
    def has(self) -> set[str]:
        """Return its extras and its packages, for which tests may ask."""
        return {*extras_of(self.extras), *map(dotted, (*self.packages, *self.below))}


_SITE = ("facade/kernel", "facade/admin", "facade/sdp", "facade/infra", "facade/simulate", "facade/flows")
_FORMATS = ("alerts", "batches", "logs", "objects", "server", "streaming", "tables")

PARTS = {
    "kernel": Part(("facade/kernel", "devices/kernel"), extras=("server",)),
    "sdk": Part(
        ("facade/sdk", "sdp_facade_sdk"),
        ("facade/kernel", "facade/admin", "facade/sdp", "facade/flows"),
    ),
    "flows": Part(("facade/flows", "facade/sdp", "facade/simulate", "devices"), _SITE, (*_FORMATS, "telemetry")),
    "archive": Part(("facade/archive",), (*_SITE, "devices"), (*_FORMATS, "nexus")),
    "tools": Part(
        ("facade/tools", "facade/admin", "facade/infra"),
        (*_SITE, "facade/archive", "facade/sdk", "devices"),
        (*_FORMATS, "tools"),
    ),
    "clients": Part(
        ("clients/sdp_facade_clients",),
        (*_SITE, "facade/archive", "facade/sdk", "facade/tools", "devices"),
        (*_FORMATS, "archive", "conformance", "web"),
    ),
}
ALWAYS = ("kernel", "sdk")
"""Parts that are tried each time."""


def main() -> int:
    """Run the tests of the named parts, or of those that changed, side by side; return how many parts failed."""
    with ThreadPoolExecutor() as pool:
        return sum(not passed for passed in pool.map(passes, sys.argv[1:] or wanted()))


def wanted() -> list[str]:
    """Return the parts to try."""
    files = changed()
    about_all = bool({"pyproject.toml", "tests/parts.py"} & {*files})
    return [name for name in PARTS if name in ALWAYS or about_all or any(map(is_of(name), files))]


def is_of(name: str) -> Callable[[str], bool]:
    """Return whether a file is one of a part, or of its tests."""
    return lambda file: file.startswith(tuple(f"{folder}/" for folder in (*PARTS[name].packages, f"tests/{name}")))


def changed() -> list[str]:
    """Return the files that changed since the branch left ``main``, committed or not; none if git cannot tell."""
    for main_branch in ("origin/main", "main"):
        base, head = git("merge-base", main_branch, "HEAD"), git("rev-parse", "HEAD")
        if base is not None:
            found = git("diff", "--name-only", base if base != head else "HEAD^")
            return (found or "").splitlines()
    return []


def git(*argv: str) -> str | None:
    """Return what git says, or None if it fails or is not there."""
    try:
        done = subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def passes(name: str) -> bool:
    """Make the environment and the tree of a part, and run its tests."""
    part, began = PARTS[name], time.monotonic()
    found = sorted(ROOT.glob(f"tests/{name}/test_*.py"))
    tests = [path.relative_to(ROOT) for path in found if needs(path) <= part.has]
    print(f"{name}: {len(tests)} files of tests, extras {', '.join(part.extras) or 'none'}", flush=True)
    with TemporaryDirectory(prefix=f"parts-{name}-") as folder:
        tree, environment = Path(folder, "tree"), Path(folder, "environment")
        fill(tree, part)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        python = environment / "bin" / "python"
        (tree / "tests" / "conftest.py").write_text(CONFTEST.format(has=part.has))
        subprocess.run(install(python, packages_of({*extras_of(part.extras)})), check=True)
        argv = [python, "-m", "pytest", "-q", "--numprocesses=0", "--durations=0", "--durations-min=5", *tests]
        clean = os.environ | {"PYTHONPATH": str(tree / "clients")}
        # The parts write at the same time: each says at its end what its tests have said.
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        done = subprocess.run(argv, cwd=tree, env=clean, check=False, stdout=pipe, stderr=both, text=True)
    outcome = f"{name}: {'passed' if done.returncode == 0 else 'FAILED'}, {time.monotonic() - began:.0f} s"
    print(f"{done.stdout}{outcome}", flush=True)
    return done.returncode == 0


def extras_of(extras: Iterable[str]) -> Iterator[str]:
    """Yield extras, and those that they name."""
    for extra in extras:
        yield extra
        for one in PROJECT["optional-dependencies"][extra]:
            if named := re.fullmatch(rf"{PROJECT['name']}\[(.+)\]", one):
                yield from extras_of(named[1].split(","))


def packages_of(extras: Iterable[str]) -> list[str]:
    """Return what some extras install, and the tools of tests; this distribution itself is not installed."""
    optional = PROJECT["optional-dependencies"]
    tools = [one for one in optional["test"] if re.match(r"[\w-]+", one)[0] in TOOLS]  # type: ignore[index]
    found = [*PROJECT["dependencies"], *tools, *(one for extra in extras for one in optional[extra])]
    return [one for one in found if not one.startswith(f"{PROJECT['name']}[")]


def install(python: Path, packages: list[str]) -> list[str | Path]:
    """Return the command that installs packages."""
    if uv := shutil.which("uv", path=str(Path(sys.executable).parent)):
        return [uv, "pip", "install", "--quiet", "--python", python, *index(), *packages]
    return [sys.executable, "-m", "pip", "--quiet", "--python", python, "install", *packages]


def index() -> list[str]:
    """Return uv's option for the index that pip was told to use."""
    asked = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [line.partition("=")[2].strip("'") for line in lines if ".index-url=" in line]
    return ["--index-url", found[-1]] if found else []


def fill(tree: Path, part: Part) -> None:
    """Copy the packages of a part, the tests, and what describes their distribution."""
    for package in {*part.packages, *part.below}:
        shutil.copytree(
            ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
        for parent in Path(package).parents[:-1]:
            if (ROOT / parent / "__init__.py").exists():
                shutil.copy(ROOT / parent / "__init__.py", tree / parent)
    for folder in (*SHIPPED, "docs/how-to", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    about = tree / f"{PROJECT['name'].replace('-', '_')}-{PROJECT['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.3\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n")
    lines = []
    for group, entries in PROJECT["entry-points"].items():
        there = [f"{key} = {value}" for key, value in entries.items() if is_there(tree, value)]
        lines += [f"[{group}]", *there]
    (about / "entry_points.txt").write_text("\n".join([*lines, ""]))


def is_there(tree: Path, reference: str) -> bool:
    """Return whether a tree has the module of an entry point."""
    module = reference.partition(":")[0]
    path = tree / ("clients" if module.startswith("sdp_facade_clients") else "") / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def dotted(folder: str) -> str:
    """Return the name of a package, by its folder."""
    return folder.removeprefix("clients/").replace("/", ".")


def needs(test: Path) -> set[str]:
    """Return what a module of tests as a whole needs beside its part."""
    found = re.findall(r"^pytestmark = .*\bneeds\((.+?)\)", test.read_text(), re.MULTILINE)
    return {one for arguments in found for one in re.findall(r'"([^"]+)"', arguments)}


if __name__ == "__main__":
    sys.exit(main())
