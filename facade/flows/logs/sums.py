"""The sums of one transaction over one partition of logs or metrics, in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np

from facade.flows.logs.lines import Columns, Indices
from facade.flows.logs.messages import LogCount, LogError, LogSummary, NodeMetric, ShipperSequence
from facade.flows.logs.records import ERROR, LogRecord, LogSource, MetricRecord, body_of, source_of
from facade.kernel.bus.port import OffsetRange
from facade.kernel.clock import MINUTE, NEVER, Time
from facade.kernel.numbers import LARGEST

OTHER: Final = "(other)"
"""Component for the counts beyond a limit."""
LATE: Final = MINUTE
"""Delay from a record's time to its arrival from which it is late [us]."""
MOST_GROUPS: Final = 5000
MOST_ERRORS: Final = 40
"""Errors kept of a transaction: half of them the first ones."""
MOST_SHIPPERS: Final = 1000
MOST_RUNS: Final = 1000
_ROWS: Final = 1000
"""Most rows of each kind in one summary: even with the longest texts it fits any topic."""
_COUNT, _LATE_COUNT, _OLDEST, _NEWEST = range(4)
Rows = dict[str, Sequence[msgspec.Struct]]


class LogSums:
    """Counts by component, severity, location and observation, errors, and numbers of shippers."""

    def __init__(self) -> None:
        self._groups: dict[LogSource, list[Any]] = {}
        """Number of records, of late ones, and the oldest and newest time, by source."""
        self._first: list[LogError] = []
        self._newest: list[LogError] = []
        self._runs: dict[str, list[list[int]]] = {}
        self._merged = 0

    @property
    def records(self) -> int:
        """Return the number of records in the sums."""
        return sum(found[_COUNT] for found in self._groups.values())

    def add(self, one: LogRecord, appended: Time) -> bool:
        """Count a record; return whether it is late.

        `appended`: append time; it replaces a missing time, or one in the future.
        """
        time = one.time if NEVER < one.time < appended else appended
        is_late = appended - time > LATE
        found = self._groups.get(one.source)
        if found is None:
            found = self._new(one.source, time)
        found[_COUNT] += 1
        if is_late:
            found[_LATE_COUNT] += 1
        if time < found[_OLDEST]:
            found[_OLDEST] = time
        if time > found[_NEWEST]:
            found[_NEWEST] = time
        if one.source.severity >= ERROR:
            self._keep(one, time)
        if one.sequence:
            self._number(one.shipper or one.source.host, one.sequence, one.sequence)
        return is_late

    def add_columns(self, found: Columns, appended: Indices, text: Callable[[int], str | bytes]) -> int:
        """Count messages, as `add` does one by one; return the number of late ones."""
        time = np.where((found.time > 0) & (found.time < appended), found.time, appended)
        is_late = appended - time > LATE
        kinds = len(found.sources)
        oldest, newest = np.full(kinds, LARGEST), np.zeros(kinds, np.int64)
        np.minimum.at(oldest, found.source, time)
        np.maximum.at(newest, found.source, time)
        counts = np.bincount(found.source, minlength=kinds)
        late = np.bincount(found.source[is_late], minlength=kinds)
        for source, *figures in zip(
            found.sources, *(one.tolist() for one in (counts, late, oldest, newest)), strict=True
        ):
            self._add_group(source, *figures)
        is_error = np.array([one.severity >= ERROR for one in found.sources])
        rows = np.flatnonzero(is_error[found.source])
        if len(rows) > MOST_ERRORS:  # errors between the first and the newest ones are not kept
            rows = np.concatenate((rows[: MOST_ERRORS // 2], rows[-MOST_ERRORS // 2 :]))
        for row in rows.tolist():
            source = found.sources[found.source[row]]
            self._keep(LogRecord(source, Time(found.time[row]), text(row)), Time(time[row]))
        self._number_all(found)
        return int(late.sum())

    def _add_group(self, source: LogSource, count: int, late: int, oldest: Time, newest: Time) -> None:
        group, merged = self._groups.get(source), self._merged
        if group is None:
            group = self._new(source, oldest)
            self._merged += (count - 1) * (self._merged - merged)
        group[_COUNT] += count
        group[_LATE_COUNT] += late
        group[_OLDEST] = min(group[_OLDEST], oldest)
        group[_NEWEST] = max(group[_NEWEST], newest)

    def _number_all(self, found: Columns) -> None:
        hosts = {host: code for code, host in enumerate(dict.fromkeys(one.host for one in found.sources))}
        shipper = np.array([hosts[one.host] for one in found.sources])[found.source]
        order = np.argsort(shipper, kind="stable")
        order = order[found.number[order] > 0]
        if not len(order):
            return
        shipper, number, names = shipper[order], found.number[order], list(hosts)
        begins = np.flatnonzero(np.append(True, (np.diff(shipper) != 0) | (np.diff(number) != 1)))
        lasts = number[np.append(begins[1:], len(number)) - 1]
        for code, first, last in zip(shipper[begins].tolist(), number[begins].tolist(), lasts.tolist(), strict=True):
            self._number(names[code], first, last)

    def _new(self, source: LogSource, time: Time) -> list[Any]:
        """Return the sums of a source that is new in this transaction, or the common sums beyond the limit."""
        if len(self._groups) < MOST_GROUPS:
            return self._groups.setdefault(source, [0, 0, time, time])
        self._merged += 1
        other = source_of(OTHER, 4 * source.severity)
        return self._groups.setdefault(other, [0, 0, time, time])

    def _keep(self, one: LogRecord, time: Time) -> None:
        if len(self._first) >= MOST_ERRORS // 2 and len(self._newest) >= MOST_ERRORS:
            del self._newest[: -MOST_ERRORS // 2]
        kept = self._first if len(self._first) < MOST_ERRORS // 2 else self._newest
        where = {name: getattr(one.source, name) for name in ("severity", "component", "host")}
        kept.append(LogError(time=time, text=body_of(one.body), **where))

    def _number(self, shipper: str, first: int, last: int) -> None:
        if last > LARGEST:  # a summary with such a number would be refused, with the counts of all shippers
            return
        runs = self._runs.get(shipper)
        if runs is None:
            if len(self._runs) < MOST_SHIPPERS:
                self._runs[shipper] = [[first, last]]
        elif runs[-1][1] + 1 == first:
            runs[-1][1] = last
        elif len(runs) < MOST_RUNS:
            runs.append([first, last])

    def rows(self) -> tuple[Rows, dict[str, Any]]:
        """Return the rows of the summaries by kind, and the other fields of the first one."""
        counts = [
            LogCount(
                **msgspec.structs.asdict(one),
                count=found[_COUNT],
                late=found[_LATE_COUNT],
                time_min=found[_OLDEST],
                time_max=found[_NEWEST],
            )
            for one, found in self._groups.items()
        ]
        sequences = [
            ShipperSequence(shipper=name, runs=[(first, last) for first, last in runs])
            for name, runs in self._runs.items()
        ]
        errors = [*self._first, *self._newest[-MOST_ERRORS // 2 :]]
        return {"counts": counts, "sequences": sequences}, {"errors": errors, "merged": self._merged}


class MetricSums:
    """The newest value of each metric of each node."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str, str], tuple[Time, float]] = {}
        self._merged = 0

    def add(self, one: MetricRecord, appended: Time) -> None:
        """Store a value; parameters as of `LogSums.add`."""
        time = min(one.time or appended, appended)
        place = one.host, one.metric, one.instance
        found = self._newest.get(place)
        if found is None and len(self._newest) >= MOST_GROUPS:
            self._merged += 1
        elif found is None or time >= found[0]:
            self._newest[place] = time, one.value

    def rows(self) -> tuple[Rows, dict[str, Any]]:
        """Return the rows of the summaries by kind, and the other fields of the first one."""
        metrics = [
            NodeMetric(host=host, metric=metric, instance=instance, time=time, value=value)
            for (host, metric, instance), (time, value) in self._newest.items()
        ]
        return {"metrics": metrics}, {"merged": self._merged}


def summaries(
    sums: LogSums | MetricSums, worker: str, stream: str, partition: int, offsets: OffsetRange, most: int
) -> Iterator[LogSummary]:
    """Return the summaries of a partition with a part of the rows each, none larger than `most` [bytes]."""
    rows, rest = sums.rows()
    of_kind = [(kind, one) for kind, found in rows.items() for one in found]
    remaining, part = iter(of_kind), 0
    while (mine := list(_within(remaining, most))) or not part:
        shared: dict[str, Any] = {kind: [one for its, one in mine if its == kind] for kind in rows}
        yield LogSummary(
            worker=worker,
            stream=stream,
            partition=partition,
            log=offsets.log,
            offset_from=offsets.begin,
            offset_to=offsets.end,
            part=part,
            contiguous=True,
            **shared,
            **(rest if not part else {}),
        )
        part += 1


def _within(rows: "Iterator[tuple[str, msgspec.Struct]]", most: int) -> "Iterator[tuple[str, msgspec.Struct]]":
    size = 0
    for row in islice(rows, _ROWS):
        yield row
        size += len(msgspec.json.encode(row[1]))
        if size >= most // 2:
            return
