"""The second observatory: its processes have the kernel, what they make of it, and nothing else of ours."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tango

from facade.infra import local
from facade.kernel.clock import SystemClock
from sdp_facade_lab.supervisor import Supervisor
from tests.support import topics
from tests.support.processes import Running
from tests.support.waiting import HANG, until, until_equal

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "observatory"
KERNEL = ("facade.kernel", "devices.kernel", "observatory")
WEATHER, DOME, ALARMS = "obs/weather/0", "obs/dome/0", "obs/alarms/0"
COMMANDS = ["dome", "simulate", "weather", "version"]
"""Sub-commands; the last one is the kernel's own."""
PREFIX = f"observatory{os.getpid()}."


def test_its_programs_import_the_kernel_only() -> None:
    for file in (EXAMPLE / "observatory").rglob("*.py"):
        nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        names = {node.module or "" for node in nodes}
        ours = {name for name in names if name.startswith(("facade", "devices", "sdp_facade", "tests"))}
        assert {name for name in ours if not name.startswith(KERNEL)} == set(), file.name


def test_its_interface_has_no_mistakes() -> None:
    code = "import observatory; from facade.kernel.icd.load import inspect; print(inspect(thorough=True)[1])"
    environment = os.environ | {"PYTHONPATH": str(EXAMPLE)}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr


class Site:
    """The running observatory."""

    def __init__(self, infra: local.Endpoints, folder: Path, tree: Path) -> None:
        self.processes, self.tree, self._tango_host = (
            Supervisor(folder, SystemClock(), append=True),
            tree,
            infra.tango_host,
        )
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SDP_", "KAFKA_", "TANGO_"))}
        self.environment = inherited | {
            "KAFKA_BOOTSTRAP": infra.bootstrap,
            "TANGO_HOST": infra.tango_host,
            "OBSERVATORY_TOPIC_PREFIX": PREFIX,
            "OBSERVATORY_COMMAND_TIMEOUT": "2.5",
        }

    def run(self, argv: list[str | Path], **more: str) -> str:
        environment = self.environment | more
        done = subprocess.run(
            argv, env=environment, cwd=self.tree, capture_output=True, text=True, timeout=HANG, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, program: str, *arguments: str, ends: bool = False) -> Running:
        argv = [str(self.tree / "bin" / program), *arguments]
        environment = self.environment | {"PYTHONPATH": str(self.tree)}
        return self.processes.start(Running, name, argv, environment, ends=ends)

    def simulate(self, *options: str) -> Running:
        return self.start("stations", "observatory", "simulate", *options, ends=True)

    def controller(self) -> None:
        """Start the controller, and wait for its first transaction: a command that it finds late is not executed."""
        before = self.accounts("commands/0")
        self.start("dome-controller", "observatory", "dome", "--travel", "0.5")
        until(lambda: self.accounts("commands/0") > before, "the controller reads commands")

    def accounts(self, key: str) -> int:
        records = topics.read_all(self.environment["KAFKA_BOOTSTRAP"], f"{PREFIX}accounts")
        return sum(one.key() == key.encode() for one in records)

    def server(self, instance: str) -> Running:
        process = self.start(instance, "Observatory", instance)

        def answers() -> bool:
            assert process.running, process.tail()
            try:
                return self.proxy(f"dserver/Observatory/{instance}").ping() > 0
            except tango.DevFailed:
                return False

        until(answers, f"the device server {instance} answers")
        return process

    def proxy(self, device: str) -> tango.DeviceProxy:
        return tango.DeviceProxy(f"tango://{self._tango_host}/{device}")

    def read(self, device: str, name: str) -> Any:
        try:
            found = self.proxy(device).read_attribute(name)
        except tango.DevFailed:
            return None
        value = tuple(found.value) if isinstance(found.value, list | tuple) else found.value
        return None if found.quality == tango.AttrQuality.ATTR_INVALID else value

    def totals(self) -> tuple[Any, Any]:
        return self.read(WEATHER, "readingsTotal"), self.read(WEATHER, "rainTotal")

    def alarm(self, condition: str) -> Any:
        return {0: "NORMAL", 1: "ACTIVE"}.get(self.read(ALARMS, condition))

    def outcome(self, id: str) -> str:
        newest = self.read(DOME, "lastCommand")
        return newest[2] if isinstance(newest, tuple) and newest and newest[0] == id else ""

    def give(self, command: str) -> str:
        (code,), (id,) = self.proxy(DOME).command_inout(command)
        assert code == 2
        return id

    def complete(self, command: str) -> str:
        """Give a command until it is completed: on a busy machine it may come too late."""
        while True:
            id = self.give(command)
            until(lambda id=id: self.outcome(id) in ("COMPLETED", "REJECTED", "TIMED_OUT"), f"the outcome of {id}")
            if self.outcome(id) == "COMPLETED":
                return id

    def refusal(self, command: str) -> str:
        try:
            return f"taken as {self.give(command)}"
        except tango.DevFailed as failed:
            return failed.args[0].desc


