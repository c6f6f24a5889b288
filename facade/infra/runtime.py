"""The services of one folder: their state in one small JSON file, and how they start and stop while its lock is held.

The file is replaced as a whole, so a reader sees the old or the new content. A process is written down right after its
start and before anything is waited for: an `up` that is interrupted leaves nothing behind that `down` would not find.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from facade.clock import Clock, SystemClock
from facade.errors import InfraError
from facade.infra import tools
from facade.infra.kafka import Kafka
from facade.infra.ports import HOST, choose_port, is_free
from facade.infra.processes import PortTakenError, Process, ProcessRecord, started_in
from facade.infra.tango_database import TangoDatabase

_ATTEMPTS: Final = 4
STATE_FILE: Final = "infra.json"
LOCK_FILE: Final = "infra.lock"


class ServiceName(StrEnum):
    """The services that there are, in the order in which they are started."""

    KAFKA = "kafka"
    TANGO_DB = "tango-db"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """One service: its port stays reserved for it (and its data kept) while no process runs."""

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
    """Everything that one state folder knows."""

    topic_prefix: str = "local."
    kafka_heap: str = "512m"
    services: Mapping[str, ServiceState] = field(default_factory=dict)

    def with_service(self, name: ServiceName, service: ServiceState) -> "InfraState":
        """Return the state with this service replaced."""
        return replace(self, services={**self.services, name.value: service})


def load(state_dir: Path) -> InfraState:
    """Read the state of a folder; a folder without one has the defaults and no services.

    Raises
    ------
    InfraError
        The file is there and cannot be understood.
    """
    path = state_dir / STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=InfraState)
    except FileNotFoundError:
        return InfraState()
    except (msgspec.MsgspecError, OSError) as error:
        raise InfraError(
            f"{path} cannot be read: {error}. It says which processes were started; look for them with "
            f"`ps -ef | grep {state_dir}`, stop them, then remove the file"
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
    """Where the services answer."""

    bootstrap: str
    tango_host: str
    topic_prefix: str
    state_dir: Path

    def environment(self) -> dict[str, str]:
        """Return the environment variables that point a process at these services."""
        return {
            "KAFKA_BOOTSTRAP": self.bootstrap,
            "TANGO_HOST": self.tango_host,
            "SDP_TOPIC_PREFIX": self.topic_prefix,
        }


class Runtime:
    """The state of one folder while its lock is held; each change is written down at once."""

    def __init__(self, state_dir: Path, report: tools.Notify | None = None, clock: Clock | None = None) -> None:
        self.state_dir = state_dir.resolve()
        self.state = InfraState()
        self._report = report or (lambda _: None)
        self._clock = clock or SystemClock()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait for other callers on this folder, and read its state."""
        waiting = f"waiting for another `infra` command on {self.state_dir}"
        with tools.locked(self.state_dir / LOCK_FILE, on_wait=lambda: self._report(waiting)):
            self.state = load(self.state_dir)
            yield

    def is_up(self, name: ServiceName, port: int = 0) -> bool:
        """Return whether the service runs and has answered; it must then be on the port that is asked for."""
        service = self.state.services.get(name)
        if service is None or not service.ready or not service.is_running:
            return False
        if port not in (0, service.port):
            raise InfraError(
                f"{name} runs on port {service.port}, asked for was {port}; run `sdp-facade infra down` first"
            )
        return True

    def endpoints(self) -> Endpoints:
        """Return where the services answer (or will, if they are stopped)."""
        ports = {name: service.port for name, service in self.state.services.items()}
        return Endpoints(
            bootstrap=f"{HOST}:{ports.get(ServiceName.KAFKA, 0)}",
            tango_host=f"{HOST}:{ports.get(ServiceName.TANGO_DB, 0)}",
            topic_prefix=self.state.topic_prefix,
            state_dir=self.state_dir,
        )

    def start(self, ports: Mapping[ServiceName, int]) -> None:
        """Launch the services, then wait for them: they start side by side."""
        try:
            for name, port in ports.items():
                self._launch(name, port)
            for name in reversed(list(ports)):  # the database is asked while the broker, which takes longer, starts
                self._await_ready(name, ports[name])
        except BaseException:
            for name in ports:
                if name in self.state.services and not self.state.services[name].ready:
                    self.stop(name, kill=True)
            raise
        save(self.state_dir, self.state)

    def stop(self, name: ServiceName, *, kill: bool) -> None:
        """Stop the processes of one service, the last one first; no matter if none is alive."""
        service = self.state.services.get(name)
        if service is None:
            return
        known, folder = self._processes(service), self._folder(name)
        pids = {process.pid for process in known}
        # A caller that was killed between a start and its note has left one that no note names.
        known += [process for process in started_in(folder, self._clock) if process.pid not in pids]
        if not known:
            return
        self._report(f"{name}: stopping")
        for process in reversed(known):
            if kill:
                process.kill()
            elif not process.stop():
                self._report(f"{process.name}: did not end by itself and was killed")
        self._put(name, replace(service, processes=(), ready=False))

    def wipe(self) -> None:
        """Remove what was made in the folder, and the folder itself if that leaves it empty."""
        for name in ServiceName:
            shutil.rmtree(self.state_dir / name, ignore_errors=True)
        for file in (STATE_FILE, LOCK_FILE):
            (self.state_dir / file).unlink(missing_ok=True)
        if not any(self.state_dir.iterdir()):
            self.state_dir.rmdir()

    def _launch(self, name: ServiceName, wanted_port: int) -> None:
        self.stop(name, kill=True)  # what may be left of it: half of its processes, or one that never answered
        known = self.state.services.get(name)
        port = self._port(name, wanted_port, 0 if known is None else known.port)
        self._put(name, ServiceState(port=port, since=self._clock.now()))
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
            if is_free(port):
                return port
            if port == wanted:
                raise InfraError(
                    f"{name} cannot have port {port} of {HOST}: another program listens there "
                    f"(`ss -ltnp 'sport = :{port}'` says who); stop it, or choose another port"
                )
            self._report(f"{name}: its last port {port} is taken, so it gets another one")
        return choose_port()

    def _service(self, name: ServiceName) -> Kafka | TangoDatabase:
        folder = self._folder(name)
        if name is ServiceName.KAFKA:
            return Kafka(folder=folder, heap=self.state.kafka_heap, report=self._report, clock=self._clock)
        return TangoDatabase(folder=folder, report=self._report)

    def _folder(self, name: ServiceName) -> Path:
        folder = self.state_dir / name
        return folder if name is ServiceName.KAFKA else folder / "embedded"  # there databases of earlier releases are

    def _add_process(self, name: ServiceName, process: Process) -> None:
        service = self.state.services[name]
        self._put(name, replace(service, processes=(*service.processes, process.record)))

    def _processes(self, service: ServiceState) -> list[Process]:
        return [Process(record, self._clock) for record in service.processes]

    def _put(self, name: ServiceName, service: ServiceState) -> None:
        self.state = self.state.with_service(name, service)
        save(self.state_dir, self.state)
