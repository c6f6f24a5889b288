"""A member of a consumer group that commits its records and positions in one transaction."""

from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.group import KafkaGroupMember
from facade.kernel.bus.kafka.refusals import failing
from facade.kernel.bus.kafka.transactional_producer import TransactionalProducer
from facade.kernel.bus.port import Aborted, BusHealth, Record
from facade.kernel.errors import BusError
from facade.kernel.icd.topic_model import slot_name


class KafkaTransactionalMember(KafkaGroupMember):
    """See `facade.kernel.bus.port.TransactionalMember`.

    Parameters
    ----------
    slot
        Name of the worker's slot: with the group's name its transactional id.
    outputs
        See `TransactionalProducer`.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        group: str,
        slot: str,
        member: str,
        health: BusHealth,
        outputs: Collection[str] = (),
    ) -> None:
        super().__init__(connection, topic, group=group, member=member, health=health, resets=False)
        name = connection.prefix + slot_name(group, slot)
        # The partitioner of all writers, so that each key is on one partition.
        self._producer = TransactionalProducer(connection, name, health, outputs=outputs, partitioner="murmur2_random")

    def write(self, records: Iterable[Record], offsets: Mapping[int, int]) -> None:
        """Write records and commit offsets; see `facade.kernel.bus.port.TransactionalMember`."""
        if strange := set(offsets) - set(self._partitions):
            raise Aborted(f"partitions {sorted(strange)} of {self._topic} are not this member's any more")
        places = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        try:
            self._producer.write(records, places, self._consumer)
        except KafkaException as error:
            reason = self._producer.give_up(error)
            if reason.code() == KafkaError.FENCED_INSTANCE_ID:
                self._on_fenced(reason)
            raise Aborted(f"what became of {self._topic} up to {dict(offsets)} is not written: {reason}") from error

    def committed(self, partitions: Collection[int]) -> dict[int, int]:
        """Return the group's committed offsets, after open transactions have ended.

        See `facade.kernel.bus.port.GroupMember`.
        """
        if self._producer.must_wait:
            raise BusError("the producer was fenced; waiting to learn whether its slot was taken")
        try:
            with failing(f"what this slot has left open on {self._topic} is not ended"):
                self._producer.open(self._consumer)
        finally:
            self._producer.end_again(self._consumer)
        return super().committed(partitions)

    def go_on(self, offsets: Mapping[int, int]) -> None:
        """Continue from other offsets; see `facade.kernel.bus.port.GroupMember`."""
        self._producer.found_positions()
        super().go_on(offsets)

    def close(self) -> None:
        """Leave without committing; the name stays reserved for its next holder."""
        self._producer.close()
        super().close()
