"""Threads that take one step after the other: a mistake in a step is logged, and never ends its thread.

A thread that has ended would leave something that looks alive: values that no longer change, a queue that is never
sent.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from facade.kernel.errors import BusError

_log = logging.getLogger(__name__)

_AGAIN = 1.0
"""Pause after a mistake, or a failure of the bus [s]."""


def run_steps(
    step: Callable[[], bool | None],
    stop: threading.Event,
    what: str,
    *,
    each: float = 0.0,
    on_mistake: Callable[[Exception], None] = lambda error: None,
) -> None:
    """Take steps until `stop` is set.

    Parameters
    ----------
    step
        Does the work that is due, and returns True if more is due at once.
    what
        Name of the work, for the log.
    each
        Time before each step [s].
    on_mistake
        Called with what a step has raised, except a failure of the bus.
    """
    pause, said = each, ""
    while not stop.wait(pause):
        pause = _AGAIN
        try:
            pause, said = 0.0 if step() else each, ""
        except BusError as error:
            if str(error) != said:  # an outage may last for hours
                said = str(error)
                _log.warning("%s waits for the bus: %s", what, error)
        except Exception as error:
            _log.exception("%s failed", what)
            on_mistake(error)


class StepThread:
    """A thread of its own for `run_steps`, with the same parameters."""

    def __init__(self, step: Callable[[], bool | None], what: str, **more: Any) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=partial(run_steps, step, self._stop, what, **more), name=what, daemon=True
        )
        self.start = self._thread.start

    def end(self, timeout: float | None = None) -> None:
        """Take no further step, and wait for the present one [s]; before `start` it does nothing more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
