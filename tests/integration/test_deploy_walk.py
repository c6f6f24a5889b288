"""The walk through a secured site, command by command as the page has it, in a network of its own."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from facade.infra import kafka
from facade.kernel.clock import SystemClock, wait_until
from facade.kernel.config import LONGEST_COMMAND_TIMEOUT

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.tango,
    pytest.mark.timeout(3600),
    pytest.mark.skipif("SDP_WALK" not in os.environ, reason="takes minutes; `make walk` does it"),
]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deploy-a-secured-site.md"
BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
VARYING = re.compile(
    r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d[.,\d]*|\d{6,}[\d._]*|(?<=:)\d{5}\b"
    r"|(?<=process )\d+|\b\d+(?= +10\.10\.0\.\d+:)|\d+\.\d+(?= s\b)|[\d,]+(?=/s)|^ *\d+(?= +UNACK)"
)
LONGEST = 600.0
"""For a command, such as the start of three brokers [s]."""
ANYTHING = "..."
"""A line of the page that stands for lines that are left out, and the end of a line for its rest."""


class Step(NamedTuple):
    """A command of the page, and the lines that it is to print."""

    command: str
    lines: list[str]


def page() -> tuple[str, list[Step]]:
    """Return the command that begins the shell, and the steps in it."""
    (_, shell), *blocks = BLOCK.findall(PAGE.read_text())
    steps: list[Step] = []
    for _, text in blocks:
        for line in text.splitlines():
            if line.startswith("$ "):
                steps.append(Step(line[2:], []))
            elif line.startswith("> "):
                steps[-1] = Step(f"{steps[-1].command}\n{line[2:]}", [])
            else:
                steps[-1].lines.append(line)
    return shell.strip(), steps


def essence(line: str) -> str:
    """Return a line without what differs from run to run: times, ids of commands and processes, ports, spaces."""
    return re.sub(r"\s+", " ", VARYING.sub("0", line)).strip()


def missing(wanted: list[str], said: str) -> str:
    """Return the first line that was to be printed and was not, in its order; empty: all are there."""
    rest = iter(map(essence, said.splitlines()))
    for line in filter(ANYTHING.__ne__, wanted):
        begin, _, _ = essence(line).partition(ANYTHING)
        if not any(one.startswith(begin) if line.endswith(ANYTHING) else one == begin for one in rest):
            return line
    return ""


class Shell:
    """A shell of an engineer, in which one command is typed after the other."""

    def __init__(self, command: str, folder: Path) -> None:
        self._output, self._commands = folder / "shell.txt", 0
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command.split(), cwd=folder, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True
            )

    def type(self, command: str) -> str:
        """Type a command; return what it has printed, and say so if its exit code is not 0."""
        self._commands += 1
        before, end = len(self._text()), f"--- end of command {self._commands}: "
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\necho '{end}'$?\n")
        self._process.stdin.flush()
        wait_until(SystemClock(), lambda: end in self._text() or self._process.poll() is not None, LONGEST, 0.05)
        said, _, code = self._text()[before:].partition(end)
        assert code.strip() == "0", f"{command}\n{said}exit code {code}"
        return said

    def close(self) -> None:
        """End the shell, and with it all that it has started."""
        self._process.kill()
        self._process.communicate()

    def _text(self) -> str:
        return self._output.read_text(errors="replace")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    for program in ("ip", "unshare", "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"the walk needs the program {program}")
    begin, _ = page()
    tried = subprocess.run([*begin.split()[:-1], "ip", "link", "add", "type", "veth"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no network of its own can be made here: {tried.stderr.decode().strip()}")
    # Its network reaches no repository, so the jars are there before.
    kafka.archived_classes(kafka.find_java(), lambda _: None)
    for name in ("SDP_STATE_DIR", "SDP_FACADE_CONFIG", "KAFKA_BOOTSTRAP", "TANGO_HOST", "SDP_TOPIC_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SDP_COMMAND_TIMEOUT", str(LONGEST_COMMAND_TIMEOUT))  # no test judges pace
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{Path('/usr/sbin')}", prepend=":")
    made = Shell(begin, tmp_path)
    try:
        yield made
    finally:
        made.close()
        for log in sorted(tmp_path.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")  # shown when the test has failed


def test_an_engineer_walks_through_a_secured_site(shell: Shell) -> None:
    _, steps = page()
    assert len(steps) > 20
    for step in steps:
        said = shell.type(step.command)
        assert not (line := missing(step.lines, said)), f"{step.command}\nexpected: {line}\ngot:\n{said}"
