"""The processes of a demo, and the client that watches its devices."""

import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from facade.flows.logs.messages import LOGS
from facade.flows.mirror.messages import MODEL
from facade.infra import tools
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.clock import Clock
from facade.kernel.config import LONGEST_COMMAND_TIMEOUT, Settings
from facade.kernel.errors import BusError, InfraError
from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import Topic
from facade.kernel.names import SERVER
from sdp_facade_clients.events import EventRecorder, find_devices
from sdp_facade_lab.demo.options import FLOWS_WITHIN, DemoOptions
from sdp_facade_lab.demo.plan import read_journal
from sdp_facade_lab.demo.report import FAULTS, DemoReport, Kill
from sdp_facade_lab.demo.services import bring_up, stop_ours
from sdp_facade_lab.demo.tm import LONGEST, observe
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.heap_account import BalanceLine
from sdp_facade_lab.progress import ProgressLine
from sdp_facade_lab.supervisor import Supervisor
from sdp_facade_lab.tango_side import TangoSide

CONTROLLER = "controller"
INSPECTOR = "inspector"
"""Role of the account, which reads everything."""
_NAME = "simulated-controller"
"""Under which it is known on the bus."""
_PROCESSING, _WORKER = "processing", "processing-worker"


def start_controllers(deployment: Deployment, options: DemoOptions, report: Path) -> None:

    def start(name: str, *more: str) -> None:
        own = [f"--subarrays={options.subarrays}", f"--report={report}"]
        deployment.launch(name, "simulate", "controller", *own, *more, login="controller")

    executes = ["--orders", "--only=SdpMaster", "--only=SdpSubarray"] if options.orders else []
    start(CONTROLLER, f"--name={_NAME}", *executes, *(["--fault=fail-block:EndScan"] if options.blocks else []))
    if options.orders:
        start(_PROCESSING, "--orders", "--only=ProcessingController", f"--name={_PROCESSING}")
        start(_WORKER, "--only=ProcessingWorker", f"--name={_WORKER}")


def controller_components(options: DemoOptions) -> list[str]:
    """Return under which names they are known on the bus."""
    return [_NAME, *((_PROCESSING, _WORKER) if options.orders else ())]


