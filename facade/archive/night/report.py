"""The figures of a night, from one pass over each topic of an archive.

Theory of operation
-------------------
Every record is checked by the schema of its topic, as by any reader. What the report uses of it becomes a row of a
table in memory, or in a temporary file if there are many. ``tables.sql`` defines these tables, and ``figures.sql`` the
figures, as views of them. Heaps are never read: the summaries of the aggregate workers have their counts, sums,
sketches of latency and sequence numbers, and are merged by rack and slot of the night
(`facade.archive.night.telemetry`). The accounts of the workers have the outcomes of the records that they
consumed.

The night is [begin, end) by Kafka's time of each record, which for almost all topics is the broker's clock. Only the
states of alarms are also read from the days before, as the state of a standing alarm may have been written long ago.

An unusable record is counted, with an example, and changes no figure. A topic that was not kept, or has no records of
the night, is named: without it a figure is not zero, but unknown.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa

from facade.admin.redrive import read_dead_letter
from facade.archive.files import ArchiveError, missing, no_archive
from facade.archive.night.html import length, number, percent
from facade.archive.night.span import Night, utc
from facade.archive.night.telemetry import SUMMARIES, NightTelemetry
from facade.archive.reading import read_records, topics
from facade.archive.stores import Store
from facade.kernel.bus.dead_letters import COUNT, NUMBER, PREFIX
from facade.kernel.bus.port import Record
from facade.kernel.clock import DAY, NEVER, NOTHING, Time
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import INCONSISTENT, TOMBSTONE, USED, Outcome, RecordRejected, Unused
from facade.kernel.runtime.accounts import ACCOUNTS
from facade.kernel.runtime.heartbeats import SILENT
from facade.sdp import messages
from facade.sdp.stream_accounts import StreamTotals, WorkerAccounts

STATES: Final = "alert-state"
LOOKBACK_US: Final = 30 * DAY
"""Time before the night in which its alarms may have been raised [us]; the archive may be shorter."""
MOST_SHOWN: Final = 1000
"""Rows of a table of the page: their number may depend on what came from the bus."""
_EACH = 1000
_AT_ONCE = 20_000
"""Rows that are handed to the database together."""
_MEMORY = "256MB"
"""Rows beyond it wait in a temporary file."""
Told = Callable[[str, int, Time], None]
"""Called with the topic, the number of records read from it, and the time of the last one [Unix us]."""
Table = tuple[Sequence[str], Sequence[Sequence[Any]], int]
"""Headings, rows, and the number of further rows."""


class _Letter(NamedTuple):
    topic: str
    reason: str
    records: int
    """The records of a batch may share a dead letter."""
    example: str
    writer: str
    is_mark: bool
    """Whether it is the mark of one that was put back."""


def _letter(record: Record) -> _Letter | Unused:
    found = read_dead_letter(record)
    if found is None:
        return RecordRejected(INCONSISTENT, "headers", "expected the headers of a dead letter")
    said = next((raw for name, raw in record.headers if name == PREFIX + COUNT), b"1").decode(errors="replace")
    records = max(int(said), 1) if NUMBER.fullmatch(said) else 1
    example = f"{found.path[:200]} {found.detail[:500]}".strip()
    return _Letter(found.origin.topic[:200], found.reason[:100], records, example, found.by, found.is_mark)


def _metric(record: Record) -> messages.Metric | Unused:
    return TOMBSTONE if record.value is None else _metrics.decode_header(record.headers, "metric")


def _message(kind: Any) -> Callable[[Record], Any]:
    decode = BatchDecoder(kind).decode_one
    return lambda record: decode(record.value)


_metrics = BatchDecoder(messages.Metric)
_DECODERS: Mapping[str, Callable[[Record], Any]] = {
    "dead-letters": _letter,
    STATES: _message(messages.AlertState),
    "commands": _message(messages.Command),
    "command-acks": _message(messages.CommandAck),
    "command-refusals": _message(messages.CommandRefusal),
    "tables": _message(messages.Table),
    "quality": _metric,
    "heartbeats": _message(messages.Heartbeat),
    "alert-actions": _message(messages.AlertAction),
    "page-acts": _message(messages.PageAct),
}
"""By topic: what gives the message of a record, whose fields are columns of the table of the same name."""


@dataclass(slots=True)
class TopicLine:
    """Records read from one topic."""

    topic: str
    is_kept: bool
    """Whether the archive has the topic at all."""
    records: int = 0
    first_us: Time = NEVER
    last_us: Time = NEVER
    unusable: int = 0
    example: str = ""
    """Position of the first unusable record, and the reason."""
    missing: list[str] = field(default_factory=list)
    """Missing records and files of the night."""

    def note(self, record: Record, outcome: Outcome) -> None:
        """Count a record."""
        self.first_us = self.first_us or record.timestamp_us
        self.last_us = max(self.last_us, record.timestamp_us)
        self.records += 1
        if isinstance(outcome, RecordRejected):
            self.unusable += 1
            self.example = self.example or f"partition {record.partition}, offset {record.offset}: {outcome}"


class _Rows:
    """Puts the records of a topic into its table."""

    def __init__(self, database: duckdb.DuckDBPyConnection, topic: str) -> None:
        self._database, self._table = database, topic.replace("-", "_")
        self._decode = _DECODERS[topic]
        _, _, *fields = database.table(self._table).columns
        self._has_key = fields[0] == "key"
        self._fields = fields[self._has_key :]
        self._nothing = SimpleNamespace(**dict.fromkeys(self._fields))
        self._records: list[Record] = []
        self._messages: list[Any] = []
        self._before = 0
        """Rows in the table."""

    def take(self, record: Record) -> Outcome:
        found = self._decode(record)
        if isinstance(found, RecordRejected) or (found is TOMBSTONE and not self._has_key):
            return found
        self._records.append(record)
        self._messages.append(self._nothing if found is TOMBSTONE else found)
        if len(self._records) >= _AT_ONCE:
            self.end()
        return USED

    def end(self) -> None:
        if not self._records:
            return
        columns: dict[str, Any] = {
            "n": range(self._before, self._before + len(self._records)),
            "at_us": [one.timestamp_us for one in self._records],
        }
        if self._has_key:
            columns["key"] = [(one.key or b"").decode(errors="replace") for one in self._records]
        columns |= {name: [*map(attrgetter(name), self._messages)] for name in self._fields}
        rows = pa.table({name: pa.array(values) for name, values in columns.items()})
        self._database.from_arrow(rows).insert_into(self._table)
        self._before += len(rows)
        self._records, self._messages = [], []


class NightReport:
    """All figures of a night."""

    def __init__(self, icd: Icd, night: Night, rack_size: int, folder: str = "") -> None:
        self.night = night
        self.telemetry = NightTelemetry(icd, night, rack_size)
        self._accounts = WorkerAccounts()
        self._database = duckdb.connect(
            config={"memory_limit": _MEMORY, "temp_directory": folder, "autoinstall_known_extensions": False}
        )
        self._database.create_function("number", number)
        self._database.create_function("percent", percent)
        self._database.create_function("length_text", length)
        self._execute("tables.sql")
        times = [night.begin_us, night.end_us, night.slot_us, SILENT]
        self._database.execute("INSERT INTO night VALUES (?, ?, ?, ?)", times)
        self.topics: dict[str, TopicLine] = {}

    def _execute(self, file: str) -> None:
        self._database.execute(files(__package__).joinpath(file).read_text())

    def end(self) -> None:
        """Work out the figures, after all topics were read."""
        self.telemetry.end()
        self._execute("figures.sql")

    @property
    def streams(self) -> dict[str, StreamTotals]:
        """Return the accounts of the workers, by topic."""
        return dict(sorted(self._accounts.streams.items()))

    def read(self, store: Store, topic: str, kept: Sequence[str], told: Told) -> None:
        """Read a topic of an archive."""
        rows = _Rows(self._database, topic) if topic in _DECODERS else None
        take = rows.take if rows else self.telemetry.take if topic == SUMMARIES else self._account
        line = self.topics[topic] = TopicLine(topic, topic in kept)
        line.missing += missing(store, topic, self.night.begin_us, self.night.end_us)
        before = LOOKBACK_US if topic == STATES else NOTHING
        told(topic, 0, self.night.begin_us)
        records = read_records(store, topic, self.night.begin_us - before, self.night.end_us)
        for count, record in enumerate(records, 1):
            outcome = take(record)
            if record.timestamp_us >= self.night.begin_us:
                line.note(record, outcome)
            if count % _EACH == 0:
                told(topic, count, record.timestamp_us)
        if rows:
            rows.end()

    def _account(self, record: Record) -> Outcome:
        return self._accounts.fold(record, count=True)

    def table(self, view: str) -> Table:
        """Return a view of ``figures.sql`` as a table."""
        found = self._database.table(view)
        rows = found.limit(MOST_SHOWN + 1).fetchall()
        more = self.value(f"count(*) FROM {view}") - MOST_SHOWN if len(rows) > MOST_SHOWN else 0
        return found.columns, rows[:MOST_SHOWN], more

    def value(self, expression: str) -> Any:
        """Return the value of an SQL expression."""
        ((found,),) = self._database.sql(f"SELECT {expression}").fetchall()
        return found


TOPICS: Final = (SUMMARIES, *_DECODERS, ACCOUNTS)


def read_night(
    store: Store, icd: Icd, night: Night, rack_size: int, told: Told = lambda topic, records, at_us: None
) -> NightReport:
    """Return the figures of a night."""
    kept = topics(store)
    if not kept:
        raise no_archive(store)
    report = NightReport(icd, night, rack_size, tempfile.gettempdir())
    for topic in TOPICS:
        report.read(store, topic, kept, told)
    if not any(line.records for line in report.topics.values()):
        hours = sorted(name.partition("/hour=")[2][:13] for name in store.names())
        asked = f"{utc(night.begin_us)} to {utc(night.end_us)}"
        raise ArchiveError(
            f"expected a time of the archive, whose files begin from hour {hours[0]} to {hours[-1]} (UTC),"
            f" got {asked}, of which it has no records"
        )
    report.end()
    return report
