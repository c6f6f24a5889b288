"""What `confluent_kafka.admin.AdminClient` gives, on the model of the brokers, as far as the facade looks at topics."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.simulation.broker import Broker
from tests.simulation.consumers import metadata
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

    def __init__(self, process: Process, broker: Broker, network: Network, config: dict[str, Any]) -> None:
        self._process, self._broker, self._network = process, broker, network
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
            topic_id=topic.id, partitions=[SimpleNamespace(id=number) for number in range(len(topic.partitions))]
        )

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
