"""Records that could not be used, set aside whole.

A dead letter is the original key, value and headers, with additional headers that begin with ``dl.``. A replay only
drops those. A record that passed the broker compressed, and that no topic takes uncompressed, stays where it is: its
dead letter is without key, value and headers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from facade.kernel.bus.port import TRANSACTION, QueueingWriter, Record
from facade.kernel.clock import Clock, Time
from facade.kernel.outcome import RecordRejected
from facade.kernel.printable import printable

TOPIC = "dead-letters"
PREFIX = "dl."
ROW, COUNT = "row", "count"
"""Headers for columnar batches: the number of the row in the letter, and the number of rows that it stands for."""
MOST_BYTES: Final = 16_000_000
"""Largest record that is kept whole; `dead-letters` takes little more [bytes]."""
NUMBER = re.compile(r"-?[0-9]{1,18}")
"""Form of the numbers in headers: any client may have written to the topic."""


def dead_letter(record: Record, why: RecordRejected, *, by: str, more: Mapping[str, int] | None = None) -> Record:
    """Return the record for the dead-letter topic.

    Parameters
    ----------
    by
        The worker or device server that refused the record.
    more
        `ROW` or `COUNT`, for a record of a columnar batch.
    """
    detail = why.detail[:500]
    if size_of(record) > MOST_BYTES:
        record, detail = replace(record, key=None, value=None, headers=()), f"{detail}; left where it is"
    added = {
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp_us": str(record.timestamp_us),
        "reason": why.reason,
        "path": why.path,
        "detail": detail,
        "by": by,
        **{name: str(number) for name, number in (more or {}).items()},
    }
    headers = tuple((PREFIX + name, printable(text).encode()) for name, text in added.items())
    return Record(topic=TOPIC, key=record.key, value=record.value, headers=(*record.headers, *headers))


class Unconfirmed:
    """Dead letters that a writer has not confirmed yet, so that a snapshot must not count their records."""

    def __init__(self, writer: QueueingWriter, clock: Clock) -> None:
        self._writer, self._clock = writer, clock
        self._letters: list[Record] = []
        self._mark = self._failed = 0
        self.since = 0.0
        """Monotonic time of the first of them [s]."""
        self.size = 0
        """Their size [bytes]."""

    def __len__(self) -> int:
        """Return how many there are; those that `check` has not looked at yet count."""
        return len(self._letters)

    def write(self, letter: Record) -> None:
        """Write a dead letter, without waiting."""
        if not self._letters:
            self.since, self.size = self._clock.monotonic(), 0
        self._letters.append(letter)
        self.size += size_of(letter)
        self._send([letter])

    def check(self) -> bool:
        """Return whether there are still any; write all again if one of them has failed."""
        if not self._letters or not self._writer.settled(self._mark):
            return bool(self._letters)
        if (failed := self._writer.failures(TOPIC)) == self._failed:
            self._letters.clear()
            return False
        self._failed = failed
        self._send(self._letters)
        return True

    def _send(self, letters: Sequence[Record]) -> None:
        for letter in letters:
            self._writer.send(letter)
        self._mark = self._writer.mark()


def size_of(record: Record) -> int:
    """Return the size of key, value and headers [bytes]."""
    headers = sum(len(name.encode()) + len(raw) + 2 for name, raw in record.headers)  # two lengths as well
    return len(record.key or b"") + len(record.value or b"") + headers


def original(record: Record) -> Record:
    """Return the record as it was when it was set aside; the inverse of `dead_letter`."""
    added = {
        name[len(PREFIX) :]: raw.decode(errors="replace") for name, raw in record.headers if name.startswith(PREFIX)
    }
    return Record(
        topic=added.get("topic", ""),
        key=record.key,
        value=record.value,
        headers=tuple(one for one in record.headers if not (one[0].startswith(PREFIX) or one[0] == TRANSACTION)),
        partition=_number(added.get("partition", ""), -1),
        offset=_number(added.get("offset", ""), -1),
        timestamp_us=Time(_number(added.get("timestamp_us", ""), 0)),
    )


def _number(text: str, otherwise: int) -> int:
    return int(text) if NUMBER.fullmatch(text) else otherwise
