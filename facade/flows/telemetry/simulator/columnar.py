"""Simulated heap notifications as columnar batches, one for each node, window and call; needs pyarrow.

A batch ends with its window, as the batches of nodes do. The window follows from the time at which a heap is due:
faults change only the data time of a heap, so they do not part a batch. Malformed records come between the batches as
JSON, as a topic may have both forms.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from facade.flows.telemetry.simulator.draws import FRACTION_STEPS, PACKETS, Block, Column
from facade.flows.telemetry.simulator.faults import Scenario
from facade.flows.telemetry.simulator.heaps import Drawn, HeapNumbers
from facade.flows.telemetry.summed import BatchSums
from facade.kernel.bus.port import Headers
from facade.kernel.clock import Time, as_duration, as_seconds
from facade.sdp.heap_batches import TYPES, heap_batches

_DRAWN = [name for name in TYPES if name != "channel_start"]
"""Columns that differ between the heaps of a node."""
_NARROW = {name: kind for name, kind in TYPES.items() if name not in ("seq", "time")}
"""Types of the columns, narrow enough for a fast sort."""
_MOST_ROWS = 65_536


class ColumnarBatch(NamedTuple):
    """Records to send, in order."""

    keys: list[bytes]
    values: list[bytes | None]
    headers: list[Headers]


class ColumnarHeapStream(HeapNumbers):
    """The same heaps as `facade.flows.telemetry.simulator.heaps.HeapStream`, in another form."""

    tick, most_at_once, most_waiting = 0.1, 2_000_000, 500

    def __init__(self, scenario: Scenario, sums: BatchSums | None = None) -> None:
        super().__init__(scenario)
        self._sums = sums
        """Adds the frames of the batches; None: they have none."""

    def take(self, count: int, now_us: Time) -> ColumnarBatch:
        """Return the records of the next heaps and count them; see `HeapNumbers.take`."""
        found = ColumnarBatch([], [], [])
        if drawn := list(self._draw(count, now_us)):
            columns = _columns(drawn)
            windows = np.concatenate([one.time for one in drawn]) // as_duration(self.scenario.limits.window)
            ends = np.flatnonzero(np.diff(windows)) + 1
            for begin, end in pairwise([0, *ends.tolist(), len(windows)]):
                part = {name: column[begin:end] for name, column in columns.items()}
                self._add_batches(found, part)
                self._add_garbage(found, part)
        return found

    def _add_batches(self, found: ColumnarBatch, columns: dict[str, Column]) -> None:
        node, sent = columns["node"].astype(np.int16), columns["sent"]
        rows = np.argsort(node, kind="stable")
        if np.any(sent != 1):
            rows = np.repeat(rows, sent[rows])
        # Most of the work is to sort heaps by node: narrow types make it faster.
        mine = {name: columns[name].astype(_NARROW.get(name, columns[name].dtype), copy=False)[rows] for name in _DRAWN}
        numbers = np.bincount(node, sent, self.scenario.nodes).astype(np.int64).tolist()
        parts, at = list[tuple[int, int]](), 0
        for index, number in enumerate(numbers):
            parts += ((index, begin) for begin in range(at, at + number, _MOST_ROWS))
            at += number
        if not parts:
            return
        starts = [self.channel_start(index) for index in range(self.scenario.nodes)]
        mine["channel_start"] = np.repeat(starts, numbers)
        batches = heap_batches(
            {name: mine[name] for name in TYPES},
            [begin for _, begin in parts],
            [self._constants(index) for index, _ in parts],
        )
        for (index, _), (headers, value) in zip(parts, batches, strict=True):
            found.keys.append(b"%d" % self.numbers[index])
            found.values.append(value)
            found.headers.append(headers if self._sums is None else self._sums.with_frame(headers, value))

    def _add_garbage(self, found: ColumnarBatch, columns: dict[str, Column]) -> None:
        for row in np.flatnonzero(columns["garbage"]).tolist():
            index = int(columns["node"][row])
            heap = {name: columns[name][row].item() for name in _DRAWN}
            valid = {"schema": "heap/1", **self._constants(index), "channel_start": self.channel_start(index), **heap}
            found.keys.append(b"%d" % self.numbers[index])
            found.values.append(self._spoil(msgspec.json.encode(valid)))
            found.headers.append(())

    def _constants(self, index: int) -> dict[str, int]:
        number = self.numbers[index]
        return {"node": number, "scan_id": self.scenario.scan_id, "channel_count": self.channel_count}


def _columns(drawn: Sequence[Drawn]) -> dict[str, Column]:
    def join(value: Callable[[Block], Column]) -> Column:
        return np.concatenate([value(one.heaps) for one in drawn])

    lost, late = join(lambda one: one.lost), join(lambda one: one.late_packets)
    return {
        "node": join(lambda one: one.node),
        "sent": join(lambda one: one.sent),
        "garbage": join(lambda one: one.garbage),
        "seq": join(lambda one: one.seq),
        "time": np.concatenate([one.time + one.heaps.shift for one in drawn]),
        "received": PACKETS - lost - late,
        "lost": lost,
        "late": late,
        "flagged_fraction": join(lambda one: one.fraction) / FRACTION_STEPS,
        "latency": as_seconds(join(lambda one: one.latency)),
    }
