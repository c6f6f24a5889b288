"""Starts, identifies and stops the local services of one state folder.

A lock serializes callers, so two concurrent `up`s start one broker. A service keeps its port and its data while it is
stopped: waiting clients find it at the same address again. An `up` that fails or is interrupted stops the services that
do not answer yet.
"""

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

import msgspec

from facade.infra import tools
from facade.infra.kafka import Kafka, Quorum, find_limp, make_quorum
from facade.infra.ports import HOST, choose_port, is_free
from facade.infra.processes import GRACE, PortTakenError, Process, ProcessRecord, started_in
from facade.infra.security import ADMINISTRATOR, Security
from facade.infra.tango_database import TangoDatabase
from facade.kernel.clock import Clock, SystemClock, as_seconds
from facade.kernel.config import FILE_VARIABLE
from facade.kernel.errors import InfraError

_ATTEMPTS: Final = 4
STATE_FILE: Final = "infra.json"
LOCK_FILE: Final = "infra.lock"
SECURITY: Final = "security"
"""Folder of the secrets of a secured broker."""


class ServiceName(StrEnum):
    """The services, in the order of their start."""

    KAFKA = "kafka"
    KAFKA_2 = "kafka-2"
    KAFKA_3 = "kafka-3"
    TANGO_DB = "tango-db"


BROKERS: Final = (ServiceName.KAFKA, ServiceName.KAFKA_2, ServiceName.KAFKA_3)
"""The brokers of a cluster, number 1 first. A folder has one or all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """One service: its port stays reserved (and its data kept) while it is stopped."""

    port: int
    processes: tuple[ProcessRecord, ...] = ()
    ready: bool = False
    since: float = 0.0

    @property
    def is_running(self) -> bool:
        """Return whether all of its processes are alive."""
        return bool(self.processes) and all(Process(record).is_alive for record in self.processes)


@dataclass(frozen=True, slots=True, kw_only=True)
class InfraState:
    """The state of one folder."""

    topic_prefix: str = "local."
    kafka_heap: str = "512m"
    services: Mapping[str, ServiceState] = field(default_factory=dict)
    secure: bool = False
    quorum: Quorum | None = None
    host: str = HOST

    @property
    def brokers(self) -> Sequence[ServiceName]:
        """Return the names of its brokers."""
        return BROKERS[:1] if self.quorum is None else BROKERS

    def with_service(self, name: ServiceName, service: ServiceState) -> "InfraState":
        """Return the state with this service replaced."""
        return replace(self, services={**self.services, name.value: service})


def command(words: str, state_dir: Path) -> str:
    """Return a sub-command of `infra` for a folder, as a person copies it into a shell."""
    where = "" if state_dir == DEFAULT_STATE_DIR else f" --state-dir {shlex.quote(str(state_dir))}"
    return f"sdp-facade infra {words}{where}"


def load(state_dir: Path) -> InfraState:
    """Read the state of a folder; a folder without one has the defaults and no services.

    Raises
    ------
    InfraError
        The file exists and cannot be parsed.
    """
    path = state_dir / STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=InfraState)
    except FileNotFoundError:
        return InfraState()
    except (msgspec.MsgspecError, OSError) as error:
        raise InfraError(
            f"{path} cannot be read: {error}. It says which processes were started; look for them with "
            f"`ps -ef | grep {shlex.quote(str(state_dir))}`, stop them, then remove the file"
        ) from error


def save(state_dir: Path, state: InfraState) -> None:
    """Write the state of a folder.

    Raises
    ------
    InfraError
        The folder cannot be written to.
    """
    content = msgspec.json.format(msgspec.json.encode(state), indent=2) + b"\n"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=state_dir, prefix=STATE_FILE, delete=False) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(state_dir / STATE_FILE)
    except OSError as error:
        raise InfraError(f"the state cannot be written to {state_dir}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Addresses of the services."""

    bootstrap: str
    tango_host: str
    topic_prefix: str
    state_dir: Path
    brokers: int = 1
    security: Security | None = None
    """None: the brokers accept any client."""

    def environment(self, user: str = ADMINISTRATOR) -> dict[str, str]:
        """Return the environment variables with which a process uses these services.

        `user`: name of the process at a secured broker.
        """
        if self.bootstrap.endswith(":0"):  # the Tango database was started alone, beside brokers of another place
            return {"TANGO_HOST": self.tango_host}
        found = {
            "KAFKA_BOOTSTRAP": self.bootstrap,
            "TANGO_HOST": self.tango_host,
            "SDP_TOPIC_PREFIX": self.topic_prefix,
            "SDP_TOPIC_REPLICAS": str(self.brokers),  # also of one: the shell may have had those of another cluster
        }
        return found if self.security is None else {**found, FILE_VARIABLE: str(self.security.settings_of(user))}


