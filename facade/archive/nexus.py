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

Topics are read one after the other, in bounded memory. Partial sums that memory does not hold, and the segments of a
table, wait in temporary files. The NeXus file gets its place when it is whole and durable.
"""

import fcntl
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, cast

import h5py
import msgspec
import numpy as np

from facade.archive.files import missing, no_archive
from facade.archive.nexus_groups import (
    QUALITIES,
    TEXT,
    Log,
    LogColumn,
    WindowGrid,
    append,
    append_events,
    child,
    iso,
    legal,
    shape_of,
)
from facade.archive.nexus_groups import text as legible
from facade.archive.nexus_tables import require_room, write_tables
from facade.archive.reading import extent, read_records, topics
from facade.archive.stores import Store
from facade.archive.sums import SummaryTopic, Summed
from facade.archive.timeline import record_span
from facade.kernel.bus.port import Record
from facade.kernel.clock import MINUTE, NEVER, NOTHING, SECOND, Duration, Time, as_duration, utc_text
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.errors import ConfigError
from facade.kernel.icd.fields import Schema, earlier_versions, kind, message_of, properties
from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import Window
from facade.kernel.outcome import RecordRejected, Unused
from facade.sdp import messages
from facade.sdp.arrays import Array
from facade.sdp.batches import BatchReader, Joined, ReadBatch, Refused, is_batch
from facade.sdp.columns import ColumnDecoder, number_fields

_LATEST = Time(2**62)
STATE, COMMANDS, BLOCKS, TABLES = "state", "commands", "processing-blocks", "calibration"
_LOGS: Final[Mapping[str, Mapping[type[msgspec.Struct], tuple[str, str]]]] = {
    "alerts": {messages.Alert: ("raised_at", "severity"), messages.AlertAction: ("time", "action")},
    "alert-actions": {messages.AlertAction: ("time", "action")},
    COMMANDS: {messages.Command: ("issued", "command")},
    "command-acks": {messages.CommandAck: ("time", "status")},
    "command-refusals": {messages.CommandRefusal: ("time", "reason")},
    BLOCKS: {messages.ProcessingBlock: ("time", "state")},
    "reservations": {messages.Reservation: ("time", "state")},
    "tables": {messages.Table: ("time", "state")},
    **{topic: {messages.State: ("time", "value")} for topic in (STATE, "settings", "archive-reports")},
    "telescope.model": {messages.TelescopeAttribute: ("time", "value")},
}
"""Topics whose messages are logs: the fields with the time and the value of each message."""
_CONNECTIONS: Final = ("CONNECTED", "DISCONNECTED", "ENDED")
_QUALITY: Final[tuple[Any, Mapping[str, Any]]] = (np.uint8, {"labels": QUALITIES})
_AT_ONCE, _OVERHEAD = 32_000_000, 500
"""Size of the records in memory, and the overhead of each [bytes]."""
_MOST_EVENTS: Final = 250_000
"""Events of a pulse."""
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

    def refuse(self, why: Unused | None, count: int = 1) -> None:
        """Count unusable records, without tombstones."""
        if isinstance(why, RecordRejected):
            self.undecoded += count
            self.reason = self.reason or str(why)


class TopicWriter:
    """Writes the topics of an archive."""

    def __init__(
        self, store: Store, icd: Icd, entry: Any, times: tuple[Time, Time], folder: Path, progress: ExportProgress
    ) -> None:
        self._store, self._icd, self._entry, self._folder, self._progress = store, icd, entry, folder, progress
        self._begin, self._end = times
        self._reported = {one.name: one for known in icd.classes.values() for one in known.attributes if one.reported}

    def write(self) -> dict[str, TopicAccount]:
        """Write all topics, and their outcomes; return these."""
        windowed = {name: one.window for name, one in self._icd.topics.items() if one.window is not None}
        summaries = {window.summary for window in windowed.values()}
        accounts: dict[str, TopicAccount] = {}
        for topic in sorted(topics(self._store), key=lambda topic: topic not in summaries):  # summaries are drawn first
            account = accounts[topic] = TopicAccount()
            account.missing += missing(self._store, topic, self._begin, self._end)
            if topic in windowed:
                self._write_events(topic, windowed[topic], account)
            elif topic in summaries:
                self._write_windows(SummaryTopic(self._icd, topic), topic, account)
            elif topic in _LOGS:
                self._write_logs(topic, account)
            elif topic == TABLES:
                for why in write_tables(self._group(topic), self._folder, self._records(topic, account)):
                    account.refuse(why)
            else:
                account.is_exported = False
        group, found = child(self._entry, "account", "NXcollection"), [*accounts.values()]
        append(group, "topic", [*accounts])
        append(group, "records", np.array([one.records for one in found], np.int64))
        append(group, "not_decoded", np.array([one.undecoded for one in found], np.int64))
        append(group, "first_reason", [one.reason for one in found])
        append(group, "missing", ["\n".join(one.missing) for one in found])
        append(group, "exported", np.array([one.is_exported for one in found], np.uint8))
        return accounts

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
            size += len(record.value or b"") + _OVERHEAD
            account.records += self._begin <= record.timestamp_us < self._end
            if size >= _AT_ONCE:
                require_room(self._folder)
                yield found
                self._progress(topic, (record.timestamp_us - begin) / (end - begin))
                found, size = [], 0
        require_room(self._folder)
        yield found
        self._progress(topic, 1.0)

    def _records(self, topic: str, account: TopicAccount, *around: Duration) -> Iterator[Record]:
        return chain.from_iterable(self._chunks(topic, account, *around))

    # Notifications

    def _write_events(self, topic: str, window: Window, account: TopicAccount) -> None:
        entry = self._icd.topics[topic]
        name = cast(str, entry.message)
        schema, earlier = self._icd.messages[name], earlier_versions(self._icd, name)
        decoder = ColumnDecoder(name, schema, earlier)
        reader = BatchReader(schema, [window.time], earlier) if "arrow" in entry.encodings else None
        units = {one.name: str(properties(schema)[one.name].get("x-unit", "")) for one in number_fields(schema)}
        events: Any = None
        for records in self._chunks(topic, account):
            pulses = list[Mapping[str, Array]]()
            for _, some in groupby(records, lambda one: one.timestamp_us // SECOND):
                pulses += [one for one in _pulses([*some], decoder, reader, account) if len(one[window.time])]
            if pulses:
                events = events or child(self._group(topic), "notifications", "NXevent_data")
                append_events(events, self._begin, pulses, units, window)

    # Windows

    def _write_windows(self, summaries: SummaryTopic, topic: str, account: TopicAccount) -> None:
        grids = dict[str, WindowGrid]()
        for name, window in summaries.windowed.items():
            parts = properties(message_of(self._icd, name) or {})
            grids[name] = WindowGrid(self._folder / name, self._begin, self._end, window, parts)
        marks: dict[str, dict[int, Time]] = {name: {} for name in grids}
        windows = [window for name, window in summaries.windowed.items() if grids[name].rows]
        before = max(as_duration(one.ahead) for one in summaries.windowed.values())
        after = max((as_duration(one.length + one.lateness) for one in windows), default=NOTHING)
        for record in self._records(topic, account, before + _DELAY_US, after + _DELAY_US):
            found = summaries.decode(record.value)
            why = found if isinstance(found, Unused) else None
            if isinstance(found, messages.Watermark):
                known = dict.fromkeys(range(found.partitions), NEVER) | marks[found.stream]
                known[found.partition] = max(known.get(found.partition, NEVER), found.read_to)
                marks[found.stream] = known
            elif isinstance(found, Summed):
                why = grids[found.stream].add(found)
            if self._begin <= record.timestamp_us < self._end:
                account.refuse(why)
        for name, grid in grids.items():
            parent = child(self._group(name), "windows", "NXcollection")
            grid.write(parent, f"{name}: windows", min(marks[name].values(), default=NEVER))

    # Logs

    def _write_logs(self, topic: str, account: TopicAccount) -> None:
        decoder, parent = BatchDecoder[Any](*_LOGS[topic]), self._group(topic)
        logs = dict[str, Log]()
        for records in self._chunks(topic, account):
            decoded = decoder.decode([record.value for record in records])
            for why in decoded.unused.values():
                account.refuse(why)
            named = defaultdict[str, list[Any]](list)
            for item in decoded.items:
                named[_name(item)].append(item)
            for name, items in named.items():
                if name not in logs:
                    logs[name] = self._log(child(parent, name, "NXlog"), items[0], *_LOGS[topic][type(items[0])])
                logs[name].append(items)
        for log in logs.values():
            log.finish()

    def _log(self, group: Any, item: Any, time: str, value: str) -> Log:
        """Return the log that begins with a message."""
        name, get, columns = _name(item), attrgetter(value), dict[str, LogColumn]()
        if isinstance(item, messages.State):
            known = self._reported.get(item.attribute)
            is_text = known is None or known.type in ("DevString", "DevEnum", "DevState", "DevBoolean")
            unit, labels = (known.unit or "", self._icd.enums.get(known.enum or "", ())) if known else ("", ())
            columns |= {"text": (TEXT, {}, get), "quality": (*_QUALITY, lambda one: 0)}
            return Log(group, self._begin, name, time, get, columns, None if is_text else (), unit, [*labels])
        if isinstance(item, messages.TelescopeAttribute):
            shape = None if item.type in ("DevString", "DevState", "DevEncoded") else shape_of(item.value)
            columns |= {
                "text": (TEXT, {}, lambda one: "" if shape == shape_of(one.value) is not None else _text(one.value)),
                "quality": (*_QUALITY, lambda one: QUALITIES.index(one.quality)),
                "connection": (np.uint8, {"labels": _CONNECTIONS}, lambda one: _CONNECTIONS.index(one.connection)),
            }
            shown = get if shape is not None else lambda one: _text(one.value)
            return Log(group, self._begin, name, time, shown, columns, shape)
        schema = self._icd.messages[name]
        parts = {name: part for name, part in properties(schema).items() if name not in ("schema", time)}
        columns |= {name: _column(name, part, name in schema["required"]) for name, part in parts.items()}
        return Log(group, self._begin, schema["title"], time, get, columns, labels=[*parts[value].get("enum", ())])


def _name(item: Any) -> str:
    """Return the name of the log of a message."""
    match item:
        case messages.State():
            return f"{item.device}/{item.attribute}"
        case messages.TelescopeAttribute():
            return item.name
    return str(item.__struct_config__.tag).partition("/")[0]


def _pulses(
    records: list[Record], decoder: ColumnDecoder, reader: BatchReader | None, account: TopicAccount
) -> Iterator[Mapping[str, Array]]:
    """Return notifications as columns; `reader`: for records that hold many of them."""
    held = [one for one in records if reader is not None and is_batch(one.value)]
    table = decoder.decode([one.value for one in records if reader is None or not is_batch(one.value)])
    for why in table.unused.values():
        account.refuse(why)
    yield table.columns
    batches, rows = list[ReadBatch](), 0
    for one in held:
        assert reader is not None, "without a reader there are no batches"
        batch = reader.read(one.value or b"", one.headers)
        if isinstance(batch, Refused):
            account.refuse(batch.why, batch.rows)
        else:
            batches.append(batch)
            rows += batch.rows
        if batches and (one is held[-1] or rows >= _MOST_EVENTS):
            joined = Joined(reader, batches)
            for why in joined.rejected.values():
                account.refuse(why)
            good = np.ones(joined.rows, np.bool_)
            good[[*joined.rejected]] = False
            yield {field.name: joined[field.name][good] for field in reader.fields}
            batches, rows = [], 0


def _column(name: str, part: Schema, is_required: bool) -> LogColumn:
    """Return the column of a field; an optional integer becomes a float with NaN."""
    unit, of, get = {"units": str(part["x-unit"])} if "x-unit" in part else {}, kind(part), attrgetter(name)
    if of == "integer" and (is_required or "default" in part):
        return np.int64, unit | ({"start": iso(NEVER)} if unit == {"units": "us"} else {}), get
    if of in ("integer", "number"):
        return np.float64, {"units": "", **unit}, lambda one: np.nan if get(one) is None else get(one)
    return (np.uint8, {}, get) if of == "boolean" else (TEXT, {}, lambda one: _text(get(one), of))


def _text(value: Any, of: str = "string") -> str:
    if isinstance(value, str) and of:
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def find_time(store: Store, eb: str) -> tuple[Time, Time]:
    """Return the time of an execution block [Unix us]: from its first record until its subarray has left it."""
    topics = (COMMANDS, BLOCKS, STATE)
    span = record_span((one for topic in topics for one in read_records(store, topic, NEVER, _LATEST)), eb)
    if span is None:
        raise ConfigError(f"--eb: expected an execution block of the archive, got {eb!r:.100}, which no record names")
    return span[0], span[1] + Duration(1000)


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
    with _whole(path) as part:
        with h5py.File(part, "w-") as file:
            file.attrs.update({"NX_class": "NXroot", "file_name": path.name, "creator": "sdp-facade"})
            file.attrs.update({"HDF5_Version": h5py.version.hdf5_version, "h5py_version": h5py.__version__})
            entry = child(file, "entry", "NXentry")
            entry["title"] = f"SDP, {utc_text(begin_us)} to {utc_text(end_us)}"
            entry["start_time"], entry["end_time"] = iso(begin_us), iso(end_us)
            entry["program_name"] = "sdp-facade"
            entry["program_name"].attrs["version"] = version("sdp-tango-facade")
            if eb:
                entry["entry_identifier"] = legible(eb)
            accounts = TopicWriter(store, icd, entry, (begin_us, end_us), part.parent, progress).write()
        if not any(account.records for account in accounts.values()):
            raise nothing
    return accounts


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield a path for a file that is moved to its place if nothing is raised.

    It is in a hidden folder beside the place, as are temporary files. The folder of a killed export is used again.
    """
    folder = path.with_name(f".{path.name}.part")
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield (part := folder / "part.nxs")
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            shutil.rmtree(folder)
    except BlockingIOError as error:
        raise ConfigError(f"{path}: expected one export to this file at a time, got a second one") from error
    finally:
        os.close(lock)