@pytest.fixture(scope="module")
def site(infra: local.Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Give the observatory; its processes have a tree with the kernel alone."""
    tree, folder = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("logs")
    for package in ("facade", "devices"):
        shutil.copytree(ROOT / package / "kernel", tree / package / "kernel")
        shutil.copy(ROOT / package / "__init__.py", tree / package)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*install, "--target", tree, EXAMPLE], capture_output=True, check=True)
    found = Site(infra, folder, tree)
    found.run([sys.executable, EXAMPLE / "walk.py", "--prepare"])
    try:
        found.start("weather-worker", "observatory", "weather")
        found.controller()
        for instance in ("weather", "control"):
            found.server(instance)
        yield found
    finally:
        found.processes.stop_all(kill=True)
        texts = {process.log.name: process.text for process in found.processes.started}
        for name, text in sorted(texts.items()):
            print(f"--- {name}\n{text[-6000:]}")
        topics.delete(infra.bootstrap, PREFIX, {})


pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.xdist_group("observatory")]


def test_nothing_of_sdp_is_there(site: Site) -> None:
    there = "import facade.kernel, devices.kernel, importlib.util as u; print(u.find_spec('facade.flows'))"
    assert site.run([sys.executable, "-c", there], PYTHONPATH=str(site.tree)) == "None\n"
    shown = site.run([site.tree / "bin" / "observatory", "--help"], PYTHONPATH=str(site.tree))
    assert "A weather station and a dome." in shown
    assert re.findall(r"^  (\w+) +\w", shown.partition("Operate:")[2], re.MULTILINE) == COMMANDS


def test_totals_are_exact_whoever_is_killed(site: Site) -> None:
    stations = site.simulate("--rate", "60")
    until(lambda: (site.totals()[0] or 0) > 100, "some readings are counted")
    site.processes.kill("weather-worker")
    before = site.totals()[0]
    site.processes.start_again("weather-worker")
    until(lambda: (site.totals()[0] or 0) > before + 100, "the next worker goes on")
    site.processes.kill("weather")
    site.server("weather")
    assert stations.terminate() == 0
    (sent,) = re.findall(r"sent (\d+) readings, (\d+) tips", stations.text)
    wanted = int(sent[0]), int(sent[1])
    until_equal(site.totals, wanted, "totals are what was sent")
    site.proxy("dserver/Observatory/weather").command_inout("DevRestart", WEATHER)
    until_equal(site.totals, wanted, "totals after DevRestart")


def test_a_silent_site_turns_invalid(site: Site) -> None:
    stations = site.simulate("--rate", "20")
    until_equal(lambda: site.read(WEATHER, "stations"), ("mast", "dome", "gate"), "all stations report")
    until_equal(lambda: site.proxy(WEATHER).state(), tango.DevState.ON, "the State")
    assert stations.terminate() == 0
    until_equal(lambda: site.read(WEATHER, "windMean"), None, "the wind is not known")
    assert site.totals()[0]


def test_strong_wind_raises_an_alarm_and_clears_it(site: Site) -> None:
    events: list[Any] = []
    proxy = site.proxy(ALARMS)
    proxy.subscribe_event("windHigh", tango.EventType.CHANGE_EVENT, events.append)
    storm = site.simulate("--rate", "20", "--wind", "20")
    until_equal(lambda: site.alarm("windHigh"), "ACTIVE", "the alarm")
    text = r"windHigh: expected less than 15 m/s, got [12]\d\.\d m/s"
    until(lambda: re.fullmatch(text, "".join(site.read(ALARMS, "activeAlarms") or ())), "its text")
    until(lambda: site.proxy(WEATHER).state() == tango.DevState.ALARM, "the State ALARM")
    assert storm.terminate() == 0
    calm = site.simulate("--rate", "20", "--wind", "5")
    until_equal(lambda: site.alarm("windHigh"), "NORMAL", "the alarm has cleared")
    assert calm.terminate() == 0
    until_equal(lambda: [event.attr_value.value for event in events if not event.err], [0, 1, 0], "its change events")


def test_a_command_has_an_outcome(site: Site) -> None:
    id = site.complete("Open")
    until_equal(lambda: site.proxy(DOME).state(), tango.DevState.OPEN, "the State")
    site.proxy("dserver/Observatory/control").command_inout("DevRestart", DOME)
    until_equal(lambda: site.outcome(id), "COMPLETED", "the outcome after DevRestart")
    assert site.proxy(DOME).state() == tango.DevState.OPEN
    site.processes.kill("control")
    site.server("control")
    until_equal(lambda: site.outcome(id), "COMPLETED", "a new process knows the outcome")


def test_a_dome_that_does_not_answer_raises_an_alarm(site: Site) -> None:
    site.processes.kill("dome-controller")
    id = site.give("Close")
    refusal = site.refusal("Open")
    assert "expected a dome at rest, got Close without an outcome yet" in refusal or site.outcome(id) != "GIVEN", (
        refusal
    )
    until_equal(lambda: site.outcome(id), "TIMED_OUT", "the outcome without a controller")
    until_equal(lambda: site.alarm("domeSilent"), "ACTIVE", "the alarm")
    site.controller()
    site.complete("Close")
    until_equal(lambda: site.alarm("domeSilent"), "NORMAL", "the alarm has cleared")
    until_equal(lambda: site.proxy(DOME).state(), tango.DevState.CLOSE, "the State")
