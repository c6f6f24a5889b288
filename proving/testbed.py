"""The bench's own broker and Tango database, and the processes that play on them; all of it ends with the bench."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.topics import create_topics, delete_topics
from facade.clock import Clock
from facade.config import Settings
from facade.errors import BusError, FacadeError
from facade.icd.load import load
from facade.icd.model import Icd
from facade.infra import local

Say = Callable[[str], None]
Found = TypeVar("Found")

_GRACE = 10.0
_LOOK_AGAIN = 0.05
_PROGRESS = 5.0
"""Time between signs of life while waiting [s]."""


class BenchError(FacadeError):
    """A measurement could not be made."""


class Running:
    """One process of the bench; Ctrl-C reaches only the bench itself, which then ends it."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.result = folder / f"{name}.json"
        self._log = folder / f"{name}.log"
        for left in (".json", ".ready", ".stop", ".go"):
            self.result.with_suffix(left).unlink(missing_ok=True)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Return whether it has said so."""
        return self.result.with_suffix(".ready").exists()

    def release(self) -> None:
        """Open its gate."""
        self.result.with_suffix(".go").touch()

    def call_off(self) -> None:
        """Ask it to come to its end and deliver."""
        self.result.with_suffix(".stop").touch()

    def stop(self, grace: float = _GRACE) -> None:
        """End it, at first politely."""
        if self.is_alive:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        self.kill()

    def kill(self) -> None:
        """End it at once."""
        if self.is_alive:
            self._process.kill()
        self._process.wait()

    def log_end(self) -> str:
        """Return the last lines of its output."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


class Stage:
    """Where measurements are made.

    Parameters
    ----------
    say
        Takes a line of progress.
    """

    def __init__(self, infra: local.Endpoints, folder: Path, clock: Clock, say: Say) -> None:
        self.bootstrap, self.tango_host, self.state_dir = infra.bootstrap, infra.tango_host, infra.state_dir
        self.clock, self.say = clock, say
        self.icd: Icd = load()
        self.folder = folder
        self.cores = os.sched_getaffinity(0)
        self._processes: list[Running] = []

    def settings(self, name: str, *, nodes: int = 4, rack_size: int = 50) -> Settings:
        """Return a deployment of its own."""
        return Settings(bootstrap=self.bootstrap, prefix=f"bench-{name}.", nodes=nodes, rack_size=rack_size)

    @contextmanager
    def topics(self, settings: Settings, partitions: int) -> Iterator[None]:
        """Make a deployment's topics, and delete them with all that is on them."""
        source = msgspec.structs.replace(self.icd.topics["ingest.heaps"], partitions=partitions)
        connection = Connection(settings, clock=self.clock)
        create_topics(connection, {**self.icd.topics, "ingest.heaps": source})
        try:
            yield
        finally:
            with suppress(BusError):  # the broker itself may be gone: then its folder is removed anyway
                delete_topics(connection)

    def start(self, name: str, argv: Sequence[str], settings: Settings, **changes: str) -> Running:
        """Start a process that ends with the bench at the latest."""
        process = Running(name, argv, self.folder, {**self._environment(settings), **changes})
        self._processes.append(process)
        return process

    def play(self, role: str, settings: Settings, *, name: str = "", **task: Any) -> Running:
        """Start a process that plays a role; see `proving.bench.roles`."""
        name = name or role
        argv = [sys.executable, "-m", "proving.bench.roles", role, str(self.folder / f"{name}.json")]
        return self.start(name, [*argv, msgspec.json.encode(task).decode()], settings)

    def result(self, process: Running, kind: type[Found], within: float = 600.0) -> Found:
        """Wait for a role's end and give what it delivered.

        Raises
        ------
        BenchError
            It failed, or takes too long.
        """
        self.until(lambda: not process.is_alive, f"{process.name} to finish", within)
        if not process.result.exists():
            raise BenchError(f"{process.name} delivered nothing; its output ends:\n{process.log_end()}")
        return msgspec.json.decode(process.result.read_bytes(), type=kind)

    def until_ready(self, process: Running, within: float = 60.0) -> None:
        """Wait until a role is ready.

        Raises
        ------
        BenchError
            It ended before, or takes too long.
        """
        self.until(lambda: process.is_ready or not process.is_alive, f"{process.name} to get ready", within)
        if not process.is_ready:
            raise BenchError(f"{process.name} ended before it was ready; its output ends:\n{process.log_end()}")

    def until(self, condition: Callable[[], bool], what: str, within: float) -> None:
        """Wait for something, with a sign of life now and then.

        Raises
        ------
        BenchError
            It takes too long.
        """
        begin = said = self.clock.monotonic()
        while not condition():
            now = self.clock.monotonic()
            if now - begin > within:
                raise BenchError(f"waited {within:g} s for {what}")
            if now - said >= _PROGRESS:
                said = now
                self.say(f"  waiting for {what}: {now - begin:.0f} s")
            self.clock.sleep(_LOOK_AGAIN)

    def watch(self, seconds: float, what: str) -> None:
        """Let some time pass, with a sign of life now and then."""
        end = self.clock.monotonic() + seconds
        self.say(f"  {what}: {seconds:g} s")
        while (left := end - self.clock.monotonic()) > 0:
            self.clock.sleep(min(left, _PROGRESS))
            if left > _PROGRESS:
                self.say(f"  {what}: {left - _PROGRESS:.0f} s left")

    def broker_pid(self) -> int:
        """Return the broker's process id; 0 while it does not run."""
        lines = local.status(self.state_dir)
        return next((line.pid or 0 for line in lines if line.service is local.ServiceName.KAFKA and line.alive), 0)

    def stop_all(self) -> None:
        """End every process that was started and still runs."""
        for process in reversed(self._processes):
            process.kill()
        self._processes.clear()

    def _environment(self, settings: Settings) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SDP_", "KAFKA_", "TANGO_"))}
        return {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
            "KAFKA_BOOTSTRAP": settings.bootstrap,
            "TANGO_HOST": self.tango_host,
            "SDP_TOPIC_PREFIX": settings.prefix,
            "SDP_INGEST_NODES": str(settings.nodes),
            "SDP_RACK_SIZE": str(settings.rack_size),
            "SDP_LOG_LEVEL": "WARNING",
            "PYTHONUNBUFFERED": "1",
        }


@contextmanager
def stage(parent: Path, clock: Clock, say: Say) -> Iterator[Stage]:
    """Start a broker and a Tango database in a new folder, and leave nothing of it behind."""
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent.resolve(), ignore_cleanup_errors=True) as folder:
        state_dir = Path(folder) / "infra"
        try:
            made = Stage(local.up(local.Options(state_dir=state_dir), report=say), Path(folder), clock, say)
            try:
                yield made
            finally:
                made.stop_all()
        finally:
            _wake(state_dir)
            local.down(state_dir, wipe=True)


def _wake(state_dir: Path) -> None:
    """Let frozen services go on, or else they could not end in order."""
    for line in local.status(state_dir):
        if line.pid is not None and line.alive:
            with suppress(ProcessLookupError):
                os.kill(line.pid, signal.SIGCONT)
