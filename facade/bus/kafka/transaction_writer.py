"""Writes records in transactions, without reading any: for tools that must not do a thing twice."""

from confluent_kafka import KafkaError, KafkaException, Message

from facade.bus.kafka.connection import ANSWER_MS, Connection
from facade.bus.kafka.refusals import WRITE, describe, explain
from facade.bus.port import BusHealth, Record
from facade.errors import BusError, NotSent, OutcomeUnknown

_BROKER_WAIT = 10.0
"""Longest wait for one step of a transaction [s]."""
_TRANSACTION = 20.0
"""The transaction's own time-out [s]."""


class KafkaTransactionWriter:
    """One producer for a run; whatever goes wrong, it is of no more use.

    It completes or undoes what an earlier one of the same name has left open, and ends that one if it still runs.

    Raises
    ------
    BusError
        No broker answers, or the principal may not use the name.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, connection.prefix + name
        self._health = BusHealth()
        self._failed: list[KafkaError] = []
        self._producer = connection.producer(
            self._health,
            {
                "transactional.id": self._name,
                "client.id": self._name,
                "transaction.timeout.ms": round(_TRANSACTION * 1000),
                "socket.timeout.ms": ANSWER_MS,
                "message.max.bytes": 16_777_216,
                "partitioner": "murmur2_random",  # as all writers: one key is on one partition
            },
        )
        try:
            self._producer.init_transactions(_BROKER_WAIT)
        except KafkaException as error:
            raise BusError(f"no transaction can be begun at {connection.bootstrap}: {self._why(error)}") from error

    def write(self, records: list[Record]) -> None:
        """Write records in one transaction; see `facade.bus.redrive.TransactionWriter`."""
        down = self._health.down_at
        try:
            self._producer.begin_transaction()
            for record in records:
                self._produce(record)
            self._producer.commit_transaction(_BROKER_WAIT)
        except KafkaException as error:
            raise self._failure(error) from error
        if self._health.down_at != down:
            # The client may have asked twice for the end of the transaction. The second question, late, would end the
            # next one: so there is none.
            raise OutcomeUnknown("the connection was lost within a transaction, which took place all the same")

    def _produce(self, record: Record) -> None:
        while True:
            try:
                self._connection.queue(self._producer, record, self._on_delivery)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(KafkaError(error.code(), explain(error, str(message.topic()), WRITE)))

    def _failure(self, error: KafkaException) -> BusError:
        if error.args[0].code() != KafkaError._FENCED:
            try:
                self._producer.abort_transaction(_BROKER_WAIT)
            except KafkaException:
                pass
            else:
                return NotSent(f"the transaction was given up, nothing of it is on the bus: {self._why(error)}")
        return OutcomeUnknown(f"what became of the last transaction is not known: {self._why(error)}")

    def _why(self, error: KafkaException) -> str:
        reason = self._failed[0] if self._failed else error.args[0]
        if reason.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED):
            return f"another process has begun to write as {self._name}"
        if reason.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return f"this process's principal needs Write on the transactional id {self._name} ({reason.name()})"
        return describe(KafkaException(reason))
