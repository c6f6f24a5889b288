"""What `infra up` started, in one small JSON file.

The file is replaced as a whole, so a reader sees the old or the new content. A process is written
down right after its start and before anything is waited for: an `up` that is interrupted
leaves nothing behind that `down` would not find.
"""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from facade.errors import InfraError
from facade.infra.processes import Process, ProcessRecord

STATE_FILE: Final = "infra.json"
LOCK_FILE: Final = "infra.lock"


class ServiceName(StrEnum):
    """The services that there are, in the order in which they are started."""

    KAFKA = "kafka"
    TANGO_DB = "tango-db"


class TangoDb(StrEnum):
    """The two Tango databases."""

    EMBEDDED = "embedded"
    """pytango-db: SQLite, pure Python, up in 0.3 s."""
    MARIADB = "mariadb"
    """The C++ server of an observatory, with a private MariaDB."""


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
    tango_db: TangoDb = TangoDb.EMBEDDED
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
