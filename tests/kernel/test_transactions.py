"""How a worker slot takes what the group and the broker tell it, with a client that says what the test wants."""

import gc
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from facade.kernel.bus.kafka import connection, transactional_producer, transactions
from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.kafka.connection import Clients, Connection
from facade.kernel.bus.kafka.group import KafkaGroupMember
from facade.kernel.bus.kafka.transactional_member import KafkaTransactionalMember
from facade.kernel.bus.kafka.transactional_producer import TransactionalProducer, _Open
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog, by_partition, describe_partitions
from facade.kernel.bus.offsets import POSITIONS, Extent, PartitionFacts
from facade.kernel.bus.port import TRANSACTION, Aborted, BusHealth, Fenced, Record
from facade.kernel.clock import NEVER, ManualClock
from facade.kernel.config import Settings
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load

FENCED = KafkaError(KafkaError._FATAL, "fenced by other consumer with same group.instance.id")


class Event:
    """A message that is an error."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    def error(self) -> KafkaError:
        return self._error


class Client:
    """Plays a consumer; `script` is what it gives next, and whether its partitions are taken away meanwhile."""

    made: ClassVar[int] = 0
    closed: ClassVar[int] = 0
    script: ClassVar[list[tuple[list[Event], bool]]] = []
    places: Sequence[TopicPartition] = ()
    """What the group has committed; empty: it does not answer."""

    def __init__(self, config: dict[str, Any]) -> None:
        type(self).made += 1
        self._on_revoke: Callable[..., None] = lambda *_: None
        self._on_lost: Callable[..., None] = lambda *_: None

    def subscribe(
        self, topics: list[str], on_assign: Any, on_revoke: Callable[..., None], on_lost: Callable[..., None]
    ) -> None:
        self._on_revoke, self._on_lost, self.on_assign, self.topics = on_revoke, on_lost, on_assign, topics

    def consume(self, limit: int, timeout: float) -> list[Event]:
        events, revoked = self.script.pop(0) if self.script else ([], False)
        if revoked:
            self._on_revoke(self, [])
        return events

    def poll(self, timeout: float) -> Event | None:
        events = self.consume(1, timeout)
        return events[0] if events else None

    def lose(self) -> None:
        """Have its session run out."""
        self._on_lost(self, [])

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = partitions

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    def committed(self, partitions: list[TopicPartition], timeout: float) -> Sequence[TopicPartition]:
        if self.places:
            return self.places
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def consumer_group_metadata(self) -> str:
        return "generation"

    def close(self) -> None:
        type(self).closed += 1
        self._on_revoke(self, [])


class Transactions:
    """Plays a producer."""

    made: int = 0
    newest: ClassVar[deque["Transactions"]] = deque(maxlen=2)

    def __init__(self, config: dict[str, Any]) -> None:
        type(self).made += 1
        self.newest.append(self)
        self.link = config["logger"]
        self.calls: list[Any] = []
        self.full = False

    def init_transactions(self, timeout: float) -> None:
        self.calls.append("init")

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def produce(self, topic: str, value: bytes, key: bytes, *, partition: int, headers: list[Any], **_: Any) -> None:
        if self.full:
            raise BufferError
        self.calls.append((topic, value, key, partition, headers))

    def poll(self, timeout: float) -> None:
        self.full = False

    def send_offsets_to_transaction(self, places: list[TopicPartition], metadata: str, timeout: float) -> None:
        self.calls.append((places, metadata))

    def commit_transaction(self, timeout: float) -> None:
        self.calls.append("commit")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    monkeypatch.setattr(connection, "KAFKA", Clients(consumer=Client, producer=Transactions))
    Client.made, Client.closed, Client.script, Transactions.made = 0, 0, [], 0
    return ManualClock()


def slot(clock: ManualClock, health: BusHealth) -> KafkaTransactionalLog:
    shared = Connection(Settings(prefix="t."), clock=clock)
    return KafkaTransactionalLog(shared, "ingest.heaps", group="aggregate", slot="0", health=health)


def test_a_fatal_event_is_heard_though_the_log_was_cut(clock: ManualClock) -> None:
    """A broker that was killed tells both at once; nothing follows a fatal event, not even the same one again."""
    log = slot(clock, BusHealth())
    cut = KafkaError(KafkaError._AUTO_OFFSET_RESET, "Partition log truncation detected at offset 4")
    Client.script = [([Event(cut), Event(FENCED)], False)]
    with pytest.raises(Fenced):
        log.take(10, 0.0)


def test_after_an_outage_a_worker_joins_anew_once(clock: ManualClock) -> None:
    """Being fenced right after the broker was away may be about the worker's own old session; a second time is not."""
    health = BusHealth()
    log = slot(clock, health)
    clock.sleep(60.0)
    health.down_at = clock.monotonic()
    clock.sleep(8.0)
    Client.script = [([Event(FENCED)], True)]
    with pytest.raises(Aborted, match="joins its group anew"):
        log.take(10, 0.0)
    assert Client.made == 2
    assert log.take(10, 0.0) == []
    Client.script = [([Event(FENCED)], False)]
    with pytest.raises(Fenced):
        log.take(10, 0.0)


