"""Ends everything that a test run has started, once the run itself has ended, in whatever way.

A run that a signal ends finalises no fixture. So each process of pytest has a watcher beside it, which waits for the
process to end and then kills whatever has the mark of the run in its environment. Processes inherit the mark, also
those in sessions of their own.
"""

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

VARIABLE = "FACADE_TEST_RUN"
"""Environment variable of each process that a test run starts: the marks of the run, and of the run that started it."""
_LOOKS = 20
"""Looks in a row that must find nothing: a process that is being forked or executed shows no mark."""
_LOOK_AGAIN = 0.05


def watch() -> None:
    """Start the watcher of this process, and mark what this process starts from now on."""
    environment, mark = dict(os.environ), uuid.uuid4().hex
    os.environ[VARIABLE] = f"{os.environ.get(VARIABLE, '')} {mark}"
    watcher = subprocess.Popen(
        [sys.executable, "-S", __file__, str(os.getpid()), mark],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    watcher.returncode = 0  # it outlives this process


def _marked(mark: str) -> list[int]:
    """Return the processes that have a mark."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def _end_all(mark: str) -> None:
    looks = 0
    while looks < _LOOKS:
        found = _marked(mark)
        looks = 0 if found else looks + 1
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_AGAIN)


def main(run: int, mark: str) -> None:
    """Wait until a process has ended, and end what has its mark."""
    with suppress(ProcessLookupError):
        ends = os.pidfd_open(run)
        if os.getppid() == run:  # else the number is a successor's
            select.select([ends], [], [])
    _end_all(mark)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
