"""What `confluent_kafka.admin.AdminClient` gives, on the model of the brokers, as far as it is used."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec

from tests.simulation.broker import Broker
from tests.simulation.consumers import metadata
from tests.simulation.groups import Groups
from tests.simulation.network import LOST, Link, Network
from tests.simulation.scheduler import Process

_LATEST = type(OffsetSpec.latest())


class Answer:
    """A future, for a task that may wait for it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._value: Any = None
        self._error: KafkaException | None = None
        self._is_done = False
        self._waiting: Any = None

    def set(self, value: Any = None, error: int | None = None) -> None:
        if not self._is_done:
            self._is_done, self._value = True, value
            self._error = None if error is None else KafkaException(KafkaError(error))
            if self._waiting is not None:
                self._process.scheduler.wake(self._waiting)

    def done(self) -> bool:
        return self._is_done

    def exception(self) -> KafkaException | None:
        """Return the error of an answer that is there."""
        return self._error

    def result(self, timeout: float | None = None) -> Any:
        scheduler = self._process.scheduler
        until = scheduler.now + (60.0 if timeout is None else timeout)
        self._waiting = scheduler.current
        while not self._is_done and scheduler.now < until:
            scheduler.pause(until)
        self._waiting = None
        if not self._is_done:
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value


class SimulatedAdmin:
    """See `confluent_kafka.admin.AdminClient`, as far as the facade uses it."""

    def __init__(
        self, process: Process, broker: Broker, groups: Groups, network: Network, config: dict[str, Any]
    ) -> None:
        self._process, self._broker, self._groups = process, broker, groups
        self._link = Link(network, process, f"{process.name}/admin")

    def poll(self, timeout: float) -> int:
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = 10.0) -> Any:
        return self._ask("Metadata", lambda: metadata(self._broker, topic), timeout).result()

    def describe_cluster(self, request_timeout: float = 10.0, **_: Any) -> Answer:
        return self._ask("DescribeCluster", lambda: SimpleNamespace(cluster_id="simulated"), request_timeout)

    def describe_topics(self, topics: TopicCollection, request_timeout: float = 10.0, **_: Any) -> dict[str, Answer]:
        names = sorted(topics.topic_names)
        whole = self._ask("DescribeTopics", lambda: {name: self._describe(name) for name in names}, request_timeout)
        return {name: Part(whole, name) for name in names}

    def _describe(self, name: str) -> Any:
        topic = self._broker.topics.get(name)
        if topic is None:
            return KafkaError.UNKNOWN_TOPIC_OR_PART
        return SimpleNamespace(
            topic_id=topic.id, partitions=[self._partition(number) for number in range(len(topic.partitions))]
        )

    @staticmethod
    def _partition(number: int) -> SimpleNamespace:
        broker = SimpleNamespace(id=1, host="", port=0)
        return SimpleNamespace(id=number, leader=broker, replicas=[broker], isr=[broker])

    def list_offsets(
        self, wanted: Mapping[TopicPartition, Any], request_timeout: float = 10.0, isolation_level: Any = None, **_: Any
    ) -> dict[Any, Any]:
        order = sorted(wanted, key=lambda one: (one.topic, one.partition))
        whole = self._ask(
            "ListOffsets",
            lambda: {one: self._offset(one, wanted[one], isolation_level) for one in order},
            request_timeout,
        )
        return {one: Part(whole, one) for one in order}

    def _offset(self, one: TopicPartition, which: Any, level: Any) -> Any:
        if (topic := self._broker.topics.get(one.topic)) is None:
            return KafkaError._NOENT
        if self._broker.is_full((one.topic, one.partition)):
            return KafkaError.KAFKA_STORAGE_ERROR
        partition = topic.partitions[one.partition]
        end = partition.stable if level == IsolationLevel.READ_COMMITTED else partition.end
        return SimpleNamespace(offset=end if isinstance(which, _LATEST) else partition.first)

    def _ask(self, what: str, request: Callable[[], Any], timeout: float) -> Answer:
        self._process.require_alive()
        answer, scheduler = Answer(self._process), self._process.scheduler
        until = scheduler.now + timeout

        def on_answer(result: Any) -> None:
            if result is not LOST:
                answer.set(result)
            elif scheduler.now < until:
                scheduler.at(0.1, self._link.call, what, request, on_answer)

        self._link.call(what, request, on_answer)
        scheduler.at(timeout, answer.set, None, KafkaError._TIMED_OUT)
        return answer

    def _each(self, what: str, requests: dict[Any, Callable[[], Any]], timeout: float) -> dict[Any, Any]:
        whole = self._ask(what, lambda: {name: request() for name, request in requests.items()}, timeout)
        return {name: Part(whole, name) for name in requests}

    # Topics

    def create_topics(self, topics: Sequence[NewTopic], operation_timeout: float = 10.0, **_: Any) -> dict[str, Any]:
        broker = self._broker
        requests = {
            one.topic: lambda one=one: broker.create(one.topic, one.num_partitions, one.config or {}) for one in topics
        }
        return self._each("CreateTopics", requests, operation_timeout)

    def delete_topics(self, topics: Sequence[str], operation_timeout: float = 10.0, **_: Any) -> dict[str, Any]:
        """Delete topics, with the offsets that groups have of them."""
        requests = {name: lambda name=name: self._broker.delete(name) for name in topics}
        return self._each("DeleteTopics", requests, operation_timeout)

    def create_partitions(
        self, wanted: Sequence[NewPartitions], operation_timeout: float = 10.0, **_: Any
    ) -> dict[str, Any]:
        requests = {one.topic: lambda one=one: self._grow(one.topic, one.new_total_count) for one in wanted}
        return self._each("CreatePartitions", requests, operation_timeout)

    def _grow(self, topic: str, count: int) -> int | None:
        refused = self._broker.grow(topic, count)
        if refused is None:
            self._groups.on_growth(topic)
        return refused

    def delete_records(self, places: Sequence[TopicPartition], request_timeout: float = 10.0, **_: Any) -> Any:
        """Remove what is before an offset; -1: all that is committed."""
        requests = {one: lambda one=one: self._remove(one) for one in places}
        return self._each("DeleteRecords", requests, request_timeout)

    def _remove(self, place: TopicPartition) -> Any:
        partition = self._broker.topics[place.topic].partitions[place.partition]
        if place.offset > partition.end:
            return KafkaError.OFFSET_OUT_OF_RANGE
        partition.remove(partition.end if place.offset < 0 else place.offset)
        return SimpleNamespace(low_watermark=partition.first)

    # Groups

    def describe_consumer_groups(self, names: Sequence[str], request_timeout: float = 10.0, **_: Any) -> dict[str, Any]:
        requests = {name: lambda name=name: self._describe_group(name) for name in names}
        return self._each("DescribeGroups", requests, request_timeout)

    def _describe_group(self, name: str) -> Any:
        group = self._groups.groups.get(name)
        members = [
            SimpleNamespace(
                group_instance_id=one.name,
                member_id=one.id,
                assignment=SimpleNamespace(topic_partitions=[TopicPartition(*place) for place in one.partitions]),
            )
            for one in (group.members.values() if group is not None else ())
        ]
        if group is None or not members:
            is_known = group is not None or name in self._broker.committed
            state = ConsumerGroupState.EMPTY if is_known else ConsumerGroupState.DEAD
        else:
            state = ConsumerGroupState.STABLE if group.is_stable else ConsumerGroupState.PREPARING_REBALANCING
        return SimpleNamespace(group_id=name, state=state, members=members)

    def delete_consumer_groups(self, names: Sequence[str], request_timeout: float = 10.0, **_: Any) -> dict[str, Any]:
        requests = {name: lambda name=name: self._delete_group(name) for name in names}
        return self._each("DeleteGroups", requests, request_timeout)

    def _delete_group(self, name: str) -> int | None:
        if self._groups.has_members(name):
            return KafkaError.NON_EMPTY_GROUP
        known = self._groups.groups.pop(name, None)
        return KafkaError.GROUP_ID_NOT_FOUND if self._broker.committed.pop(name, known) is None else None

    def list_consumer_group_offsets(
        self, asked: Sequence[ConsumerGroupTopicPartitions], request_timeout: float = 10.0, **_: Any
    ) -> dict[str, Any]:
        requests = {one.group_id: lambda one=one: self._offsets_of(one) for one in asked}
        return self._each("OffsetFetch", requests, request_timeout)

    def _offsets_of(self, asked: ConsumerGroupTopicPartitions) -> Any:
        known = self._broker.committed.get(asked.group_id, {})
        wanted = known if asked.topic_partitions is None else [(p.topic, p.partition) for p in asked.topic_partitions]
        places = [TopicPartition(*place, known.get(place, -1001)) for place in wanted]
        return SimpleNamespace(group_id=asked.group_id, topic_partitions=places)

    def alter_consumer_group_offsets(
        self, wanted: Sequence[ConsumerGroupTopicPartitions], request_timeout: float = 10.0, **_: Any
    ) -> dict[str, Any]:
        requests = {one.group_id: lambda one=one: self._alter(one) for one in wanted}
        return self._each("OffsetCommit", requests, request_timeout)

    def _alter(self, wanted: ConsumerGroupTopicPartitions) -> Any:
        is_refused = self._groups.has_members(wanted.group_id)
        error = KafkaError(KafkaError.UNKNOWN_MEMBER_ID) if is_refused else None
        if not is_refused:
            given = {(one.topic, one.partition): one.offset for one in wanted.topic_partitions}
            self._broker.committed.setdefault(wanted.group_id, {}).update(given)
        places = [SimpleNamespace(error=error, offset=one.offset) for one in wanted.topic_partitions]
        return SimpleNamespace(group_id=wanted.group_id, topic_partitions=places)


class Part:
    """One of several answers that come together."""

    def __init__(self, whole: Answer, name: Any) -> None:
        self._whole, self._name = whole, name

    def done(self) -> bool:
        return self._whole.done()

    def exception(self) -> Any:
        """Return the error of an answer that is there."""
        if (error := self._whole.exception()) is not None:
            return error
        part = self._whole._value[self._name]
        return KafkaException(KafkaError(part)) if isinstance(part, int) else None

    def result(self, timeout: float | None = None) -> Any:
        part = self._whole.result(timeout)[self._name]
        if isinstance(part, int):
            raise KafkaException(KafkaError(part))
        return part
