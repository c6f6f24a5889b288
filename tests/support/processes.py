"""Processes under test: each with its own log, stopped by its own id, never left behind."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP, SIGTERM, Signals
from typing import Self

import psutil

from facade.infra.processes import LOG_VARIABLE, Process, ProcessRecord
from facade.kernel.clock import Clock
from sdp_facade_lab.deployment import PROGRAM
from tests.support import fork_server
from tests.support.waiting import HANG, until


class Running(Process):
    """One process and its log (standard output and standard error together).

    A program of ours is forked where that makes no difference; see `tests.support.fork_server`.
    """

    _forked = False

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        append: bool = False,
        clock: Clock | None = None,
    ) -> Self:
        environment = os.environ if env is None else env
        if not append or not fork_server.can_fork(argv, environment):
            return super().start(name, argv, log=log, env=env, append=append, clock=clock)
        pid = fork_server.start(argv, {**environment, LOG_VARIABLE: str(log.resolve())}, log)
        created = psutil.Process(pid).create_time()
        found = cls(ProcessRecord(name=name, pid=pid, created=created, argv=tuple(argv), log=str(log)), clock)
        found._forked = True
        return found

    @property
    def running(self) -> bool:
        return self.is_alive

    @property
    def text(self) -> str:
        """What it has written so far; a successor with the same log goes on behind it."""
        return self.log.read_text(errors="replace")

    @property
    def ports(self) -> set[int]:
        """The TCP ports that it listens at."""
        connections = psutil.Process(self.pid).net_connections("tcp4")
        return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}

    def signal(self, number: Signals) -> None:
        self.send(number)

    def await_handler(self, number: Signals) -> None:
        """Wait until it handles a signal: one that is still starting would die of it, which says nothing of its end."""
        until(lambda: not self.running or self._handles(number), f"{self.name} handles {number.name}")

    def terminate(self) -> int:
        """Ask it to end and give its exit code."""
        self.await_handler(SIGTERM)
        self.send(SIGTERM)
        return self.exit_code()

    def exit_code(self, within: float = HANG) -> int:
        assert self.wait(within), f"{self.name} still runs after {within:g} s; its log ends:\n{self.tail()}"
        assert self.code is not None
        return self.code

    def says(self, text: str) -> None:
        try:
            until(lambda: text in self.text, f"{text!r} in the log of {self.name}")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log ends:\n{self.tail()}") from None

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.text.splitlines()[-lines:])

    def _collect(self) -> None:
        if self._forked:
            self.code = fork_server.exit_code(self.pid)
        else:
            super()._collect()

    def _handles(self, number: int) -> bool:
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (number - 1) & 1)


def run_command(*arguments: str, folder: Path) -> Running:
    """Start a command of sdp-facade that has nothing to do with a deployment of the test."""
    argv = [PROGRAM, *arguments]
    return Running.start(arguments[0], argv, log=folder / f"{arguments[0]}.log", env=os.environ)


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Let a process hang: it keeps its connections and answers nobody."""
    os.kill(pid, SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    try:
        # Its other threads go on for a moment.
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the process stands still")
        yield
    finally:
        os.kill(pid, SIGCONT)
