"""The producer of one worker slot: its transactions commit records together with the positions of a consumer group.

A slot has a stable transactional id. A restarted worker's first act (``init_transactions``) therefore ends the
transaction that its predecessor left open, so that readers are not held up by it. A transaction counts from the moment
in which the broker takes its commit, even if the answer is lost.

A producer that has lost a connection begins no further transaction: a seemingly lost request may still arrive, and
would end the next transaction, or commit old offsets with it. The broker distinguishes transactions only by the epoch
of the producer, as long as the client uses no newer protocol (KIP-890), and only ``init_transactions`` of a new
producer changes the epoch.

A killed broker may keep a transaction open on a partition although its coordinator knows its end. The next commit or
abort marker of the same producer on that partition ends it as well, whichever it is. So a new producer first ends what
is open, as it ended elsewhere, before its first transaction (`_settle`):

1. Each record of a transaction has the header `TRANSACTION`: slot, run (one for each producer), a number, and how many
   records the transaction has. It also writes run and number to `positions`, under the slot's name. Only a commit makes
   them visible there.
2. On partitions whose last stable offset is before their end, the producer looks for the newest record of its slot.
3. If `positions` has this run with this number or a later one, the transaction was committed: the producer commits a
   mark, a tombstone without effect, on the partition. Otherwise it did not take place: the producer aborts a mark.
4. If `positions` itself has lost the end, the outputs decide: whether readers of committed records get the records of
   the transaction. If its end is lost everywhere, it is committed if all its records are there: then results and
   position agree in any case. If some are not there, the broker was killed while it took them, one partition after the
   other, so the transaction cannot have been committed, and is aborted.
5. An open transaction hides the ends behind it, and its slot may wait for this one. But each end takes an offset: if
   all offsets behind the slot's newest record have records, its end is lost there. Otherwise the wait for it has a
   bound.

A producer begins no transaction after one that failed. So of each run, at most the last transaction was not committed.
A broker may also lose an old end, if it is the last record of a partition, so the former runs stay on `positions`.
"""

import logging
import math
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from facade.kernel.bus import port
from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.admin import find_range, open_ranges
from facade.kernel.bus.kafka.client_settings import IDLE, settings_of
from facade.kernel.bus.kafka.connection import CLIENT_LOG, Connection
from facade.kernel.bus.kafka.group import FENCE
from facade.kernel.bus.kafka.producer import ProducerCore
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.bus.kafka.refusals import lacks_right
from facade.kernel.bus.offsets import ACCOUNTS, POSITIONS, WorkerPosition, newest, position_record
from facade.kernel.bus.port import TRANSACTION, BusHealth, Record
from facade.kernel.clock import MINUTE, NEVER, Time, as_duration, from_ms
from facade.kernel.errors import BusError

_log = logging.getLogger(__name__)

_NEVER_UP = re.compile(r"in state (?:CONNECT|SSL_HANDSHAKE)\b")
"""In the line about a connection that could not be made: no request was on it. A broker that is away has one for each
new client."""

_MOST_RUNS = 1000
"""Runs of a slot on `positions`. The chance that a new one takes the place of a certain other one is as small."""
_NEAR = 2 * MINUTE
"""Largest difference between the times of two records of a transaction. The brokers give them, except on `dead-letters`
and on a `positions` of an older release: there the worker's clock does, which may differ by a minute."""
_MAY_HAVE_CLOSED = IDLE - 2.0
"""Duration from which a transaction may have lost a connection with a request on it [s]: the client subtracts up to
2 s from `IDLE` at random, and logs no such close."""


class _Open(NamedTuple):
    """The newest transaction of the slot on a partition on which a transaction is open."""

    run: str
    number: int
    size: int
    """Number of its records; 0: not known, as a release before this number wrote it."""
    said: str
    """Header of each of its records."""
    time: Time
    """Of its newest record."""
    is_surely_open: bool
    """Otherwise its end may be there, behind an open transaction of another slot."""


def _said(record: Record) -> str:
    """Return the transaction of a record: slot, run and number."""
    return dict(record.headers).get(TRANSACTION, b"").decode(errors="replace")


