"""How the writer goes on when its client has given up, with a client that says what the test wants."""

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from facade.kernel.bus.kafka.connection import Clients, Connection
from facade.kernel.bus.kafka.producer import KafkaStreamWriter, KafkaWriter
from facade.kernel.bus.port import BusHealth, Headers, PartitionColumns, Record
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError

RECORD = Record(topic="alerts", key=b"k", value=b"v")
LOST = KafkaError(KafkaError._FATAL)
FULL = KafkaError(KafkaError._QUEUE_FULL)


class Client:
    """Plays a producer that takes no record any more once it has an error."""

    made: ClassVar[list["Client"]] = []

    def __init__(self, config: dict[str, Any]) -> None:
        self.error: KafkaError | None = None
        self.told: KafkaError | None = None
        self.config, self.waiting = config, 0
        self.taken: list[Any] = []
        self.made.append(self)

    def produce(self, topic: str, *_: object, on_delivery: Any = None, **__: object) -> None:
        if self.error is not None:
            raise KafkaException(self.error)
        self.taken.append(on_delivery)

    def poll(self, timeout: float) -> int:
        if self.told is not None:
            told, self.told = self.told, None
            raise KafkaException(told)
        return 0

    def purge(self) -> None:
        for _ in range(self.waiting):
            self.config["on_delivery"](KafkaError(KafkaError._PURGE_QUEUE), SimpleNamespace(topic=lambda: "t.alerts"))
        self.waiting = 0
        for report in filter(None, self.taken):
            report(KafkaError(KafkaError._PURGE_QUEUE), SimpleNamespace(topic=lambda: "t.alerts"))

    def __len__(self) -> int:
        return self.waiting


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> KafkaWriter:
    monkeypatch.setattr(Client, "made", [])
    connection = Connection(Settings(prefix="t."), clock=ManualClock(), clients=Clients(producer=Client))
    return KafkaWriter(connection, health=BusHealth(), client="test")


def test_a_client_that_died_is_replaced(writer: KafkaWriter) -> None:
    """The broker has lost records that it had confirmed, and refuses the next one of the same producer for ever: the
    fate of what was under way is told, and the next records go through another client."""
    mark = writer.mark()
    writer.send(RECORD)
    assert not writer.settled(mark + 1)
    Client.made[0].error = LOST
    writer.send(RECORD)
    writer.post([RECORD])
    assert [len(client.taken) for client in Client.made] == [1, 2]
    assert writer.failures("alerts") == 1


def test_a_client_that_says_that_it_dies_is_replaced(writer: KafkaWriter) -> None:
    """It may say so before it is given another record, in the middle of a cycle of a device server."""
    Client.made[0].told = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "sequence desynchronization", fatal=True)
    writer.poll()
    assert len(Client.made) == 2


def test_a_client_that_is_well_is_kept(writer: KafkaWriter) -> None:
    """What is wrong with one record is no reason to replace the client."""
    Client.made[0].error = FULL
    with pytest.raises(BusError, match="was not sent"):
        writer.post([RECORD])
    assert len(Client.made) == 1


def test_a_stream_goes_on_with_another_client_and_counts_what_the_dead_one_had(writer: KafkaWriter) -> None:
    """A simulator goes on when the broker has lost records that it had confirmed."""
    stream = KafkaStreamWriter(writer._connection, health=BusHealth(), client="test")
    stream.send_many("alerts", [b"k"] * 2, [b"v"] * 2)
    Client.made[-1].error, Client.made[-1].waiting = LOST, 2
    stream.send_many("alerts", [b"k"] * 3, [b"v"] * 3)
    assert [len(client.taken) for client in Client.made] == [0, 2, 3]
    assert (stream.queued, stream.failed, stream.delivered) == (5, 2, 3)


def test_copies_keep_their_order_when_the_queue_is_full_or_the_client_dies() -> None:
    sent: list[tuple[Any, ...]] = []

    class Odd(Client):
        """Has no room for each third record at first, and dies at the fifth one."""

        calls = 0

        def produce(  # the parameters of the library, in its order
            self,
            topic: str,
            value: bytes | None = None,
            key: bytes | None = None,
            partition: int = -1,
            callback: Any = None,
            on_delivery: Any = None,
            timestamp: int = 0,
            headers: list[tuple[str, bytes]] | None = None,
        ) -> None:
            Odd.calls += 1
            if Odd.calls % 3 == 0:
                raise BufferError
            if Odd.calls == 5:
                raise KafkaException(LOST)
            sent.append((topic, partition, timestamp, key, value, tuple(headers or ())))

    connection = Connection(Settings(prefix="t."), clock=ManualClock(), clients=Clients(producer=Odd))
    stream = KafkaStreamWriter(connection, health=BusHealth(), client="test")
    values = [None, b"", b"2", b"3", b"4", b"5", b"6"]
    pairs: list[Headers] = [(("a", b"1"), ("a", b"")), *[()] * 6]
    stream.copy(PartitionColumns("alerts", 3, [*range(7)], [*range(10, 17)], [b"k"] * 7, values, pairs))
    assert sent == [("t.alerts", 3, 10 + at, b"k", value, pairs[at]) for at, value in enumerate(values)]
    assert (stream.queued, stream.failed) == (7, 0)
