"""A deployment of the whole facade as real processes, with a prefix and a Tango database of its own."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import tango

from devices.registration import register
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.topics import create_topics
from facade.clock import SystemClock
from facade.config import load_settings
from facade.flows.telemetry.simulator.report import Report, read_report
from facade.icd.load import load
from facade.infra import local
from facade.infra.ports import choose_port
from tests.support import topics
from tests.support.processes import Running
from tests.support.waiting import HANG, until

CLOCK = SystemClock()
ICD = load()
_SIMULATE = [sys.executable, "-m", "facade.cli", "simulate"]
SIMULATE = [*_SIMULATE, "ingest"]
MASTER, BUS = "mid-sdp/control/0", "mid-sdp/bus/0"
_ASSIGNED = "partitions assigned"
"""What a controller's log says each time that it has got its devices."""

_CALL = 30_000
"""After so long a Tango call has hung; a busy machine may take more than Tango's own 3 s [ms]."""
_numbers = itertools.count()
_TROUBLE = re.compile(r"Traceback|cycle failed|tick failed|internal error|DevFailed|Segmentation|core dumped")
"""What no log may hold, whatever happens to the bus."""


def node_device(node: int) -> str:
    """Return the name of a node's device."""
    return f"mid-sdp/ingest/{node:04d}"


def subarray_device(number: int) -> str:
    """Return the name of a subarray's device."""
    return f"mid-sdp/subarray/{number:02d}"


