"""The worker of the weather stations: it sums up readings by station and window, exactly once.

Results and offsets are one transaction (`facade.kernel.runtime.worker`). So after a ``kill -9`` the next process goes
on with the first reading that is in no sum, and no reading is in two.
"""

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import numpy as np

from facade.kernel.bus.port import PartitionBatch, Record
from facade.kernel.clock import MINUTE, Duration, Time, as_seconds
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.json_schema import compile_message
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import LATE, USED, Outcome, RecordRejected, Unused
from facade.kernel.runtime.worker import OffsetRanges, OpenTransaction, TransactionalWorker
from facade.kernel.runtime.worker_process import FREE, Site, Slot, run_worker
from facade.kernel.windows.frame import Frame, merge
from observatory.weather import RULE, SUMS, TOPIC, as_frame, stations_of

_LATENESS = 10 * MINUTE
"""An older reading is left out."""
_INTERVAL = 0.25
"""Time between two transactions [s]."""
_MOST, _WAIT, _RETRY = 5_000, 0.05, 0.5


class WeatherFold:
    """Sums up the readings of a transaction; see `facade.kernel.runtime.worker.Fold`."""

    def __init__(self, transaction: OpenTransaction, icd: Icd) -> None:
        self._transaction, self._stations = transaction, stations_of(icd)
        self._decoder = BatchDecoder(compile_message(TOPIC, icd.messages[TOPIC]))
        self._frames: dict[int, list[Frame]] = {}
        """By partition."""

    def take(self) -> bool:
        """Read some readings; a transaction is due at intervals, also without any, as it closes windows."""
        for run in self._transaction.read(_MOST, _WAIT):
            self._take(run)
        if is_due := self._transaction.age() >= _INTERVAL:
            self._transaction.log.ask_ends([*self._transaction.log.ranges()])
        return is_due

    def _take(self, run: PartitionBatch) -> None:
        values, rows = run.values(), []
        self._transaction.count(run, len(values))
        for index, value in enumerate(values):
            record, one = run.record(index), cast(Any, self._decoder.decode_one(value))
            outcome = one if isinstance(one, Unused) else _judge(Time(one.time) - record.timestamp_us)
            self._transaction.settle(record, outcome)
            if outcome is USED:
                window = one.time - one.time % RULE.length_us
                place = self._stations.index(one.station)
                rows.append((place, window, 1, one.time, one.time, one.wind, one.wind, one.rain))
        if rows:
            self._frames.setdefault(run.partition, []).append(merge([as_frame(rows)]))

    def output(self, ranges: OffsetRanges) -> Iterator[Record]:
        """Return the sums of each partition with its offsets."""
        for (_, partition), offsets in ranges.items():
            sums = self._sums(merge(self._frames[partition])) if partition in self._frames else ()
            message = {
                "schema": "weather-sums/1",
                "log": offsets.log,
                "partition": partition,
                "offset_from": offsets.begin,
                "offset_to": offsets.end,
                "read_to": offsets.read_to,
                "sums": [*sums],
            }
            yield Record(topic=SUMS, key=str(partition).encode(), value=msgspec.json.encode(message))

    def end(self, *, is_committed: bool) -> None:
        """Begin with nothing."""
        self._frames = {}

    def _sums(self, rows: Frame) -> Iterator[dict[str, object]]:
        wind, rain = rows.fields["wind"], rows.fields["rain"]
        columns = {
            "station": np.array(self._stations)[rows.group],
            "window": rows.window,
            "count": rows.count,
            "oldest": rows.time_min,
            "newest": rows.time_max,
            "wind_sum": wind.sum,
            "wind_max": wind.max,
            "rain": rain.sum,
        }
        for row in zip(*(np.asarray(one).tolist() for one in columns.values()), strict=True):
            yield dict(zip(columns, row, strict=True))


def _judge(ahead: Duration) -> Outcome:
    """Return the outcome of a reading, by how far its time is ahead of the broker's."""
    if ahead > RULE.ahead_us:
        what = f"expected at most {as_seconds(RULE.ahead_us):g} s ahead of the broker, got {as_seconds(ahead):g} s"
        return RecordRejected("ahead", "$.time", what)
    return LATE if ahead < -_LATENESS else USED


def weather_worker(site: Site) -> TransactionalWorker:
    """Return one slot of the group."""
    transaction = OpenTransaction(site.log(TOPIC), [TOPIC], name=site.name, clock=site.clock)
    return TransactionalWorker(transaction, WeatherFold(transaction, site.icd), retry=_RETRY)


def weather(slot: Slot = FREE) -> None:
    """Sum up the readings of the weather stations: one worker of the group."""
    run_worker("weather-worker", slot, weather_worker)
