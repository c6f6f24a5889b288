"""What `confluent_kafka.Producer` gives, on the model of the brokers."""

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicPartition

from tests.simulation.broker import OFFSETS, Broker, Place
from tests.simulation.consumers import UP, metadata
from tests.simulation.groups import Groups, Membership
from tests.simulation.network import LOST, Link, Network
from tests.simulation.scheduler import Process
from tests.simulation.threads import Waiting

_AGAIN = 0.1
"""Before a request is sent again [s]."""
_CONCURRENT = 0.02
"""The same where a transaction is still being ended [s]."""
_FENCED = (KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


class Item:
    """One record of a producer, until its fate is known."""

    __slots__ = ("appended", "headers", "key", "place", "report", "value")

    def __init__(self, place: Place, key: Any, value: Any, headers: Any, report: Any) -> None:
        self.place, self.key, self.value, self.headers, self.report = place, key, value, tuple(headers or ()), report
        self.appended = 0
        """The broker's time when it took the record [Unix us]; 0: it has not, as far as is known."""


class SimulatedProducer:
    """See `confluent_kafka.Producer`, as far as the facade uses it."""

    def __init__(self, process: Process, broker: Broker, groups: Groups, network: Network, config: dict[str, Any]):
        self._process, self._broker, self._groups = process, broker, groups
        self._scheduler = process.scheduler
        self._config = config
        self._slot = str(config.get("transactional.id", ""))
        self._link = Link(network, process, f"{process.name}/{config.get('client.id', 'producer')}")
        self._link.on_drop = self._on_drop
        self._linger = float(config.get("linger.ms", 5)) / 1000
        self._retries = int(config.get("retries", 1_000_000))
        is_numbered = bool(self._slot) or config.get("enable.idempotence") is True
        self._id, self._epoch = broker.new_producer() if is_numbered and not self._slot else (-1, 0)
        self._ids: dict[Place, int] = {}
        """Numbers of the producer on partitions whose broker has lost what it had confirmed."""
        self._queues: dict[Place, deque[Item]] = {}
        self._under_way: dict[Place, list[Item]] = {}
        self._sequences: dict[Place, int] = {}
        self._known: set[Place] = set()
        """Partitions that the coordinator knows as part of the transaction."""
        self._left = 0
        """Records whose fate is not known."""
        self._reports: deque[Callable[[], None]] = deque()
        self._waiting = Waiting(self._scheduler)
        self._spoke = -1.0
        self._has_raised = self._is_ready = False
        self._error: KafkaError | None = None
        """Why the transaction, or the producer, is of no more use."""
        self._is_open = False
        self._is_flushing = False
        """Whether what waits is sent at once: a commit waits for it."""
        if self._slot:  # of two of one slot in a process, the first is one that was given up
            if (former := process.parts.get(self._slot)) is not None:
                former.close()
            process.parts[self._slot] = self

    def close(self) -> None:
        self._link.close()
        self._queues.clear()
        self._under_way.clear()

    def __len__(self) -> int:
        return self._left + len(self._reports)

    # Sending

    def produce(
        self, topic: str, value: Any = None, key: Any = None, partition: int = -1, on_delivery: Any = None,
        headers: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        self._process.require_alive()
        if self._error is not None and self._error.fatal():
            raise KafkaException(KafkaError(KafkaError._FATAL))
        if self._slot and not self._is_open:
            raise KafkaException(KafkaError(KafkaError._STATE, "no transaction is open"))
        if len(value or b"") > int(self._config.get("message.max.bytes", 1_000_000)):
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        known = self._broker.topics.get(topic)
        if known is not None and partition >= len(known.partitions):
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        item = Item((topic, partition), key, value, headers, on_delivery or self._config.get("on_delivery"))
        self._left += 1
        if known is None:
            patience = float(self._config.get("topic.metadata.propagation.max.ms", 30_000)) / 1000
            self._scheduler.at(patience, self._report, [item], KafkaError.UNKNOWN_TOPIC_OR_PART)
        else:
            self._enqueue(item)

    def _enqueue(self, item: Item) -> None:
        topic, partition = item.place
        place = item.place = (topic, self._broker.place_of(topic, item.key) if partition < 0 else partition)
        queue = self._queues.setdefault(place, deque())
        queue.append(item)
        if len(queue) == 1 and place not in self._under_way:
            wait = self._linger if not self._slot or place in self._known else 0.0
            self._scheduler.at(wait + 0.0002, self._send, place)

    def _send(self, place: Place) -> None:
        queue = self._queues.get(place)
        if not queue or place in self._under_way or self._process.is_dead:
            return
        if self._slot and place not in self._known:
            self._under_way[place] = []
            epoch = self._epoch
            self._link.call(
                "AddPartitionsToTxn", lambda: self._broker.add_partitions(self._slot, epoch, [place]),
                lambda answer: self._on_added(place, answer),
            )  # fmt: skip
            return
        self._under_way[place] = [queue.popleft() for _ in range(min(len(queue), 10_000))]
        self._try(place)

    def _on_added(self, place: Place, answer: Any) -> None:
        if self._under_way.pop(place, None) is None:
            return  # given up meanwhile
        if answer is None:
            self._known.add(place)
            self._scheduler.at(0.0 if self._is_flushing else self._linger, self._send, place)
        elif answer is LOST or answer == KafkaError.CONCURRENT_TRANSACTIONS:
            self._scheduler.at(_AGAIN if answer is LOST else _CONCURRENT, self._send, place)
        else:
            self._fail_all(answer)

    def _try(self, place: Place) -> None:
        items = self._under_way.get(place)
        if not items:
            return
        batch = [(one.key, one.value, one.headers) for one in items]
        sequence, epoch, id = self._sequences.get(place, 0), self._epoch, self._ids.get(place, self._id)

        def produce() -> int | None:
            for one in items:
                one.appended = one.appended or self._broker.now_us()
            return self._broker.produce(place, batch, id, epoch, sequence, self._slot)

        self._link.call(f"Produce {place[0]}/{place[1]}", produce, lambda answer: self._on_answer(place, items, answer))

    def _on_answer(self, place: Place, items: list[Item], answer: Any) -> None:
        if self._under_way.get(place) is not items:
            return  # purged
        if (answer is LOST and self._retries) or answer == KafkaError.KAFKA_STORAGE_ERROR:
            self._scheduler.at(_AGAIN, self._try, place)
            return
        if answer == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER and not self._slot:  # begin to count anew
            self._ids[place], _ = self._broker.new_producer()
            self._sequences[place] = 0
            self._scheduler.at(_AGAIN, self._try, place)
            return
        del self._under_way[place]
        if answer is None or answer == KafkaError.MSG_SIZE_TOO_LARGE:
            # What was refused as too large has its number all the same, unless it is in no transaction.
            if answer is None or self._slot:
                self._sequences[place] = self._sequences.get(place, 0) + len(items)
            self._report(items, answer)
            if answer is not None and self._slot:
                self._fail_all(answer)
            if self._queues.get(place):
                self._send(place)
        else:
            is_kept = self._slot and answer == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER  # until it is taken back
            fate = KafkaError._PURGE_QUEUE if is_kept else answer
            self._report(items, KafkaError._TRANSPORT if answer is LOST else fate)
            if answer is not LOST:
                self._fail_all(answer)
            self._scheduler.at(_AGAIN, self._send, place)  # what was queued meanwhile

    def _fail_all(self, code: int) -> None:
        """Take no more records: the transaction, or the numbering, is broken."""
        if self._slot:
            code = KafkaError._FENCED if code in _FENCED else code
            self._error = self._error or _broken(code)
        elif self._id >= 0:
            self._error = self._error or KafkaError(KafkaError._FATAL, None, True)
        queued = [one for queue in self._queues.values() for one in queue]
        self._queues.clear()
        self._report(queued, KafkaError._PURGE_QUEUE)

    def _report(self, items: Sequence[Item], code: int | None) -> None:
        self._left -= len(items)
        only_errors = self._config.get("delivery.report.only.error")
        for one in items:
            if one.report is not None and not (only_errors and code is None):
                self._reports.append(lambda one=one: self._tell(one, code))
        if self._reports or not self._left:
            self._waiting.wake()

    @staticmethod
    def _tell(item: Item, code: int | None) -> None:
        error = None if code is None else KafkaError(code)
        message = SimpleNamespace(
            topic=lambda: item.place[0], error=lambda: error, value=lambda: item.value,
            timestamp=lambda: (TIMESTAMP_LOG_APPEND_TIME, item.appended // 1000),
        )  # fmt: skip
        item.report(error, message)

    def poll(self, timeout: float = 0.0) -> int:
        """Serve reports, waiting for one if there is none."""
        self._process.require_alive()
        self._speak()
        if not self._reports and timeout > 0:
            self._wait(self._scheduler.now + timeout)
        if self._error is not None and self._error.fatal() and not self._has_raised:
            self._has_raised = True
            raise KafkaException(self._error)
        served = len(self._reports)
        self._tell_reports()
        return served

    def flush(self, timeout: float = 1e9) -> int:
        """Wait until the fate of all records is known, and serve the reports."""
        until = self._scheduler.now + timeout
        self._process.require_alive()
        while self._left and self._scheduler.now < until:
            self._wait(until)
        self._tell_reports()
        return len(self)

    def _tell_reports(self) -> None:
        while self._reports:
            self._reports.popleft()()

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Give up what waits, and what is under way."""
        if in_queue:
            queued = [one for queue in self._queues.values() for one in queue]
            self._queues.clear()
            self._report(queued, KafkaError._PURGE_QUEUE)
        if in_flight:
            under_way, self._under_way = self._under_way, {}
            self._report([one for items in under_way.values() for one in items], KafkaError._PURGE_INFLIGHT)

    def list_topics(self, topic: str | None = None, timeout: float = 10.0) -> Any:
        answer = self._link.ask("Metadata", lambda: metadata(self._broker, topic), self._scheduler.now + timeout)
        if answer is None or answer is LOST:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return answer

    # Transactions

    def init_transactions(self, timeout: float) -> None:
        """End what a former producer of the same id has left open, and get the next epoch."""
        limit = float(self._config.get("transaction.timeout.ms", 60_000)) / 1000
        answer = self._insist("InitProducerId", lambda: self._broker.init_producer(self._slot, limit), timeout)
        self._id, self._epoch = answer
        self._sequences = {}
        self._is_ready = True

    def begin_transaction(self) -> None:
        """Begin; nobody is asked."""
        self._require_sound()
        self._require_state(self._is_ready and not self._is_open)
        self._is_open, self._known = True, set()

    def send_offsets_to_transaction(self, offsets: Sequence[TopicPartition], group: Membership, timeout: float) -> None:
        """Commit offsets of a group together with the transaction."""
        self._require_sound()
        slot, epoch = self._slot, self._epoch
        given = {(one.topic, one.partition): one.offset for one in offsets}
        until = self._scheduler.now + timeout
        self._insist("AddOffsetsToTxn", lambda: self._broker.add_partitions(slot, epoch, [OFFSETS]), timeout)
        self._known.add(OFFSETS)

        def commit() -> int | None:
            if group.name:  # who has not joined is not asked for more than the group
                refused = self._groups.refusal(group.group, group.name, group.id, group.generation)
                if refused is not None:
                    return refused
            return self._broker.offsets_in_transaction(slot, epoch, group.group, given)

        self._insist("TxnOffsetCommit", commit, until - self._scheduler.now)

    def commit_transaction(self, timeout: float) -> None:
        self._end(timeout, committed=True)

    def abort_transaction(self, timeout: float) -> None:
        self.purge()
        self._tell_reports()
        error = self._error
        self._error = None if error is None or not error.fatal() else error
        self._end(timeout, committed=False)
        if error is not None and error.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.init_transactions(timeout)  # records get numbers from 0 on again

    def _require_state(self, is_so: bool) -> None:
        if not is_so:
            raise KafkaException(KafkaError(KafkaError._STATE))

    def _end(self, timeout: float, *, committed: bool) -> None:
        until = self._scheduler.now + timeout
        self._require_state(self._is_open or self._error is not None)
        if committed:
            self._flush(until)
        self._tell_reports()
        self._require_sound()
        if self._known:
            slot, epoch = self._slot, self._epoch
            self._insist(
                "EndTxn", lambda: self._broker.end_transaction(slot, epoch, committed=committed),
                until - self._scheduler.now, is_last=not committed,
            )  # fmt: skip
        self._is_open = False

    def _flush(self, until: float) -> None:
        self._is_flushing = True
        for place in [one for one in self._queues if one in self._known]:
            self._send(place)
        try:
            while self._left and self._error is None:
                if self._scheduler.now >= until:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, None, False, True))
                self._wait(until)
        finally:
            self._is_flushing = False

    def _insist(self, what: str, request: Callable[[], Any], timeout: float, *, is_last: bool = False) -> Any:
        """Send a request until it is answered; one whose answer was lost is sent again.

        Parameters
        ----------
        is_last
            There is nothing else to do if it is refused.
        """
        until = self._scheduler.now + timeout
        self._process.require_alive()
        while self._scheduler.now < until:
            answer = self._link.ask(what, request, until)
            if answer is LOST or answer == KafkaError.CONCURRENT_TRANSACTIONS:
                self._scheduler.pause(self._scheduler.now + (_AGAIN if answer is LOST else _CONCURRENT))
            elif isinstance(answer, int):
                self._give_up(answer, is_fatal=is_last)
            elif answer is not None or self._scheduler.now < until:
                return answer
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, what, False, True))

    def _give_up(self, code: int, *, is_fatal: bool) -> NoReturn:
        self._error = _broken(KafkaError._FENCED if code in _FENCED else code, is_fatal=is_fatal)
        raise KafkaException(self._error)

    def _require_sound(self) -> None:
        self._process.require_alive()
        if self._error is not None:
            raise KafkaException(self._error)

    # Being a client

    def _on_drop(self) -> None:
        logger = self._config.get("logger")
        if hasattr(logger, "was_lost"):
            self._reports.append(lambda: logger.log(10, "%s", "FAIL", self._link.name))
        tell = self._config.get("error_cb")
        if self._link.network.is_down and tell is not None:
            self._reports.append(lambda: tell(KafkaError(KafkaError._ALL_BROKERS_DOWN)))

    def _speak(self) -> None:
        now = self._scheduler.now
        if now - self._spoke >= 1.0:
            self._spoke = now
            self._config["stats_cb"]("" if self._link.network.is_down else UP)

    def _wait(self, until: float) -> None:
        self._waiting.wait(until)


def _broken(code: int, *, is_fatal: bool = False) -> KafkaError:
    """Return the error of a transaction that can only be taken back, or of a producer that is of no more use."""
    is_fatal = is_fatal or code == KafkaError._FENCED
    return KafkaError(code, None, is_fatal, False, not is_fatal)
