"""The kernel knows no flow, its page is short enough for an evening, and each extra installs what its commands need."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import sdp_facade_sdk
from facade.kernel import extras
from facade.kernel.errors import ConfigError
from facade.kernel.manifest import load
from tests import parts
from tests.support.waiting import HANG

pytestmark = pytest.mark.needs("repository")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORDS = re.compile(r"sdp|subarray|heap|receptor|calibrat", re.IGNORECASE)
EXCEPT = {
    "facade/kernel/config.py": 6,  # the setting `subarrays`: all settings are one struct, which mypy checks
    "facade/kernel/icd/units.py": 1,  # a unit
    "facade/kernel/messages.py": 1,  # a field of heartbeats
}
"""Files of the kernel, and how many of their lines have words of SDP."""
PAGE = ROOT / "docs" / "explanation" / "kernel.md"


def test_the_kernel_has_no_word_of_sdp() -> None:
    found: dict[str, int] = {}
    for file in (*(ROOT / "facade" / "kernel").rglob("*.py"), *(ROOT / "devices" / "kernel").rglob("*.py")):
        lines = file.read_text().replace("heapq.heap", "").replace("heapq", "").splitlines()
        if count := sum(WORDS.search(line) is not None for line in lines):
            found[file.relative_to(ROOT).as_posix()] = count
    assert found == EXCEPT


def test_the_evening_has_at_most_14_files_and_4000_lines() -> None:
    named = re.findall(r"^\d+\. `([^`]+)`: \S", PAGE.read_text(), re.MULTILINE)
    assert 10 <= len(named) <= 14
    assert len(set(named)) == len(named)
    assert sum(len((ROOT / file).read_text().splitlines()) for file in named) <= 4000
    assert all(file.startswith(("facade/kernel/", "devices/kernel/")) for file in named)


def test_each_extra_has_a_line_in_the_table() -> None:
    table = (ROOT / "docs" / "reference" / "extras.md").read_text()
    named = re.findall(r"^\| `([^`]+)` \| \S", table, re.MULTILINE)
    only_from_the_source_tree = {"bench", "test", "docs", "lint", "mutation", "dev"}
    assert sorted(named) == sorted(PROJECT["optional-dependencies"].keys() - only_from_the_source_tree)


@pytest.mark.parametrize(
    ("module", "wanted_by", "extra"),
    [
        ("tango", "devices.cli", "server"),
        ("tango.server", "sdp_facade_clients.web.cli", "web"),
        ("yaml", "facade.tools.rights", "tools"),
        ("duckdb", "facade.archive.cli", "archive"),
        ("pyarrow", "facade.flows.tables.cli", "tables"),
        ("pyarrow", "", "batches"),
        ("psutil", "sdp_facade_lab.demo.cli", "demo"),
    ],
)
def test_a_missing_package_names_the_line_that_installs_it(module: str, wanted_by: str, extra: str) -> None:
    missing = ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert extras.advice(missing, wanted_by) == f"pip install 'sdp-tango-facade[{extra}]'"


def test_a_package_that_no_extra_has_is_not_explained() -> None:
    assert extras.advice(ModuleNotFoundError("No module named 'nothing'", name="nothing")) == ""


def test_a_command_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tango", None)
    monkeypatch.delitem(sys.modules, "devices.pruning", raising=False)
    with pytest.raises(ConfigError, match=r"^tango is missing: pip install 'sdp-tango-facade\[server\]'$"):
        load("devices.pruning:prune")


def test_a_name_of_the_sdk_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(sys.modules, "facade.sdk.producer.heaps", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"^HeapProducer needs numpy: pip install .*\[batches\]'$"):
        _ = sdp_facade_sdk.HeapProducer


def test_the_device_server_without_its_extra_says_what_to_install() -> None:
    code = "import sys; sys.modules['tango'] = None; import devices.kernel.server"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: tango is missing: pip install 'sdp-tango-facade[server]'\n"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (["README.md"], ["kernel", "sdk"]),
        (["facade/flows/quality/flow.py"], ["kernel", "sdk", "flows"]),
        (["clients/sdp_facade_clients/ask.py", "facade/archive/worker.py"], ["kernel", "sdk", "archive", "clients"]),
        (["facade/tools_and_more.py"], ["kernel", "sdk"]),
        (["tests/tools/test_audit.py", "tests/repository/test_prose.py"], ["kernel", "sdk", "tools"]),
        (["pyproject.toml"], list(parts.PARTS)),
        ([], ["kernel", "sdk"]),
    ],
)
def test_kernel_and_sdk_are_tried_each_time_and_others_when_their_files_change(
    files: list[str], wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "changed", lambda: files)
    assert parts.wanted() == wanted


def test_what_a_test_needs_is_an_extra_a_package_or_the_repository() -> None:
    text = "\n".join(file.read_text() for file in (ROOT / "tests").glob("*/test_*.py"))
    named = {one for marks in re.findall(r'\bmark\.needs\("(.+?)"\)', text) for one in marks.split('", "')}
    packages = {one for part in parts.PARTS.values() for one in part.has}
    assert named <= {"repository", "sdp_facade_lab", *PROJECT["optional-dependencies"], *packages}


def test_an_extra_that_names_others_installs_their_packages_and_not_this_distribution() -> None:
    found = parts.packages_of(parts.extras_of(["demo"]))
    assert {"pytango>=10.1", "matplotlib>=3.9", "pyyaml>=6.0.2"} <= {*found}
    assert not [one for one in found if one.startswith("sdp-tango-facade")]
