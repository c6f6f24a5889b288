"""Writes records in transactions, for a command that reads nothing: all records of a call or none.

The producer of a worker is `facade.kernel.bus.kafka.transactional_producer`.
"""

from confluent_kafka import KafkaError, KafkaException, Message

from facade.kernel.bus.kafka import timeouts
from facade.kernel.bus.kafka.client_settings import settings_of
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import ProducerCore
from facade.kernel.bus.kafka.refusals import WRITE, describe, explain
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.errors import BusError, NotSent, OutcomeUnknown


class KafkaTransactionWriter:
    """The producer of a single run, unusable after any error.

    It completes or aborts an open transaction of an earlier producer of the same name, and fences that one if it still
    runs.

    Raises
    ------
    BusError
        No broker answers, or the principal may not use the name.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self._name = connection, connection.prefix + name
        self._health = BusHealth()
        self._failed: list[KafkaError] = []
        settings = {**settings_of("single run"), "transactional.id": self._name, "client.id": self._name}
        self._producer = ProducerCore(connection, self._health, settings)
        self._client = self._producer.client
        try:
            self._client.init_transactions(timeouts.COMMAND_STEP)
        except KafkaException as error:
            raise BusError(f"no transaction can be begun at {connection.bootstrap}: {self._why(error)}") from error

    def write(self, records: list[Record]) -> None:
        """Write records in one transaction; see `facade.admin.redrive.TransactionWriter`."""
        down = self._health.down_at
        try:
            self._client.begin_transaction()
            for record in records:
                self._producer.produce(record, self._on_delivery, waits=True)
            self._client.commit_transaction(timeouts.COMMAND_STEP)
        except KafkaException as error:
            raise self._failure(error) from error
        if self._health.down_at != down:
            # The client may have sent the end of the transaction twice. The second request, late, would end the next
            # transaction: so there is none.
            raise OutcomeUnknown("the connection was lost within a transaction, which took place all the same")

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append(KafkaError(error.code(), explain(error, str(message.topic()), WRITE)))

    def _failure(self, error: KafkaException) -> BusError:
        if error.args[0].code() != KafkaError._FENCED:
            try:
                self._client.abort_transaction(timeouts.COMMAND_STEP)
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
