"""The release has one version everywhere, notes, and an interface that later ones are compared with."""

import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from facade.kernel.cli.app import app

pytestmark = pytest.mark.needs("repository")

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
REPEATED = {
    "docker/Dockerfile": r"ARG VERSION=(\S+)",
    "docker/README.md": r"sdp-tango-facade:(\d\S+)",
    "docker/compose.yaml": r"SDP_FACADE_TAG:-([^}]+)",
    "docker/local/Dockerfile": r"sdp-tango-facade:(\d\S+)",
    "docker/kubernetes/base/kustomization.yaml": r"newTag: (\S+)",
    "docker/kubernetes/overlays/mid/kustomization.yaml": r"newTag: (\S+)",
}


@pytest.mark.parametrize("path", REPEATED)
def test_the_version_is_the_same_everywhere(path: str) -> None:
    assert set(re.findall(REPEATED[path], (ROOT / path).read_text())) == {VERSION}


def test_the_newest_notes_are_those_of_the_version() -> None:
    sections = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == ("Unreleased", "")
    name, date = sections[1]
    assert (name, bool(re.fullmatch(r" - \d{4}-\d\d-\d\d", date))) == (VERSION, True)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """Unpack the interface of the release, as `make lint` does."""
    (packed,) = (ROOT / "packaging").glob("interface-*.tar.gz")
    assert packed.name == f"interface-{VERSION}.tar.gz"
    with tarfile.open(packed) as file:
        file.extractall(tmp_path / "released", filter="data")
    return tmp_path / "released"


def test_a_breaking_change_without_a_new_version_fails(released: Path, tmp_path: Path) -> None:
    """The released interface differs from itself in nothing."""
    changed = tmp_path / "changed"
    shutil.copytree(released, changed)
    runner = CliRunner()
    assert runner.invoke(app, ["icd", "diff", str(released), str(changed)]).exit_code == 0
    path = changed / "messages" / "heap.schema.json"
    path.write_text(path.read_text().replace('"late"', '"belated"'))
    assert runner.invoke(app, ["icd", "diff", str(released), str(changed)]).exit_code == 1


def test_the_interface_of_a_release_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    older = tmp_path / "packaging" / "interface-0.1.0.tar.gz"
    older.parent.mkdir()
    older.write_bytes(b"older")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    freeze = ["make", "--silent", "freeze"]
    assert subprocess.run(freeze, cwd=tmp_path, capture_output=True, check=False).returncode
    assert [*older.parent.iterdir()] == [older]
    shutil.copytree(ROOT / "schemas", tmp_path / "schemas")
    subprocess.run(freeze, cwd=tmp_path, check=True)
    (frozen,) = older.parent.iterdir()
    assert frozen.name == f"interface-{VERSION}.tar.gz"
    with tarfile.open(frozen) as archive:
        names = {*archive.getnames()}
    schemas = tmp_path / "schemas"
    assert {path.relative_to(schemas).as_posix() for path in schemas.rglob("icd/*.toml")} <= names