class Runtime:
    """The state of one folder while its lock is held; each change is written at once."""

    def __init__(self, state_dir: Path, report: tools.Notify | None = None, clock: Clock | None = None) -> None:
        self.state_dir = state_dir.resolve()
        self.state = InfraState()
        self._report = report or (lambda _: None)
        self._clock = clock or SystemClock()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait for other callers of this folder, and read its state."""
        waiting = f"waiting for another `infra` command on {self.state_dir}"
        with tools.locked(self.state_dir / LOCK_FILE, on_wait=lambda: self._report(waiting)):
            self.state = load(self.state_dir)
            yield

    def is_up(self, name: ServiceName, port: int = 0) -> bool:
        """Return whether the service runs and has answered; it must then have the requested port."""
        service = self.state.services.get(name)
        if service is None or not service.ready or not service.is_running:
            return False
        if port not in (0, service.port):
            first = command("down", self.state_dir)
            raise InfraError(f"{name} runs on port {service.port}, asked for was {port}; run `{first}` first")
        return True

    def endpoints(self) -> Endpoints:
        """Return the addresses of the services, also of stopped ones."""
        ports = {name: service.port for name, service in self.state.services.items()}
        return Endpoints(
            bootstrap=",".join(f"{self.state.host}:{ports.get(name, 0)}" for name in self.state.brokers),
            tango_host=f"{self.state.host}:{ports.get(ServiceName.TANGO_DB, 0)}",
            topic_prefix=self.state.topic_prefix,
            state_dir=self.state_dir,
            brokers=len(self.state.brokers),
            security=self.security,
        )

    @property
    def security(self) -> Security | None:
        """Return the secrets of the broker; None: it accepts any client."""
        return Security(self.state_dir / SECURITY, self.state.host) if self.state.secure else None

    def create_users(self) -> None:
        """Create the users of a secured broker, which must answer."""
        security = self.security
        if security is not None:
            self._report("Kafka: creating users")
            security.create_users(self._door, self.endpoints().bootstrap, self.state.topic_prefix)

    def renew(self) -> None:
        """Renew the certificate of a secured broker."""
        if self.security is None or not self.is_up(ServiceName.KAFKA):
            first = command("up --secure", self.state_dir)
            raise InfraError(f"no secured broker runs in {self.state_dir}; see `{first}`")
        self.security.renew(self._door)

    @property
    def _door(self) -> str:
        """Return the address at which this program reaches the first broker."""
        kafka = self._service(ServiceName.KAFKA)
        assert isinstance(kafka, Kafka)
        return kafka.door(self.state.services[ServiceName.KAFKA].port)[0]

    def start(self, ports: Mapping[ServiceName, int]) -> None:
        """Launch the services, then wait for them: they start in parallel."""
        try:
            for name, port in ports.items():
                self._launch(name, port)
            for name in reversed(list(ports)):  # the database starts first, while the broker takes longer
                self._await_ready(name, ports[name])
        except BaseException:
            self.stop(*(name for name, service in self._known(ports) if not service.ready), kill=True)
            raise
        save(self.state_dir, self.state)

    def stop(self, *names: ServiceName, kill: bool) -> None:
        """Stop the processes of services, also if none is alive.

        All are asked together: a broker that ends asks the controllers for its release, and waits for most of them.
        """
        found: list[tuple[ServiceName, ServiceState, list[Process]]] = []
        for name, service in self._known(names):
            known = self._processes(service)
            pids = {process.pid for process in known}
            # A caller that was killed between a start and its record has left a process without a record.
            known += [one for one in started_in(self._folder(name), self._clock) if one.pid not in pids]
            if known:
                self._report(f"{name}: stopping")
                found.append((name, service, known))
        if not kill:
            for _, _, known in found:
                for process in known:
                    process.ask()
        for name, service, known in found:
            for process in known:
                if kill:
                    process.kill()
                elif not process.end(GRACE):
                    self._report(f"{process.name}: did not end by itself and was killed")
            self._put(name, replace(service, processes=(), ready=False))

    def wipe(self) -> None:
        """Remove the files of the services, and the folder if that is empty."""
        for name in ServiceName:
            shutil.rmtree(self.state_dir / name, ignore_errors=True)
        shutil.rmtree(self.state_dir / SECURITY, ignore_errors=True)
        for file in (STATE_FILE, LOCK_FILE):
            (self.state_dir / file).unlink(missing_ok=True)
        if not any(self.state_dir.iterdir()):
            self.state_dir.rmdir()

    def _launch(self, name: ServiceName, wanted_port: int) -> None:
        self.stop(name, kill=True)  # the rest of it: half of its processes, or one that never answered
        known = self.state.services.get(name)
        port = self._port(name, wanted_port, 0 if known is None else known.port)
        self._put(name, ServiceState(port=port, since=as_seconds(self._clock.now_us())))
        self._service(name).launch(port, lambda process: self._add_process(name, process))

    def _await_ready(self, name: ServiceName, wanted_port: int) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            service = self.state.services[name]
            try:
                self._service(name).await_ready(service.port, self._processes(service))
                break
            except PortTakenError:
                if attempt == _ATTEMPTS:
                    raise
                self._launch(name, wanted_port)
        self._put(name, replace(self.state.services[name], ready=True))

    def _port(self, name: ServiceName, wanted: int, last: int) -> int:
        for port in filter(None, (wanted, last)):
            if is_free(port, self.state.host):
                return port
            if port == wanted:
                raise InfraError(
                    f"{name} cannot have port {port} of {self.state.host}: another program listens there "
                    f"(`ss -ltnp 'sport = :{port}'` says who); stop it, or choose another port"
                )
            self._report(f"{name}: its last port {port} is taken, so it gets another one")
        return choose_port(self.state.host)

    def _service(self, name: ServiceName) -> Kafka | TangoDatabase:
        folder = self._folder(name)
        if name is ServiceName.TANGO_DB:
            return TangoDatabase(folder=folder, report=self._report, host=self.state.host)
        return Kafka(
            folder=folder,
            heap=self.state.kafka_heap,
            report=self._report,
            clock=self._clock,
            node=1 + BROKERS.index(name),
            quorum=self.state.quorum,
            security=self.security,
            host=self.state.host,
        )

    def _folder(self, name: ServiceName) -> Path:
        folder = self.state_dir / name
        return folder / "embedded" if name is ServiceName.TANGO_DB else folder  # earlier releases have it there

    def _known(self, names: Iterable[ServiceName]) -> list[tuple[ServiceName, ServiceState]]:
        return [(name, self.state.services[name]) for name in names if name in self.state.services]

    def _add_process(self, name: ServiceName, process: Process) -> None:
        service = self.state.services[name]
        self._put(name, replace(service, processes=(*service.processes, process.record)))

    def _processes(self, service: ServiceState) -> list[Process]:
        return [Process(record, self._clock) for record in service.processes]

    def _put(self, name: ServiceName, service: ServiceState) -> None:
        self.state = self.state.with_service(name, service)
        save(self.state_dir, self.state)


# --- The local infrastructure ---


__all__ = [
    "DEFAULT_STATE_DIR",
    "Endpoints",
    "LocalOptions",
    "ProcessStatus",
    "ServiceName",
    "command",
    "down",
    "endpoints",
    "find_limps",
    "renew_certificates",
    "start_services",
    "status",
    "stop_services",
    "up",
]

DEFAULT_STATE_DIR: Final = Path(".run")

_TOPIC_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_HEAP: Final = re.compile(r"[1-9][0-9]*[kmg]", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options; None and port 0 mean: as before, or the default."""

    state_dir: Path = DEFAULT_STATE_DIR
    kafka_port: int = 0
    tango_port: int = 0
    topic_prefix: str | None = None
    kafka_heap: str | None = None
    brokers: int | None = None
    secure: bool | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """One line of `infra status`; a stopped service has no process, hence no pid."""

    service: ServiceName
    process: str
    pid: int | None
    address: str
    since: float
    alive: bool


