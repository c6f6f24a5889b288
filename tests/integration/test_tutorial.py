"""The tutorial, block by block in its order, by a reader in shells as the page says."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from facade.infra import local
from facade.infra.processes import started_in
from facade.kernel.clock import SystemClock, wait_until
from tests.support.processes import Running
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BUSY = " --nodes 2 --rate 200 --seconds 5 --garbage 0 --no-kills --patience 20 --no-live'"
"""What the page says to add on a busy machine, a shorter story, and more patience, as no test judges pace.

Without malformed records, whose alarm would stand for two minutes more, and without kills, which
tests/integration/test_demo.py has.
"""

_STAYS_WITHIN = 1800.0
"""Longest time until the story of the demo is over, and its alarms with it, or until its end is [s]."""
_WELL_WITHIN = 600.0
"""Longest time until the alarms of a busy machine are over [s]."""
_LOOKS = 12
"""Blocks before the chapter in which something is broken."""


class Block(NamedTuple):
    """A block of the page."""

    language: str
    text: str


def page() -> list[Block]:
    """Return the blocks in order, without the wheel's, which tests/repository/test_packaging.py installs.

    The page's state folder is that of the test.
    """
    text = PAGE.read_text().replace(".run/demo/", "$SDP_STATE_DIR/demo/")
    return [block for one in BLOCK.findall(text) if "pip install" not in (block := Block(*one)).text]


class Reader:
    """One who pastes the blocks: each command into a shell of its own, Python into one interpreter.

    Parameters
    ----------
    preamble
        The lines with which each shell begins.
    """

    def __init__(self, folder: Path, preamble: str) -> None:
        self._folder, self._preamble = folder, preamble
        folder.mkdir()
        self._shells: dict[str, Running] = {}
        self._blocks = 0
        self._log = folder / "python.log"
        with self._log.open("wb") as output:
            self._python = subprocess.Popen(
                ["bash", "-c", f"{preamble}\nexec python -i -u"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def shell(self, text: str) -> Running:
        """Paste a block into a new shell, and return it."""
        name = "-".join(text.split()[:3]).replace("/", "-")
        argv = ["bash", "-c", f"cd {shlex.quote(str(ROOT))}\n{self._preamble}\n{text}"]
        self._shells[name] = Running.start(name, argv, log=self._folder / f"{name}.log", env=os.environ)
        return self._shells[name]

    def python(self, text: str) -> str:
        """Paste a block and an empty line into the interpreter; return what it has printed."""
        self._blocks += 1
        done = f"end of block {self._blocks}"
        before = len(self._log.read_text())
        assert self._python.stdin is not None
        self._python.stdin.write(f"{text}\nprint('end of block', {self._blocks})\n")
        self._python.stdin.flush()
        until(lambda: done in self._log.read_text() or self._python.poll() is not None, f"{done}: {text}")
        printed = self._log.read_text()[before:]
        assert done in printed, printed
        assert "Traceback" not in printed, f"{text}\n{printed}"
        return printed

    def leave(self) -> None:
        for one in self._shells.values():
            one.kill()
        self._python.kill()
        self._python.communicate()


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Start the demo by the page's first block, and return it once it stays."""
    monkeypatch.setenv("SDP_STATE_DIR", str(tmp_path / "state"))
    start = page()[0].text
    assert start.startswith("make demo ")
    argv = ["bash", "-c", f"cd {shlex.quote(str(ROOT))}\nexec {start.replace(chr(39) + chr(10), BUSY)}"]
    environment = {**os.environ, "MAKEFLAGS": f"BIN={Path(sys.executable).parent}"}
    running = Running.start("demo", argv, log=tmp_path / "demo.log", env=environment)
    try:
        stays = "The demo stays until Ctrl-C"
        wait_until(SystemClock(), lambda: stays in running.text or not running.running, _STAYS_WITHIN, 1.0)
        assert stays in running.text, running.tail()
        assert running.running, running.tail()
        yield running
    finally:
        running.stop()
        for left in started_in(tmp_path / "state" / "demo"):
            left.kill()
        local.down(tmp_path / "state", wipe=True)


