"""The history of attributes: the pushed values of a device server, on a topic that the archive keeps.

Theory of operation
-------------------
`RecordingSink` is a sink before the one that pushes Tango events. For the publisher each attribute then has a follower,
so all are sampled by the ICD's rules, and each archive event is also a record. Images push no such events, and have
none.

The newest value of each attribute is written again every `REPEAT`. So the value at any time is among the records of the
`REPEAT` before it, and an attribute without a record for longer than that was not recorded.

Nothing waits for the bus. Records for which `BoundedWriter` has no room are dropped and counted.
The record after dropped ones, and the first one after a start, have a note that values are missing before it. The
history has its own writer: no other record waits behind it.
"""

import logging
import math
from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from facade.kernel.bus.port import QueueingWriter, Record
from facade.kernel.clock import NEVER, Clock
from facade.kernel.numbers import json_value
from facade.kernel.reading import Reading
from facade.kernel.runtime.columns import ReadingColumn
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.metrics import MetricFamily
from facade.kernel.runtime.publisher import AttributeKey, EventSink
from facade.sdp.bounded_writer import BoundedWriter
from facade.sdp.messages import History

_log = logging.getLogger(__name__)

HISTORY: Final = "history"
REPEAT: Final = 60.0
"""Time between two records of an unchanged attribute [s]."""
_TELL: Final = 60.0
"""Least time between two log lines about dropped records [s]."""
_LAST: Final = 0.5
"""Longest wait for the last records at the end of a server [s]."""


class HistoryRecorder:
    """Writes the history of a server's devices; for the thread of its event loop. It waits only at the end."""

    def __init__(self, writer: QueueingWriter, clock: Clock) -> None:
        self._writer, self._clock = writer, clock
        self._records = BoundedWriter(writer, HISTORY)
        self._newest: dict[str, tuple[float, History]] = {}
        """The newest value of each attribute, and the time of its last record [monotonic s]; the oldest first."""
        self._whole: set[str] = set()
        """Attributes without a missing value since their last record."""
        self._failed = self._refused = 0
        self._told, self._told_at = 0, -math.inf

    @property
    def records(self) -> int:
        """Count the written records; from any thread."""
        return self._records.records

    @property
    def dropped(self) -> int:
        """Count the lost records; from any thread."""
        return self._refused + self._failed

    def put(self, device: str, attribute: str, reading: Reading) -> None:
        """Write a pushed value."""
        time = max(reading.time, NEVER)
        quality: Any = reading.quality.value
        value = json_value(reading.value)
        message = History(device=device, attribute=attribute, value=value, quality=quality, time=time)
        self._write(f"{device}/{attribute}", message, self._clock.monotonic())

    def _write(self, name: str, message: History, now: float) -> None:
        self._newest.pop(name, None)
        self._newest[name] = now, message
        raw = _encoded(message if name in self._whole else replace(message, gap=True))
        if raw is None or self._records.room <= 0:
            self._whole.discard(name)
            self._refused += 1
            return
        self._whole.add(name)
        self._records.send(Record(topic=HISTORY, key=name.encode(), value=raw))

    def perform(self) -> None:
        """Check the confirmations of the bus, and repeat values without a record for long."""
        now = self._clock.monotonic()
        self._records.settle()
        if (failed := self._records.failed) > self._failed:
            self._failed = failed
            self._whole.clear()  # their attributes are unknown
        while self._newest:
            name, (at, message) = next(iter(self._newest.items()))
            if now - at < REPEAT:
                break
            self._write(name, message, now)
        if self.dropped > self._told and now - self._told_at >= _TELL:
            _log.warning(
                "history dropped records=%d, which the bus did not take or JSON cannot carry", self.dropped - self._told
            )
            self._told, self._told_at = self.dropped, now

    def end(self) -> None:
        """Wait a moment for the records under way."""
        self._writer.close(_LAST)


def _encoded(message: History) -> bytes | None:
    """Return a message as JSON; None: JSON cannot represent its value, which must not hold up other attributes."""
    try:
        return msgspec.json.encode(message)
    except (TypeError, ValueError):
        return None


class RecordingSink:
    """Writes the pushed readings; see `facade.kernel.runtime.publisher.EventSink`."""

    def __init__(self, sink: EventSink, recorder: HistoryRecorder, unrecorded: Collection[AttributeKey]) -> None:
        self._sink, self._recorder, self._unrecorded = sink, recorder, unrecorded

    def show(self, device: str, attribute: str, reading: Reading) -> bool:
        """Show a reading, and return whether it must be pushed, if only for the history."""
        return self._sink.show(device, attribute, reading) or (device, attribute) not in self._unrecorded

    def show_column(self, column: ReadingColumn) -> Sequence[bool]:
        """Show a column, whose readings must all be pushed, if only for the history."""
        self._sink.show_column(column)
        return [True] * len(column.devices)

    def push(self, device: str, attribute: str, reading: Reading) -> bool:
        """Push a reading, and write it after that."""
        if not self._sink.push(device, attribute, reading):
            return False
        if (device, attribute) not in self._unrecorded:
            self._recorder.put(device, attribute, reading)
        return True


def record(server: Server) -> None:
    """Let a device server write the history of its devices, if the settings enable it."""
    if not server.settings.history:
        return
    recorder = HistoryRecorder(server.bus.open_writer("history"), server.clock)
    server.periodic_tasks.append(recorder)
    server.metrics += [
        MetricFamily(name, about, (), figures)
        for name, about, figures in (
            ("sdp_history_records", "Records of the history that were written.", lambda: {(): recorder.records}),
            ("sdp_history_dropped_records", "Records that the bus did not take.", lambda: {(): recorder.dropped}),
        )
    ]
    unrecorded = {
        (device, attribute.name)
        for device, name in server.classes.items()
        for attribute in server.icd.classes[name].attributes
        if not attribute.is_pushed
    }
    server.sink = RecordingSink(server.sink, recorder, unrecorded)
