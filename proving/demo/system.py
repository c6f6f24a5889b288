"""The system of a demo: services, topics, registration, processes; set up, and cleared away by a stack."""

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from clients.events import EventRecorder, find_devices
from facade.bus.kafka.topics import delete_topics
from facade.clock import Clock
from facade.config import LONGEST_COMMAND_TIMEOUT, Settings
from facade.errors import BusError, InfraError
from facade.exports.tango_db import SERVER
from facade.flows.logs.messages import LOGS
from facade.flows.mirror.messages import MODEL
from facade.icd.model import Icd
from facade.icd.topic_model import Topic
from facade.infra import tools
from proving.demo.controllers import start_controllers
from proving.demo.journal import read_journal
from proving.demo.options import FLOWS_WITHIN, DemoOptions
from proving.demo.report import DemoReport, Kill
from proving.demo.services import bring_up, stop_ours
from proving.demo.tango_side import TangoSide
from proving.demo.tm import LONGEST
from proving.deployment import Deployment
from proving.progress import Progress
from proving.supervisor import Supervisor

PREFIX = "demo-"
WORKERS = 2
SIMULATOR, TM = "simulate", "tm"
SUBARRAY_SERVER = "subarray"
ASSEMBLER, CALIBRATOR, LOG_WORKER = "tables", "calibrate", "logs-aggregate-0"
_EVENTS_KEPT = 10_000
_SCAN = 2.0
"""How long a scan lasts [s]."""
_MOST_DISK = 2_000_000_000
"""Notifications that are kept per partition [bytes]: at full rate the ICD's hour would be some 100 GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A demo that runs."""

    options: DemoOptions
    progress: Progress
    report: DemoReport
    deployment: Deployment
    tango_side: TangoSide
    recorder: EventRecorder

    @property
    def clock(self) -> Clock:
        """Return the clock of all that is measured."""
        return self.progress.clock

    @property
    def icd(self) -> Icd:
        """Return the ICD."""
        return self.deployment.icd

    @property
    def processes(self) -> Supervisor:
        """Return what runs."""
        return self.deployment.processes

    @property
    def sent_file(self) -> Path:
        """Where the simulator keeps its account."""
        return self.options.folder / "sent.json"

    @property
    def journal_file(self) -> Path:
        """Where TM writes down what it does and sees."""
        return self.options.folder / "observation.json"

    @property
    def configure_file(self) -> Path:
        """What TM waits for before its first Configure, which would be over while something else is restarted."""
        return self.options.folder / "configure-now"

    @property
    def executions_file(self) -> Path:
        """Where the controller writes down what it executes."""
        return self.options.folder / "executions.jsonl"

    @property
    def tables_folder(self) -> Path:
        """Where the calibration pipeline keeps a copy of each table."""
        return self.options.folder / "sent-tables"

    def start_servers(self) -> None:
        """Start workers, device servers and, unless left out, the controller of the subarrays."""
        for slot in range(WORKERS):
            self.deployment.worker(slot)
        self.deployment.launch(ASSEMBLER, "tables", "assemble")
        if self.options.logs:
            self.deployment.launch(LOG_WORKER, "logs", "aggregate", "--slot", 0)
        for instance in self.deployment.instances:
            self.deployment.server(instance)
        self.executions_file.unlink(missing_ok=True)
        if self.options.controller:
            start_controllers(self.deployment, self.options, self.executions_file)

    def start_simulator(self) -> None:
        """Let the ingest nodes speak."""
        options, faults = self.options, msgspec.to_builtins(self.options.faults())
        names = ("gaps", "duplicates", "disorder", "late", "ahead", "garbage")
        chances = [f"--{name}={faults[name]}" for name in names]
        # A demo that stays is well once its story is over, and shows what a person does to it.
        chances += [f"--faults-for={options.seconds}"] * options.stay
        form = ["--columnar"] if options.columnar else []
        rates = [f"--nodes={options.nodes}", f"--rate={options.nodes * options.rate}"]
        self.sent_file.unlink(missing_ok=True)
        self.deployment.launch(SIMULATOR, "simulate", "ingest", *rates, *form, *chances, f"--report={self.sent_file}")

    def start_calibration(self, count: int) -> None:
        """Let a calibration pipeline send so many tables."""
        shutil.rmtree(self.tables_folder, ignore_errors=True)
        self.tables_folder.mkdir()
        options = [f"--count={count}", "--every=3", f"--save={self.tables_folder}"]
        self.deployment.launch(CALIBRATOR, "simulate", "calibration", *options, ends=True)

    def start_observation(self) -> None:
        """Let TM observe with all subarrays, and hold back what is to be disturbed until the demo looks."""
        for file in (self.journal_file, self.configure_file):
            file.unlink(missing_ok=True)
        held_back = {"Configure": str(self.configure_file)} if self.options.kills else {}
        devices = self.tango_side.subarrays
        task = {"journal": str(self.journal_file), "seconds": _SCAN, "devices": devices, "held_back": held_back}
        task["sdp"] = self.tango_side.sdp if self.options.orders else ""
        self.deployment.play("tm", name=TM, ends=True, longest=self.progress.longest(LONGEST), **task)

    def check_observation(self) -> None:
        """Make sure that everything runs that should, and that TM goes on: what it leads to does not come otherwise.

        Raises
        ------
        InfraError
            A process has ended by itself, or TM has given up.
        """
        self.processes.check()
        if errors := read_journal(self.journal_file).errors:
            raise InfraError(f"TM: {'; '.join(errors)}")

    def restart(
        self,
        victim: str,
        killed: str,
        is_back: Callable[[float, float], bool],
        what: str,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> float:
        """Kill a process, start it again, and wait until clients see that it is back.

        Parameters
        ----------
        killed
            What is printed of the kill.
        is_back
            Given the times of the kill and of the new start [Unix s].
        what
            Is waited for.
        meanwhile
            Is called while the process is away.

        Returns
        -------
        float
            From the new start until it is back [s].

        Raises
        ------
        InfraError
            It does not come back.
        """
        began = self.clock.now()
        self.report.kills.append(Kill(began, victim))
        self.processes.kill(victim)
        self.progress.step(f"kill -9 {killed}")
        meanwhile()
        self.processes.start_again(victim)
        started = self.clock.now()
        self.progress.demand(lambda: is_back(began, started), FLOWS_WITHIN, f"{what} after the restart of {victim}")
        return self.clock.now() - started


def set_up(
    options: DemoOptions, processes: Supervisor, progress: Progress, report: DemoReport, stack: ExitStack
) -> Demo:
    """Bring everything up to, but without, the first process of the demo; the stack clears it away.

    Raises
    ------
    FacadeError
        Something is missing, or another deployment is in the way.
    """
    folder, say = options.folder, progress.step
    folder.mkdir(parents=True, exist_ok=True)
    lock = tools.locked(folder / "demo.lock", lambda: say(f"waiting: another demo runs in {options.state_dir}"))
    stack.enter_context(lock)
    if left := processes.stop_left_over():
        say(f"stopped what an earlier demo had left: {', '.join(left)}")
    stack.callback(stop_ours, options, say)
    endpoints = bring_up(options, say)
    report.topic_prefix = f"{PREFIX}{round(progress.clock.now())}."
    settings = Settings(
        bootstrap=endpoints.bootstrap,
        prefix=report.topic_prefix,
        nodes=options.nodes,
        subarrays=options.subarrays,
        without=_without(options),
        command_timeout=min(Settings().command_timeout * options.patience, LONGEST_COMMAND_TIMEOUT),
    )
    exported = {"SDP_LOG_EXPORT": LOGS} if options.logs else {}
    deployment = Deployment(settings, endpoints, progress, processes, exported)
    _topics(deployment, stack, mirror=options.mirror)
    _register(deployment)
    stack.callback(processes.stop_all)
    recorder = EventRecorder(endpoints.tango_host, progress.clock, keep=_EVENTS_KEPT)  # ends with the process
    served = set(deployment.devices())  # the database also has those of roles that the demo does without
    found = find_devices(endpoints.tango_host, SERVER)
    devices = {name: mine for name, all_of_it in found.items() if (mine := [one for one in all_of_it if one in served])}
    return Demo(
        options=options,
        progress=progress,
        report=report,
        deployment=deployment,
        tango_side=TangoSide(endpoints.tango_host, devices, deployment.icd),
        recorder=recorder,
    )


def _without(options: DemoOptions) -> str:
    """Return the roles that the demo does without: nothing in it sends alerts as packets."""
    left_out = ["alerts-intake"]
    left_out += [] if options.mirror else ["mirror"]
    left_out += [] if options.logs else ["logs", "logs-aggregate"]
    return ",".join(left_out)


def _topics(deployment: Deployment, stack: ExitStack, *, mirror: bool) -> None:
    say, settings, topics = deployment.progress.step, deployment.settings, deployment.icd.topics
    earlier = Deployment(
        msgspec.structs.replace(settings, prefix=PREFIX),
        deployment.endpoints,
        deployment.progress,
        deployment.processes,
    )
    if left := delete_topics(earlier.connection):
        say(f"topics: {left} of an earlier demo deleted")

    def delete() -> None:
        try:
            say(f"topics: {delete_topics(deployment.connection)} deleted")
        except BusError as error:
            say(f"topics: left for the next demo to delete: {error}")

    stack.callback(delete)
    deployment.create_topics({name: _bounded(name, topic, mirror=mirror) for name, topic in topics.items()})
    say(f"topics: {len(topics)} created with the prefix {settings.prefix}")


def _bounded(name: str, topic: Topic, *, mirror: bool) -> Topic:
    if name == MODEL and mirror:  # its account looks at all records: none is compacted before its segment is full
        return msgspec.structs.replace(topic, config={})
    if topic.qos not in ("bulk", "log"):
        return topic
    config = {**topic.config, "retention.bytes": str(_MOST_DISK), "segment.bytes": str(_MOST_DISK // 8)}
    return msgspec.structs.replace(topic, config=config)


def _register(deployment: Deployment) -> None:
    for instance in deployment.instances:
        if deployment.answers(instance):
            raise InfraError(
                f"the device server {SERVER} {instance} already runs on the Tango database {deployment.tango_host};"
                " stop it, or give the demo a --state-dir of its own"
            )
    surplus = deployment.prune()
    removed = f", {surplus} of another size removed" if surplus else ""
    deployment.progress.step(f"Tango database: {deployment.register()} devices registered{removed}")
