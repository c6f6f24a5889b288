"""Snapshots of ledgers on a compacted topic: where a restarted device server goes on."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from facade.bus.port import Record
from facade.numbers import Natural
from facade.reading import Quality, Reading
from facade.runtime.accounts import AccountTotals

TOPIC = "snapshots"

_Stored = tuple[bool | int | float | str | list[Any], float, str]


class Snapshot(msgspec.Struct, tag_field="schema", tag="snapshot/1", kw_only=True):
    """What a device server has merged from one topic; the wire form is ``snapshot.schema.json``."""

    instance: str
    topic: str
    time: int
    """When it was written [Unix us]."""
    offsets: dict[str, Natural]
    """Next offset to count, by partition."""
    rebuild_from: dict[str, Natural]
    """Offset by partition from which windows are rebuilt."""
    account: AccountTotals
    ledger: dict[str, Any]
    readings: dict[str, dict[str, _Stored]]


_decode = msgspec.json.Decoder(Snapshot).decode
_encode = msgspec.json.Encoder().encode


def to_record(snapshot: Snapshot) -> Record:
    """Return the record to write; its key makes it replace the one before."""
    key = f"{snapshot.instance}/{snapshot.topic}".encode()
    return Record(topic=TOPIC, key=key, value=_encode(snapshot))


def from_record(record: Record) -> Snapshot:
    """Decode a snapshot.

    Raises
    ------
    msgspec.DecodeError
        It is none; the message says where.
    """
    return _decode(record.value or b"")


def newest(records: Iterable[Record], instance: str) -> tuple[dict[str, Snapshot], list[str]]:
    """Return the newest usable snapshot of each topic of one instance, and what was wrong with others."""
    found: dict[str, Snapshot] = {}
    troubles: list[str] = []
    for record in records:
        if record.key is None or record.value is None or not record.key.startswith(f"{instance}/".encode()):
            continue
        try:
            snapshot = from_record(record)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            troubles.append(f"snapshot at offset {record.offset} is not usable: {error}")
            continue
        found[snapshot.topic] = snapshot
    return found, troubles


def store_readings(readings: Mapping[str, Mapping[str, Reading]]) -> dict[str, dict[str, _Stored]]:
    """Return readings in the form of a snapshot."""
    return {
        device: {
            name: (list(r.value) if isinstance(r.value, tuple) else r.value, r.time, r.quality.value)
            for name, r in shown.items()
        }
        for device, shown in readings.items()
    }


def load_readings(stored: Mapping[str, Mapping[str, _Stored]]) -> dict[str, dict[str, Reading]]:
    """Return readings back from the form of a snapshot."""
    return {
        device: {
            name: Reading(tuple(value) if isinstance(value, list) else value, time, Quality(quality))
            for name, (value, time, quality) in shown.items()
        }
        for device, shown in stored.items()
    }