def up(options: LocalOptions | None = None, *, report: tools.Notify | None = None) -> Endpoints:
    """Start services that do not run yet, and return when all services answer.

    Raises
    ------
    InfraError
        A requirement is missing, a port is taken, or the running services differ from the options.
    """
    options = options or LocalOptions()
    runtime = Runtime(options.state_dir, report)
    with runtime.lock():
        runtime.state = _merged(runtime.state, options)
        ports = dict.fromkeys(runtime.state.brokers, 0)
        ports |= {ServiceName.KAFKA: options.kafka_port, ServiceName.TANGO_DB: options.tango_port}
        runtime.start({name: port for name, port in ports.items() if not runtime.is_up(name, port)})
        runtime.create_users()
        return runtime.endpoints()


def renew_certificates(
    state_dir: Path = DEFAULT_STATE_DIR, *, report: tools.Notify | None = None, clock: Clock | None = None
) -> None:
    """Renew the certificate of the secured broker, without a stop.

    Raises
    ------
    InfraError
        No secured broker runs there.
    """
    runtime = Runtime(state_dir, report, clock)
    with runtime.lock():
        runtime.renew()


def endpoints(state_dir: Path = DEFAULT_STATE_DIR) -> Endpoints:
    """Return the addresses of the services.

    Raises
    ------
    InfraError
        The Tango database does not run, or no broker does, of those that were started here.
    """
    runtime = Runtime(state_dir)
    runtime.state = load(runtime.state_dir)
    wanted = (runtime.state.brokers, (ServiceName.TANGO_DB,))
    for names in wanted[runtime.state.services.keys() == {ServiceName.TANGO_DB} :]:
        if not any(map(runtime.is_up, names)):
            raise InfraError(
                f"{names[0]} does not run in {runtime.state_dir}; start it with `{command('up', state_dir)}`"
            )
    return runtime.endpoints()


