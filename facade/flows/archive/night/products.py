"""Further products of a night: dead letters by reason, tables by product, and quality metrics by name.

Names come from the bus, so each list is limited, and its last entry has all further names.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from facade.bus.dead_letters import COUNT, NUMBER, PREFIX
from facade.bus.port import Record
from facade.bus.redrive import read_dead_letter
from facade.codec.decode import BatchDecoder
from facade.flows.archive.night.span import MICRO
from facade.messages import Metric, Table
from facade.outcome import INCONSISTENT, TOMBSTONE, USED, Outcome, RecordRejected

DEAD_LETTERS, TABLES, QUALITY = "dead-letters", "tables", "quality"
OTHERS = "others"
_MOST_NAMES = 500
_NO_DEAD_LETTER = RecordRejected(INCONSISTENT, "headers", "expected the headers of a dead letter")
_COMPLETE, _FAILED = "COMPLETE", "FAILED"
_HEADER = "metric"
_decode_table = BatchDecoder(Table).decode_one
_metrics = BatchDecoder(Metric)
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _entry(known: dict[_Key, _Value], key: _Key, others: _Key, make: Callable[[_Key], _Value]) -> _Value:
    """Return the entry of a name, or the entry of all others beyond the limit."""
    found = known.get(key)
    if found is None:
        key = key if len(known) < _MOST_NAMES else others
        found = known.get(key) or known.setdefault(key, make(key))
    return found


@dataclass(slots=True)
class DeadLetterLine:
    """Dead letters of one topic and reason."""

    topic: str
    reason: str
    first_us: int
    last_us: int
    records: int = 0
    example: str = ""
    """Path and detail of the first one."""
    by: set[str] = field(default_factory=set)


class DeadLetters:
    """Unusable records, by topic and reason."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], DeadLetterLine] = {}
        self.redriven = 0
        """Dead letters that were put back."""

    @property
    def lines(self) -> list[DeadLetterLine]:
        """Return topics and reasons, the most frequent first."""
        return sorted(self._lines.values(), key=lambda one: (-one.records, one.topic, one.reason))

    def take(self, record: Record) -> Outcome:
        """Process a dead letter, or the mark of one that was put back."""
        letter = read_dead_letter(record)
        if letter is None:
            return _NO_DEAD_LETTER
        if letter.is_mark:
            self.redriven += 1
            return USED
        key, at_us = (letter.origin.topic[:200], letter.reason[:100]), record.timestamp_us
        line = _entry(self._lines, key, (OTHERS, OTHERS), lambda name: DeadLetterLine(*name, at_us, at_us))
        line.records += _rows(record)
        line.first_us, line.last_us = min(line.first_us, at_us), max(line.last_us, at_us)
        line.example = line.example or f"{letter.path[:200]} {letter.detail[:500]}".strip()
        if len(line.by) < _MOST_NAMES:
            line.by.add(letter.by)
        return USED


def _rows(record: Record) -> int:
    """Return the number of records in a dead letter: the records of a batch may share one."""
    said = next((raw for name, raw in record.headers if name == PREFIX + COUNT), b"1").decode(errors="replace")
    return max(int(said), 1) if NUMBER.fullmatch(said) else 1


@dataclass(slots=True)
class ProductLine:
    """Tables of one product."""

    product: str
    kind: str
    complete: int = 0
    size: int = 0
    """Size of the complete tables [bytes]."""
    slowest: float = 0.0
    """Longest time from the begin of a table's sending to its completion [s]."""
    failed: int = 0
    reason: str = ""
    """Reason of the last failure."""
    under_way: set[str] = field(default_factory=set)
    """Tables that have not ended."""
    ended: str = ""
    """The table that ended last."""


class NightTables:
    """Tables by product."""

    def __init__(self) -> None:
        self._lines: dict[str, ProductLine] = {}

    @property
    def lines(self) -> list[ProductLine]:
        """Return the products in the order of their names."""
        return [self._lines[product] for product in sorted(self._lines)]

    def take(self, record: Record) -> Outcome:
        """Process a report about a table."""
        table = _decode_table(record.value)
        if table is TOMBSTONE:
            product, _, name = (record.key or b"").decode(errors="replace").partition("!")
            if product in self._lines:
                self._lines[product].under_way.discard(name)
        if not isinstance(table, Table):
            return table
        line = _entry(self._lines, table.product, OTHERS, lambda name: ProductLine(name, table.kind))
        if table.state not in (_COMPLETE, _FAILED):
            line.under_way.add(table.table)
            return USED
        line.under_way.discard(table.table)
        if line.ended == table.table:  # announced again
            return USED
        line.ended = table.table
        if table.state == _COMPLETE:
            line.complete += 1
            line.size += table.size
            line.slowest = max(line.slowest, (table.time - table.sent_at) / MICRO)
        else:
            line.failed += 1
            line.reason = table.reason or ""
        return USED


@dataclass(slots=True)
class MetricLine:
    """Arrays of one quality metric."""

    subarray: int
    metric: str
    unit: str
    first_us: int
    last_us: int
    arrays: int = 0
    longest_gap: float = 0.0
    """Longest time between two arrays [s]."""


class Qualities:
    """Quality metrics by subarray and name."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, str], MetricLine] = {}

    @property
    def lines(self) -> list[MetricLine]:
        """Return the metrics in the order of subarrays and names."""
        return [self._lines[key] for key in sorted(self._lines)]

    def take(self, record: Record) -> Outcome:
        """Process the header of a metric."""
        if record.value is None:
            return TOMBSTONE
        found = _metrics.decode_header(record.headers, _HEADER)
        if not isinstance(found, Metric):
            return found
        key, at_us = (found.subarray, found.metric), record.timestamp_us
        line = _entry(
            self._lines, key, (found.subarray, OTHERS), lambda name: MetricLine(*name, found.unit, at_us, at_us)
        )
        line.arrays += 1
        line.longest_gap = max(line.longest_gap, (at_us - line.last_us) / MICRO)
        line.last_us = at_us
        return USED
