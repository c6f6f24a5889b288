"""Whose turn it is: devices that hang take no turn from those that answer.

A task holds a thread of the source until its device answers, or Tango gives up, which takes 3 to 9 s. Tasks that were
begun a moment ago are few, as Python does the work of one thread at a time. A task that takes longer only waits, so it
makes room for another one. Devices that did not answer last time have at most half of the threads.
"""

from collections import deque
from collections.abc import Iterator

PROMPT = 16
"""Tasks that are begun at once, of devices that answered last time."""
SLOW = 0.1
"""A task under way for so long counts as waiting [s]."""


class Turns:
    """Which devices wait for their turn, and which have it.

    Parameters
    ----------
    most
        Tasks that may be under way at once: the threads of the source.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._answering: deque[str] = deque()
        """Devices that wait, the longest first."""
        self._silent: deque[str] = deque()
        """The same of those that did not answer last time."""
        self._began: dict[str, float] = {}
        """When the task of each device that answered last time was begun [monotonic s]."""
        self._retried: set[str] = set()
        """The others whose tasks are under way."""

    def wait(self, device: str, *, answered: bool) -> None:
        """Put a device in the queue; `answered` says whether it did so last time."""
        (self._answering if answered else self._silent).append(device)

    def end(self, device: str) -> None:
        """Note that the turn of a device is over."""
        self._began.pop(device, None)
        self._retried.discard(device)

    def take(self, now: float) -> Iterator[str]:
        """Return the devices whose turn begins now [monotonic s]."""
        prompt = sum(now - at < SLOW for at in self._began.values())
        while self._answering and prompt < PROMPT and len(self._began) + len(self._retried) < self._most:
            device = self._answering.popleft()
            self._began[device] = now
            prompt += 1
            yield device
        while (
            self._silent and len(self._retried) < self._most // 2 and len(self._began) + len(self._retried) < self._most
        ):
            device = self._silent.popleft()
            self._retried.add(device)
            yield device
