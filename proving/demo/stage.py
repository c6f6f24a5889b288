"""Sets the stage of a demo: services, topics, registration, processes; and clears it again."""

import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from clients.events import find_devices, open_database
from devices.registration import register
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.topics import create_topics, delete_topics
from facade.clock import Clock
from facade.config import FILE_VARIABLE, Settings
from facade.errors import BusError, InfraError
from facade.exports.tango_db import SERVER, instances, registration
from facade.icd.load import load
from facade.icd.model import Icd, Topic
from facade.infra import local, tools
from facade.runtime.metrics import VARIABLE as METRICS_VARIABLE
from proving.demo.options import DemoOptions
from proving.demo.processes import Processes
from proving.demo.tango_side import TangoSide, answers

Say = Callable[[str], None]

PREFIX = "demo-"
WORKERS = ("aggregate-0", "aggregate-1")
SIMULATOR, CONTROLLER, TM = "simulate", "controller", "tm"
SUBARRAY_SERVER = "subarray"
ASSEMBLER, CALIBRATOR = "tables", "calibrate"
_SCAN = 2.0
"""How long a scan lasts [s]."""
_MOST_DISK = 2_000_000_000
"""Notifications that are kept per partition [bytes]: at full rate the ICD's hour would be some 100 GB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A deployment that runs."""

    options: DemoOptions
    settings: Settings
    endpoints: local.Endpoints
    icd: Icd
    processes: Processes
    tango_side: TangoSide
    instances: tuple[str, ...]
    """Of the device server."""

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that point a process at this deployment."""
        return {
            **self.endpoints.environment(),
            "SDP_TOPIC_PREFIX": self.settings.prefix,
            "SDP_INGEST_NODES": str(self.settings.nodes),
            "SDP_RACK_SIZE": str(self.settings.rack_size),
            "SDP_SUBARRAYS": str(self.settings.subarrays),
        }

    @property
    def sent_file(self) -> Path:
        """Where the simulator keeps its account."""
        return self.processes.folder / "sent.json"

    @property
    def journal_file(self) -> Path:
        """Where TM writes down what it does and sees."""
        return self.processes.folder / "observation.json"

    @property
    def executions_file(self) -> Path:
        """Where the controller writes down what it executes."""
        return self.processes.folder / "executions.jsonl"

    def start_servers(self) -> None:
        """Start workers, device servers and the controller of the subarrays."""
        for name in WORKERS:
            self.processes.start(name, [_program("sdp-facade"), "aggregate", "--slot", name[-1]])
        self.processes.start(ASSEMBLER, [_program("sdp-facade"), "tables", "assemble"])
        for instance in self.instances:
            self.processes.start(instance, [_program(SERVER), instance])
        argv = ["simulate", "controller", f"--subarrays={self.settings.subarrays}", f"--report={self.executions_file}"]
        self.executions_file.unlink(missing_ok=True)
        self.processes.start(CONTROLLER, [_program("sdp-facade"), *argv])

    def start_simulator(self) -> None:
        """Let the ingest nodes speak."""
        options, faults = self.options, msgspec.to_builtins(self.options.faults())
        chances = [
            f"--{name}={faults[name]}" for name in ("gaps", "duplicates", "disorder", "late", "ahead", "garbage")
        ]
        argv = ["simulate", "ingest", f"--nodes={options.nodes}", f"--rate={options.nodes * options.rate}", *chances]
        self.sent_file.unlink(missing_ok=True)
        self.processes.start(SIMULATOR, [_program("sdp-facade"), *argv, f"--report={self.sent_file}"])

    @property
    def tables_folder(self) -> Path:
        """Where the calibration pipeline keeps a copy of each table."""
        return self.processes.folder / "sent-tables"

    def start_calibration(self, count: int) -> None:
        """Let a calibration pipeline send so many tables."""
        shutil.rmtree(self.tables_folder, ignore_errors=True)
        self.tables_folder.mkdir()
        argv = ["simulate", "calibration", f"--count={count}", "--every=3", f"--save={self.tables_folder}"]
        self.processes.start(CALIBRATOR, [_program("sdp-facade"), *argv], ends=True)

    def start_observation(self) -> None:
        """Let TM observe with all subarrays."""
        argv = [self.endpoints.tango_host, str(self.journal_file), str(_SCAN), *self.tango_side.subarrays]
        self.journal_file.unlink(missing_ok=True)
        self.processes.start(TM, [sys.executable, "-m", "proving.demo.tm", *argv], ends=True)


def set_stage(options: DemoOptions, processes: Processes, say: Say, clock: Clock, stack: ExitStack) -> Stage:
    """Bring everything up to, but without, the first process of the demo; the stack clears it away.

    Raises
    ------
    FacadeError
        Something is missing, or another deployment is in the way.
    """
    folder, icd = options.folder, load()
    folder.mkdir(parents=True, exist_ok=True)
    lock = tools.locked(folder / "demo.lock", lambda: say(f"waiting: another demo runs in {options.state_dir}"))
    stack.enter_context(lock)
    if left := processes.stop_left_over():
        say(f"stopped what an earlier demo had left: {', '.join(left)}")
    endpoints = _services(options, say, stack)
    settings = Settings(
        bootstrap=endpoints.bootstrap,
        prefix=f"{PREFIX}{round(clock.now())}.",
        nodes=options.nodes,
        subarrays=options.subarrays,
    )
    _topics(icd, settings, say, clock, stack)
    _register(icd, settings, endpoints.tango_host, say)
    stack.callback(processes.stop_all)
    devices = find_devices(endpoints.tango_host, SERVER)
    stage = Stage(
        options=options,
        settings=settings,
        endpoints=endpoints,
        icd=icd,
        processes=processes,
        tango_side=TangoSide(endpoints.tango_host, devices, icd),
        instances=tuple(instances(icd, settings)),
    )
    # The user's own settings must not reach into the demo: another file, or one metrics port for all.
    processes.use_environment({**stage.environment, FILE_VARIABLE: "", METRICS_VARIABLE: ""})
    return stage


def _services(options: DemoOptions, say: Say, stack: ExitStack) -> local.Endpoints:
    before = [line.process for line in local.status(options.state_dir) if line.alive]
    if before:
        say(f"services: some run already and will be left running: {', '.join(before)}")
    else:
        stack.callback(_services_down, options, say)
    endpoints = local.up(local.Options(state_dir=options.state_dir, tango_db=options.tango_db), report=say)
    say(f"services: Kafka at {endpoints.bootstrap}, Tango database at TANGO_HOST={endpoints.tango_host}")
    return endpoints


def _services_down(options: DemoOptions, say: Say) -> None:
    local.down(options.state_dir, report=say)
    if left := [line.process for line in local.status(options.state_dir) if line.alive]:
        raise InfraError(f"services: expected none to run any more, got {', '.join(left)}")


def _topics(icd: Icd, settings: Settings, say: Say, clock: Clock, stack: ExitStack) -> None:
    left = delete_topics(Connection(msgspec.structs.replace(settings, prefix=PREFIX), clock=clock))
    if left:
        say(f"topics: {left} of an earlier demo deleted")
    connection = Connection(settings, clock=clock)

    def delete() -> None:
        try:
            say(f"topics: {delete_topics(connection)} deleted")
        except BusError as error:
            say(f"topics: left for the next demo to delete: {error}")

    stack.callback(delete)
    create_topics(connection, {name: _bounded(topic) for name, topic in icd.topics.items()})
    say(f"topics: {len(icd.topics)} created with the prefix {settings.prefix}")


def _bounded(topic: Topic) -> Topic:
    if topic.qos != "bulk":
        return topic
    config = {**topic.config, "retention.bytes": str(_MOST_DISK), "segment.bytes": str(_MOST_DISK // 8)}
    return msgspec.structs.replace(topic, config=config)


def _register(icd: Icd, settings: Settings, tango_host: str, say: Say) -> None:
    for instance in instances(icd, settings):
        if answers(tango_host, SERVER, instance):
            raise InfraError(
                f"the device server {SERVER} {instance} already runs on the Tango database {tango_host};"
                " stop it, or give the demo a --state-dir of its own"
            )
    wanted = {
        device.lower()
        for classes in registration(icd, settings)["servers"][SERVER].values()
        for devices in classes.values()
        for device in devices
    }
    database = open_database(tango_host)
    surplus = [name for names in find_devices(tango_host, SERVER).values() for name in names if name not in wanted]
    for device in surplus:
        database.delete_device(device)
    count = register(icd, settings, tango_host)
    removed = f", {len(surplus)} of another size removed" if surplus else ""
    say(f"Tango database: {count} devices registered{removed}")


def _program(name: str) -> str:
    """Return a program beside the interpreter: the virtual environment need not be active."""
    return str(Path(sys.executable).with_name(name))


def what_to_try(stage: Stage) -> str:
    """Say what can be done with a demo that stays."""
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in stage.environment.items())
    device, subarray = stage.tango_side.devices["SdpIngestNode"][0], stage.tango_side.subarrays[0]
    return f"""The demo stays until Ctrl-C. Point another shell at it:

    export {variables}

(`sdp-facade infra env --state-dir {shlex.quote(str(stage.options.state_dir))}` prints the same, but for the topics.)
Then try:

    sdp-facade watch
    jive
    itango3
    python
    >>> import tango
    >>> node = tango.DeviceProxy("{device}")
    >>> print(node.heapRate, node.heapsTotal, node.read_attribute("latencyP99"))
    >>> subarray = tango.DeviceProxy("{subarray}")
    >>> print(subarray.On(), subarray.State(), subarray.lastCommand)

    tangogql                      # GraphQL for Taranta, where it is installed
    sdp-facade simulate --help

Logs: {stage.processes.folder}"""
