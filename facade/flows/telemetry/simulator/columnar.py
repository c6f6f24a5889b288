"""Simulated heap notifications as columnar batches: of each node one for what is taken at once; needs pyarrow.

Malformed records stand between the batches as JSON, as both forms may come on one topic.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from facade.bus.port import Headers
from facade.codec.heap_batches import TYPES, heap_batch
from facade.flows.telemetry.simulator.draws import FRACTION_STEPS, PACKETS, Block, Column
from facade.flows.telemetry.simulator.faults import MICRO
from facade.flows.telemetry.simulator.stream import Drawn, HeapNumbers

_MOST_ROWS = 65_536
"""Of one batch."""


class ColumnarBatch(NamedTuple):
    """Records to send, in order."""

    keys: list[bytes]
    values: list[bytes | None]
    headers: list[Headers]


class ColumnarHeapStream(HeapNumbers):
    """The same heaps as of `facade.flows.telemetry.simulator.heaps.HeapStream`, in another form."""

    tick, most_at_once = 0.1, 2_000_000

    def take(self, count: int, now_us: int) -> ColumnarBatch:
        """Return the records of the next heaps and count them; see `HeapNumbers.take`."""
        found = ColumnarBatch([], [], [])
        if drawn := list(self._draw(count, now_us)):
            columns = _columns(drawn)
            order = np.argsort(columns["node"].astype(np.int16), kind="stable")
            for rows in np.split(order, np.flatnonzero(np.diff(columns["node"][order])) + 1):
                self._give(found, columns, rows)
        return found

    def _give(self, found: ColumnarBatch, columns: dict[str, Column], rows: Column) -> None:
        """Give out the heaps of one node."""
        index = int(columns["node"][rows[0]])
        number, start = self.numbers[index], self.channel_start(index)
        key = b"%d" % number
        constants = {"node": number, "scan_id": self.scenario.scan_id, "channel_count": self.channel_count}
        sent = np.repeat(rows, columns["sent"][rows])
        for begin in range(0, len(sent), _MOST_ROWS):
            part = sent[begin : begin + _MOST_ROWS]
            starts = np.full(len(part), start)
            mine = {name: starts if name == "channel_start" else columns[name][part] for name in TYPES}
            headers, value = heap_batch(mine, constants)
            found.keys.append(key)
            found.values.append(value)
            found.headers.append(headers)
        for row in rows[columns["garbage"][rows]].tolist():
            heap = {name: columns[name][row].item() for name in TYPES if name != "channel_start"}
            valid = {"schema": "heap/1", **constants, "channel_start": start, **heap}
            found.keys.append(key)
            found.values.append(self._spoil(msgspec.json.encode(valid)))
            found.headers.append(())


def _columns(drawn: Sequence[Drawn]) -> dict[str, Column]:
    """Return what is to be sent of each heap, and how."""

    def join(value: Callable[[Block], Column]) -> Column:
        return np.concatenate([value(one.heaps) for one in drawn])

    lost, late = join(lambda one: one.lost), join(lambda one: one.late_packets)
    return {
        "node": join(lambda one: one.node),
        "sent": join(lambda one: one.sent),
        "garbage": join(lambda one: one.garbage),
        "seq": join(lambda one: one.seq),
        "time": np.concatenate([one.time for one in drawn]),
        "received": PACKETS - lost - late,
        "lost": lost,
        "late": late,
        "flagged_fraction": join(lambda one: one.fraction) / FRACTION_STEPS,
        "latency": join(lambda one: one.latency) / MICRO,
    }