class Deployment:
    """Starts processes of one deployment and reads its devices; use it in a `with` statement.

    Its device server of the subarrays is only started by `serve` if it is to have some.
    """

    def __init__(
        self,
        infra: local.Endpoints,
        folder: Path,
        *,
        nodes: int = 4,
        rack_size: int = 50,
        subarrays: int = 0,
        tango_host: str = "",
    ) -> None:
        self.bootstrap = infra.bootstrap
        self.state_dir = infra.state_dir
        self.prefix = f"t{os.getpid()}-{next(_numbers)}."
        self.nodes, self.rack_size, self.subarrays = nodes, rack_size, subarrays
        self.folder = folder
        self.processes: list[Running] = []
        self.expect_trouble = False
        """Set where a test provokes what is otherwise forbidden in a log."""
        self.tango_host = tango_host
        self._proxies: dict[str, tango.DeviceProxy] = {}

    def __enter__(self) -> "Deployment":
        if not self.tango_host:
            self.tango_host = self.database()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        texts = {process.log.name: process.text for process in self.processes}
        for name, text in sorted(texts.items()):
            print(f"--- {name}\n{text[-6000:]}")  # shown by pytest when the test has failed
        topics.delete(self.bootstrap, self.prefix)
        if not self.expect_trouble:
            for name, text in texts.items():
                found = _TROUBLE.search(text)
                assert found is None, f"{name}: {text[max(0, found.start() - 300) : found.end() + 1500]}"

    @property
    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SDP_", "KAFKA_", "TANGO_"))}
        if self.subarrays:
            inherited["SDP_SUBARRAYS"] = str(self.subarrays)
        return {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
            "KAFKA_BOOTSTRAP": self.bootstrap,
            "TANGO_HOST": self.tango_host,
            "SDP_TOPIC_PREFIX": self.prefix,
            "SDP_INGEST_NODES": str(self.nodes),
            "SDP_RACK_SIZE": str(self.rack_size),
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def instances(self) -> list[str]:
        racks = [f"ingest-{rack:02d}" for rack in range((self.nodes - 1) // self.rack_size + 1)]
        return ["control", *racks, *(["subarray"] if self.subarrays else [])]

    def database(self, name: str = "tango-db") -> str:
        """Start an empty Tango database; gives its address."""
        port = choose_port()
        host = f"127.0.0.1:{port}"
        argv = ["PyDatabaseds", "--host", "127.0.0.1", "--port", str(port), "2"]
        self.start(name, argv, TANGO_HOST=host, PYTANGO_DATABASE_NAME=str(self.folder / f"{name}.sqlite"))

        def answers() -> bool:
            try:
                tango.Database("127.0.0.1", port).get_info()
            except tango.DevFailed:
                return False
            return True

        until(answers, f"the Tango database {name} answers")
        return host

    def topic(self, name: str) -> str:
        """Return a topic's name on the broker."""
        return self.prefix + name

    def create_topics(self) -> None:
        """Make the topics, as `sdp-facade topics create` does, without a process for it."""
        assert create_topics(Connection(load_settings(self.environment), clock=CLOCK), ICD.topics) == []

    def register(self) -> None:
        """Make the devices, as `sdp-facade register` does, without a process for it."""
        register(ICD, load_settings(self.environment), self.tango_host)

    def prepare(self) -> None:
        """Make topics and devices."""
        self.create_topics()
        self.register()

    def command(self, *arguments: str, **changes: str) -> str:
        """Run one command of sdp-facade to its end and give what it printed."""
        done = subprocess.run(
            ["sdp-facade", *arguments],
            env={**self.environment, **changes},
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
        assert done.returncode == 0, f"sdp-facade {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str, argv: list[str], **changes: str) -> Running:
        """Start a process that ends with the test at the latest."""
        process = Running(name, argv, self.folder / f"{name}.log", {**self.environment, **changes})
        self.processes.append(process)
        return process

    def worker(self, slot: str = "0", *, log: str = "", **changes: str) -> Running:
        """Start an aggregate worker."""
        return self.start(log or f"aggregate-{slot}", ["sdp-facade", "aggregate", "--slot", slot], **changes)

    def server(self, instance: str, *, ready: bool = True, **changes: str) -> Running:
        """Start a device server, and wait until it answers."""
        process = self.start(instance, ["SdpFacade", instance], **changes)
        if ready:
            self.await_server(process, instance)
        return process

    def await_server(self, process: Running, instance: str) -> None:
        """Wait until a device server answers."""
        name = f"tango://{self.tango_host}/dserver/SdpFacade/{instance}"

        def answers() -> bool:
            assert process.running, f"{instance} ended: {process.tail()}"
            try:
                # A proxy of its own each time: one that has failed waits before it tries again.
                return tango.DeviceProxy(name).ping() > 0
            except tango.DevFailed:
                return False

        until(answers, f"the device server {instance} answers")

    def serve(self) -> dict[str, Running]:
        """Start all device servers."""
        started = {instance: self.server(instance, ready=False) for instance in self.instances}
        for instance, process in started.items():
            self.await_server(process, instance)
        return started

    def simulate(self, *options: object, name: str = "simulate") -> "Simulation":
        """Start the simulator."""
        file = self.folder / f"{name}.json"
        argv = [*SIMULATE, "--report", str(file), *map(str, options)]
        return Simulation(self.start(name, argv), file)

    def controller(self, *options: object, log: str = "controller", speed: float = 20.0) -> Running:
        """Start the reference controller, and wait until it executes the commands of all subarrays.

        What it executes is in `executions`, over all its lives.
        """
        file = self.folder / f"{log}.log"
        before = file.read_text().count(_ASSIGNED) if file.exists() else 0
        argv = [*_SIMULATE, "controller", "--speed", str(speed), "--report", str(self._executions), *map(str, options)]
        process = self.start(log, argv)

        def has_its_devices() -> bool:
            assert process.running, f"the controller ended: {process.tail()}"
            return process.text.count(_ASSIGNED) > before

        until(has_its_devices, "the controller has its devices")
        return process

    def executions(self) -> list[dict[str, Any]]:
        """Return what controllers have begun, in their order, as they have written it down."""
        if not self._executions.exists():
            return []
        whole = (line for line in self._executions.read_text().splitlines(keepends=True) if line.endswith("\n"))
        return [json.loads(line) for line in whole]

    @property
    def _executions(self) -> Path:
        return self.folder / "executions.jsonl"

    def proxy(self, device: str) -> tango.DeviceProxy:
        """Return a proxy; the same one each time."""
        if device not in self._proxies:
            self._proxies[device] = tango.DeviceProxy(f"tango://{self.tango_host}/{device}")
            self._proxies[device].set_timeout_millis(_CALL)
        return self._proxies[device]

    def forget_proxies(self) -> None:
        """Drop the proxies: one whose server was killed waits seconds before it tries again."""
        self._proxies.clear()

    def read(self, device: str, *names: str) -> dict[str, Any]:
        """Return attribute values; None where the quality is ATTR_INVALID or the device does not answer."""
        try:
            found = self.proxy(device).read_attributes(list(names))
        except tango.DevFailed:
            self._proxies.pop(device, None)
            return dict.fromkeys(names)
        invalid = tango.AttrQuality.ATTR_INVALID
        return {a.name: None if a.has_failed or a.quality == invalid else a.value for a in found}

    def read_one(self, device: str, name: str) -> Any:
        """Return the value of one attribute."""
        return self.read(device, name)[name]

    def quality(self, device: str, name: str) -> str:
        """Return the quality of one attribute, without its prefix; "no answer" where the device gives none."""
        try:
            return str(self.proxy(device).read_attribute(name).quality).removeprefix("ATTR_")
        except tango.DevFailed:
            self._proxies.pop(device, None)
            return "no answer"

    def account(self) -> dict[str, Any]:
        """Return what SdpBus says of the heap notifications."""
        figures = ("Consumed", "Used", "Late", "Suppressed", "DeadLettered", "InFlight", "Balance", "Lag")
        found = self.read(BUS, *(f"ingestHeaps{figure}" for figure in figures), "ingestSummaryBalance")
        found |= {"ingestSummaryLag": self.read_one(BUS, "ingestSummaryLag")}
        # A lag that nobody measures any more is INVALID; then nothing comes, hence nothing is behind.
        return {name: value or 0 if name.endswith("Lag") else value for name, value in found.items()}

    def totals(self) -> dict[str, Any]:
        """Return all totals that devices show, by device and attribute."""
        found: dict[str, Any] = self.account()
        found |= {f"master/{n}": v for n, v in self.read(MASTER, *_MASTER_TOTALS).items()}
        for node in range(self.nodes):
            found |= {f"{node}/{n}": v for n, v in self.read(node_device(node), *_NODE_TOTALS).items()}
        return found

    def broker(self) -> "Broker":
        """Return control over the broker."""
        return Broker(self.state_dir)


class Simulation:
    """A simulator and its account."""

    def __init__(self, process: Running, file: Path) -> None:
        self.process = process
        self._file = file

    @property
    def report(self) -> Report:
        """What it has sent so far, at most a second old; the first one is waited for."""
        until(self._file.exists, f"the report {self._file}")
        return read_report(self._file)

    def sends(self, records: int = 1) -> None:
        """Wait until so many records have arrived at the broker."""

        def sent() -> bool:
            try:
                return read_report(self._file).sent >= records
            except (msgspec.DecodeError, FileNotFoundError):
                return False

        until(sent, f"{records} records sent")

    def stop(self) -> Report:
        """End it and give its exact account."""
        assert self.process.terminate() == 0, self.process.tail()
        return self.report

    def finish(self) -> Report:
        """Wait for its end and give its exact account."""
        assert self.process.exit_code() == 0, self.process.tail()
        report = self.report
        assert report.finished
        assert report.sent == report.queued
        return report


class Broker:
    """The Kafka broker of the test run."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    @property
    def pid(self) -> int:
        return next(line.pid for line in local.status(self._state_dir) if line.service == "kafka" and line.pid)

    def kill(self) -> None:
        local.stop_service(self._state_dir, "kafka", kill=True)

    def start(self) -> None:
        local.start_service(self._state_dir, "kafka")

    @property
    def is_up(self) -> bool:
        return any(line.service == "kafka" and line.alive for line in local.status(self._state_dir))


_NODE_TOTALS = (
    "heapsTotal",
    "heapsLate",
    "heapsMissing",
    "heapsDuplicated",
    "packetsReceivedTotal",
    "packetsLostTotal",
    "packetsLateTotal",
)
_MASTER_TOTALS = ("heapsTotal", "heapsLate", "heapsMissing", "heapsDuplicated")


def expected_totals(report: Report) -> dict[str, Any]:
    """Return what `Deployment.totals` must give once everything has been read."""
    expected, nodes = report.expected, report.nodes.values()
    suppressed, refused = sum(expected.suppressed.values()), sum(expected.dead_lettered.values())
    wanted: dict[str, Any] = {
        "ingestHeapsConsumed": expected.consumed,
        "ingestHeapsUsed": expected.used,
        "ingestHeapsLate": expected.late,
        "ingestHeapsSuppressed": suppressed,
        "ingestHeapsDeadLettered": refused,
        "ingestHeapsInFlight": 0,
        "ingestHeapsBalance": 0,
        "ingestHeapsLag": 0,
        "ingestSummaryBalance": 0,
        "ingestSummaryLag": 0,
        "master/heapsTotal": expected.used,
        "master/heapsLate": expected.late,
        "master/heapsMissing": sum(node.missing for node in nodes),
        "master/heapsDuplicated": sum(node.duplicates for node in nodes),
    }
    for number, node in report.nodes.items():
        figures = (node.used, node.late, node.missing, node.duplicates, node.received, node.lost, node.late_packets)
        wanted |= {f"{number}/{name}": value for name, value in zip(_NODE_TOTALS, figures, strict=True)}
    return wanted


def reasons(lines: Mapping[str, int] | tuple[str, ...] | None) -> dict[str, int]:
    """Return SdpBus' deadLetterReasons as a dict by 'stream reason'."""
    return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines or ()}
