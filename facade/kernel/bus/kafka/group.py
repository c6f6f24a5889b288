"""A member of a consumer group that commits without a transaction: its effects are outside the bus.

The member's name is stable, so that a process that is killed and restarted gets its partitions back at once. Partitions
move one by one (cooperatively): consumption of the others goes on.
"""

import ctypes
import logging
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from confluent_kafka import OFFSET_STORED, Consumer, KafkaError, KafkaException, Message, TopicPartition

from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.kafka.connection import Connection, to_record
from facade.kernel.bus.kafka.refusals import failing
from facade.kernel.bus.port import BusHealth, Fenced, Record
from facade.kernel.errors import BusError

FENCE = 1.5
"""Longest time until a member learns that its name is in use elsewhere, also with a busy broker [s]."""
_OUTAGE = 30.0
"""Time after an outage in which the broker's answers may still concern the time before [s]."""


def joins_anew(fenced_at: float, *, joined_at: float, down_at: float, lost_at: float) -> bool:
    """Return whether a fenced member joins its group again, once.

    A member that loses its session while the broker is away or hangs joins again under a new id. The broker then
    answers its requests under the old id as if another process had its name. If another process does have it, the
    session is lost with the fence, not before. If two processes use the same name, one of them still ends.

    Parameters
    ----------
    fenced_at, joined_at, down_at, lost_at
        Monotonic times at which the member was fenced, joined, last failed to reach a broker, and lost its session [s].
    """
    was_down = joined_at < down_at and fenced_at - down_at < _OUTAGE
    had_lost = joined_at < lost_at and FENCE < fenced_at - lost_at < _OUTAGE
    return was_down or had_lost


def fenced(group: str, member: str) -> Fenced:
    """Return the error of a member whose name another process uses; both names are those on the brokers."""
    return Fenced(
        f"another process has joined group {group} as {member}: this one ends, and does nothing more. Give each process"
        " a name of its own (--slot of a worker, --name of a controller). If no other process has this name, the broker"
        " hung for longer than a session: start this one again"
    )


_LOOK = 0.02
"""Time between two polls of the client [s]."""


def leave(connection: Connection, consumer: Consumer, place: TopicPartition) -> bool:
    """Leave a group whose other members take over at once; return whether the group has confirmed it.

    The client sends nothing when a static member is closed, so its partitions wait for the session time-out. It does
    send a leave request when the subscription is given up. It forgets its member id with this request, and the answer
    to a later request on the same connection proves that the group has it.

    The only member of a group should stay: it gets its partitions back as soon as it is restarted. An empty group would
    wait for further members first.

    Parameters
    ----------
    consumer
        Of the member, with nothing left to commit.
    place
        Any partition of its topics.
    """
    deadline = connection.clock.monotonic() + timeouts.LEAVE
    try:
        consumer.unsubscribe()
        while consumer.memberid():
            if connection.clock.monotonic() > deadline:
                return False
            consumer.consume(1, _LOOK)  # serves the revocation of the partitions, after which the client leaves
        consumer.committed([place], timeout=timeouts.LEAVE)
    except KafkaException:
        return False  # the others take over after the session's time-out
    return True


