"""Compares the derived results in two archives, such as an archive of a night and one of its replay.

Theory of operation
-------------------
Each kind of result is a mapping from keys to named values. Two results with the same key are equal if all their values
are equal. The records of workers depend on the division into transactions, so windows are compared after all their
partials are merged. Counts, runs of sequence numbers, smallest, largest and newest values and the counts of sketches do
not depend on the division. Sums of fractions do, in their last digits. Deviations depend on it more and are left out,
as are offsets, times of workers and watermarks.

Partials are first written to temporary files, each with some windows, as the partials of a window may be anywhere in
the archive. So the memory does not grow with the archive.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from facade.clock import utc_text
from facade.codec.decode import BatchDecoder
from facade.errors import ConfigError, FacadeError
from facade.flows.archive.files import HOUR_US
from facade.flows.archive.reading import read_records, require_disjoint, topics
from facade.flows.archive.stores import Store
from facade.icd.model import Icd
from facade.messages import (
    AlertState,
    CommandAck,
    FieldStatistics,
    IngestSummary,
    LogSummary,
    Partial,
    RackSummary,
    StreamAccount,
    Table,
    TelemetrySummary,
    Watermark,
)

_LATEST: Final = 2**62
_ACKS, _ALARMS, _TABLES, _SEGMENTS = "command-acks", "alert-state", "tables", "calibration"
_ACCOUNTS, _LOGS = "accounts", "logs.summary"
_FINAL: Final = frozenset({"COMPLETED", "FAILED", "ABORTED", "REJECTED", "TIMED_OUT", "UNDELIVERED"})
_OF_OUTCOME: Final = ("device", "command", "status", "text", "result", "states")
_OF_ALARM: Final = ("state", "severity", "text", "values", "operator", "comment", "out_of_service")
_OF_TABLE: Final = ("table", "kind", "content_type", "state", "size", "reason", "summary")
_OF_OFFSETS: Final = frozenset({_ACCOUNTS, _LOGS})
"""Topics with a record for each transaction, whatever the times of its records."""
_OF_BALANCE: Final = ("consumed", "used", "late", "suppressed", "dead_lettered")
_CLOSE = 1e-9
"""Tolerated relative difference of sums, which depend on the order of the addition."""
_TOGETHER = 60
_PENDING = 8_000_000
"""Size of the partials that wait in memory for a file [bytes]."""
_OF_LATE = -1
"""Number of the file for late records of all windows."""
_LENGTH = 4
_SHOWN = 10
"""Most differences of a kind that are named."""
_LONGEST = 200
"""Longest shown value [characters]."""
_SUM: Final = ".sum"

Values = Mapping[str, Any]
"""Compared values of one result, by name."""


@dataclass(slots=True)
class KindReport:
    """Result of the comparison for one kind of results."""

    name: str
    compared: int = 0
    """Results in either archive."""
    equal: int = 0
    differences: list[str] = field(default_factory=list)
    """The first differences, with both values."""
    note: str = ""
    """Results that were not compared, with the reason."""

    @property
    def differing(self) -> int:
        """Return the number of results that differ, or are in only one of the archives."""
        return self.compared - self.equal


@dataclass(slots=True)
class ArchiveComparison:
    """Result of the comparison of two archives."""

    kinds: list[KindReport]
    digest: str
    """SHA-256 over all equal results, without sums of fractions."""
    undecoded: tuple[int, int]
    """Number of undecodable records in each archive."""


def compare(a: Store, b: Store, icd: Icd, begin_us: int = 0, end_us: int = _LATEST) -> ArchiveComparison:
    """Compare the derived results of a time [Unix us].

    A window belongs to a time by its begin, an outcome and a table by the time in the message. Alarms are compared in
    their last state; balances and sums of logs only in whole archives.
    """
    judge = _Judge()
    sides = _Side(a, icd, begin_us, end_us), _Side(b, icd, begin_us, end_us)
    with TemporaryDirectory(prefix="sdp-compare-") as folder:
        spools = [side.windows(Path(folder, name)) for side, name in zip(sides, "ab", strict=True)]
        for stream in sorted({stream for spool in spools for stream in spool.parts}):
            there = [side.has(stream) or stream in spool.parts for side, spool in zip(sides, spools, strict=True)]
            kind = judge.kind(f"windows of {stream}", there)
            if all(there):
                kind.note = "" if sides[0].is_whole else "without late records, which belong to no window"
                for part in sorted(set().union(*(spool.parts.get(stream, ()) for spool in spools))):
                    judge.take(kind, *(_merged(spool, stream, part) for spool in spools))
    ways: tuple[tuple[str, tuple[str, ...], Callable[[_Side], Mapping[str, Values]]], ...] = (
        ("command outcomes", (_ACKS,), _Side.outcomes),
        ("alarm states", (_ALARMS,), _Side.alarms),
        ("tables", (_TABLES, _SEGMENTS), _Side.tables),
        ("sums of logs", (_LOGS,), _Side.logs),
        ("balances", (_ACCOUNTS,), _Side.balances),
    )
    for name, needs, read in ways:
        there = [any(map(side.has, needs)) for side in sides]
        if any(there):
            kind = judge.kind(name, there)
            if needs[0] in _OF_OFFSETS and not sides[0].is_whole:
                kind.note = "not compared: it is about offsets, not about a time"
            elif all(there):
                judge.take(kind, *map(read, sides))
    if not any(kind.compared for kind in judge.kinds):
        raise ConfigError("expected two archives with results of one kind about this time, got none in common")
    return ArchiveComparison(judge.kinds, judge.digest.hexdigest(), (sides[0].undecoded, sides[1].undecoded))


class _Judge:
    def __init__(self) -> None:
        self.kinds: list[KindReport] = []
        self.digest = sha256()

    def kind(self, name: str, there: list[bool]) -> KindReport:
        kind = KindReport(name)
        if not all(there):
            kind.note = f"not compared: only {'A' if there[0] else 'B'} has the topic"
        self.kinds.append(kind)
        return kind

    def take(self, kind: KindReport, a: Mapping[str, Values], b: Mapping[str, Values]) -> None:
        for key in sorted(a.keys() | b.keys()):
            kind.compared += 1
            if key in a and key in b:
                found = [*_differences(a[key], b[key])]
            else:
                found = [f"only in {'A' if key in a else 'B'}"]
            if found:
                kind.differences += [f"{key}: {one}" for one in found[: _SHOWN - len(kind.differences)]]
                continue
            kind.equal += 1
            exact = {
                name: value for name, value in a[key].items() if not (name.endswith(_SUM) and isinstance(value, float))
            }
            self.digest.update(msgspec.json.encode([kind.name, key, exact], order="deterministic"))


def _differences(a: Values, b: Values) -> Iterator[str]:
    for name in {**a, **b}:
        mine, other = a.get(name), b.get(name)
        if not (_are_close(mine, other) if name.endswith(_SUM) else mine == other):
            yield f"{name}: {_text(mine)} in A, {_text(other)} in B"


def _are_close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_CLOSE)
    return bool(a == b)


def _text(value: Any) -> str:
    return "nothing" if value is None else msgspec.json.encode(value).decode()[:_LONGEST]


class _Side:
    """The results of one archive."""

    def __init__(self, store: Store, icd: Icd, begin_us: int, end_us: int) -> None:
        self._store, self._icd, self._begin, self._end = store, icd, begin_us, end_us
        self._topics = topics(store)
        self.is_whole = begin_us <= 0 and end_us >= _LATEST
        self.undecoded = 0

    def has(self, topic: str) -> bool:
        return topic in self._topics

    def windows(self, folder: Path) -> "_Spool":
        """Return the partials of all streams."""
        folder.mkdir()
        spool = _Spool(folder)
        windowed = {name: topic.window for name, topic in self._icd.topics.items() if topic.window is not None}
        for summaries in sorted({window.summary for window in windowed.values()}):
            (owner, *_) = [name for name, window in windowed.items() if window.summary == summaries]
            decoder = BatchDecoder[Any](IngestSummary, TelemetrySummary, RackSummary, Watermark)
            for item in self._decoded(summaries, decoder):
                stream = owner if isinstance(item, IngestSummary) else item.stream
                window = windowed.get(stream)
                if window is None:
                    self.undecoded += 1
                    continue
                together = round(window.length * 1e6) * _TOGETHER
                try:
                    found = [*_partials(item)]
                except (ValueError, IndexError):  # columns of different lengths
                    self.undecoded += 1
                    continue
                for group, partial in found:
                    if self.is_whole or (self._begin <= partial.window < self._end and not partial.late):
                        part = _OF_LATE if partial.late else partial.window // together
                        spool.add(stream, part, f"{window.group or 'all'} {group}".strip(), partial)
        spool.flush()
        return spool

    def outcomes(self) -> Mapping[str, Values]:
        """Return the outcome of each command, or else its newest acknowledgement; the first outcome counts."""
        found: dict[str, CommandAck] = {}
        for ack in self._decoded(_ACKS, BatchDecoder[Any](CommandAck)):
            if self._begin <= ack.time < self._end and (ack.id not in found or found[ack.id].status not in _FINAL):
                found[ack.id] = ack
        return {f"command {name}": _values(ack, _OF_OUTCOME) for name, ack in found.items()}

    def alarms(self) -> Mapping[str, Values]:
        """Return the last state of each alarm."""
        found: dict[str, Values] = {}
        for alarm in self._decoded(_ALARMS, BatchDecoder[Any](AlertState)):
            if alarm.changed_at < self._end:
                found[f"alarm {alarm.condition}@{alarm.source}"] = _values(alarm, _OF_ALARM)
        return found

    def tables(self) -> Mapping[str, Values]:
        """Return the last announcement of each table, by product and digest."""
        found: dict[str, Values] = {}
        for table in self._decoded(_TABLES, BatchDecoder[Any](Table)):
            if self._begin <= table.sent_at < self._end:
                found[f"table of {table.product} with digest {table.sha256}"] = _values(table, _OF_TABLE)
        return found

    def logs(self) -> Mapping[str, Values]:
        """Return the numbers of records by their origin and severity, those of each shipper, and the newest metrics."""
        found: dict[str, dict[str, Any]] = {}
        runs: dict[str, list[tuple[int, int]]] = {}
        for summary in self._decoded(_LOGS, BatchDecoder[Any](LogSummary)):
            for one in summary.counts:
                origin = " ".join(filter(None, (one.rack, one.host, one.component, one.observation)))
                sums = found.setdefault(
                    f"{summary.stream}, {origin}, severity {one.severity}",
                    {"count": 0, "late": 0, "oldest": one.time_min, "newest": one.time_max},
                )
                sums["count"] += one.count
                sums["late"] += one.late
                sums["oldest"] = min(sums["oldest"], one.time_min)
                sums["newest"] = max(sums["newest"], one.time_max)
            for shipped in summary.sequences:
                runs.setdefault(f"{summary.stream}, shipper {shipped.shipper}", []).extend(shipped.runs)
            for metric in summary.metrics:
                name = f"{summary.stream}, {metric.metric} of {metric.host} {metric.instance}".strip()
                if name not in found or metric.time >= found[name]["time"]:
                    found[name] = {"time": metric.time, "value": metric.value}
        return found | {name: {"runs": _joined(each)} for name, each in runs.items()}

    def balances(self) -> Mapping[str, Values]:
        """Return the outcomes of the records of each stream, and the reasons against the unused ones."""
        found: dict[str, Counter[str]] = {}
        for entry in self._decoded(_ACCOUNTS, BatchDecoder[Any](StreamAccount)):
            sums = found.setdefault(f"balance of {entry.stream}", Counter(dict.fromkeys(_OF_BALANCE, 0)))
            sums.update({name: getattr(entry, name) for name in _OF_BALANCE})
            sums.update({f"reason {name}": count for name, count in entry.reasons.items()})
        return {name: sums for name, sums in found.items() if sums["consumed"]}

    def _decoded(self, topic: str, decoder: BatchDecoder[Any]) -> Iterator[Any]:
        # A result about a time is written then or later, in a replay on another day; a state may be of any age.
        begin = 0 if topic == _ALARMS else max(self._begin - HOUR_US, 0)
        require_disjoint(self._store, topic, begin, _LATEST)
        for record in read_records(self._store, topic, begin, _LATEST):
            item = decoder.decode_one(record.value)
            if isinstance(item, msgspec.Struct):
                if not isinstance(item, Watermark):
                    yield item
            else:
                self.undecoded += record.value is not None


def _values(item: msgspec.Struct, names: tuple[str, ...]) -> Values:
    return {name: msgspec.to_builtins(getattr(item, name)) for name in names}


def _partials(item: Any) -> Iterator[tuple[str, Partial]]:
    if isinstance(item, TelemetrySummary):
        yield from ((item.group, one) for one in item.partials)
    elif isinstance(item, IngestSummary):
        yield from ((str(item.node), one) for one in item.partials)
    else:
        heads = ("epoch", "window", "late", "count", "time_min", "time_max", "runs")
        for row, (node, *head) in enumerate(zip(item.node, *(getattr(item, name) for name in heads), strict=True)):
            fields = {
                name: FieldStatistics(
                    **{
                        statistic: column[row]
                        for statistic in FieldStatistics.__struct_fields__
                        if (column := getattr(columns, statistic)) is not None
                    }
                )
                for name, columns in item.fields.items()
            }
            yield str(node), Partial(**dict(zip(heads, head, strict=True)), fields=fields)


class _Spool:
    """Partials of one archive in files, in the order of arrival."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._size = folder, 0
        self._pending: dict[tuple[str, int], bytearray] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(tuple[str, Partial])
        self.parts: dict[str, set[int]] = {}
        """Numbers of the files by stream."""

    def add(self, stream: str, part: int, group: str, partial: Partial) -> None:
        row = self._encoder.encode((group, partial))
        self._pending.setdefault((stream, part), bytearray()).extend(len(row).to_bytes(_LENGTH) + row)
        self.parts.setdefault(stream, set()).add(part)
        self._size += len(row)
        if self._size >= _PENDING:
            self.flush()

    def flush(self) -> None:
        try:
            for (stream, part), rows in self._pending.items():
                with self._path(stream, part).open("ab") as file:
                    file.write(rows)
        except OSError as error:
            place = self._folder.parent.parent
            raise FacadeError(f"{place}: cannot be written: {error.strerror}; name another folder: TMPDIR") from error
        self._pending.clear()
        self._size = 0

    def rows(self, stream: str, part: int) -> Iterator[tuple[str, Partial]]:
        if part not in self.parts.get(stream, ()):
            return
        with self._path(stream, part).open("rb") as file:
            while length := file.read(_LENGTH):
                yield self._decoder.decode(file.read(int.from_bytes(length)))

    def _path(self, stream: str, part: int) -> Path:
        return self._folder / f"{stream}-{part}"


