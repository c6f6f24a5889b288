"""What happened in a span of time: commands, states, alarms, tables and processing blocks, and whole execution blocks.

All of it comes from topics with few records, so a day takes as long as an hour. A record counts by Kafka's time. The
controllers' reports on ``state`` tell the observing state of each subarray and its execution block. A block begins
with the record of its command. It ends with the last record that has its id, or when its subarray has another block. If
the id was used several times, the newest use counts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from facade.archive.history import HistoryArchive
from facade.archive.moment import ALARMS_BACK, MomentArchive
from facade.archive.newest import NewestRecords, undecoded
from facade.archive.night.span import Night
from facade.archive.recording import HISTORY
from facade.archive.stores import Store
from facade.flows.alerts import messages as alerts
from facade.flows.alerts.flow import AlertsFlow
from facade.flows.blocks.source import BLOCKS, read_block
from facade.flows.commands.messages import ACKS, COMMANDS
from facade.kernel.bus.port import Record
from facade.kernel.clock import FOREVER, MINUTE, NEVER, Clock, Duration, Time, as_seconds, as_time
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import Icd
from facade.sdp.device_state import NO_BLOCK, OBS_STATE, TOPIC, StateMessage, decode_state
from facade.sdp.durations import parse_time
from facade.sdp.messages import ProcessingBlock, Table

EB_ID: Final = "ebID"
MOST: Final = 1000
"""Most entries of a kind in one answer; the newest ones count."""
_TABLES: Final = "tables"
_ENDED: Final = frozenset({"COMPLETE", "FAILED"})
_ASSIGNED_BEFORE: Final = 10 * MINUTE
"""Longest time between the command of an execution block and the report that its subarray has it [us]."""
_decode_table = BatchDecoder(Table).decode_one
Steps = dict[str, list[tuple[float, str]]]
"""By device, when an attribute got which value [Unix s]."""
Wanted = Mapping[str, Callable[[Mapping[str, Any]], bool]]
_ALL: Final[Wanted] = {}


class ExecutionBlock(NamedTuple):
    """An execution block of a subarray."""

    id: str
    device: str
    begin: float
    """[Unix s]"""
    end: float | None
    """[Unix s]; None: the subarray still has it."""


class TimelineArchive:
    """An archive that is asked about spans of time, from any thread; each method may raise `ArchiveError`."""

    def __init__(self, store: Store, history: HistoryArchive, moments: MomentArchive) -> None:
        self._history, self.moments = history, moments
        self._topics = {topic: NewestRecords(store, topic, undecoded) for topic in (TOPIC, _TABLES, BLOCKS, HISTORY)}

    def between(self, begin: Time, end: Time, device: str = "", wanted: Wanted = _ALL) -> dict[str, Any]:
        """Return what happened from `begin` to `end` [Unix us].

        Parameters
        ----------
        wanted
            By kind, whether an entry is wanted; of the others, only `MOST` are returned, the newest ones.

        Returns
        -------
        dict
            `commands` (as of GetCommandHistory), `obs_states` (by subarray), `alarms` (raised and cleared), `tables`,
            `blocks` (states of processing blocks), `gaps` (times at which `device` was not recorded, as while its
            server was started), and `unknown`: by part the reason, in words. Times are Unix seconds.
        """
        unknown: dict[str, str] = {}

        def part(name: str, make: Callable[[Time, Time], Any], *topics: str, empty: Any = ()) -> Any:
            if lacking := self._lacking(*topics):
                unknown[name] = f"the archive has no records of the topic {lacking}"
                return empty
            return make(begin, end)

        def newest(name: str, make: Callable[[Time, Time], Any], *topics: str) -> Sequence[dict[str, Any]]:
            found = sorted(filter(wanted.get(name), part(name, make, *topics)), key=_when)
            if len(found) > MOST:
                unknown[name] = f"only the newest {MOST} are given; ask for a shorter time"
            return found[-MOST:]

        return {
            "commands": newest("commands", self._commands, COMMANDS, ACKS),
            "obs_states": part("obs_states", lambda *span: self.steps(OBS_STATE, *span), TOPIC, empty={}),
            "alarms": newest("alarms", self._alarms, alerts.ALERTS),
            "tables": newest("tables", self._tables, _TABLES),
            "blocks": newest("blocks", self._blocks, BLOCKS),
            "gaps": part("gaps", lambda *span: self._gaps(device, *span), HISTORY) if device else (),
            "unknown": unknown,
        }

    def execution_blocks(self, begin: Time, end: Time) -> list[ExecutionBlock]:
        """Return the execution blocks that a subarray had from `begin` to `end` [Unix us], the newest first."""
        if lacking := self._lacking(TOPIC):
            raise ConfigError(f"expected an archive with the topic {lacking}, which names execution blocks; got none")
        found = []
        for device, steps in self.steps(EB_ID, begin, end).items():
            ends = [time for time, _ in steps[1:]] + [None]
            found += [
                ExecutionBlock(id, device, time, until)
                for (time, id), until in zip(steps, ends, strict=True)
                if id not in NO_BLOCK
            ]
        return sorted(found, key=lambda one: one.begin, reverse=True)

    def execution_block(self, id: str, now: Time) -> ExecutionBlock | None:
        """Return an execution block from its first to its last record, if the archive has one of the last 30 days."""
        begin = max(now - ALARMS_BACK, NEVER)
        found = next((one for one in self.execution_blocks(begin, now) if one.id == id), None)
        topics = [topic for topic in (COMMANDS, BLOCKS, TOPIC) if not self._lacking(topic)]
        span = record_span((one for topic in topics for one in self._records(topic, begin, now)), id)
        if found is None or span is None:
            return found
        first, last = map(as_seconds, span)
        return found._replace(begin=min(first, found.begin), end=None if found.end is None else max(last, found.end))

    def night(self, id: str, now: Time) -> Night:
        """Return the time of an execution block for a report; one that has not ended lasts until `now`."""
        found = self.execution_block(id, now)
        if found is None:
            known = [one.id for one in self.execution_blocks(max(now - ALARMS_BACK, NEVER), now)]
            near = ", ".join(get_close_matches(id, known, 5, 0.0))
            raise ConfigError(
                f"expected an execution block of the archive's last 30 days, got {id!r:.100}; near: {near}"
            )
        end = now if found.end is None else as_time(found.end)
        return Night(as_time(found.begin), end + Duration(1000), id)

    def _lacking(self, *topics: str) -> str:
        """Return the first of some topics that the archive has not; empty: it has them all."""
        own = [topic for topic in topics if topic in self._topics]
        missing = [topic for topic in own if not self._topics[topic].is_kept]
        return missing[0] if missing else self.moments.lacking(*(set(topics) - set(own)))

    def steps(self, attribute: str, begin: Time, end: Time) -> Steps:
        """Return the reported values of an attribute by device; the first one is that at `begin`."""
        topic, found = self._topics[TOPIC], Steps()
        before = topic.at(max(begin - ALARMS_BACK, NEVER), begin)
        records = [Record(topic=TOPIC, key=key, value=one.content[0]) for key, one in before.items()]
        for record in (*records, *topic.records(begin + Duration(1), end)):
            if not (record.key or b"").endswith(f"/{attribute}".encode()):
                continue
            message = decode_state(record.value)
            if isinstance(message, StateMessage):
                steps = found.setdefault(message.device, [])
                if not steps or steps[-1][1] != message.value:  # it is reported again after each command
                    steps.append((as_seconds(max(message.time, begin)), message.value))
        return found

    def _commands(self, begin: Time, end: Time) -> list[dict[str, Any]]:
        return [one for some in self.moments.commands(begin, end, MOST + 1).values() for one in some]

    def _records(self, topic: str, begin: Time, end: Time) -> Iterator[Record]:
        records = self._topics[topic] if topic in self._topics else self.moments.topics[topic]
        return records.records(begin, end)

    def _alarms(self, begin: Time, end: Time) -> Sequence[dict[str, Any]]:
        known: dict[tuple[str, str], str] = {}
        found = []
        for record in sorted(self._records(alerts.ALERTS, begin, end), key=lambda one: one.timestamp_us):
            message = AlertsFlow.decode(record)
            if isinstance(message, alerts.Alert) and known.get(message.key) != message.state:
                known[message.key] = message.state  # a source repeats its alerts
                entry = {name: getattr(message, name) for name in ("condition", "source", "severity", "state", "text")}
                found.append({"time": as_seconds(record.timestamp_us)} | entry)
        return found

    def _tables(self, begin: Time, end: Time) -> Sequence[dict[str, Any]]:
        tables = [_decode_table(record.value) for record in self._records(_TABLES, begin, end)]
        found = {
            (one.product, one.table, one.state): {"time": as_seconds(one.time)}
            | {name: getattr(one, name) for name in ("product", "table", "kind", "state", "size")}
            for one in tables
            if isinstance(one, Table) and one.state in _ENDED
        }
        return [*found.values()]

    def _blocks(self, begin: Time, end: Time) -> Sequence[dict[str, Any]]:
        told = [read_block(record) for record in self._records(BLOCKS, begin, end)]
        names = ("pb_id", "eb_id", "subarray", "kind", "state", "text")
        return [
            {"time": as_seconds(one.time)} | {name: getattr(one, name) for name in names}
            for one in told
            if isinstance(one, ProcessingBlock)
        ]

    def _gaps(self, device: str, begin: Time, end: Time) -> Sequence[tuple[float, float]]:
        gaps = self._history.find(f"{device}/State", begin, end).gaps
        return [(as_seconds(known), as_seconds(again)) for again, known in gaps.items()]


def timeline_archive(store: Store, icd: Icd, rack_size: int, clock: Clock) -> TimelineArchive:
    """Return the archive of a store."""
    history = HistoryArchive(store)
    return TimelineArchive(store, history, MomentArchive(store, history, icd, rack_size, clock))


def record_span(records: Iterable[Record], eb: str) -> tuple[Time, Time] | None:
    """Return the times of the first and the last record of an execution block, by Kafka; None: no record names it.

    Records name a block by its id, as a JSON text; that its subarray has left it is its last one. Of an id that was
    used again, the newest use counts; an assignment behind it has been refused.

    Parameters
    ----------
    records
        Those of ``commands``, then of ``processing-blocks``, then of ``state``, each in the order of the log.
    """
    name, active, times = f'"{eb}"'.encode(), set[str](), list[tuple[Time, str]]()
    begin = left = NEVER
    for record in records:
        value, at = record.value or b"", record.timestamp_us
        is_of_it = name in value
        state = decode_state(value) if record.topic == TOPIC and EB_ID.encode() in value else None
        if isinstance(state, StateMessage) and state.attribute == EB_ID:
            is_of_it, had = state.value == eb or state.device in active, state.device in active
            if is_of_it and not had:
                begin = max(at - _ASSIGNED_BEFORE, left)
            if had and state.value != eb:
                left = at + Duration(1)
            (active.add if state.value == eb else active.discard)(state.device)
        if is_of_it:
            times.append((at, record.topic))
    last = FOREVER if active or left == NEVER else left
    of_it = [at for at, topic in times if begin <= at and (topic != COMMANDS or at < last)]
    return (min(of_it), max(of_it)) if of_it else None


def _when(entry: Mapping[str, Any]) -> float:
    return entry["time"] if "time" in entry else as_seconds(parse_time(entry["submitted_time"], "submitted_time"))
