"""Writes streams of records at full speed, idempotently and to all in-sync replicas."""

from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.refusals import WRITE, require_present
from facade.bus.kafka.writer import LAST_REPORTS, drain, is_dead, producer_settings, undelivered
from facade.bus.port import BusHealth, Headers


class KafkaStreamWriter:
    """Sends a stream of records at full speed and knows how many of them arrived; for one thread.

    No Python code runs for a record that arrives: what was queued, is not waiting any more and has
    not failed, is what all in-sync replicas have. A full local queue blocks; nothing is dropped.

    Parameters
    ----------
    patience
        A record that cannot be delivered for so long has failed [s].
    """

    def __init__(
        self, connection: Connection, *, health: BusHealth, client: str, linger: float = 0.005, patience: float = 600.0
    ) -> None:
        self._connection = connection
        self._health = health
        self.queued = 0
        """Records accepted for sending."""
        self.failed = 0
        """Records that are known not to be delivered."""
        self._settings = {
            **producer_settings(connection.prefix + client, linger),
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
            "message.timeout.ms": round(patience * 1000),
            "delivery.report.only.error": True,
            "on_delivery": self._on_failure,
        }
        self._producer = connection.producer(health, self._settings)

    @property
    def backlog(self) -> int:
        """Records queued whose fate is not known yet."""
        return len(self._producer)

    @property
    def delivered(self) -> int:
        """Records that all in-sync replicas have."""
        # A failure stays in the client's queue until it is served, so it is never taken for a success.
        return self.queued - self.backlog - self.failed

    def require_topic(self, topic: str, timeout: float) -> bool:
        """Make sure that a topic exists; False when no broker answers within `timeout` [s].

        Raises
        ------
        BusError
            The brokers do not have it, or it may not be written.
        """
        name = self._connection.topic(topic)
        try:
            found = self._producer.list_topics(name, timeout=timeout).topics.get(name)
        except KafkaException as error:
            self._connection.note(self._health, f"no broker answers yet: {error.args[0].str()}")
            return False
        require_present(found, name, WRITE)
        return True

    def send_many(
        self,
        topic: str,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Queue records in order; waits while the local queue is full. Without `headers` they have none."""
        name = self._connection.topic(topic)
        produce: Callable[..., None] = self._producer.produce
        more: list[dict[str, Any]] = (
            [{}] * len(values) if headers is None else [{"headers": list(one)} for one in headers]
        )
        for key, value, options in zip(keys, values, more, strict=True):
            while True:
                try:
                    produce(name, value, key, **options)
                except BufferError:
                    self.poll(0.05)
                    produce = self._producer.produce
                    continue
                except KafkaException as error:
                    if is_dead(error):
                        self._replace()
                        produce = self._producer.produce
                        continue
                    self.failed += 1
                    self._note(f"record was refused by the client: {error.args[0].str()}")
                break
        self.queued += len(values)

    def poll(self, timeout: float = 0.0) -> None:
        """Serve failures, waiting at most `timeout` [s] for one."""
        try:
            self._producer.poll(timeout)
        except KafkaException as error:
            if not is_dead(error):
                raise
            self._replace()

    def flush(self, timeout: float) -> bool:
        """Wait until the fate of all records is known, at most `timeout` [s]; False: not yet."""
        drain(self._producer, self._connection.clock, timeout)
        return not self.backlog

    def abandon(self) -> None:
        """Give up what is still waiting: it counts as failed, though what is under way may yet arrive."""
        self._producer.purge()
        drain(self._producer, self._connection.clock, LAST_REPORTS)

    def _replace(self) -> None:
        """Go on with another producer: to a broker that lost confirmed records this one's numbers do not follow.

        What it had not delivered counts as failed.
        """
        self.abandon()
        self.failed += self.backlog  # of which nothing is told any more
        self._producer = self._connection.producer(self._health, self._settings)

    def _on_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed += 1
            self._note(undelivered(error, message))

    def _note(self, text: str) -> None:
        self._health.failed_writes += 1
        if self._health.last_error != text:  # a whole backlog fails at once, for one reason
            self._connection.note(self._health, text)