@dataclass(slots=True)
class _Window:
    """The partials of a group in a window, or those of its late records."""

    count: int = 0
    oldest: int | None = None
    newest: int | None = None
    runs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)

    def add(self, partial: Partial) -> None:
        self.runs.setdefault(partial.epoch, []).extend(partial.runs)
        if not partial.count:  # further runs of the previous partial
            return
        is_newest = self.newest is None or partial.time_max >= self.newest
        self.count += partial.count
        self.oldest = partial.time_min if self.oldest is None else min(self.oldest, partial.time_min)
        self.newest = partial.time_max if self.newest is None else max(self.newest, partial.time_max)
        for name, one in partial.fields.items():
            self._merge(f"{name}{_SUM}", one.sum, lambda mine, other: mine + other)
            self._merge(f"{name}.min", one.min, min)
            self._merge(f"{name}.max", one.max, max)
            self._merge(f"{name}.last", one.last, (lambda mine, other: other) if is_newest else (lambda mine, _: mine))
            for bucket, count in (one.sketch or {}).items():
                sketch = self.fields.setdefault(f"{name}.sketch", {})
                sketch[str(bucket)] = sketch.get(str(bucket), 0) + count

    def _merge(self, name: str, value: Any, how: Callable[[Any, Any], Any]) -> None:
        if value is not None:
            self.fields[name] = how(self.fields[name], value) if name in self.fields else value

    def values(self) -> Values:
        runs = {str(epoch): _joined(found) for epoch, found in self.runs.items() if found}
        own = {"count": self.count, "runs": runs, "oldest": self.oldest, "newest": self.newest}
        return own | self.fields


def _joined(runs: list[tuple[int, int]]) -> list[list[int]]:
    joined: list[list[int]] = []
    for first, last in sorted(runs):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined


def _merged(spool: _Spool, stream: str, part: int) -> Mapping[str, Values]:
    found: dict[tuple[str, str], _Window] = {}
    for group, partial in spool.rows(stream, part):
        when = "late records" if partial.late else f"window {utc_text(partial.window)}"
        found.setdefault((when, group), _Window()).add(partial)
    return {f"{stream}, {group}, {when}": one.values() for (when, group), one in found.items()}
