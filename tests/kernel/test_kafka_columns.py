"""Columns of the Kafka client's messages: what single records have."""

import gc

import pytest
from confluent_kafka import Message

from facade.kernel.bus.kafka.connection import UNREADABLE, Connection, to_columns, to_record
from facade.kernel.bus.port import Headers, PartitionColumns, Record
from facade.kernel.config import Settings
from tests.support.foreign_headers import give

CONNECTION = Connection(Settings(prefix="p."))


def message(offset: int, **parts: object) -> Message:
    return Message(topic="p.alerts", partition=3, offset=offset, timestamp=(1, 1000 + offset), **parts)


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
    plain = message(2, headers=[("a", b"1")])
    assert columns_of([plain, message(3)]).headers == [(("a", b"1"),), ()]


FOREIGN = (("a", b"1"), ("\udcff", b"v"), ("", None), ("\udcc3(", b""))
GOOD = (("a", b"1"), ("é", b""))


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_a_header_that_cannot_be_read_loses_no_record_and_ends_no_process(count: int) -> None:
    """By the client's own headers: a message returns a null pointer for the name, and keeps it for the next call.

    A hundred, as the interpreter does not look at the exception once it has specialised a call.
    """
    headers = [FOREIGN, GOOD, FOREIGN][:count] if count <= 3 else [FOREIGN, GOOD, GOOD, FOREIGN] * count
    want: list[Headers] = [UNREADABLE if one is FOREIGN else GOOD for one in headers]

    def messages() -> list[Message]:
        return [give(message(offset, value=b"v"), one) for offset, one in enumerate(headers)]

    assert columns_of(messages()).headers == want
    single: list[Record] = [to_record(CONNECTION, one) for one in messages()]
    assert [one.headers for one in single] == want
    assert [to_record(CONNECTION, one).value for one in messages()] == [b"v"] * len(headers)
    gc.collect()
