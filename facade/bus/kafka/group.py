"""A member of a consumer group that commits by itself: for consumers whose effects are not on the bus.

The member's name is stable, so that a process that is killed and started again gets its partitions
back at once. Partitions move one by one (cooperatively): those that stay are not interrupted.
"""

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from facade.bus.kafka import timeouts
from facade.bus.kafka.connection import Connection
from facade.bus.kafka.departure import retire
from facade.bus.kafka.records import to_record
from facade.bus.kafka.sessions import HEARTBEAT, fenced, joins_anew
from facade.bus.port import BusHealth, Record
from facade.errors import BusError

_log = logging.getLogger(__name__)

_SLICE = 0.002
"""Longest wait for a commit that another thread may ask for, before the client is looked at again [s]."""
_SOON = 0.03
"""For so long after a record its commit is what is likely to come next [s]."""


class KafkaGroupMember:
    """See `facade.bus.port.GroupMember`.

    Parameters
    ----------
    resets
        Whether the beginning of a partition replaces a position that is not on its log. False: the partition gets
        another number, so that the caller compares its own position with the log.
    """

    def __init__(
        self, connection: Connection, topic: str, *, group: str, member: str, health: BusHealth, resets: bool = True
    ) -> None:
        self._connection = connection
        self._health = health
        self._topic = connection.topic(topic)
        reset = {"auto.offset.reset": "earliest" if resets else "error"}
        self._settings = {**_settings(connection.prefix + group, connection.prefix + member), **reset}
        self._changes = 0
        self._partitions: dict[int, int] = {}
        self.assignment: Mapping[int, int] = {}
        self._taking = threading.get_ident()
        """The thread that uses the client: a second one would wait until its `poll` ends, or for ever."""
        self._asked: SimpleQueue[tuple[Mapping[int, int], Future[None]]] = SimpleQueue()
        """What other threads want to have committed."""
        self._taken_at = float("-inf")
        self._joined_at = self._lost_at = 0.0
        self._consumer = self._join()

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records, and commit what other threads ask for; see `facade.bus.port.GroupMember`."""
        self._taking = threading.get_ident()
        clock = self._connection.clock
        deadline = clock.monotonic() + timeout
        while True:
            now = clock.monotonic()
            left = deadline - now
            soon = now - self._taken_at < _SOON
            self._serve_commits(0.0)
            # The client's `consume` would wait for the whole number; a command must not wait for a second one.
            first = self._consumer.poll(0.0 if soon else max(left, 0.0))
            if first is not None or not soon or left <= 0.0 or self._partitions != self.assignment:
                break
            # The client cannot be woken, so whatever it is not waiting for is found at the end of a slice only.
            self._serve_commits(_SLICE)
        if first is not None:
            self._taken_at = clock.monotonic()
        messages = [] if first is None else [first, *self._consumer.consume(limit - 1, 0.0)]
        taken = [message for message in messages if self._is_record(message)]
        records = [to_record(self._connection, message) for message in taken]
        self.assignment = dict(self._partitions)
        return [record for record in records if record.partition in self.assignment]

    def holds(self, partition: int, number: int) -> bool:
        """Return whether a partition was never taken away since; see `facade.bus.port.GroupMember`."""
        return self._partitions.get(partition) == number

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit and wait for the broker's answer; see `facade.bus.port.GroupMember`."""
        if threading.get_ident() == self._taking:
            self._commit(offsets)
            return
        answer: Future[None] = Future()
        self._asked.put((offsets, answer))
        try:
            answer.result(timeouts.PROCESS)
        except TimeoutError as error:
            raise BusError(f"offsets {dict(offsets)} of {self._topic} are not known to be committed") from error

    def _serve_commits(self, timeout: float) -> None:
        """Commit the offsets that other threads ask for; `timeout`: longest wait for the first of them [s]."""
        wait = timeout > 0.0
        while wait or not self._asked.empty():
            try:
                offsets, answer = self._asked.get(wait, timeout)
            except Empty:
                return
            wait = False
            self._taken_at = float("-inf")  # it has come: from now on the next record is what to wait for
            try:
                self._commit(offsets)
                answer.set_result(None)
            except BusError as error:
                answer.set_exception(error)

    def _commit(self, offsets: Mapping[int, int]) -> None:
        if strange := set(offsets) - set(self._partitions):
            raise BusError(f"partitions {sorted(strange)} of {self._topic} are not this member's any more")
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        try:
            for place in self._consumer.commit(offsets=places, asynchronous=False):
                if place.error is not None:
                    raise KafkaException(place.error)
        except KafkaException as error:
            raise BusError(f"offsets {dict(offsets)} of {self._topic} are not committed: {error.args[0]}") from error

    def committed(self, partitions: Collection[int]) -> dict[int, int]:
        """Return what the group has committed; see `facade.bus.port.GroupMember`."""
        places = [TopicPartition(self._topic, partition) for partition in partitions]
        try:
            answer = self._consumer.committed(places, timeouts.PROCESS)
            return {place.partition: max(place.offset, -1) for place in answer}
        except KafkaException as error:
            raise BusError(f"no answer about the group's place on {self._topic}: {error.args[0]}") from error

    def go_on(self, offsets: Mapping[int, int]) -> None:
        """Give partitions from other offsets on; see `facade.bus.port.GroupMember`."""
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        # The client's `seek` fails on a partition that it has not begun to read.
        try:
            self._consumer.incremental_unassign(places)
            self._consumer.incremental_assign(places)
        except KafkaException as error:
            raise BusError(f"{self._topic} cannot be read on from {dict(offsets)}: {error.args[0]}") from error

    def close(self) -> None:
        """Leave; the name stays reserved for its next holder."""
        retire(self._consumer)

    def _join(self) -> Consumer:
        self._joined_at = self._connection.clock.monotonic()
        consumer = self._connection.consumer(self._health, self._settings)
        consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        return consumer

    def _on_assign(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._changes += 1
        self._partitions |= {place.partition: self._changes for place in places}

    def _on_revoke(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self._partitions.pop(place.partition, None)

    def _on_lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._lost_at = self._connection.clock.monotonic()
        self._on_revoke(consumer, places)

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION):
            partition = message.partition()
            if partition in self._partitions:
                self._changes += 1
                self._partitions[partition] = self._changes
            return False
        if error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL) or error.fatal():
            self._on_fenced(error)
        self._connection.note(self._health, f"{error.name()}: {error.str()}")
        return False

    def _on_fenced(self, error: KafkaError) -> None:
        """Stop for good, unless it was the broker that forgot about us; see `joins_anew`."""
        _log.error("consumer cannot go on: %s", error.str())
        now, down_at = self._connection.clock.monotonic(), self._health.down_at
        if joins_anew(now, joined_at=self._joined_at, down_at=down_at, lost_at=self._lost_at):
            self._consumer.close()
            self._partitions.clear()
            self.assignment = {}  # the new client has none yet
            self._consumer = self._join()
            return
        raise fenced(str(self._settings["group.id"]), str(self._settings["group.instance.id"]))


def _settings(group: str, member: str) -> dict[str, object]:
    return {
        "group.id": group,
        "group.instance.id": member,
        "client.id": member,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": round(timeouts.SESSION * 1000),
        "heartbeat.interval.ms": round(HEARTBEAT * 1000),
        "socket.timeout.ms": timeouts.ANSWER_MS,
        "queued.max.messages.kbytes": 16_384,
        "fetch.queue.backoff.ms": 2,
        "fetch.wait.max.ms": 100,
        # A topic that is made after the start is found by looking again; the default is five minutes.
        "topic.metadata.refresh.interval.ms": 10_000,
    }
