"""Starts, finds again and stops the local services of one state folder.

A lock makes callers take turns, so two `up`s at once start one broker. A service keeps its port
and its data while it is stopped: clients that wait for it find it again where it was.
An `up` that fails or is interrupted stops what it had not brought to the point of answering.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from facade.clock import Clock
from facade.errors import InfraError
from facade.infra import tools
from facade.infra.kafka import find_limp
from facade.infra.ports import HOST
from facade.infra.processes import Process
from facade.infra.runtime import Endpoints, InfraState, Runtime, ServiceName, load

__all__ = [
    "DEFAULT_STATE_DIR",
    "Endpoints",
    "LocalOptions",
    "ProcessStatus",
    "ServiceName",
    "down",
    "endpoints",
    "find_limps",
    "start_service",
    "status",
    "stop_service",
    "up",
]

DEFAULT_STATE_DIR: Final = Path(".run")

_TOPIC_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
_HEAP: Final = re.compile(r"[1-9][0-9]*[kmg]", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """What may be chosen; None and port 0 mean: as the last time, else the default."""

    state_dir: Path = DEFAULT_STATE_DIR
    kafka_port: int = 0
    tango_port: int = 0
    topic_prefix: str | None = None
    kafka_heap: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """One line of `infra status`; a service that is stopped has no process, hence no pid."""

    service: ServiceName
    process: str
    pid: int | None
    address: str
    since: float
    alive: bool


def up(
    options: LocalOptions | None = None, *, report: tools.Notify | None = None, clock: Clock | None = None
) -> Endpoints:
    """Start what does not run yet and return when all services answer.

    Raises
    ------
    InfraError
        Something is missing, a port is taken, or what runs differs from what is asked for.
    """
    options = options or LocalOptions()
    runtime = Runtime(options.state_dir, report, clock)
    with runtime.lock():
        runtime.state = _merged(runtime.state, options)
        ports = {ServiceName.KAFKA: options.kafka_port, ServiceName.TANGO_DB: options.tango_port}
        runtime.start({name: port for name, port in ports.items() if not runtime.is_up(name, port)})
        return runtime.endpoints()


def endpoints(state_dir: Path = DEFAULT_STATE_DIR) -> Endpoints:
    """Return where the services answer.

    Raises
    ------
    InfraError
        One of them does not run.
    """
    runtime = Runtime(state_dir)
    runtime.state = load(runtime.state_dir)
    for name in ServiceName:
        if not runtime.is_up(name):
            raise InfraError(
                f"{name} does not run in {runtime.state_dir}; "
                f"start it with `sdp-facade infra up --state-dir {state_dir}`"
            )
    return runtime.endpoints()


def status(state_dir: Path = DEFAULT_STATE_DIR) -> tuple[ProcessStatus, ...]:
    """Return one entry for each process; nothing at all when nothing was ever started here."""
    return tuple(
        ProcessStatus(
            service=ServiceName(name),
            process=name if process is None else process.name,
            pid=None if process is None else process.pid,
            address=f"{HOST}:{service.port}",
            since=service.since,
            alive=process is not None and Process(process).is_alive,
        )
        for name, service in load(state_dir.resolve()).services.items()
        for process in service.processes or (None,)
    )


def find_limps(state_dir: Path = DEFAULT_STATE_DIR) -> dict[ServiceName, str]:
    """Return how services fail to answer whose processes are alive; it takes some seconds if one does.

    Only the broker is asked: it has threads that fail and leave the process alive.
    """
    service = load(state_dir.resolve()).services.get(ServiceName.KAFKA)
    if service is None or not service.ready or not service.is_running:
        return {}
    limp = find_limp(service.port)
    return {ServiceName.KAFKA: limp} if limp else {}


def down(
    state_dir: Path = DEFAULT_STATE_DIR,
    *,
    wipe: bool = False,
    report: tools.Notify | None = None,
    clock: Clock | None = None,
) -> None:
    """Stop what the state file says was started here, nothing else.

    Parameters
    ----------
    wipe
        Remove the data, the logs and the state as well (and do not let the services tidy up first).

    Raises
    ------
    InfraError
        A process cannot be stopped.
    """
    runtime = Runtime(state_dir, report, clock)
    if not runtime.state_dir.exists():
        return
    with runtime.lock():
        for name in reversed(ServiceName):
            runtime.stop(name, kill=wipe)
        if wipe:
            runtime.wipe()


def start_service(
    state_dir: Path,
    service: ServiceName | str,
    *,
    report: tools.Notify | None = None,
    clock: Clock | None = None,
) -> Endpoints:
    """Start one service again on the very port and data that it had.

    Raises
    ------
    InfraError
        It was never started here, or its port is taken.
    """
    runtime = Runtime(state_dir, report, clock)
    name = _service_name(service)
    with runtime.lock():
        known = runtime.state.services.get(name)
        if known is None:
            raise InfraError(f"{name} was never started in {runtime.state_dir}; use `sdp-facade infra up` first")
        if not runtime.is_up(name):
            runtime.start({name: known.port})
        return runtime.endpoints()


def stop_service(
    state_dir: Path,
    service: ServiceName | str,
    *,
    kill: bool = False,
    report: tools.Notify | None = None,
    clock: Clock | None = None,
) -> None:
    """Stop one service; its port and data stay reserved for it.

    Parameters
    ----------
    kill
        End it at once, as a power cut would.

    Raises
    ------
    InfraError
        A process cannot be stopped.
    """
    runtime = Runtime(state_dir, report, clock)
    name = _service_name(service)
    with runtime.lock():
        runtime.stop(name, kill=kill)


def _merged(state: InfraState, options: LocalOptions) -> InfraState:
    """Return the state with the options applied."""
    prefix = options.topic_prefix if options.topic_prefix is not None else state.topic_prefix
    if not _TOPIC_PREFIX.fullmatch(prefix):
        raise InfraError(f"the topic prefix {prefix!r} is wrong: expected 1 to 100 of the characters A-Z a-z 0-9 . _ -")
    heap = options.kafka_heap or state.kafka_heap
    if not _HEAP.fullmatch(heap):
        raise InfraError(f"the size of Kafka's heap {heap!r} is wrong: expected a number with k, m or g, such as 512m")
    return replace(state, topic_prefix=prefix, kafka_heap=heap)


def _service_name(name: str) -> ServiceName:
    try:
        return ServiceName(name)
    except ValueError as error:
        raise InfraError(f"there is no service {name!r}: expected one of {', '.join(ServiceName)}") from error