def retire(consumer: Consumer) -> None:
    """Keep a group member's client until the end of the process, instead of closing it.

    Closing is not safe: the client may serve a waiting assignment while it shuts down. It then waits for an answer that
    never comes, and holds the interpreter's lock, so that no other thread can set a limit. Its destructor does the
    same, so it must never run.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(consumer))


_log = logging.getLogger(__name__)

_SLICE = 0.002
"""Longest wait for a commit request of another thread between two polls of the client [s]."""
_SOON = 0.03
"""Time after a record in which its commit is likely to come next [s]."""
_NOT_KNOWN = "Failed to fetch committed offset"
"""Begin of the client's error text when the group's coordinator has refused to return the committed offsets."""
_ASK_AGAIN = 0.5
"""Pause before the coordinator is asked again [s]."""


class KafkaGroupMember:
    """See `facade.kernel.bus.port.GroupMember`.

    Parameters
    ----------
    resets
        Whether to restart at the beginning of a partition if its position is not on the log. False: the partition gets
        another number, so that the caller compares its own position with the log.
    """

    def __init__(
        self, connection: Connection, topic: str, *, group: str, member: str, health: BusHealth, resets: bool = True
    ) -> None:
        self._connection = connection
        self._health = health
        self._topic = connection.topic(topic)
        names = member_names(connection.prefix + group, connection.prefix + member)
        reset = {"auto.offset.reset": "earliest" if resets else "error"}
        self._settings = {**settings_of("consumer", "member", "partition holder"), **names, **reset}
        self._changes = 0
        self._partitions: dict[int, int] = {}
        self.assignment: Mapping[int, int] = {}
        self._taking = threading.get_ident()
        """The only thread that uses the client: a second one would wait until its `poll` ends, or for ever."""
        self._asked: SimpleQueue[tuple[Mapping[int, int], Future[None]]] = SimpleQueue()
        """Commit requests of other threads."""
        self._taken_at = float("-inf")
        self._joined_at = self._lost_at = 0.0
        self._ask_at = math.inf
        """Monotonic time of the next request for the committed offsets [s]."""
        self._consumer = self._join()

    def take(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return the next records, and commit for other threads; see `facade.kernel.bus.port.GroupMember`."""
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
            # The client's `consume` would wait for the whole number of records; a command must not wait for a second
            # one.
            first = self._consumer.poll(0.0 if soon else max(left, 0.0))
            if first is not None or not soon or left <= 0.0 or self._partitions != self.assignment:
                break
            # The client cannot be woken: a new record is found at the end of a slice.
            self._serve_commits(_SLICE)
        if first is not None:
            self._taken_at = clock.monotonic()
        messages = [] if first is None else [first, *self._consumer.consume(limit - 1, 0.0)]
        taken = [message for message in messages if self._is_record(message)]
        records = [to_record(self._connection, message) for message in taken]
        self.assignment = dict(self._partitions)
        return [record for record in records if record.partition in self.assignment]

    def holds(self, partition: int, number: int) -> bool:
        """Return whether a partition has stayed assigned; see `facade.kernel.bus.port.GroupMember`."""
        return self._partitions.get(partition) == number

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit and wait for the broker's answer; see `facade.kernel.bus.port.GroupMember`."""
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
        """Commit for other threads; `timeout`: longest wait for the first request [s]."""
        wait = timeout > 0.0
        while wait or not self._asked.empty():
            try:
                offsets, answer = self._asked.get(wait, timeout)
            except Empty:
                return
            wait = False
            self._taken_at = float("-inf")  # the commit has come: now the next record is awaited
            try:
                self._commit(offsets)
                answer.set_result(None)
            except BusError as error:
                answer.set_exception(error)

    def _commit(self, offsets: Mapping[int, int]) -> None:
        if strange := set(offsets) - set(self._partitions):
            raise BusError(f"partitions {sorted(strange)} of {self._topic} are not this member's any more")
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        with failing(f"offsets {dict(offsets)} of {self._topic} are not committed"):
            _whole(self._consumer.commit(offsets=places, asynchronous=False))

    def committed(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the group's committed offsets; see `facade.kernel.bus.port.GroupMember`."""
        places = [TopicPartition(self._topic, partition) for partition in partitions]
        with failing(f"no answer about the group's place on {self._topic}"):
            answer = _whole(self._consumer.committed(places, timeouts.PROCESS))
            return {place.partition: max(place.offset, -1) for place in answer}

    def go_on(self, offsets: Mapping[int, int]) -> None:
        """Continue from other offsets; see `facade.kernel.bus.port.GroupMember`."""
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        # The client's `seek` fails on a partition that it has not begun to read.
        with failing(f"{self._topic} cannot be read on from {dict(offsets)}"):
            self._consumer.incremental_unassign(places)
            self._consumer.incremental_assign(places)

    def _ask_again(self) -> None:
        """Request the committed offsets again; to the caller it looks like a new assignment.

        The client asks once. A coordinator that has just started, or hung, may refuse. Then the partitions stay with
        this member without any records: the answer has no offset to start from
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
        """Stop for good, unless the broker has lost the session itself; see `joins_anew`."""
        _log.error("consumer cannot go on: %s", error.str())
        now, down_at = self._connection.clock.monotonic(), self._health.down_at
        if joins_anew(now, joined_at=self._joined_at, down_at=down_at, lost_at=self._lost_at):
            self._consumer.close()
            self._partitions.clear()
            self.assignment = {}  # the new client has none yet
            self._consumer = self._join()
            return
        raise fenced(str(self._settings["group.id"]), str(self._settings["group.instance.id"]))


def _whole(answer: list[TopicPartition]) -> list[TopicPartition]:
    """Return an answer in which no partition has an error."""
    for place in answer:
        if place.error is not None:
            raise KafkaException(place.error)
    return answer


def member_names(group: str, member: str) -> dict[str, str]:
    """Return the settings that name a static member of a group; names are those on the brokers."""
    return {"group.id": group, "group.instance.id": member, "client.id": member}