class TransactionalProducer:
    """Writes records and commits offsets, all or nothing.

    Parameters
    ----------
    name
        Name of the slot, with the deployment's prefix: the transactional id.
    settings
        Settings of the client, beside the common ones.
    outputs
        Topics that its transactions write to, beside `positions`.
    """

    def __init__(
        self, connection: Connection, name: str, health: BusHealth, *, outputs: Iterable[str] = (), **settings: Any
    ) -> None:
        self._connection, self._name, self._health = connection, name, health
        self._outputs = sorted({*outputs} - {POSITIONS})
        self._settings = settings
        self._slot = connection.name(name)
        self._number = self._new_run()
        """Run and number of the newest transaction."""
        self._producer: ProducerCore | None = None
        self._beginning: ProducerCore | None = None
        """One whose ``init_transactions`` was asked for."""
        self._begun_at = 0.0
        """When that was, and then when it was answered [monotonic s]."""
        self._link = Link()
        self._broker_time = NEVER, 0.0
        """The newest append time reported by a broker, and the time of the report [monotonic s]."""
        self._not_before = 0.0
        """Monotonic time before which no producer may be opened [s]."""
        self._unanswered_since = math.inf
        """Monotonic time since which the brokers return no positions [s]."""
        self._is_settled = False
        """Whether nothing of former transactions of the slot is open."""

    @property
    def must_wait(self) -> bool:
        """Return whether it is still open if another process has taken the slot."""
        return self._connection.clock.monotonic() < self._not_before

    @property
    def broker_time(self) -> Time:
        """Return the brokers' time; never ahead of it, as an append time has passed when it arrives."""
        appended, told = self._broker_time
        return appended and appended + as_duration(self._connection.clock.monotonic() - told)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        kind, time = message.timestamp() if error is None else (TIMESTAMP_NOT_AVAILABLE, 0)
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            self._broker_time = from_ms(time), self._connection.clock.monotonic()

    def open(self, member: Consumer) -> ProducerCore:
        """Complete or abort an open transaction of an earlier producer of this slot, unless this one can continue.

        `member`: member of the group, which reads committed records only.
        """
        if self._producer is not None:
            self._producer.poll(0)  # serves the log lines about connections
            if self._link.was_lost:
                self._producer = None
        if self._producer is None:
            self._producer, self._is_settled = self._begun(), False
        if not self._is_settled:
            if self._settle(self._producer, member):
                self._producer.poll(0)
                if self._link.was_lost:
                    self._producer = None
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "former transactions were slow to end"))
            self._is_settled = True
        return self._producer

    def _new_run(self) -> WorkerPosition:
        slot, run = self._slot, secrets.token_hex(8)
        place = secrets.randbelow(_MOST_RUNS)
        return WorkerPosition(group=slot, topic=POSITIONS, partition=place, log=run, next=0, worker=slot)

    def _begun(self) -> ProducerCore:
        now = self._connection.clock.monotonic()
        if self._beginning is None:
            self._link, self._number = Link(), self._new_run()
            names = {"transactional.id": self._name, "client.id": self._name}
            settings = {**settings_of("transactional"), **names, **self._settings, "logger": self._link}
            self._beginning, self._begun_at = ProducerCore(self._connection, self._health, settings), now
        try:
            self._beginning.client.init_transactions(timeouts.STEP)
        except KafkaException as error:
            # The same producer asks again: a new one would have to connect first and repeat the question, which slow
            # brokers would never finish.
            if not error.args[0].retriable() or now - self._begun_at >= timeouts.HANGING:
                self._beginning = None
            raise
        assert not self._number.next, f"{self._name}: a new producer would go on with transaction {self._number.next}"
        producer, self._beginning = self._beginning, None
        self._begun_at = self._connection.clock.monotonic()
        return producer

    def _settle(self, producer: ProducerCore, member: Consumer) -> bool:
        """End what a broker has kept open of this slot, as it ended elsewhere; return whether there was anything.

        See the top of this module.
        """
        try:
            left = self._find_open(member)
            known = self._find_committed(left) if left else {}
        except BusError as error:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, str(error))) from error
        for is_commit in (False, True):
            marks = [
                Record(topic=topic, key=b"mark", value=None, partition=partition)
                for (topic, partition), one in left.items()
                if (one.number <= known.get(one.run, 0)) == is_commit
            ]
            if marks:
                where = ", ".join(f"{one.topic}, partition {one.partition}" for one in marks)
                end = "committed" if is_commit else "aborted"
                _log.warning("transaction of %s is open although it has ended: it is %s on %s", self._name, end, where)
                self._end(producer, marks, is_commit=is_commit)
        return bool(left)

    def _find_open(self, member: Consumer) -> dict[port.TopicPartition, _Open]:
        """Return the slot's newest transaction on each partition on which it may be open."""
        begin, found = f"{self._slot} ", dict[port.TopicPartition, tuple[set[int], Record]]()
        ends = Counter[port.TopicPartition]()  # offsets without a record behind the slot's newest one
        topics = [*self._outputs, POSITIONS] if self._outputs else []
        for topic, ranges in open_ranges(self._connection, member, topics).items():
            try:
                for record in read_range(self._connection, topic, ranges, committed=False, health=self._health):
                    if _said(record).startswith(begin):
                        offsets, _ = found.get((topic, record.partition), (set[int](), record))
                        offsets.add(record.offset)
                        found[topic, record.partition] = offsets, record
                        ends[topic, record.partition] = ranges[record.partition][1] - record.offset - 1
                    else:
                        ends[topic, record.partition] -= 1
            except BusError as error:
                if not lacks_right(error):
                    raise
                self._connection.note(self._health, f"open transactions of {self._name} are not ended: {error}")
        stable = open_ranges(self._connection, member, topics) if found else {}
        left = {}
        for (topic, partition), (offsets, last) in found.items():
            at = stable.get(topic, {}).get(partition, (math.inf,))[0]
            if at <= last.offset:  # otherwise its end has come meanwhile
                run, number, count, *_ = [*(said := _said(last)).removeprefix(begin).split(" "), "", ""]
                # Others may write to the topic as well; Python refuses to read the longest numbers.
                number, count = (one if one.isdecimal() and len(one) < 19 else "0" for one in (number, count))
                # `positions` must be read up to the transaction, as it also has the former runs.
                is_open = at in offsets or (topic != POSITIONS and not ends[topic, partition])
                left[topic, partition] = _Open(run, int(number), int(count), said, last.timestamp_us, is_open)
        return left

    def _find_committed(self, left: Mapping[port.TopicPartition, _Open]) -> dict[str, int]:
        """Return the number of the newest committed transaction of the slot's runs."""
        ranges = find_range(self._connection, POSITIONS, within=timeouts.STEP)
        open_here = [one for (topic, _), one in left.items() if topic == POSITIONS and one.is_surely_open]
        records = read_range(self._connection, POSITIONS, ranges, whole=not open_here, within=timeouts.STEP)
        known = {one.log: one.next for one in newest(records, self._slot)[0].values()}
        return known | {one.run: one.number for one in open_here if self._is_committed_elsewhere(one, left)}

    def _is_committed_elsewhere(self, one: _Open, left: Mapping[port.TopicPartition, _Open]) -> bool:
        """Return whether a transaction that is open on `positions` was committed on the outputs.

        If its end is lost on all of them: whether all its records are there. An end that another slot's transaction
        hides is awaited for `timeouts.HANGING`, and then taken for lost.
        """
        there, hidden, read = 0, None, partial(read_range, self._connection, within=timeouts.STEP)
        is_late = self._connection.clock.monotonic() - self._begun_at >= timeouts.HANGING
        for topic in (*self._outputs, POSITIONS):
            begin, after = (
                find_range(self._connection, topic, since=since, within=timeouts.STEP)
                for since in (one.time - _NEAR, one.time + _NEAR)
            )
            for partition, (first, end) in begin.items():
                near = {partition: (first, after.get(partition, (end,))[0])}
                mine = sum(_said(record) == one.said for record in read(topic, near, committed=False))
                here = left.get((topic, partition))
                if mine and here is None:
                    return any(_said(record) == one.said for record in read(topic, near))
                if mine and here and not here.is_surely_open:
                    hidden = topic, near
                there += mine
        if hidden and not is_late:
            return any(_said(record) == one.said for record in read(*hidden, whole=True))
        return there >= one.size

    def _end(self, producer: ProducerCore, marks: Sequence[Record], *, is_commit: bool) -> None:
        """Commit or abort marks, and with them any open transaction on their partitions."""
        assert all(one.value is None and one.partition >= 0 for one in marks), f"{marks}: a mark must have no effect"
        try:
            with self._watched():
                producer.client.begin_transaction()
                for record in marks:
                    producer.produce(record, waits=True, partition=record.partition)
                if is_commit:
                    producer.client.commit_transaction(timeouts.STEP)
                    return
                # A partition that refuses the mark, such as one of a deleted topic, has no open transaction: only
                # silence counts.
                if silent := producer.client.flush(timeouts.STEP):
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{silent} partitions do not answer"))
                producer.client.abort_transaction(timeouts.STEP)
        except KafkaException:
            self._producer = None
            raise

    def _numbered(self, records: Iterable[Record]) -> Iterator[Record]:
        """Return the records of a new transaction with its number, and the record of the number."""
        one = self._number = msgspec.structs.replace(self._number, next=self._number.next + 1)
        found = [*records, position_record(one)]
        header = (TRANSACTION, f"{one.group} {one.log} {one.next} {len(found)}".encode())
        for record in found:
            yield replace(record, headers=(*record.headers, header))

    def write(self, records: Iterable[Record], places: Sequence[TopicPartition], member: Consumer) -> None:
        """Write records and commit offsets of the member's group in one transaction.

        The group refuses the offsets of a member with an old generation, and with them the transaction.

        Raises
        ------
        KafkaException
            It is not known to have happened; see `give_up`.
        """
        self._transact(self.open(member), records, places, member)
        self._health.connected = True

    def _transact(
        self, producer: ProducerCore, records: Iterable[Record], places: Sequence[TopicPartition], member: Consumer
    ) -> None:
        assert self._is_settled, f"{self._name}: a transaction begins while a former one may be open"
        with self._watched():
            producer.client.begin_transaction()
            for record in self._numbered(records):
                on_delivery = self._on_delivery if record.topic == ACCOUNTS else None
                producer.produce(record, on_delivery, waits=True, partition=record.partition)
            if places:
                metadata = member.consumer_group_metadata()
                producer.client.send_offsets_to_transaction(list(places), metadata, timeouts.STEP)
            producer.client.commit_transaction(timeouts.STEP)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Let this producer begin no further transaction if this one may have lost a connection without a log line."""
        began = self._connection.clock.monotonic()
        yield
        if self._connection.clock.monotonic() - began >= _MAY_HAVE_CLOSED:
            self._link.was_lost = True

    def found_positions(self) -> None:
        """Note that the brokers have returned positions."""
        self._unanswered_since = math.inf

    def end_again(self, member: Consumer) -> None:
        """End the group's part of this slot's transactions again, if no positions came for `timeouts.HANGING`.

        A killed broker may have lost the end of a transaction on the group's offsets. Then the group's answer waits for
        that end for ever. The next end marker of the same producer ends it as well. It is an abort,
        because a commit would leave an offset behind, which programs take for a lag of the group.
        """
        now = self._connection.clock.monotonic()
        self._unanswered_since = min(self._unanswered_since, now)
        if now - self._unanswered_since < timeouts.HANGING or self._producer is None:
            return
        self._unanswered_since = now
        _log.warning(
            "no answer where %s goes on for %g s; its group's offsets are ended again", self._name, timeouts.HANGING
        )
        try:
            place = TopicPartition(self._connection.topic(POSITIONS), 0, 0)
            client = self._producer.client
            with self._watched():
                client.begin_transaction()
                client.send_offsets_to_transaction([place], member.consumer_group_metadata(), timeouts.STEP)
                client.abort_transaction(timeouts.STEP)
        except KafkaException as error:
            self._producer = None
            self._connection.note(self._health, f"transactions of {self._name} cannot be ended again: {error.args[0]}")

    def give_up(self, error: KafkaException) -> KafkaError:
        """Give up a transaction that failed, with its producer, and return the reason.

        A new producer with the same id waits until the broker has completed or aborted the old one's transaction, so
        afterwards `positions` shows its result.
        """
        self._producer = None
        reason: KafkaError = error.args[0]
        if reason.code() == KafkaError._FENCED:
            # Either the broker ended a transaction that took too long, or another process has the slot. A new producer
            # would fence that process in turn, so wait until the group shows which.
            self._not_before = self._connection.clock.monotonic() + 2 * FENCE
        self._connection.note(self._health, f"transaction of {self._name} given up: {reason}")
        return reason

    def close(self) -> None:
        """Let go of the client; the next one undoes its open transaction."""
        self._producer = self._beginning = None


class Link:
    """Receives the log lines of a producer's client, and detects lost connections in them.

    The client's errors and results do not show a connection that it restores by itself; its statistics do, but too late
    for the next transaction.
    """

    def __init__(self) -> None:
        self.was_lost = False

    def log(self, level: int, text: str, facility: str, *rest: object) -> None:
        """Take a line; see `logging.Logger.log`."""
        self.was_lost |= facility == "FAIL" and not any(_NEVER_UP.search(str(part)) for part in rest)
        CLIENT_LOG.log(level, text, facility, *rest)
