"""Kafka messages as records of the port."""

from confluent_kafka import Message

from facade.bus.kafka.connection import Connection
from facade.bus.port import Record


def to_record(connection: Connection, message: Message) -> Record:
    """Return a message in the form that the rest of the package knows."""
    try:
        headers = message.headers() or ()
    except (SystemError, UnicodeDecodeError):  # a name that is not UTF-8: no reason to lose the record, nor its batch
        headers = (("unreadable-headers", b""),)
    return Record(
        topic=connection.name(message.topic()),
        key=message.key(),
        value=message.value(),
        headers=tuple((name, b"" if value is None else value) for name, value in headers),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_us=message.timestamp()[1] * 1000,
    )
