"""What a scenario is played on: clients of a real broker or of the model, and a list of what they told."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.transactions import retire
from facade.kernel.bus.port import BusHealth

Scenario = Callable[["Play"], None]
SCENARIOS: list[Scenario] = []
"""All scenarios, in the order of their modules."""
WAIT = 20.0
"""Longest wait for an answer, on a machine of any speed [s]."""


def scenario(play: Scenario) -> Scenario:
    SCENARIOS.append(play)
    return play


class Play:
    """Clients of one scenario, and what they told.

    Parameters
    ----------
    hold
        Keeps the next request of a kind on its way, and loses its connection.
    deliver
        Lets the brokers have the request that is on its way.
    """

    def __init__(self, connection: Connection, hold: Callable[[str], None], deliver: Callable[[], object]) -> None:
        self.connection, self.hold, self.deliver = connection, hold, deliver
        self.prefix = connection.prefix
        self.told: list[str] = []
        self.admin: AdminClient = connection.admin()
        self._readers = count(1)

    def tell(self, what: str, *values: object) -> None:
        """Take something that must be the same on both."""
        self.told.append(f"{what}: {' '.join(map(str, values))}".replace(self.prefix, ""))

    def sleep(self, seconds: float) -> None:
        """Wait [s]."""
        self.connection.clock.sleep(seconds)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something is so; tell it if it never is."""
        clock = self.connection.clock
        deadline = clock.monotonic() + WAIT
        while not condition():
            if clock.monotonic() > deadline:
                self.tell(f"never: {what}")
                return
            clock.sleep(0.01)

    def attempt(self, what: str, call: Callable[[], Any], show: Callable[[Any], object] = lambda _: "done") -> Any:
        """Call something, tell its result or its error, and return the result."""
        try:
            result = call()
        except KafkaException as error:
            self.tell(what, error_text(error.args[0]))
            return None
        self.tell(what, show(result))
        return result

    # Clients

    def producer(self, slot: str = "", **config: Any) -> Producer:
        """Open a producer, of a transactional id if one is given."""
        own: dict[str, Any] = {"linger.ms": 0, "enable.idempotence": True, "topic.metadata.propagation.max.ms": 500}
        if slot:
            own["transactional.id"] = self.prefix + slot
        return self.connection.producer(BusHealth(), own | config)

    def transactional(self, slot: str, **config: Any) -> Producer:
        """Open a producer that is ready to begin a transaction."""
        producer = self.producer(slot, **config)
        producer.init_transactions(WAIT)
        return producer

    def consumer(self, group: str = "", **config: Any) -> Consumer:
        """Open a consumer that shows committed records from the beginning on, and where partitions end."""
        own = {
            "group.id": self.prefix + (group or f"reader-{next(self._readers)}"),
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "topic.metadata.refresh.interval.ms": 500,
            "topic.metadata.propagation.max.ms": 500,
        }
        return self.connection.consumer(BusHealth(), own | config)

    def member(self, group: str, name: str, topic: str, calls: list[str], **config: Any) -> Consumer:
        """Open a member of a group that writes down what its callbacks are given."""
        member = self.consumer(group, **{"group.instance.id": self.prefix + name, **config})

        def on(what: str) -> Callable[[Consumer, list[TopicPartition]], None]:
            def call(_: Consumer, places: list[TopicPartition]) -> None:
                if places:  # how often a member hears that nothing changes for it is no matter
                    calls.append(f"{name} {what} {sorted(one.partition for one in places)}")

            return call

        retire(member)  # its destructor may wait for ever
        member.subscribe([topic], on_assign=on("gets"), on_revoke=on("gives"), on_lost=on("loses"))
        return member

    # Topics and records

    def topic(self, name: str = "log", partitions: int = 1, **config: str) -> str:
        """Make a topic; return its name on the brokers."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(self.prefix + name, partitions, 1, config={"message.timestamp.type": "LogAppendTime"} | settings)
        for future in self.admin.create_topics([new], operation_timeout=WAIT).values():
            future.result(WAIT)
        self.until(lambda: self._knows(new.topic), f"topic {name}")
        return new.topic

    def _knows(self, topic: str) -> bool:
        found = self.admin.list_topics(topic, timeout=WAIT).topics.get(topic)
        return found is not None and found.error is None and len(found.partitions) > 0

    def send(self, producer: Producer, topic: str, *values: str | None, key: str | None = None, at: int = 0) -> None:
        """Write records to a partition, one by one, and tell where an error was reported."""
        for value in values:
            producer.produce(
                topic, None if value is None else value.encode(), key and key.encode(), at, on_delivery=self.report
            )
            self.serve(producer)

    def serve(self, producer: Producer) -> None:
        """Wait until the fate of all records is known; tell what the client raises.

        Not by `flush`: where a fatal error comes before a report, it raises what no ``except`` clause takes.
        """

        def is_known() -> bool:
            try:
                producer.poll(0.01)
            except KafkaException as error:
                self.tell("the client raises", error_text(error.args[0]))
            return len(producer) == 0

        self.until(is_known, "the fate of all records")

    def report(self, error: KafkaError | None, message: Message) -> None:
        """Tell what became of a record, unless it is on the log."""
        if error is not None:
            self.tell(f"report of {(message.value() or b'').decode()[:20]}", error_text(error))

    def commit(self, producer: Producer, topic: str, *values: str, at: int = 0) -> None:
        """Write records to a partition in a transaction."""
        producer.begin_transaction()
        self.send(producer, topic, *values, at=at)
        producer.commit_transaction(WAIT)

    def show(
        self,
        what: str,
        topic: str,
        *,
        at: int = 0,
        begin: int = OFFSET_BEGINNING,
        wait: float = WAIT,
        is_settled: bool = True,
        **config: Any,
    ) -> None:
        """Tell what a reader is shown of a partition, up to where it ends for it."""
        consumer = self.consumer(**config)
        consumer.assign([TopicPartition(topic, at, begin)])
        self.tell(what, *self.read(consumer, wait, is_settled=is_settled))
        consumer.close()

    def read(self, consumer: Consumer, wait: float = WAIT, *, is_settled: bool = True) -> list[str]:
        """Return what a consumer is given until a partition has ended, or cannot be read.

        Parameters
        ----------
        is_settled
            Go on while a transaction is open: its marks may be written a little later than it is committed.
        """
        clock, found = self.connection.clock, list[str]()
        deadline = clock.monotonic() + wait
        while clock.monotonic() < deadline:
            messages = consumer.consume(100, 0.05)
            ends = [one for one in messages if one.error() is not None and not (is_settled and _is_held(consumer, one))]
            found += [message_text(one) for one in messages if one.error() is None or one in ends]
            if ends:
                return found
        return [*found, "(no end)"]

    def ends(self, what: str, topic: str, wanted: int = -1) -> None:
        """Tell where a partition begins and ends, and ends for readers of committed records.

        Parameters
        ----------
        wanted
            Wait for this end: marks may be written a little later than a transaction is committed.
        """
        place, found = TopicPartition(topic, 0), {}
        for level in ("read_uncommitted", "read_committed"):
            consumer = self.consumer(**{"isolation.level": level})

            def ask(consumer: Consumer = consumer, level: str = level) -> bool:
                found[level] = consumer.get_watermark_offsets(place, timeout=WAIT)
                return wanted in (-1, found["read_uncommitted"][1])

            self.until(ask, f"end {wanted}")
            consumer.close()
        self.tell(what, *found.values())

    def committed(self, what: str, consumer: Consumer, topic: str, partitions: int = 1, wait: float = WAIT) -> None:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        self.attempt(
            what, lambda: consumer.committed(places, timeout=wait), lambda found: [one.offset for one in found]
        )

    def each(self, what: str, futures: Mapping[Any, Any], show: Callable[[Any], object] = lambda _: "done") -> None:
        """Tell the answers of an admin client."""
        for future in futures.values():
            self.attempt(what, lambda future=future: future.result(WAIT), show)


def error_text(error: KafkaError) -> str:
    """Return an error's name, and what is to be done about it."""
    marks = [(" fatal", error.fatal()), (" abort", error.txn_requires_abort())]
    return str(error.name()) + "".join(mark for mark, is_so in marks if is_so)


def message_text(message: Message) -> str:
    """Return partition, offset, key and value of a message, or its error."""
    place = f"{message.partition()}:{message.offset()}"
    if (error := message.error()) is not None:
        return f"{place} {error_text(error)}" if error.code() == KafkaError._PARTITION_EOF else error_text(error)
    key = "" if message.key() is None else f"{message.key().decode()}="
    return f"{place} {key}{None if message.value() is None else message.value().decode()}"


def _is_held(consumer: Consumer, end: Message) -> bool:
    """Return whether a partition ends for a reader before its last record."""
    place = TopicPartition(end.topic(), end.partition())
    return end.error().code() == KafkaError._PARTITION_EOF and (
        end.offset() < consumer.get_watermark_offsets(place, cached=True)[1]
    )


def offsets(places: Sequence[TopicPartition]) -> list[str]:
    return [f"{one.partition}:{one.offset}" for one in places]
