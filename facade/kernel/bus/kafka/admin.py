"""Asks the brokers for topics, offsets and groups, and changes nothing.

Topics and groups are asked for through one admin client, which lives as long as the process (`Connection.admin`).
Kafka's library ends the process in four cases, so this module avoids them. In the first three an assertion fails
(``eonce->refcnt > 0``, librdkafka issue 4605, open in version 2.16):

- An admin client is thrown away while a request is under way. `KafkaTopicWatch` always has one under way.
- The coordinator of a group is found after the time-out of a request to it. So these requests have a time-out of an
  hour, and the wait for the answer has its own. Only commands ask a coordinator this way, and
  workers before they begin, as the request may stay under way until the process ends.
- The leaders of partitions are found after the time-out of `AdminClient.list_offsets`. So a consumer asks for offsets.
- A broker that is not, or not yet, the coordinator answers `list_consumer_group_offsets`: the handler of the answer
  (``rd_kafka_handle_OffsetFetch``) uses the client's group, which an admin client does not have (SIGSEGV). So a
  consumer of the group, which never joins it, asks for committed offsets.

Topics have the ICD's names here, without the prefix of the deployment. A question raises `BusError` if a broker does
not answer or refuses.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)

from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.kafka.refusals import READ, ask_again, failing, require_present
from facade.kernel.bus.offsets import Extent, PartitionReplicas, TopicShape
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.clock import NEVER, Time, to_ms
from facade.kernel.icd.topic_model import READER

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Id of 16 zero bytes: the client's sign that a broker gives no ids."""
_UNSEEN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)
"""Errors for topics that do not exist, or may not be seen."""

_Partition = tuple[str, int]
_Range = tuple[int, int]


# Topics


def topic_id(description: Any) -> str:
    """Return the broker's id in a description of a topic, 22 characters of base64.

    A topic that is deleted and created again has another id, though its name and perhaps its offsets are the same.
    Empty text: the broker gives no ids, as it is older than 2.8 or uses an older inter-broker protocol.
    """
    return str(description.topic_id).replace(_NO_ID, "")


def describe(connection: Connection, topics: Iterable[str], within: float, **options: Any) -> dict[str, Future[Any]]:
    """Return the answers about topics, by name."""
    names = [connection.topic(topic) for topic in topics]
    if not names:
        return {}
    futures = connection.admin().describe_topics(TopicCollection(names), request_timeout=within, **options)
    return {connection.name(name): future for name, future in futures.items()}


class KafkaTopicWatch:
    """See `facade.kernel.bus.offsets.TopicWatch`.

    Parameters
    ----------
    patience
        Time for which the offsets of a topic are requested while it is being created or moves [s].
    each
        Time between two requests of `step` [s].
    """

    def __init__(
        self, connection: Connection, *, patience: float = timeouts.PROCESS, each: float = timeouts.TOPIC_IDS_EACH
    ) -> None:
        self._connection, self._patience, self._each = connection, patience, each
        self._asked: Mapping[str, Future[Any]] = {}
        self._due = 0.0

    def extents(self, topics: Iterable[str]) -> dict[str, Extent]:
        """Return the ids and offsets of topics; see `facade.kernel.bus.offsets.TopicWatch`."""
        with failing(f"no answer about topics from {self._connection.bootstrap}"):
            return ask_again(lambda: self._extents(topics), self._connection.clock, self._patience)

    def step(self, topics: Iterable[str]) -> dict[str, TopicShape]:
        """Return the brokers' answers since the last call; see `facade.kernel.bus.offsets.TopicWatch`."""
        now = self._connection.clock.monotonic()
        if not self._asked and now >= self._due:
            self._asked = describe(self._connection, topics, timeouts.PROCESS)
            if self._asked:  # a reader without topics asks as soon as it has some
                self._due = now + self._each
        if not self._asked or not all(future.done() for future in self._asked.values()):
            return {}
        self._connection.admin().poll(0)
        asked, self._asked = self._asked, {}
        found = {}
        for topic, future in asked.items():
            if future.exception() is None:  # the readers report a broker that is away
                description = future.result()
                replicas = tuple(map(_replicas, description.partitions))
                nodes = [node for one in description.partitions for node in one.isr]
                brokers = frozenset(f"{node.host}:{node.port}" for node in nodes if node.host)
                found[topic] = TopicShape(topic_id(description), len(replicas), replicas, brokers)
        if not found:
            self._connection.remind_admin()
        return found

    def _extents(self, topics: Iterable[str]) -> dict[str, Extent]:
        there = {}
        for topic, future in describe(self._connection, topics, timeouts.PROCESS).items():
            try:
                there[topic] = future.result()
            except KafkaException as error:
                if error.args[0].code() not in _UNSEEN:
                    raise
        partitions = [(topic, one.id) for topic, description in there.items() for one in description.partitions]
        with asking(self._connection) as consumer:
            ask = partial(offsets_at, self._connection, consumer, partitions, within=timeouts.PROCESS)
            first, end = ask(OFFSET_BEGINNING, OFFSET_END)
        return {
            topic: Extent(
                topic_id(description),
                {one.id: (first[topic, one.id], end[topic, one.id]) for one in description.partitions},
            )
            for topic, description in there.items()
        }


def _replicas(partition: Any) -> PartitionReplicas:
    return PartitionReplicas(
        -1 if partition.leader is None else partition.leader.id,
        frozenset(one.id for one in partition.replicas),
        frozenset(one.id for one in partition.isr),
    )


