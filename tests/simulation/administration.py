"""What an administrator does by `confluent_kafka.admin.AdminClient`, on the model of the brokers."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from tests.simulation.admin import Answer, Part, SimulatedAdmin
from tests.simulation.broker import Broker
from tests.simulation.groups import Groups
from tests.simulation.network import Network
from tests.simulation.scheduler import Process


class Administrator(SimulatedAdmin):
    """Makes, changes and removes topics, and looks at groups."""

    def __init__(
        self, process: Process, broker: Broker, groups: Groups, network: Network, config: dict[str, Any]
    ) -> None:
        super().__init__(process, broker, network, config)
        self._groups = groups

    def _each(self, what: str, requests: dict[Any, Callable[[], Any]], timeout: float) -> dict[Any, Any]:
        whole: Answer = self._ask(what, lambda: {name: request() for name, request in requests.items()}, timeout)
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
