"""Holds the state of one folder while its lock is held, and starts and stops the services in it."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from facade.clock import Clock, SystemClock
from facade.errors import InfraError
from facade.infra import tools
from facade.infra.kafka import Kafka
from facade.infra.mariadb import MariaDbTangoDatabase
from facade.infra.ports import HOST, choose_port, is_free
from facade.infra.processes import Process, started_in
from facade.infra.service import PortTakenError, Service
from facade.infra.state import LOCK_FILE, STATE_FILE, InfraState, ServiceName, ServiceState, TangoDb, load, save
from facade.infra.tango_database import EmbeddedTangoDatabase

_ATTEMPTS: Final = 4


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

    def __init__(self, state_dir: Path, report: tools.Report | None = None, clock: Clock | None = None) -> None:
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
        self._service(name).clean_up()
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

    def _service(self, name: ServiceName) -> Service:
        folder = self._folder(name)
        if name is ServiceName.KAFKA:
            return Kafka(folder=folder, heap=self.state.kafka_heap, report=self._report, clock=self._clock)
        if self.state.tango_db is TangoDb.EMBEDDED:
            return EmbeddedTangoDatabase(folder=folder, report=self._report)
        return MariaDbTangoDatabase(folder=folder, report=self._report, clock=self._clock)

    def _folder(self, name: ServiceName) -> Path:
        folder = self.state_dir / name
        return folder if name is ServiceName.KAFKA else folder / self.state.tango_db

    def _add_process(self, name: ServiceName, process: Process) -> None:
        service = self.state.services[name]
        self._put(name, replace(service, processes=(*service.processes, process.record)))

    def _processes(self, service: ServiceState) -> list[Process]:
        return [Process(record, self._clock) for record in service.processes]

    def _put(self, name: ServiceName, service: ServiceState) -> None:
        self.state = self.state.with_service(name, service)
        save(self.state_dir, self.state)
