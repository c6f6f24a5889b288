"""Writes a part of an archive as a NeXus file, which is HDF5.

Theory of operation
-------------------
The file is one NXentry. Times are seconds, for events microseconds, since its `start_time`. Each topic has a group::

    entry                        NXentry: start_time, end_time, entry_identifier (the execution block)
      ingest_heaps               NXcollection: each windowed topic
        notifications            NXevent_data: event_id is the node; the other fields of a notification are columns
        windows                  NXcollection, of the partials of workers
          count, latency_max ... NXlog: value and quality, over windows and nodes
          plot                   NXdata: the same datasets
      state                      NXcollection: what controllers report
        mid_sdp_subarray_01_obsState   NXlog: value, text, quality; the number of a text is its place in labels
      telescope_model            NXcollection: mirrored attributes; NXlog with value, text, quality, connection
      alerts, commands ...       NXcollection
        alert, alert_action ...  NXlog of each message: its value is the severity, status or so; a column by field
      calibration                NXcollection
        cal_7                    NXdata: columns of a table with their units; NXnote: the bytes of other tables
      account                    NXcollection: numbers of records of each topic, undecodable ones, missing ones

Each NXlog has an NXdata of its name in the group `plots` beside it, with links to its datasets: viewers draw NXdata
only. Within the log it would keep programs from reading it.

A record belongs to a time by Kafka's time, which is the broker's. Windows belong to it by their begin: their partials
are read from before until after the time, as far as records may be early or late.

Topics are read one after the other, in bounded memory; see `facade.flows.archive.nexus_groups`. The segments of a table
are put together in a temporary file. The NeXus file gets its place when it is whole and durable.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, Final, cast

import h5py
import msgspec
import numpy as np

from facade.bus.port import Record
from facade.clock import MINUTE, NEVER, NOTHING, SECOND, Duration, Time, as_duration, utc_text
from facade.codec.batches import BatchReader, Joined, Refused, is_batch
from facade.codec.columns import ColumnDecoder, number_fields
from facade.codec.decode import BatchDecoder
from facade.errors import ConfigError
from facade.flows.archive.files import missing, no_archive
from facade.flows.archive.nexus_groups import (
    MOST_EVENTS,
    QUALITIES,
    TEXT,
    EventGroup,
    Log,
    WindowGrid,
    append,
    child,
    iso,
    legal,
    text,
)
from facade.flows.archive.nexus_tables import TableGroups, require_room
from facade.flows.archive.reading import extent, read_records, topics
from facade.flows.archive.stores import Store
from facade.icd.fields import earlier_versions, first_name, kind, properties
from facade.icd.model import Icd
from facade.icd.topic_model import Window
from facade.messages import (
    Alert,
    AlertAction,
    Command,
    CommandAck,
    CommandRefusal,
    IngestSummary,
    ProcessingBlock,
    RackSummary,
    Reservation,
    State,
    Table,
    TelemetrySummary,
    TelescopeAttribute,
    Watermark,
)
from facade.outcome import RecordRejected, Unused
from facade.printable import excerpt
from facade.windows.newest import Rule
from facade.windows.summaries import frames_of

_EB = "ebID"
"""Attribute with the active execution block."""
_LATEST = Time(2**62)
STATE = "state"
STATES: Final = (STATE, "settings", "archive-reports")
"""Topics with values of attributes."""
MIRROR, COMMANDS, BLOCKS, TABLES = "telescope.model", "commands", "processing-blocks", "calibration"
_MESSAGES: Final[Mapping[str, Mapping[type[msgspec.Struct], tuple[str, str]]]] = {
    "alerts": {Alert: ("raised_at", "severity"), AlertAction: ("time", "action")},
    "alert-actions": {AlertAction: ("time", "action")},
    COMMANDS: {Command: ("issued", "command")},
    "command-acks": {CommandAck: ("time", "status")},
    "command-refusals": {CommandRefusal: ("time", "reason")},
    BLOCKS: {ProcessingBlock: ("time", "state")},
    "reservations": {Reservation: ("time", "state")},
    "tables": {Table: ("time", "state")},
}
"""Topics whose messages are logs: the fields with the time and the value of each message."""
_SUMMARIES: Final = (IngestSummary, TelemetrySummary, RackSummary, Watermark)
_CONNECTIONS: Final = ("CONNECTED", "DISCONNECTED", "ENDED")
_NO_UNIT: Final[Mapping[str, Any]] = {}
_QUALITY: Final = (np.uint8, {"labels": QUALITIES})
_CONNECTION: Final = (np.uint8, {"labels": _CONNECTIONS})
_RECORDS, _BYTES = 5000, 8_000_000
"""Records decoded at once, and their size [bytes]."""
_PENDING, _OVERHEAD = 32_000_000, 500
"""Size of the records with rows in memory, and the overhead of each [bytes]."""
_DELAY_US = MINUTE
"""Time after a window in which its partials are searched, beside the interface's limits."""