def test_after_a_broker_that_hung_a_member_joins_anew_once(clock: ManualClock) -> None:
    """As a worker does: `tables assemble` and controllers are such members."""
    shared = Connection(Settings(prefix="t."), clock=clock)
    member = KafkaGroupMember(shared, "calibration", group="tables", member="tables-0", health=BusHealth())
    clock.sleep(6.0)
    member._consumer.lose()
    clock.sleep(9.0)
    Client.script = [([Event(FENCED)], False)]
    assert member.take(10, 0.0) == []
    assert Client.made == 2
    Client.script = [([Event(FENCED)], False)]
    with pytest.raises(Fenced):
        member.take(10, 0.0)


def test_a_partition_whose_committed_offset_is_refused_has_not_none(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken for one without a commit, and a worker reported that position and group disagree."""
    known, refused = TopicPartition("t.calibration", 0, 7), SimpleNamespace(partition=1, offset=-1001)
    refused.error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    monkeypatch.setattr(Client, "places", [known, refused])
    shared = Connection(Settings(prefix="t."), clock=clock)
    member = KafkaGroupMember(shared, "calibration", group="tables", member="tables-0", health=BusHealth())
    with pytest.raises(BusError, match="TOPIC_AUTHORIZATION_FAILED"):
        member.committed([0, 1])
    monkeypatch.setattr(Client, "places", [known, TopicPartition("t.calibration", 1)])
    assert member.committed([0, 1]) == {0: 7, 1: -1}


@pytest.mark.parametrize("text", ["offsets for 0 partition(s) in group", "offset for group", "offsets for partitions"])
def test_a_member_asks_again_where_to_go_on(clock: ManualClock, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A coordinator that was just started refused to tell: the client would never give anything of these partitions."""
    assigned: list[list[TopicPartition]] = []
    monkeypatch.setattr(Client, "incremental_unassign", lambda self, places: None)
    monkeypatch.setattr(Client, "incremental_assign", lambda self, places: assigned.append(places), raising=False)
    shared = Connection(Settings(prefix="t."), clock=clock)
    member = KafkaGroupMember(shared, "commands", group="g", member="m", health=BusHealth())
    member._on_assign(member._consumer, [TopicPartition("t.commands", one) for one in range(2)])
    member.take(10, 0.0)
    before = member.assignment
    Client.script = [([Event(KafkaError(KafkaError.NOT_COORDINATOR, f"Failed to fetch committed {text}"))], False)]
    member.take(10, 0.0)
    assert (member.assignment, assigned) == (before, [])
    clock.sleep(1.0)
    member.take(10, 0.0)
    assert [[(one.partition, one.offset) for one in places] for places in assigned] == [[(0, -1000), (1, -1000)]]
    assert member.assignment.keys() == before.keys()
    assert not any(member.holds(*one) for one in before.items())
    clock.sleep(1.0)
    member.take(10, 0.0)
    assert len(assigned) == 1


def test_a_member_that_joins_anew_answers_for_no_partition_until_it_gets_one(clock: ManualClock) -> None:
    """It was fenced while it wrote, so that its next `take` comes later: its new client has no partitions yet."""
    shared = Connection(Settings(prefix="t."), clock=clock)
    health = BusHealth()
    member = KafkaTransactionalMember(shared, "calibration", group="tables", slot="0", member="tables-0", health=health)
    member._on_assign(member._consumer, [TopicPartition("t.calibration", 1)])
    assert member.take(10, 0.0) == []
    assert set(member.assignment) == {1}
    clock.sleep(6.0)
    member._consumer.lose()
    member._partitions[1] = 1
    clock.sleep(9.0)
    member._producer = RefusingProducer()  # type: ignore[assignment]
    with pytest.raises(Aborted):
        member.write([], {1: 0})
    assert Client.made == 2
    assert member.assignment == {}


def test_who_asks_for_ends_begins_anew_where_a_partition_has_another_leader(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a broker had hung, watermarks of idle partitions stood still: the client kept the former leader."""
    asked: list[Client] = []

    def fail(self: Client, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        asked.append(self)
        raise KafkaException(KafkaError(codes.pop(0)))

    monkeypatch.setattr(Client, "offsets_for_times", fail, raising=False)
    codes = [KafkaError._TIMED_OUT, KafkaError.FENCED_LEADER_EPOCH, KafkaError._TIMED_OUT]
    log, place = slot(clock, BusHealth()), ("ingest.heaps", 0)
    monkeypatch.setattr(log, "_is_at_end", lambda _: True)
    log._positions = SimpleNamespace(ranges={place: None})  # type: ignore[assignment]
    log._producer._broker_time = 1, clock.monotonic()
    for _ in range(3):
        log.ask_ends([place])
    first, second, third = asked
    assert first is second is not third


def test_who_asks_for_ends_waits_longer_for_brokers_that_are_slow(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While answers took longer than half a second, no window of a quiet stream closed."""
    waits, slow = list[float](), [1.5, 1.5, 1.5, 1.5, 60.0, 60.0, 0.1, 0.1]

    def answer(self: Client, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        waits.append(timeout)
        takes = slow.pop(0)
        clock.sleep(min(timeout, takes))
        if takes > timeout:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return []

    monkeypatch.setattr(Client, "offsets_for_times", answer, raising=False)
    log, place = slot(clock, BusHealth()), ("ingest.heaps", 0)
    monkeypatch.setattr(log, "_is_at_end", lambda _: True)
    log._positions = SimpleNamespace(ranges={place: None})  # type: ignore[assignment]
    log._producer._broker_time = 1, clock.monotonic()
    while slow:
        log.ask_ends([place])
    assert waits == pytest.approx([0.5, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.5])


def test_offsets_behind_which_nothing_is_delivered_are_no_lag(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`archive restore` leaves out offsets at the end of each log: aborted records, which no worker ever gets."""
    log, place = slot(clock, BusHealth()), ("ingest.heaps", 0)
    monkeypatch.setattr(Client, "get_watermark_offsets", lambda *_, cached: (0, 1010), raising=False)
    monkeypatch.setattr(log, "_watch", SimpleNamespace(step=lambda _: {}))
    monkeypatch.setattr(transactions, "read_range", lambda *_, **__: iter(()))
    log._must_rewind = False
    log._positions.begin({}, {place: PartitionFacts("a", 0, 1010)})
    one, last = (
        Message(topic="t.ingest.heaps", partition=0, offset=offset, value=b"heap", timestamp=(1, 1))
        for offset in (8, 9)
    )
    end = Message(topic="t.ingest.heaps", partition=0, offset=1010, error=KafkaError(KafkaError._PARTITION_EOF))
    Client.script = [([one], False), ([end, last], False)]  # type: ignore[list-item]

    def waiting() -> tuple[int, int]:
        log.take(10, 0.0)
        offsets = log.ranges()[place]
        return offsets.end, offsets.high_watermark - offsets.end

    assert waiting() == (9, 1001), "the records may still come"
    assert waiting() == (1010, 0), "whatever order the events and records of a batch have"


def test_an_end_says_nothing_where_the_records_before_it_are_not_used(clock: ManualClock) -> None:
    log, place = slot(clock, BusHealth()), ("ingest.heaps", 0)
    log._positions.begin({}, {place: PartitionFacts("a", 0, 10)})
    end = Message(topic="t.ingest.heaps", partition=0, offset=10, error=KafkaError(KafkaError._PARTITION_EOF))
    log._hear([end])
    assert log._positions.ranges[place].end == 0


class RefusingProducer:
    """Says that another process has the member's name."""

    def write(self, *_: object) -> None:
        raise KafkaException(KafkaError(KafkaError.FENCED_INSTANCE_ID))

    def give_up(self, error: KafkaException) -> KafkaError:
        return error.args[0]  # type: ignore[no-any-return]


def test_a_slot_reads_its_topics_and_fetches_nothing_before_it_knows_from_where(clock: ManualClock) -> None:
    """Its group gives partitions long before this worker's own position is known."""
    log = slot(clock, BusHealth())
    assert log._consumer.topics == ["t.ingest.heaps"]
    log._consumer.on_assign(log._consumer, [TopicPartition("t.ingest.heaps", 0)])
    assert log._consumer.assigned == []
    with pytest.raises(Aborted):
        log.take(10, 0.0)


def test_a_producer_writes_transaction_after_transaction_until_a_connection_is_lost(clock: ManualClock) -> None:
    """Each has records and places, all or nothing; after a loss a request may still arrive, so another one goes on."""
    health = BusHealth()
    producer = TransactionalProducer(Connection(Settings(prefix="t."), clock=clock), "t.aggregate-0", health)
    record, member = Record(topic="alerts", key=b"k", value=b"v", partition=3, headers=(("a", b"b"),)), Client({})
    client, places = producer.open(member).client, [TopicPartition("t.ingest.heaps", 0, 7)]
    client.full = True
    producer.write([record], places, member)
    producer.write([], [], member)
    numbered = [call[4][-1][1].split() for call in client.calls if call[0] == "t.positions"]
    (slot, run, number, count), (_, same, next, _) = numbered
    assert (slot, number, count, same, next) == (b"aggregate-0", b"1", b"2", run, b"2")
    written = ("t.alerts", b"v", b"k", 3, [("a", b"b"), (TRANSACTION, b" ".join((slot, run, number, count)))])
    others = [call for call in client.calls if call[0] != "t.positions"]
    assert others == ["init", "begin", written, (places, "generation"), "commit", "begin", "commit"]
    assert (Transactions.made, health.connected) == (1, True)
    refused = "127.0.0.1:9092/1: Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT)"
    client.link.log(3, "%s [%s] %s", "FAIL", "t.aggregate-0#producer-1", refused)
    assert producer.open(member).client is client
    closed = "127.0.0.1:9092/1: Disconnected: SSL connection closed by peer (after 29718ms in state UP)"
    client.link.log(4, "%s [%s] %s", "FAIL", "t.aggregate-0#producer-1", closed)
    assert producer.open(member).client is not client
    assert producer.open(member) is producer.open(member)
    assert Transactions.made == 2


@pytest.mark.parametrize(("took", "goes_on"), [(1.9, True), (2.0, False)])
def test_a_transaction_in_which_a_connection_may_have_been_closed_as_idle_is_the_last_one_of_its_producer(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, took: float, goes_on: bool
) -> None:
    """The client closes a connection whose request has no answer for 2 to 4 s, says nothing, and sends it again."""
    producer = TransactionalProducer(Connection(Settings(prefix="t."), clock=clock), "t.aggregate-0", BusHealth())
    monkeypatch.setattr(Transactions, "commit_transaction", lambda self, timeout: clock.sleep(took))
    first = producer.open(Client({}))
    producer.write([], [], Client({}))
    assert (producer.open(Client({})) is first) is goes_on


@pytest.mark.parametrize(("seconds", "line", "made"), [(0.0, "", 1), (2.0, "", 2), (0.0, "FAIL", 2)])
def test_a_producer_that_may_have_asked_twice_for_the_end_of_a_former_transaction_begins_none(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seconds: float, line: str, made: int
) -> None:
    """The second request, late, would abort the results of its first transaction; the position comes after them."""
    producer = TransactionalProducer(Connection(Settings(), clock=clock), "slot", BusHealth(), outputs=["results"])
    left = [{("results", 0): _Open("run", 1, 0, "", NEVER, is_surely_open=True)}]
    monkeypatch.setattr(producer, "_find_open", lambda _: left.pop() if left else {})
    monkeypatch.setattr(producer, "_find_committed", lambda _: {})

    def abort(client: Transactions, timeout: float) -> None:
        client.calls.append("abort")
        clock.sleep(seconds)
        client.link.log(3, "%s", line, "Disconnected (after 100ms in state UP)")

    monkeypatch.setattr(Transactions, "abort_transaction", abort, raising=False)
    monkeypatch.setattr(Transactions, "flush", lambda *_: 0, raising=False)
    member: Any = Client({})
    for _ in range(2):
        with suppress(KafkaException):
            producer.write([], [], member)
    assert Transactions.made == made
    *former, last = [*Transactions.newest][-made:]
    assert "commit" in last.calls
    assert all("abort" in one.calls and "commit" not in one.calls for one in former)


@pytest.mark.parametrize(
    ("waited", "retriable", "made"), [(5.0, True, 1), (30.0, True, 2), (5.0, False, 3)], ids=["slow", "hanging", "no"]
)
def test_a_question_that_is_not_answered_in_time_is_not_begun_anew(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, waited: float, retriable: bool, made: int
) -> None:
    """Brokers that are slow after an election would never be done; after long enough another client may be luckier."""
    producer = TransactionalProducer(Connection(Settings(prefix="t."), clock=clock), "t.aggregate-0", BusHealth())

    def wait(self: Transactions, timeout: float) -> None:
        asked.append(self)
        if len(asked) < 3:
            clock.sleep(waited)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "retry call to resume", retriable=retriable))

    asked: list[Transactions] = []
    monkeypatch.setattr(Transactions, "init_transactions", wait)
    for _ in range(2):
        with pytest.raises(KafkaException):
            producer.open(Client({}))
    assert producer.open(Client({})).client is asked[-1]
    assert len(set(asked)) == made


def test_a_worker_that_stops_neither_closes_nor_destroys_its_consumer(clock: ManualClock) -> None:
    """Either may freeze the process for ever, when an assignment waits to be served."""
    log = slot(clock, BusHealth())
    consumer = weakref.ref(log._consumer)
    log.close()
    del log
    gc.collect()
    assert consumer() is not None
    assert Client.closed == 0


@pytest.mark.needs("facade.admin")
def test_what_topics_keep_uncompressed_is_not_compressed_on_its_way() -> None:
    """D19: the broker unpacked it, and stored it as it was."""
    from facade.admin.topics import broker_settings

    assert {broker_settings(one)["compression.type"] for one in load().topics.values()} == {"uncompressed"}
    assert settings_of("transactional")["compression.type"] == "none"


@pytest.mark.parametrize(
    "said", ["r 2 3", "r", "", "r x y", "r \u0663 3", "r " + "9" * 5000 + " 3", "r 2 " + "9" * 5000]
)
def test_whatever_a_header_says_of_the_slot_its_open_transaction_is_found(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """Others write to some of its topics too: their header must not end the worker at each start."""
    record = Record(
        topic="alerts", key=None, value=b"", partition=0, offset=7, headers=((TRANSACTION, b"w-0 " + said.encode()),)
    )
    monkeypatch.setattr(transactional_producer, "open_ranges", lambda *_: {"alerts": {0: (7, 8)}})
    monkeypatch.setattr(transactional_producer, "read_range", lambda *_, **__: iter([record]))
    shared = Connection(Settings(prefix="t."), clock=clock)
    found = TransactionalProducer(shared, "t.w-0", BusHealth(), outputs=["alerts"])._find_open(Client({}))
    assert found["alerts", 0].is_surely_open


def test_a_partition_that_a_new_topic_does_not_have_is_asked_for_again(clock: ManualClock) -> None:
    """The group gives the partitions of the former topic for a while."""
    watch = SimpleNamespace(extents=lambda _: {name: Extent("id", {0: (0, 1)}) for name in ("alerts", POSITIONS)})
    with pytest.raises(BusError, match=r"partition 1 of t\.alerts"):
        describe_partitions(
            Connection(Settings(prefix="t."), clock=clock), watch, [TopicPartition("t.alerts", 1, 5)], BusHealth()
        )


def test_records_are_told_apart_by_partition_where_the_log_has_holes() -> None:
    """Between two records of a transaction each, the mark of the first one takes an offset; others come in between."""
    heaps = [Message(topic="t.ingest.heaps", partition=0, offset=at, value=b"heap") for at in (0, 2, 4)]
    other = Message(topic="t.flagging", partition=0, offset=7, value=b"flags")
    next_one = Message(topic="t.ingest.heaps", partition=1, offset=1, value=b"heap")
    lost = KafkaError(KafkaError._PARTITION_EOF, "end")
    event = Message(topic="t.ingest.heaps", partition=0, error=lost)
    for between in (other, next_one):
        runs = list(by_partition([heaps[0], between, heaps[1]], pytest.fail))
        assert runs == [heaps[:2], [between]]
    heard: list[Message] = []
    assert list(by_partition([heaps[0], event, heaps[1]], heard.append)) == [heaps[:2]]
    assert heard == [event]
    whole = [Message(topic="t.ingest.heaps", partition=0, offset=at, value=b"heap") for at in range(100)]
    assert list(by_partition([other, *whole], pytest.fail)) == [[other], whole]
