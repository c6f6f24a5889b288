"""Compares the derived results in two archives, such as an archive of a night and one of its replay.

Theory of operation
-------------------
Each kind of result is a mapping from keys to named values. Two results with the same key are equal if all their values
are equal. The records of workers depend on the division into transactions, so windows are compared after all their
partials are merged (`facade.archive.sums`). Counts, runs of sequence numbers, smallest, largest and newest values
and the counts of sketches do not depend on the division. Sums of fractions and deviations do, in their last digits.
Offsets, times of workers and watermarks are left out.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import numpy as np

from facade.archive.files import HOUR_US
from facade.archive.reading import read_records, require_disjoint, topics
from facade.archive.stores import Store
from facade.archive.sums import SummaryTopic, Sums
from facade.kernel.clock import NEVER, Time, as_duration, utc_text
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.errors import ConfigError, writing
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import Unused
from facade.kernel.sequences import union
from facade.sdp.messages import AlertState, CommandAck, LogSummary, Partial, StreamAccount, Table, Watermark
from facade.sdp.summaries import as_partials

_LATEST: Final = Time(2**62)
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
_CLOSE_STD = 1e-6
"""The same of deviations."""
_TOGETHER = 60
"""Windows that are merged at once."""
_OF_LATE = -1
"""Number of the part with the late records of all windows."""
_SHOWN = 10
"""Most differences of a kind that are named."""
_LONGEST = 200
"""Longest shown value [characters]."""
_SUM: Final = ".sum"
_STD: Final = ".std"
"""Deviation and mean of a field."""

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
    """SHA-256 over all equal results, without sums of fractions and deviations."""
    undecoded: tuple[int, int]
    """Number of undecodable records in each archive."""


def compare(a: Store, b: Store, icd: Icd, begin_us: Time = NEVER, end_us: Time = _LATEST) -> ArchiveComparison:
    """Compare the derived results of a time [Unix us].

    A window belongs to a time by its begin, an outcome and a table by the time in the message. Alarms are compared in
    their last state; balances and sums of logs only in whole archives.
    """
    if begin_us >= end_us:
        times = f"{utc_text(begin_us)}, {utc_text(end_us)}"
        raise ConfigError(f"--from, --to: expected a begin before the end, got {times}")
    judge = _Judge()
    sides = _Side(a, icd, begin_us, end_us), _Side(b, icd, begin_us, end_us)
    with TemporaryDirectory(prefix="sdp-compare-") as folder:
        sums = [side.windows(Path(folder, name)) for side, name in zip(sides, "ab", strict=True)]
        for stream in sorted({*sums[0], *sums[1]}):
            there = [side.has(stream) or stream in of for side, of in zip(sides, sums, strict=True)]
            kind = judge.kind(f"windows of {stream}", there)
            if all(there):
                kind.note = "" if sides[0].is_whole else "without late records, which belong to no window"
                for part in sorted({part for of in sums if stream in of for part in of[stream].parts}):
                    windows = (side.merged(of, stream, part) for side, of in zip(sides, sums, strict=True))
                    judge.take(kind, *windows)
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
                name: value
                for name, value in a[key].items()
                if not (name.endswith(_SUM) and isinstance(value, float)) and not name.endswith(_STD)
            }
            self.digest.update(msgspec.json.encode([kind.name, key, exact], order="deterministic"))


def _differences(a: Values, b: Values) -> Iterator[str]:
    for name in {**a, **b}:
        mine, other = a.get(name), b.get(name)
        if not (_are_close(mine, other) if name.endswith((_SUM, _STD)) else mine == other):
            yield f"{name}: {_text(mine)} in A, {_text(other)} in B"


def _are_close(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):  # a deviation, and the mean whose digits limit it
        return math.isclose(a[0], b[0], rel_tol=_CLOSE_STD, abs_tol=_CLOSE * abs(a[1]))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_CLOSE)
    return bool(a == b)


def _text(value: Any) -> str:
    return "nothing" if value is None else msgspec.json.encode(value).decode()[:_LONGEST]


class _Side:
    """The results of one archive."""

    def __init__(self, store: Store, icd: Icd, begin_us: Time, end_us: Time) -> None:
        self._store, self._icd, self._begin, self._end = store, icd, begin_us, end_us
        self._topics = topics(store)
        self.is_whole = begin_us <= NEVER and end_us >= _LATEST
        self.undecoded = 0
        self._codes: dict[str, int] = {}
        """Codes of the groups, by name."""

    def has(self, topic: str) -> bool:
        return topic in self._topics

    def windows(self, folder: Path) -> Mapping[str, Sums]:
        """Return the partial sums of all streams."""
        found: dict[str, Sums] = {}
        for topic in sorted({one.window.summary for one in self._icd.topics.values() if one.window is not None}):
            summaries = SummaryTopic(self._icd, topic)
            for one in self._decoded(topic, summaries.decode):
                window = summaries.windowed[one.stream]
                sums = found.setdefault(one.stream, Sums(folder / one.stream))
                together, noun = int(as_duration(window.length)) * _TOGETHER, window.group or "all"
                for rows in one.frames:
                    groups = rows.group.tolist() if one.group is None else [one.group] * len(rows)
                    names = (f"{noun} {group}".strip() for group in groups)
                    codes = [self._codes.setdefault(name, len(self._codes)) for name in names]
                    kept = np.ones(len(rows), dtype=np.bool_)
                    if not self.is_whole:
                        kept = (rows.window >= self._begin) & (rows.window < self._end) & ~rows.late
                    rows = replace(rows, group=np.array(codes)).take(kept)
                    with writing(folder):
                        sums.add(rows, np.where(rows.late, _OF_LATE, rows.window // together))
        return {stream: sums for stream, sums in found.items() if sums.parts}

    def merged(self, sums: Mapping[str, Sums], stream: str, part: int) -> Mapping[str, Values]:
        """Return the windows of a part; the partial sums of a window have what all of them have."""
        if stream not in sums:
            return {}
        found: dict[tuple[Time, int], dict[str, Any]] = {}
        for code, one in chain.from_iterable(map(as_partials, sums[stream].runs(part))):
            values = found.setdefault((one.window, code), {"count": 0, "runs": {}, "oldest": None, "newest": None})
            if one.runs:
                values["runs"][str(one.epoch)] = one.runs
        for code, one in chain.from_iterable(map(as_partials, sums[stream].records(part))):
            found[one.window, code].update(count=one.count, oldest=one.time_min, newest=one.time_max)
            found[one.window, code].update(_statistics(one))
        names, late = [*self._codes], part == _OF_LATE
        return {
            f"{stream}, {names[code]}, {'late records' if late else f'window {utc_text(window)}'}": values
            for (window, code), values in found.items()
        }

    def outcomes(self) -> Mapping[str, Values]:
        """Return the outcome of each command, or else its newest acknowledgement; the first outcome counts."""
        found: dict[str, CommandAck] = {}
        for ack in self._decoded(_ACKS, BatchDecoder(CommandAck).decode_one):
            if self._begin <= ack.time < self._end and (ack.id not in found or found[ack.id].status not in _FINAL):
                found[ack.id] = ack
        return {f"command {name}": _values(ack, _OF_OUTCOME) for name, ack in found.items()}

    def alarms(self) -> Mapping[str, Values]:
        """Return the last state of each alarm."""
        found: dict[str, Values] = {}
        for alarm in self._decoded(_ALARMS, BatchDecoder(AlertState).decode_one):
            if alarm.changed_at < self._end:
                found[f"alarm {alarm.condition}@{alarm.source}"] = _values(alarm, _OF_ALARM)
        return found

    def tables(self) -> Mapping[str, Values]:
        """Return the last announcement of each table, by product and digest."""
        found: dict[str, Values] = {}
        for table in self._decoded(_TABLES, BatchDecoder(Table).decode_one):
            if self._begin <= table.sent_at < self._end:
                found[f"table of {table.product} with digest {table.sha256}"] = _values(table, _OF_TABLE)
        return found

    def logs(self) -> Mapping[str, Values]:
        """Return the numbers of records by their origin and severity, those of each shipper, and the newest metrics."""
        found: dict[str, dict[str, Any]] = {}
        runs: dict[str, list[tuple[int, int]]] = {}
        for summary in self._decoded(_LOGS, BatchDecoder(LogSummary).decode_one):
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
        return found | {name: {"runs": union(sorted(each), ())} for name, each in runs.items()}

    def balances(self) -> Mapping[str, Values]:
        """Return the outcomes of the records of each stream, and the reasons against the unused ones."""
        found: dict[str, Counter[str]] = {}
        for entry in self._decoded(_ACCOUNTS, BatchDecoder(StreamAccount).decode_one):
            sums = found.setdefault(f"balance of {entry.stream}", Counter(dict.fromkeys(_OF_BALANCE, 0)))
            sums.update({name: getattr(entry, name) for name in _OF_BALANCE})
            sums.update({f"reason {name}": count for name, count in entry.reasons.items()})
        return {name: sums for name, sums in found.items() if sums["consumed"]}

    def _decoded(self, topic: str, decode: Callable[[bytes | None], Any]) -> Iterator[Any]:
        # A result about a time is written then or later, in a replay on another day; a state may be of any age.
        begin = NEVER if topic == _ALARMS else max(self._begin - HOUR_US, NEVER)
        require_disjoint(self._store, topic, begin, _LATEST)
        for record in read_records(self._store, topic, begin, _LATEST):
            item = decode(record.value)
            if isinstance(item, Unused):
                self.undecoded += record.value is not None
            elif not isinstance(item, Watermark):
                yield item


def _values(item: msgspec.Struct, names: tuple[str, ...]) -> Values:
    return {name: msgspec.to_builtins(getattr(item, name)) for name in names}


def _statistics(one: Partial) -> Iterator[tuple[str, Any]]:
    for name, found in one.fields.items():
        for statistic in ("sum", "min", "max", "last"):
            if (value := getattr(found, statistic)) is not None:
                yield f"{name}.{statistic}", value
        if found.m2 is not None and found.sum is not None:
            yield f"{name}{_STD}", [math.sqrt(found.m2 / one.count), found.sum / one.count]
        if found.sketch is not None:
            yield f"{name}.sketch", {str(bucket): count for bucket, count in found.sketch.items()}
