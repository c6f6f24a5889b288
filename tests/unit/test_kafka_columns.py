"""Columns of the Kafka client's messages: what single records have."""

from confluent_kafka import Message

from facade.bus.kafka.connection import Connection, to_columns, to_record
from facade.bus.port import PartitionColumns
from facade.config import Settings

CONNECTION = Connection(Settings(prefix="p."))


class Unreadable(Message):  # type: ignore[misc]
    """A message with a header whose name is not UTF-8."""

    def headers(self) -> None:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


def message(offset: int, kind: type[Message] = Message, **parts: object) -> Message:
    return kind(topic="p.alerts", partition=3, offset=offset, timestamp=(1, 1000 + offset), **parts)


def columns_of(messages: list[Message]) -> PartitionColumns:
    found = to_columns(CONNECTION, messages)
    single = [to_record(CONNECTION, one) for one in messages]
    assert [*found.records()] == single
    return found


def test_columns_have_what_records_have() -> None:
    found = columns_of([message(7, key=b"k", value=b"v"), message(9, value=None), message(12, key=b"", value=b"")])
    assert (found.topic, found.partition) == ("alerts", 3)
    assert found.offsets == [7, 9, 12]


def test_headers_of_some_messages_stay_with_them() -> None:
    some = [message(1), message(2, headers=[("a", b"1"), ("a", None)]), message(3)]
    assert columns_of(some).headers == [(), (("a", b"1"), ("a", b"")), ()]


def test_a_header_that_cannot_be_read_loses_no_record() -> None:
    plain = message(2, headers=[("a", b"1")])
    assert columns_of([plain, message(3)]).headers == [(("a", b"1"),), ()]
    found = to_record(CONNECTION, message(1, Unreadable, value=b"v"))
    assert (found.value, found.headers) == (b"v", (("unreadable-headers", b""),))
