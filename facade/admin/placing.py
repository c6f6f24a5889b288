"""Writes records at given offsets, to restore a log.

The brokers confirm a transaction before its commit or abort markers are on the logs. The next transaction waits for
them by itself. A non-transactional record could take the marker's offset, so the writer first waits until the log end
includes the marker.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.admin import asker
from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import ProducerCore, undelivered
from facade.kernel.bus.kafka.refusals import describe
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.clock import to_ms
from facade.kernel.errors import BusError
from facade.kernel.icd.topic_model import READER

_REMEDY: Final = "the topics are not complete: delete those of this prefix, and restore them again"
_LOOK_AGAIN: Final = 0.002
_LAST_REPORTS: Final = 120.0
"""Longest wait until all brokers have confirmed records [s]."""


class KafkaPlacingWriter:
    """Writes records to their partitions with their timestamps, and compares the offset of each.

    Records are written singly or in a transaction. The end marker of a transaction takes the offset after its last
    record on each partition.

    Parameters
    ----------
    name
        Name of the process, without the deployment's prefix.

    Raises
    ------
    BusError
        No broker answers, or transactions are not allowed.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, connection.prefix + name
        self._trouble = ""
        self._marked: dict[tuple[str, int], int] = {}
        """Expected log ends after the end markers of the last transactions."""
        self._ends = asker(connection, connection.prefix + READER)
        health = BusHealth()
        settings: dict[str, Any] = {**settings_of("placing"), "client.id": self._name}
        transactional = {**settings_of("placing together"), "transactional.id": self._name}
        self._plain = ProducerCore(connection, health, settings)
        self._transactional = ProducerCore(connection, health, {**settings, **transactional})
        self._ask("begin", self._transactional.client.init_transactions, timeouts.COMMAND_STEP)

    def write(self, records: Sequence[Record]) -> None:
        """Write records, and wait until all brokers have them."""
        for place in {(one.topic, one.partition) for one in records} & self._marked.keys():
            self._await_mark(*place)
        self._place(self._plain, records)

    def commit(self, records: Sequence[Record]) -> None:
        """Write records in a transaction, and commit it."""
        self._transact(records, lambda client: client.commit_transaction(timeouts.COMMAND_STEP))

    def abort(self, records: Sequence[Record]) -> None:
        """Write records in a transaction, and abort it: they keep their offsets, and committed readers skip them."""
        self._transact(records, lambda client: client.abort_transaction(timeouts.COMMAND_STEP))

    def _transact(self, records: Sequence[Record], end: Callable[[Producer], None]) -> None:
        client = self._transactional.client
        self._ask("begin", client.begin_transaction)
        self._place(self._transactional, records)
        self._ask("end", end, client)
        self._marked |= {(one.topic, one.partition): one.offset + 2 for one in records}

    def _await_mark(self, topic: str, partition: int) -> None:
        clock, end = self._connection.clock, self._marked.pop((topic, partition))
        place = TopicPartition(self._connection.topic(topic), partition)
        until = clock.monotonic() + _LAST_REPORTS
        try:
            while self._ends.get_watermark_offsets(place, timeout=timeouts.COMMAND, cached=False)[1] < end:
                if clock.monotonic() > until:
                    raise BusError(
                        f"{place.topic}, partition {partition}: the mark of a transaction is missing; {_REMEDY}"
                    )
                clock.sleep(_LOOK_AGAIN)
        except KafkaException as error:
            raise BusError(f"no answer about {place.topic}: {describe(error)}; {_REMEDY}") from error

    def _place(self, producer: ProducerCore, records: Sequence[Record]) -> None:
        try:
            for record in records:
                producer.produce(
                    record,
                    partial(self._on_delivery, record.offset),
                    waits=True,
                    partition=record.partition,
                    timestamp=to_ms(record.timestamp_us),
                )
        except KafkaException as error:
            raise BusError(f"record was refused: {describe(error)}; {_REMEDY}") from error
        producer.drain(_LAST_REPORTS)
        if len(producer.client) and not self._trouble:
            self._trouble = f"no broker of {self._connection.bootstrap} confirmed records for {_LAST_REPORTS:g} s"
        if self._trouble:
            raise BusError(f"{self._trouble}; {_REMEDY}")

    def _on_delivery(self, expected: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._trouble = self._trouble or undelivered(error, message)
        elif message.offset() != expected:
            self._trouble = self._trouble or (
                f"{message.topic()}, partition {message.partition()}: expected offset {expected} for the next record,"
                f" got {message.offset()}: another program writes there"
            )

    def _ask(self, what: str, question: Callable[..., None], *arguments: Any) -> None:
        try:
            question(*arguments)
        except KafkaException as error:
            raise BusError(
                f"no transaction can {what} at {self._connection.bootstrap}: {describe(error)}; {_REMEDY}"
            ) from error