PREFIX = "demo-"
_EARLIER = re.compile(rf"({PREFIX}\d+(?:-\w+)?\.)(.+)")
"""A topic of a demo or of its replay: prefix and name."""
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
    progress: ProgressLine
    report: DemoReport
    deployment: Deployment
    tango_side: TangoSide
    recorder: EventRecorder

    @property
    def clock(self) -> Clock:
        return self.progress.clock

    @property
    def icd(self) -> Icd:
        return self.deployment.icd

    @property
    def processes(self) -> Supervisor:
        return self.deployment.processes

    @property
    def sent_file(self) -> Path:
        return self.options.folder / "sent.json"

    @property
    def journal_file(self) -> Path:
        return self.options.folder / "observation.json"

    @property
    def configure_file(self) -> Path:
        """What TM waits for before its first Configure, which would be over while something else is restarted."""
        return self.options.folder / "configure-now"

    @property
    def executions_file(self) -> Path:
        return self.options.folder / "executions.jsonl"

    @property
    def tables_folder(self) -> Path:
        """Where the calibration pipeline keeps a copy of each table."""
        return self.options.folder / "sent-tables"

    def look(self, client: str) -> KafkaBus:
        """Return the bus for the account, which changes nothing there."""
        return KafkaBus(self.deployment.connection_of(INSPECTOR), client=client)

    def start_servers(self) -> None:
        """Start workers, device servers and, unless left out, the controller of the subarrays."""
        for slot in range(WORKERS):
            self.deployment.worker(slot)
        self.deployment.launch(ASSEMBLER, "tables", "assemble", "--slot", "0", login="tables-assemble")
        if self.options.logs:
            self.deployment.launch(LOG_WORKER, "logs", "aggregate", "--slot", 0, login="logs-aggregate")
        for instance in self.deployment.instances:
            self.deployment.server(instance)
        self.executions_file.unlink(missing_ok=True)
        if self.options.controller:
            start_controllers(self.deployment, self.options, self.executions_file)

    def start_simulator(self) -> None:
        options, faults = self.options, msgspec.to_builtins(self.options.faults())
        names = ("gaps", "duplicates", "disorder", "late", "ahead", "garbage")
        chances = [f"--{name}={faults[name]}" for name in names]
        # A demo that stays is well once its story is over, and shows what a person does to it.
        chances += [f"--faults-for={options.seconds}"] * options.stay
        chances += [f"--loss={one}" for one in options.losses]
        form = ["--columnar"] if options.columnar else []
        rates = [f"--nodes={options.nodes}", f"--rate={options.nodes * options.rate}"]
        self.sent_file.unlink(missing_ok=True)
        words = [*rates, *form, *chances, f"--report={self.sent_file}"]
        self.deployment.launch(SIMULATOR, "simulate", "ingest", *words, login="ingest-node")

    def start_calibration(self, count: int) -> None:
        shutil.rmtree(self.tables_folder, ignore_errors=True)
        self.tables_folder.mkdir()
        options = [f"--count={count}", "--every=3", f"--save={self.tables_folder}"]
        words = ["simulate", "calibration", *options]
        self.deployment.launch(CALIBRATOR, *words, ends=True, login="calibration-pipeline")

    def start_observation(self) -> None:
        for file in (self.journal_file, self.configure_file):
            file.unlink(missing_ok=True)
        held_back = {"Configure": str(self.configure_file)} if self.options.kills else {}
        devices = self.tango_side.subarrays
        task: dict[str, Any] = {
            "journal": str(self.journal_file),
            "seconds": _SCAN,
            "devices": devices,
            "held_back": held_back,
        }
        task["sdp"] = self.tango_side.sdp if self.options.orders else ""
        longest = self.progress.longest(LONGEST)
        self.deployment.play(observe, name=TM, ends=True, login=None, longest=longest, **task)

    def check_observation(self) -> None:
        self.processes.check()
        if errors := read_journal(self.journal_file).errors:
            raise InfraError(f"TM: {'; '.join(errors)}")

    def crash(
        self,
        fault: str,
        victim: str,
        killed: str,
        is_back: Callable[[float, float], bool],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Kill a process, start it again, wait until clients see that it is back, and note how long that took.

        Parameters
        ----------
        fault
            Key of `FAULTS`.
        killed
            The process in words, for the output.
        is_back
            Given the times of the kill and of the new start [Unix s].
        meanwhile
            Is called while the process is away.
        """
        began, about = self.clock.now(), FAULTS[fault]
        self.report.kills.append(Kill(began, victim))
        self.processes.kill(victim)
        self.progress.step(f"kill -9 {killed}")
        meanwhile()
        self.processes.start_again(victim)
        started = self.clock.now()
        self.progress.demand(
            lambda: is_back(began, started), FLOWS_WITHIN, f"{about.seen} after the restart of {victim}"
        )
        self.report.recoveries[fault] = took = self.clock.now() - started
        self.progress.step(f"{about.sentence}, {took:.2f} s after the new start of {victim}")

    def balance(self, account: str, lines: list[BalanceLine]) -> None:
        """Put an account into the report, under its name in `ACCOUNTS`; what differs is a failure."""
        self.report.accounts[account] = lines
        self.report.failures += [f"{account}: {line}" for line in lines if not line.agrees]


def set_up(
    options: DemoOptions, processes: Supervisor, progress: ProgressLine, report: DemoReport, stack: ExitStack
) -> Demo:
    """Bring everything up to, but without, the first process of the demo; the stack clears it away."""
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
        kafka={} if endpoints.security is None else endpoints.security.kafka_settings(),
    )
    exported = {"SDP_LOG_EXPORT": LOGS} if options.logs else {}
    deployment = Deployment(settings, endpoints, progress, processes, exported)
    _topics(deployment, stack, options)
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


def _topics(deployment: Deployment, stack: ExitStack, options: DemoOptions) -> None:
    say, settings, topics = deployment.progress.step, deployment.settings, deployment.icd.topics
    there = deployment.connection.admin().list_topics(timeout=FLOWS_WITHIN).topics
    earlier = {found[1] for name in there if (found := _EARLIER.fullmatch(name)) and found[2] in topics}
    given = deployment.endpoints, deployment.progress, deployment.processes
    made = (Deployment(msgspec.structs.replace(settings, prefix=prefix), *given) for prefix in earlier)
    if left := sum(one.delete_topics() for one in made):
        say(f"topics: {left} of an earlier demo deleted")

    def delete() -> None:
        try:
            say(f"topics: {deployment.delete_topics()} deleted")
        except BusError as error:
            say(f"topics: left for the next demo to delete: {error}")

    stack.callback(delete)
    if deployment.endpoints.security is not None:
        deployment.grant_rights(*controller_components(options))
        say("the broker is secured: each role of the ICD has a login, and the rights that it needs")
    deployment.create_topics({name: _bounded(name, topic, mirror=options.mirror) for name, topic in topics.items()})
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
