"""The proof that an operator has given an action: the topic ``alert-actions``, which only SdpAlerts may write.

Theory of operation
-------------------
Actions and alerts need one order, which gives both their numbers, so an action has its place on ``alerts``. Each source
of alerts may write there, so a record there proves nothing. The device server therefore writes an action to
``alert-actions`` first. On ``alerts``, an action counts only if the same bytes are on that topic, and only once: a
repeated one is known by its id, and by its age after longer than ids are remembered.

A server knows the actions that it has given itself. It looks for others on the topic when it first meets one: after a
start, and when another server was there before. That look finds every action appended before. While the bus does not
answer, nothing is decided: the record is read again. Forged actions make a server look once a second at most, and for a
tenth of its time.
"""

import threading
from collections.abc import Callable, Iterable
from hashlib import blake2b

from facade.kernel.bus.port import Record
from facade.kernel.clock import MINUTE, Clock, Time
from facade.kernel.errors import BusError
from facade.kernel.recent import Bounded

_MOST = 10_000
"""Newest actions that are known, more than wait to be read after any absence."""
_SOONER, _LATER = MINUTE, 10 * MINUTE
"""Longest times by which an action may stand on ``alerts`` before and after its proof, by the clocks of the brokers."""
_LOOK_EACH, _PER_LOOK = 1.0, 9.0
"""Shortest time after a look that finds nothing until the next one [s], and as a multiple of its duration."""
_MOST_TRIES = 10
"""Looks in sequence that the bus does not answer; then the action is refused, as the topic may be missing."""


class GivenActions:
    """The newest actions on ``alert-actions``.

    Parameters
    ----------
    read
        Returns all records of the topic.
    """

    def __init__(self, read: Callable[[], Iterable[Record]], clock: Clock) -> None:
        self._read, self._clock = read, clock
        self._known: Bounded[bytes, Time] = Bounded(_MOST)
        """Append time by the digest of the record; 0: not known."""
        self._lock = threading.Lock()
        self._looks_from = float("-inf")
        """When the next look may be [monotonic s]."""
        self._tries = 0
        """Looks that the bus has not answered since the last answer."""

    def add(self, *records: Record) -> None:
        """Note actions that are on the topic; from any thread."""
        with self._lock:
            for record in records:
                self._known.setdefault(_digest(record), record.timestamp_us)

    def prove(self, record: Record) -> bool:
        """Return whether a device server has given an action that is on ``alerts``.

        Raises
        ------
        BusError
            The bus does not say; the record must be read again.
        """
        digest, began = _digest(record), self._clock.monotonic()
        if digest not in self._known and began >= self._looks_from:
            self._look()
            if digest not in self._known:
                now = self._clock.monotonic()
                self._looks_from = now + max(_LOOK_EACH, _PER_LOOK * (now - began))
        if (given_us := self._known.get(digest)) is None:
            return False
        self._known[digest] = given_us or record.timestamp_us
        return -_SOONER <= record.timestamp_us - self._known[digest] <= _LATER

    def _look(self) -> None:
        try:
            found = self._read()
        except BusError:
            self._tries += 1
            if self._tries < _MOST_TRIES:
                raise
        else:
            self._tries = 0
            self.add(*found)


def _digest(record: Record) -> bytes:
    return blake2b(record.value or b"", digest_size=16).digest()