# Offsets


def asker(connection: Connection, group: str) -> Consumer:
    """Open a consumer that only asks for offsets: the client requires a group, which it never joins."""
    return connection.consumer(BusHealth(), {**settings_of("asker"), "group.id": group})


def asking(connection: Connection, group: str = READER) -> closing[Consumer]:
    """Open a consumer that reads and commits nothing, for questions about offsets; uncommitted records count.

    It never joins the group.
    """
    return closing(asker(connection, connection.prefix + group))


def offsets_at(
    connection: Connection,
    consumer: Consumer,
    partitions: Iterable[_Partition],
    *times: int,
    within: float,
    leave_out: bool = False,
) -> list[dict[_Partition, int]]:
    """Return offsets by partition, one mapping for each time.

    Parameters
    ----------
    times
        `OFFSET_BEGINNING`: first offset on the log; `OFFSET_END`: offset after the newest record; else the offset of
        the first record of that time or later [Unix ms], `OFFSET_END` if there is none.
    within
        Longest wait for each answer [s].
    leave_out
        Leave out partitions without an answer, such as those of a deleted topic. False: raise `KafkaException`.
    """
    found = []
    for time in times:
        places = [TopicPartition(connection.topic(topic), partition, time) for topic, partition in partitions]
        answers = consumer.offsets_for_times(places, timeout=within) if places else []
        for one in answers:
            if one.error is not None and not leave_out:
                raise KafkaException(one.error)
        found.append({(connection.name(one.topic), one.partition): one.offset for one in answers if one.error is None})
    return found


def open_ranges(connection: Connection, member: Consumer, topics: Collection[str]) -> dict[str, dict[int, _Range]]:
    """Return the last stable offset and the end of each partition that has an open transaction, by topic.

    `member`: client that reads committed records only.

    Raises
    ------
    confluent_kafka.KafkaException
        A partition does not answer.
    """
    there = member.list_topics(timeout=timeouts.STEP).topics if topics else {}
    known = {topic: there[connection.topic(topic)].partitions for topic in topics if connection.topic(topic) in there}
    places = [(topic, partition) for topic, partitions in known.items() for partition in partitions]
    if not places:
        return {}
    (stable,) = offsets_at(connection, member, places, OFFSET_END, within=timeouts.STEP)
    with asking(connection) as consumer:
        (end,) = offsets_at(connection, consumer, places, OFFSET_END, within=timeouts.STEP)
    found: dict[str, dict[int, _Range]] = {}
    for topic, partition in places:
        if stable[topic, partition] < end[topic, partition]:
            found.setdefault(topic, {})[partition] = stable[topic, partition], end[topic, partition]
    return found


def find_range(
    connection: Connection, topic: str, *, since: Time = NEVER, newest: int = 0, within: float = timeouts.COMMAND
) -> dict[int, tuple[int, int]]:
    """Return the offset ranges that are on a topic now, without empty partitions.

    See `facade.kernel.bus.kafka.read_range`.

    Parameters
    ----------
    since
        Only records of this time or later.
    newest
        Only this number of offsets at the end of each partition; 0: all.
    within
        Longest wait for each answer [s].
    """
    name, times = connection.topic(topic), [OFFSET_BEGINNING, OFFSET_END]
    times += [to_ms(since)] if since > NEVER else []
    with failing(f"topic {name} cannot be read at {connection.bootstrap}"), asking(connection) as consumer:
        found = require_present(consumer.list_topics(name, timeout=within).topics.get(name), name, READ)
        partitions = [(topic, partition) for partition in found.partitions]
        ask = partial(offsets_at, connection, consumer, partitions, *times, within=within)
        first, end, *at_time = ask_again(ask, connection.clock, within)
    ranges = {}
    for place in partitions:
        begin = max(first[place], end[place] - newest) if newest else first[place]
        if at_time:
            begin = end[place] if at_time[0][place] == OFFSET_END else max(begin, at_time[0][place])
        if begin < end[place]:
            ranges[place[1]] = begin, end[place]
    return ranges


def newest_records(connection: Connection, topic: str, count: int) -> list[Record]:
    """Return the committed records among the last `count` offsets of each partition of a topic."""
    return [*read_range(connection, topic, find_range(connection, topic, newest=count))]


# Groups


def members_of(connection: Connection, group: str) -> set[str]:
    """Return the names of the present members of a group, all without the prefix; see the top of this module."""
    with failing(f"group {connection.prefix + group}"):
        described = ask_coordinator(connection.admin().describe_consumer_groups, connection.prefix + group)
    return {connection.name(one.group_instance_id or "") for one in described.members}


def ask_coordinator(
    question: Callable[..., dict[str, Future[Any]]],
    group: str,
    *,
    within: float | None = None,
    about: object = None,
    **options: Any,
) -> Any:
    """Return the answer of a group's coordinator; see the top of this module.

    Parameters
    ----------
    question
        A method of `confluent_kafka.admin.AdminClient`.
    group
        By its name on the brokers.
    within
        Longest wait [s]. None: `timeouts.COMMAND`.
    about
        Argument of the method for each group; None: the group's name.
    """
    within = timeouts.COMMAND if within is None else within
    answer = question([group if about is None else about], request_timeout=timeouts.COORDINATOR, **options)[group]
    try:
        return answer.result(timeout=within)
    except TimeoutError:
        text = f"its coordinator did not answer within {within:g} s"
        raise KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE, text)) from None