ExportProgress = Callable[[str, float], None]
"""Called with the topic and the completed part of the time, 0 to 1."""


@dataclass(slots=True)
class TopicAccount:
    """Outcomes of the records of one topic."""

    records: int = 0
    undecoded: int = 0
    reason: str = ""
    """Reason of the first undecodable one."""
    is_exported: bool = True
    missing: list[str] = field(default_factory=list)
    """Missing records and files of the time."""

    def refuse(self, why: Unused, count: int = 1) -> None:
        """Count unusable records, without tombstones."""
        if isinstance(why, RecordRejected):
            self.undecoded += count
            self.reason = self.reason or str(why)


class TopicWriter:
    """Writes the topics of an archive."""

    def __init__(
        self, store: Store, icd: Icd, file: Any, times: tuple[Time, Time], folder: Path, progress: ExportProgress
    ) -> None:
        self._store, self._icd, self._file = store, icd, file
        self._folder, self._progress = folder, progress
        self._begin, self._end = times
        self._accounts: dict[str, TopicAccount] = {}
        self._reported = {
            one.name: (one.type or "", one.unit or "", icd.enums.get(one.enum or "", ()))
            for device_class in icd.classes.values()
            for one in device_class.attributes
            if one.reported
        }
        """Type, unit and labels of reported attributes, by name."""

    def write(self, name: str, eb: str) -> dict[str, TopicAccount]:
        """Write all topics to a file, optionally of one execution block; return their outcomes."""
        self._file.attrs.update({"NX_class": "NXroot", "file_name": name, "creator": "sdp-facade"})
        self._file.attrs["HDF5_Version"], self._file.attrs["h5py_version"] = h5py.version.hdf5_version, h5py.__version__
        self._entry = entry = child(self._file, "entry", "NXentry")
        entry["title"] = f"SDP, {utc_text(self._begin)} to {utc_text(self._end)}"
        entry["start_time"], entry["end_time"] = iso(self._begin), iso(self._end)
        entry["program_name"] = "sdp-facade"
        entry["program_name"].attrs["version"] = version("sdp-tango-facade")
        if eb:
            entry["entry_identifier"] = text(eb)
        windowed = {name: one.window for name, one in self._icd.topics.items() if one.window is not None}
        summaries = {window.summary for window in windowed.values()}
        for topic in sorted(topics(self._store), key=lambda topic: topic not in summaries):  # summaries are drawn first
            account = self._accounts[topic] = TopicAccount()
            account.missing += missing(self._store, topic, self._begin, self._end)
            if topic in windowed:
                self._write_events(topic, windowed[topic], account)
            elif topic in summaries:
                own = {name: one for name, one in windowed.items() if one.summary == topic}
                self._write_windows(topic, own, account)
            elif topic in _MESSAGES:
                self._write_logs(topic, _MESSAGES[topic], partial(self._add_message, self._group(topic)), account)
            elif topic in STATES:
                self._write_logs(topic, [State], partial(self._add_state, self._group(topic)), account)
            elif topic == MIRROR:
                self._write_logs(topic, [TelescopeAttribute], partial(self._add_mirrored, self._group(topic)), account)
            elif topic == TABLES:
                tables = TableGroups(self._group(topic), self._folder)
                for records in self._chunks(topic, account):
                    for record in records:
                        if why := tables.add(record):
                            account.refuse(why)
                for why in tables.finish():
                    account.refuse(why)
            else:
                account.is_exported = False
        self._write_account()
        return self._accounts

    def _group(self, name: str) -> Any:
        return self._entry.get(legal(name)) or child(self._entry, name, "NXcollection")

    def _chunks(
        self, topic: str, account: TopicAccount, before_us: Duration = NOTHING, after_us: Duration = NOTHING
    ) -> Iterator[list[Record]]:
        """Return the records of a topic in chunks; records before and after the time are not counted."""
        begin, end, size = self._begin - before_us, self._end + after_us, 0
        found: list[Record] = []
        self._progress(topic, 0.0)
        for record in read_records(self._store, topic, begin, end):
            found.append(record)
            size += len(record.value or b"")
            account.records += self._begin <= record.timestamp_us < self._end
            if len(found) >= _RECORDS or size >= _BYTES:
                require_room(self._folder)
                yield found
                self._progress(topic, (record.timestamp_us - begin) / (end - begin))
                found, size = [], 0
        require_room(self._folder)
        yield found
        self._progress(topic, 1.0)

    # Notifications

    def _write_events(self, topic: str, window: Window, account: TopicAccount) -> None:
        entry = self._icd.topics[topic]
        name = cast(str, entry.message)
        schema, earlier = self._icd.messages[name], earlier_versions(self._icd, name)
        decoder = ColumnDecoder(name, schema, earlier)
        reader = BatchReader(schema, [window.time], earlier) if "arrow" in entry.encodings else None
        units = {one.name: str(properties(schema)[one.name].get("x-unit", "")) for one in number_fields(schema)}
        events: EventGroup | None = None
        for records in self._chunks(topic, account):
            for _, some in groupby(records, lambda one: one.timestamp_us // SECOND):
                for columns in _pulses(list(some), decoder, reader, account):
                    times = columns[window.time]
                    if not len(times):
                        continue
                    if events is None:
                        more = {name: unit for name, unit in units.items() if name not in (window.time, window.group)}
                        events = EventGroup(
                            child(self._group(topic), "notifications", "NXevent_data"), self._begin, more
                        )
                    group = window.group if window.group in units else None
                    events.add(np.zeros(len(times), np.int64) if group is None else columns[group], times, columns)
        if events is not None:
            events.flush()

    # Windows

    def _write_windows(self, topic: str, windowed: Mapping[str, Window], account: TopicAccount) -> None:
        made = {name: self._windows(name, window) for name, window in windowed.items()}
        marks: dict[str, dict[int, Time]] = {name: {} for name in windowed}
        partitions = dict.fromkeys(windowed, 1)
        (owner, *_) = [*windowed]
        entry = self._icd.topics[topic]
        kinds = [one for one in _SUMMARIES if _name(one) in (entry.message, *entry.also)]
        decoder = BatchDecoder[Any](*kinds)
        before = max(as_duration(one.ahead) for one in windowed.values())
        after = max(
            (as_duration(one.length + one.lateness) for name, one in windowed.items() if made[name].rows),
            default=NOTHING,
        )
        for records in self._chunks(topic, account, before + _DELAY_US, after + _DELAY_US):
            for record in records:
                item = decoder.decode_one(record.value)
                why = item if isinstance(item, Unused) else None
                stream = owner if isinstance(item, IngestSummary) else getattr(item, "stream", "")
                try:
                    if isinstance(item, Watermark):
                        marks[stream][item.partition] = max(marks[stream].get(item.partition, NEVER), item.read_to)
                        partitions[stream] = max(partitions[stream], item.partitions)
                    elif isinstance(item, RackSummary | IngestSummary | TelemetrySummary):
                        windows = made[stream]
                        group = item.group if isinstance(item, TelemetrySummary) else None
                        name = None if group is None or self._is_numbered(stream) else group
                        for rows in frames_of(item):
                            code = rows.group if group is None or name is not None else np.full(len(rows), int(group))
                            windows.add(replace(rows, group=code), name)
                except KeyError:
                    why = RecordRejected(
                        "inconsistent", "$.stream", excerpt(f"expected a windowed topic, got {stream}")
                    )
                except (ValueError, OverflowError) as error:
                    why = RecordRejected("inconsistent", "$", excerpt(str(error)))
                if why is not None and self._begin <= record.timestamp_us < self._end:
                    account.refuse(why)
            for windows in made.values():
                windows.settle(records[-1].timestamp_us - after - _DELAY_US if records else NEVER)
        for name, windows in made.items():
            known = [marks[name].get(number, NEVER) for number in range(partitions[name])]
            windows.finish(f"{name}: windows", min(known), _rule(windowed[name]))

    def _is_numbered(self, topic: str) -> bool:
        entry = self._icd.topics[topic]
        schema = self._icd.messages[cast(str, entry.message)]
        return kind(properties(schema).get((entry.window and entry.window.group) or "", {})) == "integer"

    def _windows(self, topic: str, window: Window) -> WindowGrid:
        known = properties(self._icd.messages[cast(str, self._icd.topics[topic].message)])
        return WindowGrid(
            child(self._group(topic), "windows", "NXcollection"),
            self._begin,
            self._end,
            as_duration(window.length),
            units={first_name(name, part): str(part.get("x-unit", "")) for name, part in known.items()},
            averaged={first_name(name, part) for name, part in known.items() if kind(part) == "number"},
            noun=window.group or "group",
            most=int(known.get(window.group or "", {}).get("maximum", window.most_groups or 999)) + 1,
        )

    # Logs

    def _write_logs(
        self, topic: str, structs: Iterable[type[msgspec.Struct]], add: Callable[..., None], account: TopicAccount
    ) -> None:
        decoder = BatchDecoder[Any](*structs)
        logs: dict[Any, Log] = {}
        pending = 0
        for records in self._chunks(topic, account):
            decoded = decoder.decode([record.value for record in records])
            for why in decoded.unused.values():
                account.refuse(why)
            for item in decoded.items:
                add(logs, item)
            pending += sum(len(record.value or b"") + _OVERHEAD for record in records)
            if pending >= _PENDING:
                for log in logs.values():
                    log.flush()
                pending = 0
        for log in logs.values():
            log.finish()

    def _add_message(self, parent: Any, logs: dict[Any, Log], item: Any) -> None:
        struct = type(item)
        name = _name(struct)
        schema = self._icd.messages[name]
        (time, value), known = next(one[struct] for one in _MESSAGES.values() if struct in one), properties(schema)
        columns = {name: part for name, part in known.items() if name not in ("schema", time)}
        log = logs.get(struct)
        if log is None:
            kinds = {name: _column(part, name in schema["required"]) for name, part in columns.items()}
            labels = known[value].get("enum", ())
            log = logs[struct] = Log(child(parent, name, "NXlog"), self._begin, schema["title"], kinds, labels=labels)
        found = (_cell(getattr(item, name), part) for name, part in columns.items())
        log.add(getattr(item, time), getattr(item, value), *found)

    def _add_state(self, parent: Any, logs: dict[Any, Log], item: State) -> None:
        name = f"{item.device}/{item.attribute}"
        known = self._reported.get(item.attribute)
        is_number = known is not None and known[0] not in ("DevString", "DevEnum", "DevState", "DevBoolean")
        log = logs.get(name)
        if log is None:
            columns = {"text": (TEXT, _NO_UNIT), "quality": _QUALITY}
            shape = () if is_number else None
            unit, labels = (known[1], known[2]) if known else ("", ())
            group = child(parent, name, "NXlog")
            log = logs[name] = Log(group, self._begin, name, columns, shape=shape, unit=unit, labels=labels)
        value = _numbers(item.value, ()) if is_number else item.value
        log.add(item.time, np.nan if value is None else value, item.value, 0)

    def _add_mirrored(self, parent: Any, logs: dict[Any, Log], item: TelescopeAttribute) -> None:
        log = logs.get(item.name)
        if log is None:
            shape = None if item.type in ("DevString", "DevState", "DevEncoded") else _shape(item.value)
            columns = {"text": (TEXT, _NO_UNIT), "quality": _QUALITY, "connection": _CONNECTION}
            log = logs[item.name] = Log(child(parent, item.name, "NXlog"), self._begin, item.name, columns, shape=shape)
        said = item.value if isinstance(item.value, str) else msgspec.json.encode(item.value).decode()
        said = "" if item.value is None else said
        value: Any = said
        if log.shape is not None:
            found = _numbers(item.value, log.shape)
            value, said = (np.full(log.shape, np.nan), said) if found is None else (found, "")
        log.add(item.time, value, said, QUALITIES.index(item.quality), _CONNECTIONS.index(item.connection))

    def _write_account(self) -> None:
        group, accounts = child(self._entry, "account", "NXcollection"), self._accounts
        append(group, "topic", np.array([*accounts], TEXT))
        append(group, "records", np.array([one.records for one in accounts.values()], np.int64))
        append(group, "not_decoded", np.array([one.undecoded for one in accounts.values()], np.int64))
        append(group, "first_reason", np.array([text(one.reason) for one in accounts.values()], TEXT))
        append(group, "missing", np.array([text("\n".join(one.missing)) for one in accounts.values()], TEXT))
        append(group, "exported", np.array([one.is_exported for one in accounts.values()], np.uint8))


def _name(struct: type[msgspec.Struct]) -> str:
    """Return the name of a message."""
    return str(struct.__struct_config__.tag).partition("/")[0]


def _pulses(
    records: list[Record], decoder: ColumnDecoder, reader: BatchReader | None, account: TopicAccount
) -> Iterator[Mapping[str, Any]]:
    """Return notifications as columns; `reader`: for records that hold many of them."""
    plain = [one.value for one in records if reader is None or not is_batch(one.value)]
    table = decoder.decode(plain)
    for why in table.unused.values():
        account.refuse(why)
    if len(table.index):
        yield table.columns
    batches, rows = [], 0
    for one in records:
        if reader is None or one.value is None or not is_batch(one.value):
            continue
        batch = reader.read(one.value, one.headers)
        if isinstance(batch, Refused):
            account.refuse(batch.why, batch.rows)
            continue
        batches.append(batch)
        rows += batch.rows
        if rows >= MOST_EVENTS:
            yield _joined(reader, batches, account)
            batches, rows = [], 0
    if reader is not None and batches:
        yield _joined(reader, batches, account)


def _joined(reader: BatchReader, batches: list[Any], account: TopicAccount) -> dict[str, Any]:
    joined = Joined(reader, batches)
    for why in joined.rejected.values():
        account.refuse(why)
    good = np.ones(joined.rows, np.bool_)
    good[[*joined.rejected]] = False
    return {one.name: joined[one.name][good] for one in reader.fields}


def _rule(window: Window) -> Rule:
    return Rule(*(as_duration(time) for time in (window.length, window.disorder, window.ahead)))


def _column(part: Mapping[str, Any], is_required: bool) -> tuple[Any, Mapping[str, Any]]:
    """Return the type and the attributes of a column; an optional integer becomes a float with NaN."""
    unit = {"units": str(part["x-unit"])} if "x-unit" in part else {}
    match kind(dict(part)):
        case "integer" if is_required or "default" in part:
            return np.int64, unit | ({"start": iso(NEVER)} if unit == {"units": "us"} else {})
        case "integer" | "number":
            return np.float64, {"units": "", **unit}
        case "boolean":
            return np.uint8, {}
    return TEXT, {}


def _cell(value: Any, part: Mapping[str, Any]) -> Any:
    if value is None:
        return np.nan if kind(dict(part)) in ("integer", "number") else ""
    if isinstance(value, str | int | float) and kind(dict(part)):
        return value
    return msgspec.json.encode(value).decode()


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a number or of an array of numbers; None: it is something else."""
    try:
        shape = np.array(value, np.float64).shape
    except (ValueError, TypeError, OverflowError):
        return None
    return shape if value is not None and 0 not in shape else None


def _numbers(value: Any, shape: tuple[int, ...]) -> Any:
    """Return numbers of a shape; None: they have another form."""
    return np.array(value, np.float64) if _shape(value) == shape else None


def find_time(store: Store, eb: str) -> tuple[Time, Time]:
    """Return the time of an execution block [Unix us]: from its first record until its subarray has left it."""
    name, active, begin, end = f'"{eb}"'.encode(), set[str](), _LATEST, NEVER
    decoder = BatchDecoder(State)
    for topic in (COMMANDS, BLOCKS, STATE):
        for record in read_records(store, topic, NEVER, _LATEST):
            value = record.value or b""
            is_of_it = name in value
            state = decoder.decode_one(value) if topic == STATE and _EB.encode() in value else None
            if isinstance(state, State) and state.attribute == _EB:
                is_of_it = state.value == eb or state.device in active
                (active.add if state.value == eb else active.discard)(state.device)
            if is_of_it:
                begin, end = min(begin, record.timestamp_us), max(end, record.timestamp_us)
    if not end:
        raise ConfigError(f"--eb: expected an execution block of the archive, got {eb!r:.100}, which no record names")
    return begin, end + Duration(1000)


def export(
    store: Store,
    icd: Icd,
    path: Path,
    begin_us: Time,
    end_us: Time,
    *,
    eb: str = "",
    replace: bool = False,
    progress: ExportProgress = lambda topic, part: None,
) -> dict[str, TopicAccount]:
    """Write the records of a time [Unix us] to a NeXus file, and return their outcomes by topic."""
    if begin_us >= end_us:
        raise ConfigError(
            f"--from, --to: expected a begin before the end, got {utc_text(begin_us)}, {utc_text(end_us)}"
        )
    if path.exists() and not replace:
        raise ConfigError(f"{path}: expected no such file; --force replaces it")
    has = extent(store)
    if has is None:
        raise no_archive(store)
    nothing = ConfigError(
        f"expected a time of which the archive has records, from {utc_text(has[0])} to {utc_text(has[1])}; "
        f"got {utc_text(begin_us)} to {utc_text(end_us)}"
    )
    if has[1] <= begin_us or end_us <= has[0]:
        raise nothing
    begin_us, end_us = max(begin_us, has[0]), min(end_us, has[1])
    with _whole(path) as (part, folder):
        with h5py.File(part, "w-") as file:
            writer = TopicWriter(store, icd, file, (begin_us, end_us), folder, progress)
            accounts = writer.write(path.name, eb)
        if not any(account.records for account in accounts.values()):
            raise nothing
    return accounts


@contextmanager
def _whole(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a path for a file that is moved to its place if nothing is raised, and a folder for temporary files.

    Both are in a hidden folder beside the place. The folder of a killed export is used again.
    """
    folder = path.with_name(f".{path.name}.part")
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{path}: expected one export to this file at a time, got a second one") from error
        try:
            for left in folder.iterdir():
                left.unlink()
            part = folder / "part.nxs"
            yield part, folder
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            shutil.rmtree(folder)
    finally:
        os.close(lock)
