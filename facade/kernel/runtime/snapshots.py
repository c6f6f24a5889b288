"""Snapshots of ledgers on a compacted topic: the state from which a restarted device server continues."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from facade.kernel.bus.port import Record
from facade.kernel.clock import as_seconds, as_time
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.messages import Snapshot as Snapshot
from facade.kernel.numbers import Seconds
from facade.kernel.reading import QUALITIES, Quality, Reading

TOPIC = "snapshots"

_Readings = dict[str, dict[str, tuple[bool | int | float | str | list[Any], Seconds, Quality]]]
decode_snapshot = BatchDecoder(Snapshot).decode_one
_encode = msgspec.json.Encoder().encode


def to_record(snapshot: Snapshot) -> Record:
    """Return the record to write; its key replaces the previous snapshot."""
    key = f"{snapshot.instance}/{snapshot.topic}".encode()
    return Record(topic=TOPIC, key=key, value=_encode(snapshot))


def newest(records: Iterable[Record], instance: str) -> tuple[dict[str, Snapshot], list[str]]:
    """Return the newest usable snapshot of each topic of one instance, and the faults of others."""
    found: dict[str, Snapshot] = {}
    troubles: list[str] = []
    for record in records:
        if record.key is None or record.value is None or not record.key.startswith(f"{instance}/".encode()):
            continue
        snapshot = decode_snapshot(record.value)
        if isinstance(snapshot, Snapshot):
            found[snapshot.topic] = snapshot
        else:
            troubles.append(f"snapshot at offset {record.offset} is not usable: {snapshot}")
    return found, troubles


def store_readings(readings: Mapping[str, Mapping[str, Reading]]) -> dict[str, Any]:
    """Return readings in the form of a snapshot, with times [Unix s], without values that are no JSON numbers."""
    return {
        device: {
            name: (reading.value, as_seconds(reading.time), reading.quality)
            for name, reading in shown.items()
            if not isinstance(reading.value, float) or math.isfinite(reading.value)
        }
        for device, shown in readings.items()
    }


def load_readings(snapshot: Snapshot) -> dict[str, dict[str, Reading]]:
    """Return the readings of a snapshot, also those of columns.

    Raises
    ------
    msgspec.ValidationError
        A time or a quality is invalid.
    ValueError
        A column has not one entry for each of its devices.
    """
    found = {
        device: {
            name: Reading(_loaded(value), as_time(time), quality) for name, (value, time, quality) in shown.items()
        }
        for device, shown in msgspec.convert(snapshot.readings, _Readings).items()
    }
    for columns in snapshot.columns:
        for name, one in columns.attributes.items():
            for device, value, time, at in zip(columns.devices, one.values, one.times, one.qualities, strict=True):
                if at >= 0:
                    found.setdefault(device, {})[name] = Reading(value, time, QUALITIES[at])
    return found


def _loaded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_loaded, value))
    return math.nan if value is None else value  # as msgspec writes NaN
