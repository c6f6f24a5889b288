"""Processes under test: each with its own log, stopped by its own id, never left behind."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.waiting import HANG, until


class Running:
    """One process and its log (standard output and standard error together)."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=dict(environment)
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def text(self) -> str:
        """What it has written so far; a successor with the same log goes on behind it."""
        return self.log.read_text(errors="replace")

    @property
    def resident(self) -> int:
        """Resident memory [bytes]."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def await_handler(self, number: signal.Signals) -> None:
        """Wait until it handles a signal: one that is still starting would die of it, which says nothing of its end."""
        until(lambda: not self.running or self._handles(number), f"{self.name} handles {number.name}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.running:
            self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        """Ask it to end and give its exit code."""
        self.await_handler(signal.SIGTERM)
        self._process.terminate()
        return self.exit_code()

    def exit_code(self, within: float = HANG) -> int:
        """Wait for its end."""
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {within:g} s; its log ends:\n{self.tail()}") from None

    def says(self, text: str) -> None:
        """Wait until its log holds a text."""
        try:
            until(lambda: text in self.text, f"{text!r} in the log of {self.name}")
        except AssertionError as error:
            raise AssertionError(f"{error}; its log ends:\n{self.tail()}") from None

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.text.splitlines()[-lines:])

    def _handles(self, number: int) -> bool:
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (number - 1) & 1)
