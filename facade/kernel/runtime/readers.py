"""The readers of one device server: each topic is read with the isolation that its flow's manifest gives it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from facade.kernel.bus.offsets import TopicWatch
from facade.kernel.bus.port import BusHealth, ColumnReader, QueueingWriter, Reader, Record
from facade.kernel.manifest import Isolation

Partitions = Mapping[str, Sequence[int] | None]
"""Partitions to read by topic; None: all."""
Places = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""

_TURN = 0.002
"""Longest wait for one of several readers while another one may have records [s]."""


class Bus(Protocol):
    """Opens the bus for one device server."""

    health: BusHealth

    def open_reader(
        self,
        topics: Mapping[str, Sequence[int] | None],
        start: Places,
        *,
        committed: bool = True,
        resets: bool = True,
    ) -> ColumnReader:
        """Read some partitions of topics (None: all) from given offsets, or else from their beginning.

        Parameters
        ----------
        committed
            False: records of open transactions are read as well.
        resets
            Whether to restart at the beginning of a partition if a position is not on its log. False: the reader
            reports that it is misplaced.
        """

    def read_all(self, topic: str) -> list[Record]:
        """Return all records of a compacted topic."""

    def watch(self) -> TopicWatch:
        """Return the watch over topics."""

    def writer(self) -> QueueingWriter:
        """Return the writer for snapshots and dead letters."""


class Readers:
    """Several readers as one, each for topics of one isolation."""

    def __init__(self, readers: Mapping[str, Reader]) -> None:
        self._by_topic = readers
        self._readers = list(dict.fromkeys(readers.values()))

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return new records of any reader; limit and time-out [s] are shared."""
        records: list[Record] = []
        while True:
            # In turns and with short waits: neither a reader with a storm of records nor a silent one holds up the
            # others.
            self._readers.append(self._readers.pop(0))
            for following, reader in zip(range(len(self._readers), 0, -1), self._readers, strict=True):
                if share := -(-(limit - len(records)) // following):
                    wait = 0.0 if records else min(timeout, _TURN)
                    records += reader.take(share, wait)
                    timeout -= wait
            assert len(records) <= limit, f"expected at most {limit} records of all readers, got {len(records)}"
            if records or timeout <= 0.0:
                return records

    def caught_up(self, topic: str) -> bool:
        """Return whether all records of a topic from before the start have been read."""
        return self._by_topic[topic].caught_up(topic)

    def behind(self, topic: str) -> Mapping[int, int]:
        """Return the number of unread records of a topic, by partition."""
        return self._by_topic[topic].behind(topic)

    def reached(self, topic: str) -> Mapping[int, int]:
        """Return the next offset to read, by partition."""
        return self._by_topic[topic].reached(topic)

    @property
    def is_misplaced(self) -> bool:
        """Return whether a position on any of the topics is not on its log."""
        return any(reader.is_misplaced for reader in self._readers)

    def close(self) -> None:
        """Stop reading."""
        for reader in self._readers:
            reader.close()


def open_readers(bus: Bus, topics: Partitions, start: Places, isolation: Mapping[str, Isolation]) -> Reader:
    """Open a reader for each isolation of the topics, and return them as one."""
    if not topics:
        return bus.open_reader({}, {})  # delivers nothing, after the wait
    found: dict[str, Reader] = {}
    try:
        for level in Isolation:
            chosen = {t: p for t, p in topics.items() if isolation.get(t, Isolation.READ_COMMITTED) is level}
            if chosen:
                reader = bus.open_reader(
                    chosen,
                    {topic: places for topic, places in start.items() if topic in chosen},
                    committed=level is Isolation.READ_COMMITTED,
                    resets=False,
                )
                found |= dict.fromkeys(chosen, reader)
    except BaseException:
        for opened in set(found.values()):
            opened.close()
        raise
    readers = list(dict.fromkeys(found.values()))
    return readers[0] if len(readers) == 1 else Readers(found)