def status(state_dir: Path = DEFAULT_STATE_DIR) -> tuple[ProcessStatus, ...]:
    """Return one entry for each process; nothing at all when nothing was ever started here."""
    state = load(state_dir.resolve())
    return tuple(
        ProcessStatus(
            service=ServiceName(name),
            process=name if process is None else process.name,
            pid=None if process is None else process.pid,
            address=f"{state.host}:{service.port}",
            since=service.since,
            alive=process is not None and Process(process).is_alive,
        )
        for name, service in state.services.items()
        for process in service.processes or (None,)
    )


def find_limps(state_dir: Path = DEFAULT_STATE_DIR) -> dict[ServiceName, str]:
    """Return the faults of services with living processes that do not answer; it takes some seconds if there are any.

    Only brokers are asked: their threads may fail while the process stays alive.
    """
    state = load(state_dir.resolve())
    login = Security(state_dir.resolve() / SECURITY).kafka_settings() if state.secure else None
    known = {name: state.services[name] for name in state.brokers if name in state.services}
    running = [name for name, service in known.items() if service.ready and service.is_running]
    return {name: limp for name in running if (limp := find_limp(f"{state.host}:{known[name].port}", login))}


def down(state_dir: Path = DEFAULT_STATE_DIR, *, wipe: bool = False, report: tools.Notify | None = None) -> None:
    """Stop the services in the state file, nothing else.

    Parameters
    ----------
    wipe
        Also remove the data, the logs and the state (and do not let the services end in order).

    Raises
    ------
    InfraError
        A process cannot be stopped.
    """
    runtime = Runtime(state_dir, report)
    if not runtime.state_dir.exists():
        return
    with runtime.lock():
        runtime.stop(*reversed(ServiceName), kill=wipe)
        if wipe:
            runtime.wipe()


