"""SIGTERM and SIGINT: how each long-running program stops.

On SIGTERM a worker leaves its loop and commits (`worker_process.run_worker`, then the worker's `finish`). A device
server sends its last events and snapshots (`devices/kernel/server.py`, then `EventLoop`). A controller lets running
commands end for some seconds (`facade/sdk/controller/process.py`).
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn


@contextmanager
def on_stop(act: Callable[[], object]) -> Iterator[None]:
    """Call a function, which must not wait, when SIGTERM or SIGINT comes."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        act()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Return a function that tells whether SIGTERM or SIGINT came."""
    stop = threading.Event()
    with on_stop(stop.set):
        yield stop.is_set


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does: with everything stopped."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        # A second signal would end the work of the first. Where a parent is killed and the kernel reports it
        # (PR_SET_PDEATHSIG), one may come for each of the parent's threads.
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_process(code: int = 0) -> NoReturn:
    """End this process at once, after its output is written; the code is not 0 if that fails.

    Threads of Tango and of the Kafka client may still call back. Such a call ends a process with SIGSEGV while Python
    finalizes. The destructor of a Kafka client may wait without end. So nothing is finalized here.
    """
    try:
        logging.shutdown()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError) as error:  # the disk is full, or the reader has gone
        code = code or 1
        with suppress(OSError):
            os.write(2, f"output was lost: {error}\n".encode())
    finally:
        os._exit(code)
