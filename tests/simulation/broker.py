"""A model of the brokers: topics, idempotent producers and transactions, as Kafka's documents describe them.

One coordinator and one log stand for all brokers: what replicas do among themselves shows outside only as requests
that are lost or late, and as ends of logs that are lost. Transactions are those of version 1, as librdkafka speaks no
newer one: the epoch does not change from one transaction to the next.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from confluent_kafka import KafkaError

from facade.kernel.icd.model import Topic
from tests.simulation.logs import Author, Partition
from tests.simulation.scheduler import START, Scheduler

OFFSETS = ("__offsets", 0)
"""Stands for the offsets of groups among the partitions of a transaction."""
Place = tuple[str, int]
TRANSACTIONS = ("__transaction_state", 0)
"""Stands for what the coordinator of transactions writes."""
NUMBER_OF_DISKS = 3
_AGAIN = 0.1
"""Before a coordinator sends a mark again that a partition did not take [s]."""


@dataclass(slots=True)
class SimulatedTopic:
    """One topic."""

    id: str
    partitions: list[Partition]
    cleanup: str
    retention: float | None
    max_bytes: int
    """Size of the largest record that is taken."""
    on_append: list[Callable[[], None]] = field(default_factory=list)
    """Told once, when something that can be read comes."""


@dataclass(slots=True)
class Transaction:
    """What the coordinator knows of one transactional id."""

    producer: int
    epoch: int = -1
    state: str = "empty"
    """empty, ongoing, committing, aborting, committed or aborted."""
    partitions: dict[Place, None] = field(default_factory=dict)
    offsets: dict[str, dict[Place, int]] = field(default_factory=dict)
    """By group: what is committed with the transaction."""
    unmarked: set[Place] = field(default_factory=set)
    """Where the marks of a transaction that was decided are missing."""
    number: int = 0
    """Of the present transaction, so that the time-out of one before does nothing."""
    timeout: float = 60.0

    def copy(self) -> "Transaction":
        """Return what is known now, for a coordinator that goes on from here."""
        offsets = {group: dict(places) for group, places in self.offsets.items()}
        return replace(self, partitions=dict(self.partitions), offsets=offsets, unmarked=set(self.unmarked))


def disk_of(place: Place) -> int:
    """Return the number of the disk on which a partition is: a third of all is on each."""
    return crc32(f"{place[0]}/{place[1]}".encode()) % NUMBER_OF_DISKS


class Broker:
    """All brokers of one cluster.

    Parameters
    ----------
    prefix
        Put before the names of topics in the ICD.
    """

    def __init__(
        self, scheduler: Scheduler, topics: Mapping[str, Topic], prefix: str, note: Callable[[str, str], None]
    ) -> None:
        self.scheduler, self.note = scheduler, note
        self._ids = 0
        self._producers = 0
        self.topics = {prefix + name: self._topic(prefix + name, topic) for name, topic in topics.items()}
        self.transactions: dict[str, Transaction] = {}
        self.committed: dict[str, dict[Place, int]] = {}
        """Offsets of groups."""
        self.marks_late = 0.0
        """Longest time until the marks of a transaction are written [s]; faults make it long."""
        self.full: set[int] = set()
        """Disks that take nothing and from which nothing is read, until others lead what is on them."""
        self.on_stable: dict[str, list[Callable[[], None]]] = {}
        """Told once, when a transaction of a group's offsets has ended."""

    def _topic(self, name: str, topic: Topic) -> SimulatedTopic:
        partitions = [Partition(name, number) for number in range(topic.partitions)]
        return SimulatedTopic(self.new_id(), partitions, topic.cleanup, topic.retention, topic.max_bytes)

    def new_id(self) -> str:
        """Return the id of a topic that is made."""
        self._ids += 1
        return f"{self._ids:022d}"

    def now_us(self) -> int:
        """Return the brokers' time [Unix us]."""
        return round((START + self.scheduler.now) * 1e6)

    def place_of(self, topic: str, key: bytes | None) -> int:
        """Return the partition of a key, whoever writes it."""
        count = len(self.topics[topic].partitions)
        return self.scheduler.random.randrange(count) if key is None else crc32(key) % count

    def create(self, name: str, count: int, config: Mapping[str, str]) -> int | None:
        """Make a topic; return an error's code, or None."""
        if name in self.topics:
            return KafkaError.TOPIC_ALREADY_EXISTS
        retention = float(config["retention.ms"]) / 1000 if "retention.ms" in config else None
        self.topics[name] = SimulatedTopic(
            self.new_id(), [Partition(name, number) for number in range(count)],
            config.get("cleanup.policy", "delete"), retention, int(config.get("max.message.bytes", 1_048_588)),
        )  # fmt: skip
        return None

    def delete(self, name: str) -> int | None:
        """Delete a topic, with the offsets that groups have of it; return an error's code, or None."""
        if self.topics.pop(name, None) is None:
            return KafkaError.UNKNOWN_TOPIC_OR_PART
        for offsets in self.committed.values():
            for place in [place for place in offsets if place[0] == name]:
                del offsets[place]
        return None

    def grow(self, name: str, count: int) -> int | None:
        """Give a topic more partitions; return an error's code, or None."""
        partitions = self.topics[name].partitions
        if count <= len(partitions):
            return KafkaError.INVALID_PARTITIONS
        partitions += [Partition(name, number) for number in range(len(partitions), count)]
        return None

    def make_again(self, name: str) -> None:
        """Delete a topic and make it again: empty, with another id, and no group has an offset of it."""
        topic = self.topics[name]
        self.delete(name)
        topic.id = self.new_id()
        topic.partitions = [Partition(name, number) for number in range(len(topic.partitions))]
        self.topics[name] = topic
        self.tell(name)

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        known = self.committed.setdefault(group, {})
        known.update(offsets)

    def tidy(self) -> None:
        for topic in self.topics.values():
            for partition in topic.partitions:
                if "compact" in topic.cleanup:
                    partition.compact()
                if "delete" in topic.cleanup and topic.retention is not None:
                    partition.expire(self.now_us() - round(topic.retention * 1e6))

    def tell(self, name: str) -> None:
        """Tell readers that there is something on a topic."""
        told, self.topics[name].on_append = self.topics[name].on_append, []
        for one in told:
            one()

    def partition(self, place: Place) -> Partition | None:
        """Return a partition; None: it is not there."""
        topic = self.topics.get(place[0])
        return None if topic is None or place[1] >= len(topic.partitions) else topic.partitions[place[1]]

    # Disks

    def is_full(self, place: Place) -> bool:
        """Return whether a partition is on a disk that is full."""
        return bool(self.full) and disk_of(place) in self.full

    def fill(self, disk: int) -> None:
        """Let a disk take nothing more: the broker gives up what is on it."""
        self.full.add(disk)

    def lead_elsewhere(self, disk: int) -> None:
        """Let other brokers lead what is on a disk that is full."""
        self.full.discard(disk)
        for name, topic in self.topics.items():
            for partition in topic.partitions:
                if disk_of((name, partition.number)) == disk:
                    partition.lead_anew()
            self.tell(name)

    # Writing

    def new_producer(self) -> tuple[int, int]:
        self._producers += 1
        return self._producers, 0

    def produce(
        self, place: Place, records: list[tuple[Any, ...]], producer: int, epoch: int, sequence: int, slot: str
    ) -> int | None:
        """Append a batch (key, value, headers); return an error's code, or None.

        Parameters
        ----------
        producer
            -1: not idempotent.
        slot
            Transactional id; empty text: no transaction.
        """
        topic = self.topics.get(place[0])
        if topic is None or place[1] >= len(topic.partitions):
            return KafkaError.UNKNOWN_TOPIC_OR_PART
        if any(len(key or b"") + len(value or b"") > topic.max_bytes for key, value, _ in records):
            return KafkaError.MSG_SIZE_TOO_LARGE
        if self.is_full(place):
            return KafkaError.KAFKA_STORAGE_ERROR
        partition, by = topic.partitions[place[1]], None
        if producer >= 0:
            known = partition.numbers.get(producer)
            if known is not None and epoch < known.epoch:
                return KafkaError.INVALID_PRODUCER_EPOCH
            if slot and (refused := self._verify(place, slot, epoch)) is not None:
                return refused
            if known is not None and epoch == known.epoch:
                if sequence == known.base:
                    return None  # it came before
                if sequence != known.sequence:
                    return KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
            by = Author(producer, epoch, sequence + len(records), sequence, bool(slot))
        now_us = self.now_us()
        for key, value, headers in records:
            partition.append(now_us, key, value, headers, by)
        self.tell(place[0])
        return None

    def _verify(self, place: Place, slot: str, epoch: int) -> int | None:
        """Refuse what belongs to no transaction that is under way (KIP-890, first part)."""
        known = self.transactions.get(slot)
        if known is None:
            return KafkaError.INVALID_PRODUCER_ID_MAPPING
        if epoch < known.epoch:
            return KafkaError.INVALID_PRODUCER_EPOCH
        if known.state != "ongoing" or place not in known.partitions:
            return KafkaError.INVALID_TXN_STATE
        return None

    # Transactions

    def init_producer(self, slot: str, timeout: float) -> tuple[int, int] | int:
        """Give a transactional producer its number and epoch, once what was open has ended."""
        known = self.transactions.get(slot)
        if known is None:
            self._producers += 1
            known = self.transactions[slot] = Transaction(self._producers)
        known.timeout = timeout
        if known.state == "ongoing":
            known.epoch += 1  # from now on the former producer is refused
            self.end(slot, known, committed=False)
        if known.state in ("committing", "aborting"):
            return KafkaError.CONCURRENT_TRANSACTIONS
        known.epoch += 1
        known.state = "empty"
        return known.producer, known.epoch

    @staticmethod
    def _refusal(known: Transaction | None) -> int:
        lost = KafkaError.INVALID_PRODUCER_ID_MAPPING
        return lost if known is None else KafkaError.INVALID_PRODUCER_EPOCH

    def add_partitions(self, slot: str, epoch: int, places: list[Place]) -> int | None:
        """Begin a transaction, or let it go on, on some partitions."""
        known = self.transactions.get(slot)
        if known is None or epoch != known.epoch:
            return self._refusal(known)
        if known.state in ("committing", "aborting"):
            return KafkaError.CONCURRENT_TRANSACTIONS
        if known.state != "ongoing":
            known.state, known.partitions, known.offsets = "ongoing", {}, {}
            known.number += 1
            self.scheduler.at(known.timeout, self.time_out, slot, known.number)
        known.partitions |= dict.fromkeys(places)
        return None

    def offsets_in_transaction(self, slot: str, epoch: int, group: str, offsets: Mapping[Place, int]) -> int | None:
        """Commit offsets of a group together with a transaction."""
        known = self.transactions.get(slot)
        if known is None or epoch != known.epoch:
            return self._refusal(known)
        if known.state != "ongoing" or OFFSETS not in known.partitions:
            return KafkaError.INVALID_TXN_STATE
        known.offsets.setdefault(group, {}).update(offsets)
        return None

    def end_transaction(self, slot: str, epoch: int, *, committed: bool) -> int | None:
        known = self.transactions.get(slot)
        if known is None or epoch != known.epoch:
            return self._refusal(known)
        wanted = ("committing", "committed") if committed else ("aborting", "aborted")
        if known.state == "ongoing":
            self.end(slot, known, committed=committed)
            return None
        if known.state == wanted[0]:
            return KafkaError.CONCURRENT_TRANSACTIONS
        return None if known.state == wanted[1] else KafkaError.INVALID_TXN_STATE

    def end(self, slot: str, known: Transaction, *, committed: bool) -> None:
        """Decide; the marks follow a little later, one by one."""
        known.state = "committing" if committed else "aborting"
        random, known.unmarked = self.scheduler.random, set(known.partitions)
        delays = sorted(random.random() * (0.001 + self.marks_late) for _ in known.partitions)
        for place, delay in zip(list(known.partitions), delays, strict=True):
            self.scheduler.at(delay, self._mark, slot, known, place, committed)
        if not known.partitions:
            known.state = "committed" if committed else "aborted"

    def _mark(self, slot: str, known: Transaction, place: Place, committed: bool) -> None:
        if self.transactions.get(slot) is not known:
            return  # of a coordinator that was stopped; the next one begins with the marks again
        if self.is_full(place):
            self.scheduler.at(_AGAIN, self._mark, slot, known, place, committed)
            return
        if place == OFFSETS:
            offsets, known.offsets = known.offsets, {}
            for group, places in offsets.items():
                if committed:
                    self.commit(group, places)
                for tell in self.on_stable.pop(group, ()):
                    tell()
        else:
            topic = self.topics[place[0]]
            topic.partitions[place[1]].mark(self.now_us(), known.producer, known.epoch, committed=committed)
            self.tell(place[0])
        known.unmarked.discard(place)
        if not known.unmarked:
            known.state = "committed" if committed else "aborted"

    def time_out(self, slot: str, number: int) -> None:
        """End a transaction that has taken too long, if it is still under way."""
        known = self.transactions.get(slot)
        if known is not None and known.number == number and known.state == "ongoing":
            self.note("broker", f"ends the transaction of {slot}, which took too long")
            known.epoch += 1
            self.end(slot, known, committed=False)

    # Offsets of groups

    def is_pending(self, group: str, places: list[Place]) -> bool:
        """Return whether a transaction holds offsets of some partitions."""
        wanted = set(places)
        return any(
            known.offsets.get(group, {}).keys() & wanted
            for known in self.transactions.values()
            if known.state in ("ongoing", "committing", "aborting")
        )