def start_services(
    state_dir: Path,
    *services: ServiceName | str,
    report: tools.Notify | None = None,
    clock: Clock | None = None,
) -> Endpoints:
    """Start services again on their former ports and data; a Tango database also for the first time.

    In a cluster without most of its controllers, brokers only answer if several are started together.

    Raises
    ------
    InfraError
        One of them was never started here, or its port is taken.
    """
    runtime = Runtime(state_dir, report, clock)
    names = list(map(_service_name, services))
    with runtime.lock():
        known = {ServiceName.TANGO_DB: ServiceState(port=0), **runtime.state.services}
        for name in names:
            if name not in known:
                first = command("up", state_dir)
                raise InfraError(f"{name} was never started in {runtime.state_dir}; use `{first}` first")
        runtime.start({name: known[name].port for name in names if not runtime.is_up(name)})
        return runtime.endpoints()


def stop_services(
    state_dir: Path,
    *services: ServiceName | str,
    kill: bool = False,
    report: tools.Notify | None = None,
    clock: Clock | None = None,
) -> None:
    """Stop services; their ports and data stay reserved for them.

    Parameters
    ----------
    kill
        Kill them at once, as a power cut would.

    Raises
    ------
    InfraError
        A process cannot be stopped.
    """
    runtime = Runtime(state_dir, report, clock)
    with runtime.lock():
        runtime.stop(*map(_service_name, services), kill=kill)


def _merged(state: InfraState, options: LocalOptions) -> InfraState:
    """Return the state with the options applied."""
    wipe = command("down --wipe", options.state_dir)
    prefix = options.topic_prefix if options.topic_prefix is not None else state.topic_prefix
    if not _TOPIC_PREFIX.fullmatch(prefix):
        raise InfraError(f"the topic prefix {prefix!r} is wrong: expected 1 to 100 of the characters A-Z a-z 0-9 . _ -")
    heap = options.kafka_heap or state.kafka_heap
    if not _HEAP.fullmatch(heap):
        raise InfraError(f"the size of Kafka's heap {heap!r} is wrong: expected a number with k, m or g, such as 512m")
    wanted, brokers = options.brokers or len(state.brokers), len(state.brokers)
    if wanted not in (1, len(BROKERS)):
        raise InfraError(f"the number of brokers {wanted} is wrong: expected 1 or {len(BROKERS)}")
    if wanted != brokers and state.services:
        raise InfraError(
            f"the number of brokers is {brokers} here, asked for was {wanted}; "
            f"remove them and their data with `{wipe}` first"
        )
    secure = state.secure if options.secure is None else options.secure
    if secure != state.secure and state.services:
        raise InfraError(
            f"the broker in {options.state_dir} exists without `--secure`; remove it and its data with `{wipe}` first"
        )
    host = options.address or state.host
    if not _is_unicast(host) or not is_free(0, host):
        raise InfraError(f"the address {host!r} is wrong: expected one of this machine, as `ip -4 address` lists them")
    if host != state.host and state.services:
        raise InfraError(
            f"the address is {state.host} here, asked for was {host}; "
            f"remove the services and their data with `{wipe}` first"
        )
    quorum = make_quorum(wanted, host) if wanted > brokers else state.quorum
    return replace(state, topic_prefix=prefix, kafka_heap=heap, quorum=quorum, secure=secure, host=host)


def _is_unicast(host: str) -> bool:
    try:
        address = IPv4Address(host)
    except ValueError:
        return False
    return not (address.is_multicast or address.is_unspecified or address.is_reserved)


def _service_name(name: str) -> ServiceName:
    try:
        return ServiceName(name)
    except ValueError as error:
        raise InfraError(f"there is no service {name!r}: expected one of {', '.join(ServiceName)}") from error
