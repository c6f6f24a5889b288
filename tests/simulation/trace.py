"""What happened in a run: a digest to compare two runs by, and a time line for people."""

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from tests.simulation.scheduler import Scheduler

_KEPT = 5000
"""Lines that are kept for the time line."""


class Trace:
    """Takes who did what."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._digest = sha256()
        self.lines: deque[str] = deque(maxlen=_KEPT)

    def note(self, who: str, what: str) -> None:
        line = f"{self._scheduler.now:12.4f} s  step {self._scheduler.steps:>9}  {who:<14} {what:.300}"
        self._digest.update(line.encode())
        self.lines.append(line)

    @contextmanager
    def logs(self) -> Iterator[None]:
        """Take warnings of the facade into the time line, each with the process that gave it; not into the digest."""
        trace = self

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                task = trace._scheduler.current
                who = task.process.name if task is not None else "client"
                trace.lines.append(
                    f"{trace._scheduler.now:12.4f} s  {'':<14}  {who:<14} says: {record.getMessage():.300}"
                )

        logger, handler = logging.getLogger("facade"), Handler(logging.WARNING)
        before, logger.propagate = logger.propagate, False
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = before

    def digest(self) -> str:
        """Return the same text for the same run, and another one for any other."""
        return self._digest.hexdigest()[:16]
