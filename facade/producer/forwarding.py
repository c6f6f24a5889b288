"""Sends what waits in a spool: in order, and after an outage or a crash only what the log does not have."""

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from facade.bus.port import Headers, Record
from facade.clock import Clock
from facade.codec.batches import ARROW, CONTENT_TYPE, HEADER
from facade.codec.decode import BatchDecoder
from facade.errors import BusError
from facade.messages import Batch
from facade.producer.spool import Spool, Stored

_UNDER_WAY: Final = 64
"""Batches that are posted before the first of them is confirmed."""
_AGAIN: Final = 0.5
"""Pause after the bus refused something [s]."""
_SETTLES: Final = 1.0
"""A request of a process that was killed reaches a broker that answers within so long [s]."""
_SKEW: Final = 60.0
"""Most that the clocks of broker and producer differ [s]."""


class Fate(Protocol):
    """What is known of a record that was posted."""

    @property
    def confirmed(self) -> bool:
        """Return whether all in-sync replicas are known to have it."""

    @property
    def settled(self) -> bool:
        """Return whether nothing more will be told of it; if it is not confirmed, it may be there or not."""


class BatchLog(Protocol):
    """Where batches go."""

    def post(self, record: Record) -> Fate:
        """Queue a record behind those that were posted before, without waiting.

        Raises
        ------
        BusError
            The queue takes it not.
        """

    def since(self, topic: str, time: float) -> Iterable[Record]:
        """Return what stands on a topic now and was written at a time or later [Unix s].

        Raises
        ------
        BusError
            The broker does not answer.
        """

    def close(self, timeout: float) -> None:
        """Wait for what is queued, at most `timeout` [s]."""


def pack(header: bytes, value: bytes) -> bytes:
    """Return a batch as the spool keeps it."""
    return msgspec.msgpack.encode((header, value))


class Forwarder:
    """Sends the batches of one spool; for one thread.

    Parameters
    ----------
    producer
        Name in the headers of the batches.
    """

    def __init__(self, spool: Spool, log: BatchLog, topic: str, key: bytes, producer: str, *, clock: Clock) -> None:
        self._spool, self._log, self._clock = spool, log, clock
        self._topic, self._key, self._producer = topic, key, producer
        self._under_way: dict[int, Fate] = {}
        self._sent: set[int] = set()
        """On the log, and not known to be behind all that are."""
        self._in_doubt = any(stored.sequence <= spool.posted for stored in spool.head(1))
        self._looked_at: float | None = None
        self._not_before = 0.0
        self._headers = BatchDecoder(Batch)
        self.lost = 0
        """Rows of batches that the disk did not give back."""
        self.error = ""
        """Why nothing is sent; empty text: it is."""

    def step(self) -> None:
        """Take what the bus says, and post what waits."""
        if self._clock.monotonic() < self._not_before:
            return
        self._hear()
        try:
            if self._in_doubt and not self._under_way:
                self._look()
            if not self._in_doubt:
                self._post()
                self.error = ""
        except BusError as error:
            self.pause(str(error))

    def _hear(self) -> None:
        for sequence, fate in [*self._under_way.items()]:
            if fate.confirmed:
                self._sent.add(sequence)
            elif fate.settled:
                self._in_doubt = True
            else:
                continue
            del self._under_way[sequence]
        self._note_sent()

    def _look(self) -> None:
        """Find on the log what may have got there; twice, as a request of the past may still be under way."""
        first = self._spool.head(max(0, self._spool.posted - self._spool.done))
        doubtful = {stored.sequence: stored for stored in first if stored.sequence <= self._spool.posted}
        now = self._clock.monotonic()
        if doubtful:
            oldest = min(stored.time_us for stored in doubtful.values()) / 1e6
            for record in self._log.since(self._topic, oldest - _SKEW):
                if record.key == self._key and (number := self._number(record.headers)) in doubtful:
                    self._sent.add(number)
        if self._looked_at is None and doubtful:
            self._looked_at, self._not_before = now, now + _SETTLES
            return
        self._looked_at, self._in_doubt = None, False
        self._note_sent()

    def _number(self, headers: Headers) -> int:
        """Return the sequence of a batch of this producer; -1: it is another's."""
        if not any(name == HEADER for name, _ in headers):
            return -1
        header = self._headers.decode_header(headers, HEADER)
        return header.sequence if isinstance(header, Batch) and header.producer == self._producer else -1

    def _post(self) -> None:
        for stored in self._spool.head(_UNDER_WAY + len(self._sent)):
            if len(self._under_way) >= _UNDER_WAY:
                return
            if stored.sequence not in self._under_way and stored.sequence not in self._sent:
                self._post_one(stored)

    def _post_one(self, stored: Stored) -> None:
        content = self._spool.read(stored)
        if content is None:
            self.lost += stored.rows
            self._sent.add(stored.sequence)
            return
        header, value = msgspec.msgpack.decode(content, type=tuple[bytes, bytes])
        headers = ((CONTENT_TYPE, ARROW.encode()), (HEADER, header))
        # The mark comes first: what may be on the bus must be known to whoever follows after a crash.
        if not self._spool.mark(done=self._spool.done, posted=max(self._spool.posted, stored.sequence)):
            raise BusError(f"nothing is sent, as the spool's mark cannot be written: {self._spool.trouble}")
        record = Record(topic=self._topic, key=self._key, value=value, headers=headers)
        self._under_way[stored.sequence] = self._log.post(record)

    def _note_sent(self) -> None:
        done = self._spool.done
        for stored in self._spool.head(len(self._sent)):
            if stored.sequence not in self._sent:
                break
            done = stored.sequence
        self._spool.mark(done=done, posted=max(self._spool.posted, done))
        self._sent = {number for number in self._sent if number > self._spool.done}

    def pause(self, why: str) -> None:
        """Send nothing for a while, and say why."""
        self.error, self._not_before = why, self._clock.monotonic() + _AGAIN
