"""The figures of a night, from one pass over each topic of an archive.

Theory of operation
-------------------
Each section of the report processes the records of its topics, one after the other, and keeps sums: by rack and slot of
the night, by alarm, by reason, by product, by component. Only commands are kept one by one. So memory is bounded by the
size of the system and not by the length of the night. Heaps are never read: the summaries of the aggregate workers have
their counts, sums, sketches of latency and sequence numbers, and merge exactly.

The night is [begin, end) by Kafka's time of each record, which for almost all topics is the broker's clock. Only the
states of alarms are also read from the days before, as the state of a standing alarm may have been written long ago.

Every record is checked by the schema of its topic, as by any reader. An unusable record is counted, with an example,
and changes no figure. A topic that was not kept, or has no records of the night, is named: without it a figure is not
zero, but unknown.

The accounts of the workers have the outcomes of the records that they consumed. Unaccounted and missing records are in
a section of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from facade.bus.port import Record
from facade.flows.archive.files import ArchiveError, missing, no_archive
from facade.flows.archive.night.alarms import LOOKBACK_US, STATES, NightAlarms
from facade.flows.archive.night.events import ACKS, COMMANDS, HEARTBEATS, REFUSALS, Commands, NightComponents
from facade.flows.archive.night.products import DEAD_LETTERS, QUALITY, TABLES, DeadLetters, NightTables, Qualities
from facade.flows.archive.night.span import Night, utc
from facade.flows.archive.night.telemetry import SUMMARIES, NightTelemetry
from facade.flows.archive.reading import read_records, topics
from facade.flows.archive.stores import Store
from facade.icd.model import Icd
from facade.outcome import Outcome, RecordRejected
from facade.runtime.accounts import ACCOUNTS
from facade.runtime.stream_accounts import StreamTotals, WorkerAccounts

_EACH = 1000
Told = Callable[[str, int, int], None]
"""Called with the topic, the number of records read from it, and the time of the last one [Unix us]."""


@dataclass(slots=True)
class TopicLine:
    """Records read from one topic."""

    topic: str
    is_kept: bool
    """Whether the archive has the topic at all."""
    records: int = 0
    first_us: int = 0
    last_us: int = 0
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


class NightReport:
    """All figures of a night."""

    def __init__(self, icd: Icd, night: Night, rack_size: int) -> None:
        self.night = night
        self.telemetry = NightTelemetry(icd, night, rack_size)
        self.dead_letters = DeadLetters()
        self.alarms = NightAlarms(night)
        self.commands = Commands()
        self.tables = NightTables()
        self.qualities = Qualities()
        self.components = NightComponents()
        self._accounts = WorkerAccounts()
        self.takers: dict[str, Callable[[Record], Outcome]] = {
            SUMMARIES: self.telemetry.take,
            DEAD_LETTERS: self.dead_letters.take,
            STATES: self.alarms.take,
            COMMANDS: self.commands.take_command,  # before their acknowledgements
            ACKS: self.commands.take_ack,
            REFUSALS: self.commands.take_refusal,
            TABLES: self.tables.take,
            QUALITY: self.qualities.take,
            HEARTBEATS: self.components.take,
            ACCOUNTS: lambda record: self._accounts.fold(record, count=True),
        }
        """Processors of the records of each topic, in the order of reading."""
        self.topics: dict[str, TopicLine] = {}

    @property
    def streams(self) -> dict[str, StreamTotals]:
        """Return the accounts of the workers, by topic."""
        return dict(sorted(self._accounts.streams.items()))

    def end(self) -> None:
        """Count the records that had to wait for the end of the night."""
        self.telemetry.end()
        self.alarms.end()
        self.components.end()


def read_night(
    store: Store, icd: Icd, night: Night, rack_size: int, told: Told = lambda topic, records, at_us: None
) -> NightReport:
    """Return the figures of a night."""
    kept = topics(store)
    if not kept:
        raise no_archive(store)
    report = NightReport(icd, night, rack_size)
    for topic, take in report.takers.items():
        line = report.topics[topic] = TopicLine(topic, topic in kept)
        line.missing += missing(store, topic, night.begin_us, night.end_us)
        before = LOOKBACK_US if topic == STATES else 0
        told(topic, 0, night.begin_us)
        for number, record in enumerate(read_records(store, topic, night.begin_us - before, night.end_us), 1):
            outcome = take(record)
            if record.timestamp_us >= night.begin_us:
                line.note(record, outcome)
            if number % _EACH == 0:
                told(topic, number, record.timestamp_us)
    if not any(line.records for line in report.topics.values()):
        hours = sorted(name.partition("/hour=")[2][:13] for name in store.names())
        asked = f"{utc(night.begin_us)} to {utc(night.end_us)}"
        raise ArchiveError(
            f"expected a time of the archive, whose files begin from hour {hours[0]} to {hours[-1]} (UTC),"
            f" got {asked}, of which it has no records"
        )
    report.end()
    return report
