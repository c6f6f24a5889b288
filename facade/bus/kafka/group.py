"""A member of a consumer group that commits by itself: for consumers whose effects are not on the bus.

The member's name is stable, so that a process that is killed and started again gets its partitions
back at once. Partitions move one by one (cooperatively): those that stay are not interrupted.
"""

import ctypes
import logging
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from confluent_kafka import OFFSET_STORED, Consumer, KafkaError, KafkaException, Message, TopicPartition

from facade.bus.kafka import timeouts
from facade.bus.kafka.connection import Connection, to_record
from facade.bus.port import BusHealth, Fenced, Record
from facade.errors import BusError

_HEARTBEAT = 0.25
"""Time between two signs of life to the group [s]. Their answers tell a member that partitions are dealt out anew, and
until the last one has heard of it nobody takes any."""
FENCE = 1.5
"""So soon a member is told that its name was taken, also by a busy broker [s]."""
_OUTAGE = 30.0
"""For so long after an outage the broker's answers may still be about what was before [s]."""


def joins_anew(fenced_at: float, *, joined_at: float, down_at: float, lost_at: float) -> bool:
    """Return whether a member that was fenced joins its group again, once.

    A member that loses its session while the broker is away or hangs joins again under a new id. The broker then
    answers its requests under the old id as if another process had its name. Where another process does have it, the
    session is lost with the fence, not before. Two real holders of a name still end with one of them.

    Parameters
    ----------
    fenced_at, joined_at, down_at, lost_at
        Monotonic times at which the member was fenced, joined, last failed to reach a broker, and lost its session [s].
    """
    was_down = joined_at < down_at and fenced_at - down_at < _OUTAGE
    had_lost = joined_at < lost_at and FENCE < fenced_at - lost_at < _OUTAGE
    return was_down or had_lost


def fenced(group: str, member: str) -> Fenced:
    """Return the error of a member whose name another process has taken; both names are those on the brokers."""
    return Fenced(
        f"another process has joined group {group} as {member}: this one ends, and does nothing more. Give each process"
        " a name of its own (--slot of a worker, --name of a controller). If no other process has this name, the broker"
        " hung for longer than a session: start this one again"
    )


_LOOK = 0.02
"""Time between two looks at the client [s]."""


def leave(connection: Connection, consumer: Consumer, place: TopicPartition) -> bool:
    """Leave a group in which others take over at once; return whether the group is known to know.

    The client says nothing to the group when a static member is closed, so its partitions wait for the session
    time-out. It does when the subscription is given up. The client forgets its member id as it sends that, and the
    answer to a later question on the same connection says that the group has it.

    A member that is alone in its group had better stay: it gets its partitions back as soon as it is started again,
    where an empty group would wait for further members first.

    Parameters
    ----------
    consumer
        Of the member, with nothing left to be committed.
    place
        Any partition of its topics.
    """
    deadline = connection.clock.monotonic() + timeouts.LEAVE
    try:
        consumer.unsubscribe()
        while consumer.memberid():
            if connection.clock.monotonic() > deadline:
                return False
            consumer.consume(1, _LOOK)  # serves the giving up of the partitions, after which the client leaves
        consumer.committed([place], timeout=timeouts.LEAVE)
    except KafkaException:
        return False  # the others take over after the session's time-out
    return True


def retire(consumer: Consumer) -> None:
    """Leave a group member's client to the end of the process, instead of closing it.

    Closing is not safe: an assignment that waits to be served is then served while the client shuts
    down, which waits for ever for an answer, and with the interpreter's lock held, so that no other
    thread could set a limit to it. Its destructor would do the same, so it must never run.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))


_log = logging.getLogger(__name__)

_SLICE = 0.002
"""Longest wait for a commit that another thread may ask for, before the client is looked at again [s]."""
_SOON = 0.03
"""For so long after a record its commit is what is likely to come next [s]."""
_NOT_KNOWN = "Failed to fetch committed offset"
"""Begin of the text, whatever the error is, when the coordinator of the group has refused to tell where to go on."""
_ASK_AGAIN = 0.5
"""Pause before the coordinator is asked again [s]."""


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
        self._ask_at = math.inf
        """When the coordinator is asked again where to go on [monotonic s]."""
        self._consumer = self._join()

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records, and commit what other threads ask for; see `facade.bus.port.GroupMember`."""
        self._taking = threading.get_ident()
        clock = self._connection.clock
        deadline = clock.monotonic() + timeout
        while True:
            now = clock.monotonic()
            if now >= self._ask_at:
                self._ask_again()
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

    def _ask_again(self) -> None:
        """Have the coordinator asked again for the offsets; to the caller it looks like a new assignment.

        The client asks once. The coordinator of a broker that has just started, or hung, may refuse. Then the
        partitions stay with this member, which never gets a record of them: the answer has no offset to go back to
        (`rd_kafka_assignment_handle_OffsetFetch` of librdkafka, seen with 2.16).
        """
        self._ask_at = math.inf
        self._changes += 1
        self._partitions = dict.fromkeys(self._partitions, self._changes)
        try:
            self.go_on(dict.fromkeys(self._partitions, OFFSET_STORED))
        except BusError as error:
            _log.warning("asking again where to go on: %s", error)
            self._ask_at = self._connection.clock.monotonic() + _ASK_AGAIN

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
        if error.str().startswith(_NOT_KNOWN):
            self._ask_at = self._connection.clock.monotonic() + _ASK_AGAIN
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


def member_settings(group: str, member: str) -> dict[str, object]:
    """Return the settings of a static member of a group, by its names on the brokers; it commits by itself."""
    return {
        "group.id": group,
        "group.instance.id": member,
        "client.id": member,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "session.timeout.ms": round(timeouts.SESSION * 1000),
        "heartbeat.interval.ms": round(_HEARTBEAT * 1000),
        "fetch.queue.backoff.ms": 2,
    }


def _settings(group: str, member: str) -> dict[str, object]:
    return {
        **member_settings(group, member),
        "partition.assignment.strategy": "cooperative-sticky",
        "socket.timeout.ms": timeouts.ANSWER_MS,
        "queued.max.messages.kbytes": 16_384,
        "fetch.wait.max.ms": 100,
        # A topic that is made after the start is found by looking again; the default is five minutes.
        "topic.metadata.refresh.interval.ms": 10_000,
    }
