"""What the client gives at once, sorted by partition."""

from collections.abc import Callable, Iterable

from confluent_kafka import Message

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.records import to_record
from facade.bus.port import Record


class KafkaPartitionBatch:
    """Messages of one partition, in the order of the log."""

    __slots__ = ("_connection", "_messages", "appended", "first_offset", "high_watermark", "last_offset",
                 "partition", "topic")  # fmt: skip

    def __init__(self, connection: Connection, messages: list[Message], high_watermark: int) -> None:
        first, last = messages[0], messages[-1]
        self._connection = connection
        self._messages = messages
        self.topic: str = connection.name(first.topic())
        self.partition: int = first.partition()
        self.first_offset: int = first.offset()
        self.last_offset: int = last.offset()
        self.appended: tuple[int, int] = (first.timestamp()[1] * 1000, last.timestamp()[1] * 1000)
        self.high_watermark = high_watermark

    def values(self) -> list[bytes | None]:
        """Return the values in order."""
        return list(map(Message.value, self._messages))

    def append_time(self, index: int) -> int:
        """Return the timestamp of one record [Unix us]."""
        return int(self._messages[index].timestamp()[1]) * 1000

    def record(self, index: int) -> Record:
        """Return one record whole."""
        return to_record(self._connection, self._messages[index])


def by_partition(messages: list[Message], on_event: Callable[[Message], None]) -> Iterable[list[Message]]:
    """Sort a batch by partition, each in the order of the log.

    By bisection: making a key of each of 10,000 messages would cost as much as a tenth of the whole work on it.
    """
    found: dict[tuple[str, int], list[Message]] = {}
    pending = [(0, len(messages))] if messages else []
    while pending:
        low, high = pending.pop()
        first, last = messages[low], messages[high - 1]
        if high - low == 1:
            if first.error() is not None:
                on_event(first)
            else:
                found.setdefault((first.topic(), first.partition()), []).append(first)
        elif (
            first.error() is None
            and last.error() is None
            and first.topic() == last.topic()
            and first.partition() == last.partition()
            and last.offset() - first.offset() == high - low - 1
            and _is_one_partition(part := messages[low:high])
        ):
            found.setdefault((first.topic(), first.partition()), []).extend(part)
        else:
            middle = (low + high) // 2
            pending += [(middle, high), (low, middle)]
    return found.values()


def _is_one_partition(messages: list[Message]) -> bool:
    """Return whether no message is an event or of another partition: it may be where a log has a hole.

    The mark of a transaction takes an offset, and so does a record that was compacted away.
    """
    return all(len(set(map(ask, messages))) == 1 for ask in (Message.partition, Message.topic, Message.error))