def read(reader: Reader, blocks: list[Block]) -> None:
    """Do what the page says, from the first look to the end of the alarm."""
    status, watch, first, second, on, refused, off, follow, simulate, alarms, acknowledge, recover = blocks
    all_is_well(reader, status)
    watching = reader.shell(watch.text)
    watching.says("nodes 2/2")  # without a terminal it prints lines
    os.killpg(watching.pid, signal.SIGINT)
    watching.exit_code()
    # On a busy machine a node is silent now and then, and its values are invalid.
    until(lambda: re.search("ATTR_(VALID|WARNING)", reader.python(first.text)), "a value")
    # A prompt that waits for the next line stands before the first one that is printed.
    until(lambda: re.search(r"^(>>> )*\d+\.\d+$", reader.python(second.text), re.MULTILINE), "an event came")
    assert '[0, "COMPLETED"]' in reader.python(on.text)
    assert "EndScan not allowed" in reader.python(refused.text)
    reader.python(off.text)
    following = reader.shell(follow.text)
    following.says("after number")
    before = len(following.text.splitlines())
    simulating = reader.shell(simulate.text)
    assert simulating.exit_code() == 0, simulating.text
    until(lambda: len(following.text.splitlines()) >= before + 3, "three alerts, each with its number")
    # The list is made behind the events.
    until(lambda: "receiveOverrun simulated-000 CRITICAL UNACK" in reader.python(alarms.text), "the alarm is shown")
    reader.python(acknowledge.text)
    following.says("ann")
    recovering = reader.shell(recover.text)
    assert recovering.exit_code() == 0, recovering.text
    following.says("CLEARED")


def break_something(reader: Reader, blocks: list[Block], demo: Running) -> None:
    """Do what the page says to break, and see what it says."""
    kill, again, freeze, status, thaw, spoil, letters, redrive = blocks
    said = len(demo.text)

    def says(text: str) -> None:
        until(lambda: text in demo.text[said:] or not demo.running, text)
        assert demo.running, demo.tail()

    assert reader.shell(kill.text).exit_code() == 0
    says("The demo goes on without it. To start it again")
    reader.shell(again.text)
    says("aggregate-1 runs again, as process")
    assert reader.shell(freeze.text).exit_code() == 0
    says("ingest-00 is frozen")
    looked = reader.shell(status.text)
    assert looked.exit_code() != 0
    assert "device server ingest-00" in " ".join(looked.text.split())  # does not answer, or is silent since then
    assert reader.shell(thaw.text).exit_code() == 0
    says("ingest-00 goes on")
    reader.python(spoil.text)
    until(lambda: "not-json" in output_of(reader, letters), "the dead letter")
    assert "would fail again" in " ".join(output_of(reader, redrive).split())


def output_of(reader: Reader, block: Block) -> str:
    """Paste a block, and return what it has printed when it has ended."""
    shell = reader.shell(block.text)
    assert shell.exit_code() == 0, shell.text
    return shell.text


def all_is_well(reader: Reader, status: Block) -> None:
    """Ask until all is well, as the page says; what a busy machine has raised is acknowledged as it says when over."""

    def is_well() -> bool:
        shell = reader.shell(status.text)
        code = shell.exit_code()
        for command in set(re.findall(r"Acknowledge it: (sdp-facade alerts ack \S+[^\s.])", shell.text)):
            reader.shell(f"{command} --comment seen").exit_code()
        return code == 0 and shell.text.startswith("OK")

    assert wait_until(SystemClock(), is_well, _WELL_WITHIN, 1.0), "all is well"


def test_a_reader_follows_the_tutorial(demo: Running, tmp_path: Path) -> None:
    (export,) = re.findall(r"^\s*(export .*)$", demo.text, re.MULTILINE)
    start, activate, *blocks = page()
    assert (start.language, activate.text) == ("sh", "source .venv/bin/activate\n")
    looks, experiments = blocks[:_LOOKS], blocks[_LOOKS:]
    assert [one.language for one in looks] == ["sh", "sh", *["python"] * 5, "sh", "sh", "python", "python", "sh"]
    assert [one.language for one in experiments] == [*["sh"] * 5, "python", "sh", "sh"]
    # In a checkout whose environment is elsewhere, its programs are.
    preamble = f"{export}\nsource {shlex.quote(str(Path(sys.prefix) / 'bin' / 'activate'))}"
    reader = Reader(tmp_path / "reader", preamble)
    try:
        read(reader, looks)
        break_something(reader, experiments, demo)
    finally:
        reader.leave()
    os.killpg(demo.pid, signal.SIGINT)  # Ctrl-C goes to make and to all below it
    demo.exit_code(_STAYS_WITHIN)
    assert "equal" in demo.text
    assert "done by a person, so no failure: aggregate-1" in demo.text
    assert "DIFFERS" not in demo.text
