"""The bus as one process sees it: one connection, one state of health, readers and a writer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.admin import KafkaTopicWatch, find_range
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaReceipt, KafkaSender, KafkaWriter
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.kafka.reader import KafkaReader, Start
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.clock import Time

_GATHER: Final = 0.1
"""Time that a bulk record waits for further records [s]."""


class KafkaBus:
    """The bus of one process: its readers and its writer.

    Parameters
    ----------
    connection
        The deployment.
    client
        Name of the process, for the logs of the brokers.
    linger
        Time that a record of the writer waits for further ones [s]: records that a process writes in bursts
        may wait, but no record for which a person or another process waits.
    """

    def __init__(self, connection: Connection, *, client: str, linger: float = 0.0) -> None:
        self._connection = connection
        self._client = client
        self.health = BusHealth()
        self._writer = KafkaWriter(connection, health=self.health, client=client, linger=linger)
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
        """Read some partitions of topics (None: all) from given offsets, or else from their beginning."""
        return KafkaReader(
            self._connection,
            topics,
            start=start,
            health=self.health,
            committed=committed,
            together=together,
            resets=resets,
        )

    def read_all(self, topic: str, *, settled: bool = False) -> list[Record]:
        """Return all records of a (compacted) topic.

        Parameters
        ----------
        topic
            Name of the topic without the prefix.
        settled
            Whether to wait for records behind open transactions.

        Raises
        ------
        BusError
            The topic does not exist, or its end was not reached in time.
        """
        ranges, within = find_range(self._connection, topic, within=timeouts.PROCESS), timeouts.READ_ALL
        self._connection.answered(self.health)
        return [*read_range(self._connection, topic, ranges, whole=settled, within=within, health=self.health)]

    def watch(self) -> KafkaTopicWatch:
        """Return the watch over topics for positions; see `facade.kernel.bus.offsets.TopicWatch`."""
        return self._watch

    def replica_watch(self) -> KafkaTopicWatch:
        """Return a watch over the replicas of topics, with requests at long intervals."""
        return KafkaTopicWatch(self._connection, each=timeouts.REPLICAS_EACH)

    def writer(self) -> KafkaWriter:
        """Return the writer for snapshots, settings and dead letters."""
        return self._writer

    def sender(self) -> KafkaSender:
        """Open a producer for commands, apart from all other traffic."""
        return KafkaSender(self._connection, health=self.health, client=f"{self._client}-commands")

    def open_writer(self, purpose: str) -> KafkaWriter:
        """Open a bulk writer, apart from all other traffic: its records wait for others and are sent together."""
        return KafkaWriter(self._connection, health=self.health, client=f"{self._client}-{purpose}", linger=_GATHER)


class KafkaBatchLog:
    """The topic to which a producer forwards its batches."""

    def __init__(self, connection: Connection, *, client: str) -> None:
        self._connection = connection
        self._writer = KafkaWriter(connection, health=BusHealth(), client=client)

    def post(self, record: Record) -> KafkaReceipt:
        """Queue a record after earlier posts, without waiting."""
        return self._writer.post([record])

    def since(self, topic: str, time: Time) -> Iterator[Record]:
        """Return the records that are on a topic now and were written at or after a time."""
        return read_range(self._connection, topic, find_range(self._connection, topic, since=time), whole=True)

    def close(self, timeout: float) -> None:
        """Wait for queued batches, at most `timeout` [s]."""
        self._writer.close(timeout)
