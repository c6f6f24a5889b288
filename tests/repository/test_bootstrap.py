"""`scripts/bootstrap` on distributions other than this one, as far as an apt-get of the test can play them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "dirname", "find", "id", "mkdir", "rm", "tail", "xargs")
APT = """#!{bash}
case "$*" in
  *indextargets*) {lists} ;;
  *--print-uris*) {known} ;;
  *update*) ;;
  *) exit 100 ;;
esac
"""


@pytest.mark.parametrize(
    ("apt", "is_left_out"),
    [
        ({"lists": "echo main", "known": "exit 100"}, True),  # another release
        (None, True),  # a distribution without apt
        ({"lists": "echo main", "known": "exit 0"}, False),  # the network is away
        ({"lists": "exit 0", "known": "exit 100"}, False),  # there are no lists, and none can be had
    ],
)
def test_tango_access_control_is_left_out_only_where_its_packages_are_not_known(
    tmp_path: Path, apt: dict[str, str] | None, is_left_out: bool
) -> None:
    programs, script, pins = tmp_path / "bin", tmp_path / "scripts/bootstrap", tmp_path / "tests/interoperability"
    for folder in (programs, script.parent, pins):
        folder.mkdir(parents=True)
    for name in TOOLS:
        (programs / name).symlink_to(str(shutil.which(name)))
    if apt is not None:
        (programs / "apt-get").write_text(APT.format(bash=shutil.which("bash"), **apt))
        (programs / "apt-get").chmod(0o755)
    shutil.copy(ROOT / "tests/interoperability/debian-tango.txt", pins)
    functions = (ROOT / "scripts/bootstrap").read_text().rpartition("\ncase ${1:-}")[0]
    call = 'unpack_debian TangoAccessControl "$CLIENTS_PINS/debian-tango.txt" "$CLIENTS-debian"'
    script.write_text(f"{functions}\n{call}\n")
    done = subprocess.run(
        ["bash", script], env={**os.environ, "PATH": str(programs)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) == is_left_out, done.stderr
    assert ("TangoAccessControl: left out, and its test skipped: this distribution" in done.stdout) == is_left_out
    assert (tmp_path / ".venv/clients-debian/left-out").exists() == is_left_out
