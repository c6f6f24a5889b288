"""A deployment of the whole facade as real processes, with a prefix and a Tango database of its own."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import tango
from confluent_kafka import Message
from rich.console import Console

import sdp_facade_lab.deployment
from facade.flows.telemetry.simulator.ingest import HeapReport, read_report
from facade.infra import local
from facade.infra.ports import choose_port
from facade.infra.processes import PortTakenError, check_alive
from facade.kernel.bus.port import Record
from facade.kernel.clock import SystemClock
from facade.kernel.config import LONGEST_COMMAND_TIMEOUT, Settings
from facade.kernel.icd.load import load
from facade.kernel.instances import registration
from facade.kernel.names import SERVER
from sdp_facade_clients.events import open_database
from sdp_facade_lab.progress import ProgressLine
from sdp_facade_lab.supervisor import Supervisor
from tests.support import fork_server, topics
from tests.support.processes import Running
from tests.support.waiting import HANG, until, until_equal

CLOCK = SystemClock()
ICD = load()
MASTER, BUS = "mid-sdp/control/0", "mid-sdp/bus/0"
_ROOT = Path(__file__).parents[2]
_ASSIGNED = "partitions assigned"
"""What a controller's log says each time that it has got its devices."""

_CALL = 60_000
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


class Deployment(sdp_facade_lab.deployment.Deployment):
    """Starts processes of one deployment and reads its devices; use it in a `with` statement.

    Its device server of the subarrays is only started by `serve` if it is to have some.

    Parameters
    ----------
    patient
        Whether commands have as long as a test waits for anything, and not the deadlines of the ICD.
    """

    def __init__(
        self,
        infra: local.Endpoints,
        folder: Path,
        *,
        nodes: int = 4,
        rack_size: int = 50,
        subarrays: int = 0,
        archives: int = 0,
        tango_host: str = "",
        telescope: str = Settings().telescope,
        mirror_forms: str = "",
        patient: bool = False,
        approvals: str = "",
        without: str = "alerts,calibration,quality,mirror,logs,alerts-intake,tables-assemble,logs-aggregate",
    ) -> None:
        settings = Settings(
            bootstrap=infra.bootstrap,
            prefix=f"t{os.getpid()}-{next(_numbers)}.",
            telescope=telescope,
            nodes=nodes,
            rack_size=rack_size,
            subarrays=subarrays or Settings().subarrays,
            archives=archives,
            without=without if subarrays else f"{without},subarray",
            command_timeout=LONGEST_COMMAND_TIMEOUT,
        )
        progress = ProgressLine(Console(quiet=True), CLOCK)
        variables = {"SDP_MIRROR_FORMS": mirror_forms, "SDP_APPROVALS": approvals}
        super().__init__(settings, infra, progress, Supervisor(folder, CLOCK, append=True), variables)
        self.bootstrap, self.prefix, self.nodes, self.subarrays = infra.bootstrap, settings.prefix, nodes, subarrays
        self.tango_host = tango_host
        self._facade = ["SdpFacade"]
        if patient:
            self._facade = [sys.executable, "-m", "tests.support.patient_server"]
            self._variables |= {"PYTHONPATH": str(_ROOT)}
        self._proxies: dict[str, tango.DeviceProxy] = {}

    def __enter__(self) -> "Deployment":
        if not self.tango_host:
            self.tango_host = self.database()
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.stop_all(kill=True)
        texts = {process.log.name: process.text for process in self.processes.started}
        for name, text in sorted(texts.items()):
            print(f"--- {name}\n{text[-6000:]}")  # shown by pytest when the test has failed
        topics.delete(self.bootstrap, self.prefix, self.settings.kafka)
        for name, text in texts.items():
            found = _TROUBLE.search(text)
            assert found is None, f"{name}: {text[max(0, found.start() - 300) : found.end() + 1500]}"

    def move(self, infra: local.Endpoints) -> None:
        """Use the brokers of another site from now on; the Tango database stays."""
        self.settings = msgspec.structs.replace(self.settings, bootstrap=infra.bootstrap)
        self.bootstrap = infra.bootstrap

    @property
    def instances(self) -> list[str]:
        racks = [f"ingest-{rack:02d}" for rack in range((self.nodes - 1) // self.settings.rack_size + 1)]
        return ["control", *racks, *(["subarray"] if self.subarrays else [])]

    def database(self, name: str = "tango-db") -> str:
        """Start an empty Tango database; gives its address."""
        while True:
            port = choose_port()
            host = f"127.0.0.1:{port}"
            argv = ["PyDatabaseds", "--host", "127.0.0.1", "--port", str(port), "2"]
            file = self.folder / f"{name}.sqlite"
            process = self.start(name, argv, TANGO_HOST=host, PYTANGO_DATABASE_NAME=str(file))

            def answers(process: Running = process, port: int = port) -> bool:
                try:
                    tango.Database("127.0.0.1", port).get_info()
                except tango.DevFailed:
                    return not process.running
                # One of another test may answer while ours has just found the port taken.
                return not process.running or port in process.ports

            until(answers, f"the Tango database {name} answers")
            with suppress(PortTakenError):
                check_alive(process)
                return host

    def topic(self, name: str) -> str:
        return self.prefix + name

    def messages(self, topic: str) -> list[Message]:
        """Return all committed records of a topic, as a plain client has them.

        Marks are left out: a worker writes one after a broker was killed that had kept a transaction open.
        """
        found = topics.read_all(self.bootstrap, self.topic(topic))
        return [one for one in found if (one.key(), one.value()) != (b"mark", None)]

    def send(self, *records: Record) -> None:
        """Write records with a plain client, and wait until the broker has them."""
        topics.send_records(self.bootstrap, self.prefix, records)

    def prepare(self) -> None:
        """Make topics and devices, without a process for it."""
        assert self.create_topics() == []
        self.enter_devices()

    def enter_devices(self) -> None:
        """Write what `register` writes, into a new database: dsconfig needs a process of a second for it."""
        database, content = open_database(self.tango_host), registration(self.icd, self.settings)
        database.set_timeout_millis(_CALL)
        for instance, classes in content["servers"][SERVER].items():
            for class_name, names in classes.items():
                for name in names:
                    info = tango.DbDevInfo()
                    info.name, info._class, info.server = name, class_name, f"{SERVER}/{instance}"
                    database.add_device(info)
        for class_name, about in content["classes"].items():
            database.put_class_property(class_name, about["properties"])

    def command(self, *arguments: str, **changes: str) -> str:
        """Run one command of sdp-facade to its end and give what it printed."""
        done = self.run(*arguments, **changes)
        said = done.stdout.decode()
        assert done.returncode == 0, f"sdp-facade {' '.join(arguments)}: {said}{done.stderr.decode()}"
        return said

    def run(self, *arguments: object, **changes: str) -> subprocess.CompletedProcess[bytes]:
        """Run one command of sdp-facade to its end, whatever comes of it."""
        argv = ["sdp-facade", *map(str, arguments)]
        done = fork_server.run(argv, {**self.environment, **changes}, HANG)
        print(argv, done.stderr.decode())  # shown by pytest when the test has failed
        return done

    def start(
        self, name: str, argv: list[str], *, ends: bool = False, login: str | None = None, **changes: str
    ) -> Running:
        """Start a process that ends with the test at the latest; at this broker nobody logs in."""
        return self.processes.start(Running, name, argv, {**self.environment, **changes}, ends=ends)

    def worker(self, slot: str = "0", *options: str, log: str = "", **changes: str) -> Running:
        return self.launch(log or f"aggregate-{slot}", "aggregate", "--slot", slot, *options, **changes)

    def server(self, instance: str, *, name: str = "", ready: bool = True, **changes: str) -> Running:
        """Start a device server, and wait until it answers."""
        process = self.start(name or instance, [*self._facade, instance], **changes)
        if ready:
            self.await_server(process, instance)
        return process

    def await_server(self, process: Running, instance: str) -> None:

        def answers() -> bool:
            assert process.running, f"{instance} ended: {process.tail()}"
            return self.answers(instance)

        until(answers, f"the device server {instance} answers")

    def serve(self) -> dict[str, Running]:
        started = {instance: self.server(instance, ready=False) for instance in self.instances}
        for instance, process in started.items():
            self.await_server(process, instance)
        return started

    def simulate(self, *options: object, name: str = "simulate") -> "Simulation":
        file = self.folder / f"{name}.json"
        return Simulation(self.launch(name, "simulate", "ingest", "--report", file, *options), file)

    def controller(self, *options: object, log: str = "controller", speed: float = 20.0) -> Running:
        """Start the reference controller, and wait until it executes the commands of all subarrays.

        What it executes is in `executions`, over all its lives.
        """
        file = self.folder / f"{log}.log"
        before = file.read_text().count(_ASSIGNED) if file.exists() else 0
        report = ["--speed", speed, "--report", self._executions]
        process = self.launch(log, "simulate", "controller", *report, *options)

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
        """Return a proxy; the same one each time, once it has got a connection."""
        if device not in self._proxies:
            made = tango.DeviceProxy(f"tango://{self.tango_host}/{device}")
            made.set_timeout_millis(_CALL)  # makes a connection, and fails without
            self._proxies[device] = made
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
        return self.read(device, name)[name]

    def quality(self, device: str, name: str) -> str:
        """Return the quality of one attribute, without its prefix; "no answer" where the device gives none."""
        try:
            return str(self.proxy(device).read_attribute(name).quality).removeprefix("ATTR_")
        except tango.DevFailed:
            self._proxies.pop(device, None)
            return "no answer"

    def account(self) -> dict[str, Any]:
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


class Simulation:
    """A simulator and its account."""

    def __init__(self, process: Running, file: Path) -> None:
        self.process = process
        self._file = file

    @property
    def report(self) -> HeapReport:
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

    def stop(self) -> HeapReport:
        assert self.process.terminate() == 0, self.process.tail()
        return self.report

    def finish(self) -> HeapReport:
        """Wait for its end and give its exact account."""
        assert self.process.exit_code() == 0, self.process.tail()
        report = self.report
        assert report.finished
        assert report.sent == report.queued
        return report


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


def expected_totals(report: HeapReport) -> dict[str, Any]:
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
        "master/heapsTotal": expected.used + expected.late,
        "master/heapsLate": expected.late,
        "master/heapsMissing": sum(node.missing for node in nodes),
        "master/heapsDuplicated": sum(node.duplicates for node in nodes),
    }
    for number, node in report.nodes.items():
        figures = (node.counted, node.late, node.missing, node.duplicates, node.received, node.lost, node.late_packets)
        wanted |= {f"{number}/{name}": value for name, value in zip(_NODE_TOTALS, figures, strict=True)}
    return wanted


def await_totals(deployment: Deployment, report: HeapReport) -> None:
    """Wait until everything that devices show agrees with the sender's account."""
    deployment.forget_proxies()
    wanted = expected_totals(report)
    if report.certain:
        until_equal(deployment.totals, wanted, "totals are what was sent")
        return
    # Records waited for the broker: some are late now, which nobody could say beforehand. Totals have them as well.
    certain = {name: value for name, value in wanted.items() if not name.endswith(("HeapsUsed", "Late"))}

    def part() -> dict[str, object]:
        totals = deployment.totals()
        found = {name: totals[name] for name in certain}
        return found | {"used and late": (totals["ingestHeapsUsed"] or 0) + (totals["ingestHeapsLate"] or 0)}

    both = report.expected.used + report.expected.late
    until_equal(part, {**certain, "used and late": both}, "totals are what was sent")


def reasons(lines: Mapping[str, int] | tuple[str, ...] | None) -> dict[str, int]:
    """Return SdpBus' deadLetterReasons as a dict by 'stream reason'."""
    return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines or ()}
