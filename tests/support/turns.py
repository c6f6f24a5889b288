"""Threads that take turns: one of them runs at a time, and another one only when the test says so."""

import threading
from collections.abc import Callable

from tests.support.waiting import HANG


class Turns:
    """A function in a thread of its own, which stops where it waits, and goes on when it is told.

    Parameters
    ----------
    crash
        Raised where it waits when it is killed.
    """

    def __init__(self, work: Callable[[], object], crash: type[BaseException]) -> None:
        self._work, self._crash = work, crash
        self._go, self._stopped = threading.Event(), threading.Event()
        self._killed = self._ended = False
        self.error: BaseException | None = None
        """What it ended with, if not in good order."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether it has not come to its end."""
        return not self._ended

    def resume(self) -> None:
        """Let it run until it waits, or to its end."""
        self._stopped.clear()
        self._go.set()
        assert self._stopped.wait(HANG), "it neither waits nor ends"
        if self._ended:
            self._thread.join(HANG)

    def kill(self) -> None:
        if self.alive:
            self._killed = True
            self.resume()

    def wait(self) -> None:
        """Stop; called in its own thread."""
        self._stopped.set()
        self._go.wait()
        self._go.clear()
        if self._killed:
            raise self._crash

    @property
    def mine(self) -> bool:
        """Return whether this is its own thread."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        self._go.wait()
        self._go.clear()
        try:
            if not self._killed:
                self._work()
        except BaseException as error:
            self.error = error
        finally:
            self._ended = True
            self._stopped.set()
