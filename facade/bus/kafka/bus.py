"""The bus as one device server sees it: one connection, one state of health, readers and a writer."""

from collections.abc import Mapping, Sequence

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.reader import AT_ONCE, TO_END, TOGETHER, KafkaReader, Start
from facade.bus.kafka.sender import KafkaSender
from facade.bus.kafka.topic_watch import KafkaTopicWatch
from facade.bus.kafka.writer import KafkaWriter
from facade.bus.port import BusHealth, Record

_READ_ALL = 10.0
"""Longest time for reading a compacted topic from its beginning [s]."""


class KafkaBus:
    """The bus of one process: its readers and its writer.

    Parameters
    ----------
    connection
        The deployment.
    client
        Name of the process, for the logs of the brokers.
    """

    def __init__(self, connection: Connection, *, client: str) -> None:
        self._connection = connection
        self._client = client
        self.health = BusHealth()
        self._writer = KafkaWriter(connection, health=self.health, client=client)
        self._watch = KafkaTopicWatch(connection)

    def open_reader(
        self,
        topics: Mapping[str, Sequence[int] | None],
        start: Start,
        *,
        committed: bool = True,
        together: bool = False,
        resets: bool = True,
    ) -> KafkaReader:
        """Read some partitions of topics (None: all) from given offsets on, or else from their beginning."""
        fetch = TOGETHER if together else AT_ONCE
        return KafkaReader(
            self._connection, topics, start=start, health=self.health, committed=committed, fetch=fetch, resets=resets
        )

    def read_all(self, topic: str, *, settled: bool = False) -> list[Record]:
        """Return all records of a (compacted) topic.

        Parameters
        ----------
        topic
            Name of the topic without the prefix.
        settled
            Whether to wait for records that open transactions hold back.

        Raises
        ------
        BusError
            The topic does not exist, or its end was not reached in time.
        """
        extent = self._watch.extents([topic]).get(topic) if settled else None
        reader = KafkaReader(self._connection, {topic: None}, start={}, health=self.health, fetch=TO_END)
        try:
            if extent is not None:
                return reader.read_up_to(topic, {one: end for one, (_, end) in extent.ranges.items()}, _READ_ALL)
            return reader.read_to_end(_READ_ALL)
        finally:
            reader.close()

    def watch(self) -> KafkaTopicWatch:
        """Return what looks at topics."""
        return self._watch

    def writer(self) -> KafkaWriter:
        """Return the writer for snapshots, settings and dead letters."""
        return self._writer

    def sender(self) -> KafkaSender:
        """Open a producer for commands, apart from all other traffic."""
        return KafkaSender(self._connection, health=self.health, client=f"{self._client}-commands")
