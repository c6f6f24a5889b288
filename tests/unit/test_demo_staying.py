"""A demo that stays survives what a learner does to it: it says what is missing, and goes on."""

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from facade.clock import ManualClock
from facade.console import Console
from facade.errors import InfraError
from facade.icd.load import load
from facade.infra.processes import Process, started_in
from proving.demo import staying
from proving.demo.options import DemoOptions
from proving.demo.report import DemoReport
from proving.demo.staying import Playground
from proving.demo.system import _bounded
from proving.progress import ProgressLine
from proving.supervisor import Supervisor
from tests.support.waiting import until

PREFIX = f"demo-staying-{os.getpid()}."  # a process of a demo beside it is not one of this demo
PROGRAM = "import signal, sys; print('runs', flush=True); signal.pause()"
ENVIRONMENT = {**os.environ, "SDP_TOPIC_PREFIX": PREFIX}


class Stage(NamedTuple):
    """A demo without Kafka and Tango, in which anything may run."""

    demo: Any
    playground: Playground
    output: io.StringIO
    services: dict[str, int]
    adopted: list[int]

    def start(self, name: str, code: str = PROGRAM, word: str = "") -> Process:
        """Start a process of the demo."""
        process: Process = self.demo.processes.start(
            Process, name, [sys.executable, "-c", code, word or name], ENVIRONMENT
        )
        until(lambda: "runs" in process.tail() or not process.is_alive, f"{name} runs")
        return process

    def look(self) -> str:
        """Look once more, and return what was printed."""
        before = len(self.output.getvalue())
        self.demo.clock.sleep(2.0)
        self.playground.look()
        return self.output.getvalue()[before:]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    clock, output = ManualClock(1000.0), io.StringIO()
    services, adopted = {"kafka": 1, "tango-db": 2}, list[int]()
    monkeypatch.setattr(staying, "alive", lambda _: {**services})
    monkeypatch.setattr(staying, "are_ours", lambda _: True)
    monkeypatch.setattr(staying, "adopt", lambda _: adopted.append(1))
    progress = ProgressLine(Console(file=output, width=300), clock)
    processes = Supervisor(tmp_path / "demo", clock)
    demo: Any = SimpleNamespace(
        options=DemoOptions(state_dir=tmp_path),
        progress=progress,
        processes=processes,
        clock=clock,
        report=DemoReport(began=clock.now(), nodes=2, rate=1000.0, seconds=30.0, balanced=True),
        deployment=SimpleNamespace(
            settings=SimpleNamespace(prefix=PREFIX), variables={"SDP_TOPIC_PREFIX": PREFIX}, icd=load()
        ),
        tango_side=SimpleNamespace(devices={"SdpIngestNode": ["a/b/0"]}, subarrays=["a/c/1"]),
    )
    yield Stage(demo, Playground(demo), output, services, adopted)
    for left in started_in(tmp_path / "demo"):
        left.kill()


def kill(process: Process, number: signal.Signals = signal.SIGKILL) -> None:
    """End a process as a learner does."""
    os.kill(int(process.log.with_suffix(".pid").read_text()), number)
    until(lambda: number == signal.SIGSTOP or not process.is_alive, "it has ended")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_learner_ends_is_named_and_the_demo_goes_on(stage: Stage, number: signal.Signals) -> None:
    """It ended everything: a learner's first experiment destroyed the playground."""
    kill(stage.start("controller"), number)
    said = stage.look()
    assert re.search(rf"controller \(process \d+\) was ended by {number.name}\. The demo goes on without it", said)
    assert stage.look() == "", "it is said once"
    assert stage.demo.report.failures == []
    assert [one.what.partition(" ")[0] for one in stage.demo.report.experiments] == ["controller"]


def test_the_printed_lines_start_it_again_in_any_shell(stage: Stage) -> None:
    process = stage.start("worker")
    kill(process)
    lines = "\n".join(line[4:] for line in stage.look().splitlines() if line.startswith("    "))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("SDP_")}
    shell = subprocess.Popen(["sh", "-c", lines], env=clean, stdout=subprocess.PIPE, text=True, process_group=0)
    try:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "runs\n"
        assert "worker runs again, as process" in stage.look()
        assert int(stage.demo.processes.pid_file("worker").read_text()) != process.pid
        stage.playground.restore()
        assert stage.demo.processes.alive() == [], "it runs, so the demo starts no second one"
        stage.playground.stop_theirs()
        assert shell.wait() in (-signal.SIGTERM, 128 + signal.SIGTERM)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()


def test_a_process_that_fails_by_itself_is_a_failure_all_the_same(stage: Stage) -> None:
    process = stage.start("worker", "print('runs'); raise SystemExit(3)")
    until(lambda: not process.is_alive, "it has ended")
    assert "The demo goes on without it" in stage.look()
    (failure,) = stage.demo.report.failures
    assert "worker" in failure
    assert "has ended with exit code 3" in failure
    assert stage.demo.report.experiments == []


def test_without_kafka_or_a_database_the_demo_ends_and_says_so(stage: Stage) -> None:
    del stage.services["tango-db"]
    stage.look()
    with pytest.raises(InfraError, match="tango-db: not running"):
        stage.playground.restore()
    stage.demo.clock.sleep(59.0)
    with pytest.raises(InfraError, match="tango-db is gone for good"):
        stage.look()


@pytest.mark.parametrize("mirror", [False, True])
def test_topics_of_a_demo_are_as_the_icd_says(mirror: bool) -> None:
    """`bus check` on a demo reported four settings of telescope.model, which no flow of that demo used."""
    for name, topic in load().topics.items():
        kept = _bounded(name, topic, mirror=mirror).config
        expected = {} if mirror and name == "telescope.model" else topic.config
        assert kept.items() >= expected.items(), name


@pytest.mark.parametrize("how", ["", "scripts/bootstrap web"])
def test_the_operators_page_is_started_where_it_is_installed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    launched: list[tuple[Any, ...]] = []
    stage.demo.options.folder.mkdir(parents=True, exist_ok=True)
    stage.demo.deployment.launch = lambda *words: launched.append(words)
    monkeypatch.setattr(staying, "how_to_install", lambda: how)
    told = staying.start_page(stage.demo)
    if how:
        assert (launched, told) == ([], f"The operator's page is not installed: {how}")
        return
    ((name, command, _, port, _, tokens, *_),) = launched
    assert (name, command) == ("web", "web")
    assert f"http://localhost:{port}/" in told
    assert tokens.stat().st_mode & 0o077 == 0
    assert all(line.split()[2] in told for line in tokens.read_text().splitlines())
