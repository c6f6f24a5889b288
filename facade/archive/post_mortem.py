"""Post-mortems: the records around each CRITICAL alarm, in small archives of their own, which outlive their source.

Theory of operation
-------------------
A post-mortem is made from the files of the archive alone, and from nothing that is remembered. Its name has the time of
the first CRITICAL alert of an occurrence, by Kafka, and the alarm. Each of its files has the name, the range of offsets
and the log of the file that it comes from, and the rows of its span that are about the place. So a file that is there
is done, a killed process makes the others at its next start, with the same bytes, and a file that comes late to the
archive adds its part. The archive is searched when a new alarm appears, again when all its records should be in
files, and once more after `_LATE`.

What happened is kept of all topics with few records, whatever their place: states, commands and alerts. Of the history
of attributes, which has most records, a device is left out that belongs to another place of the interface's locations
than the alarm, such as another node or rack; an alarm that is nowhere has no nodes. Measurements and logs themselves
are not kept: the history has their figures. For the alarms and states that stood when the span began, one more file of
their topic has the newest record of each key, as compaction would leave it.

An alarm has no post-mortem of its own if it comes while the records of its place are being kept for another alarm, or
those of `_AT_ONCE` other places: one of these has its minutes. So a flood of alarms does not remove the post-mortems of
other nights. If there are more than `most` post-mortems, or they take more than `most_bytes`, the oldest go, but never
the newest one.
"""

import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from os import SEEK_END
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from facade.archive.files import (
    ArchiveEntry,
    ArchiveError,
    by_partition,
    encode,
    hour_in,
    hour_of,
    hour_text,
    parse_name,
    read_entry,
)
from facade.archive.moment import ALARMS_BACK
from facade.archive.newest import Newest, NewestRecords, undecoded
from facade.archive.reading import around, entry_of, opened, read_columns
from facade.archive.recording import HISTORY
from facade.archive.stores import Store, open_store
from facade.flows.alerts.messages import ACTIVE, ALERTS, STATES, Alert, decode_alert
from facade.flows.alerts.suppression import Suppression
from facade.kernel.clock import DAY, HOUR, MINUTE, NEVER, Clock, Time, as_duration, from_ms, to_ms
from facade.kernel.icd.model import Icd
from facade.kernel.severities import CRITICAL
from facade.sdp.device_state import TOPIC

_log = logging.getLogger(__name__)

BEFORE: Final = 5 * MINUTE
AFTER: Final = 2 * MINUTE
MOST: Final = 100
MOST_BYTES: Final = 1_000_000_000
_BACK: Final = DAY
"""Time for which alarms are looked for, as after a worker was away."""
_LATE: Final = HOUR
"""Time after which the archive gets no more files of a span, unless its worker is away longer."""
_FEW: Final = frozenset(("state", "command", "alert"))
"""Qualities of service of topics that are kept whole."""
_OWN: Final = frozenset(("positions", "snapshots", "heartbeats", "server-heartbeats", "page-acts", "dead-letters"))
"""Topics of the same qualities that are left out: what programs keep for themselves, and what may be large."""
_AT_ONCE: Final = 5
"""Most post-mortems of the same minutes, each of another place."""
_STANDING: Final = (STATES, TOPIC)
"""Topics whose newest records tell what stood when the span began."""
_LONGEST_TITLE = 80
_MOST_FILES = 100_000
"""Files whose alarms are remembered: more than a day has."""
_BLANK = "0" * 64
_FORM: Final = "%Y%m%dT%H%M%S.%fZ"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"(\d{8}T\d{6}\.\d{6}Z)-(\w{12})-(\w{8})-([\w.-]*)", re.ASCII)

Occurrence = tuple[str, str, Time]
"""Condition, source, and the source's time of its begin."""


class PostMortem(NamedTuple):
    """A small archive about one occurrence of an alarm."""

    name: str
    at: Time
    """Kafka's time of the alert."""
    alarm: str
    """Digest of condition and source."""
    occurrence: str
    """Digest of the occurrence."""
    title: str
    """Condition and source, with letters, digits and hyphens only."""


def parse_post_mortem(name: str) -> PostMortem | None:
    """Return what the name of a post-mortem says; None: it is not the name of one."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    try:
        since = datetime.strptime(found[1], _FORM).replace(tzinfo=UTC) - _EPOCH
    except ValueError:  # such as a month 13
        return None
    return PostMortem(name, Time(since // timedelta(microseconds=1)), found[2], found[3], found[4])


def post_mortem_of(key: Occurrence, at: Time) -> PostMortem:
    """Return the post-mortem of an occurrence."""
    condition, source, raised_at = key
    alarm, occurrence = digest_of(condition, source), _digest(f"{int(raised_at)}")[:8]
    title = re.sub(r"[^A-Za-z0-9.]+", "-", f"{condition}-{source}")[:_LONGEST_TITLE]
    time = (_EPOCH + timedelta(microseconds=int(at))).strftime(_FORM)
    return PostMortem(f"{time}-{alarm}-{occurrence}-{title}", at, alarm, occurrence, title)


def digest_of(condition: str, source: str) -> str:
    """Return the digest of an alarm in the names of its post-mortems: its source may be any text."""
    return _digest(f"{condition}@{source}")[:12]


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def post_mortems(place: str) -> list[PostMortem]:
    """Return the post-mortems in a folder or at a URL, the oldest first."""
    return sorted(found for name in open_store(place).inner() if (found := parse_post_mortem(name)))


class PostMortems:
    """Makes the post-mortems of an archive; for one thread.

    Parameters
    ----------
    place
        Folder or URL for them, outside of the archive.
    rack_size
        Nodes of a rack.
    age
        Longest time until a record is in a file of the archive [s].
    """

    def __init__(
        self,
        store: Store,
        place: str,
        icd: Icd,
        rack_size: int,
        clock: Clock,
        *,
        age: float,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._store, self._place, self._clock = store, place, clock
        self._filed = as_duration(age) + MINUTE
        self._most, self._most_bytes = most, most_bytes
        self._places = Suppression(icd.conditions, icd.locations, rack_size).places
        self._topics = [name for name, one in icd.topics.items() if one.qos in _FEW and name not in _OWN]
        self._alerts = NewestRecords(store, ALERTS, undecoded)
        self._critical_in = lru_cache(_MOST_FILES)(self._read_critical)
        self._newest = {topic: NewestRecords(store, topic, undecoded) for topic in _STANDING}
        self._looks: dict[str, list[Time]] = {}
        """Times at which the archive is still looked at, by the name of the post-mortem."""
        self._sizes: dict[str, int] = {}
        self._gone_before = NEVER
        """Post-mortems up to this time made room for others."""
        self._failed: list[ArchiveError | OSError] = []

    def step(self) -> None:
        """Make the post-mortems that are due, and make room; if one fails, raise its error after all others."""
        self._failed.clear()
        now, known = self._clock.now_us(), post_mortems(self._place)
        found, sources = {one[2:4]: one for one in known}, dict[str, str]()
        for key, at in self._occurrences(now).items():
            made = post_mortem_of(key, at)
            sources[found.setdefault(made[2:4], made).name] = key[1]
        wanted = [*self._chosen(sorted(found.values()), {*known}, sources)][-self._most :]
        self._make_room(wanted)  # also if the disk is full, and nothing can be written
        for one in wanted:
            looks = self._looks.setdefault(one.name, [now, one.at + AFTER + self._filed, one.at + AFTER + _LATE])
            if one.at > self._gone_before and one.name in sources and any(at <= now for at in looks):
                try:
                    self._look(one, sources[one.name])
                    looks[:] = [at for at in looks if at > now]
                except (ArchiveError, OSError) as error:
                    self._failed.append(error)
                self._make_room(wanted)
        if self._failed:
            raise self._failed[0]

    def _chosen(
        self, found: Sequence[PostMortem], known: Collection[PostMortem], sources: Mapping[str, str]
    ) -> Iterator[PostMortem]:
        """Return those that are there, and those whose minutes no other one has."""
        others: deque[tuple[Time, tuple[str, str]]] = deque()
        """Those whose records are being kept: time and place."""
        for one in found:
            source = sources.get(one.name, "")
            around = self._places(source).items()
            while others and one.at - others[0][0] > AFTER:
                others.popleft()
            # Devices without a place are in every post-mortem, and nodes of a rack in that of the rack.
            is_kept = any(place in around for _, place in others) if around else bool(others)
            if one in known or not (is_kept or len(others) >= _AT_ONCE):
                others.append((one.at, self._place_of(source)))
                yield one

    def _make_room(self, wanted: Sequence[PostMortem]) -> None:
        wanted = [one for one in wanted if one.at > self._gone_before]
        for one in post_mortems(self._place):
            if one not in wanted:
                self._remove(one)
        for one in wanted:
            if one.name not in self._sizes:
                store = open_store(f"{self._place}/{one.name}")
                self._sizes[one.name] = sum(_size(store, name) for name in store.names())
        for one in wanted[:-1]:
            if sum(self._sizes.values()) <= self._most_bytes:
                break
            self._gone_before = one.at
            self._remove(one)

    def _remove(self, one: PostMortem) -> None:
        store = open_store(f"{self._place}/{one.name}")
        store.tidy("*", lambda _: True)  # or its folder stays
        for name in store.names():
            store.remove(name)
        self._sizes.pop(one.name, None)
        _log.info("post-mortem removed name=%s, to make room", one.name)

    # Alarms

    def _occurrences(self, now: Time) -> dict[Occurrence, Time]:
        """Return the occurrences of CRITICAL alarms that began lately, with the time of the first such alert."""
        found: dict[Occurrence, Time] = {}
        begin = max(now - _BACK, NEVER)
        for some in self._alerts.each(begin, now + MINUTE, self._critical):
            for key, at in some.items():
                if begin <= min(key[2], at):
                    found[key] = min(at, found.get(key, at))
        return found

    def _critical(self, name: str) -> dict[Occurrence, Time]:
        try:
            return self._critical_in(name)
        except (ArchiveError, OSError) as error:
            self._failed.append(error)
            return {}

    def _read_critical(self, name: str) -> dict[Occurrence, Time]:
        found: dict[Occurrence, Time] = {}
        for columns in read_columns(self._store, [name]):
            for at, value in zip(columns.timestamps, columns.values, strict=True):
                alert = decode_alert(value) if CRITICAL.encode() in (value or b"") else None
                if isinstance(alert, Alert) and (alert.state, alert.severity) == (ACTIVE, CRITICAL):
                    found.setdefault((*alert.key, alert.raised_at), from_ms(at))
        return found

    # Files

    def _look(self, one: PostMortem, source: str) -> None:
        """Add the files that are not there yet."""
        self._sizes.pop(one.name, None)
        kept = open_store(f"{self._place}/{one.name}")
        kept.tidy("*", lambda _: True)  # after a process that was killed
        have = {parse_name(name) for name in kept.names()}
        begin, end = max(one.at - BEFORE, NEVER), one.at + AFTER
        for topic in (*self._topics, HISTORY):
            is_about = self._is_about(source) if topic == HISTORY else None
            for names in by_partition(self._store.names(topic)).values():
                found = {name for name in around(names, begin, end) if self._alerts.has(name, begin, end)}
                near = [place for place, name in enumerate(names) if name in found]
                if not near and topic in _STANDING:
                    hour = hour_text(hour_of(begin))
                    near = [place for place, name in enumerate(names) if hour_in(name) <= hour][-1:]
                if not near:
                    continue
                first = near[0]
                if topic in _STANDING:
                    # At an earlier look, files of the span may have been missing, and an older one was the last.
                    before = [place for place, name in enumerate(names[:first]) if parse_name(name) in have]
                    if before:
                        first = before[-1] + 1
                    else:
                        self._add_standing(kept, topic, names[: first + 1], begin)
                for name in names[first : near[-1] + 1]:
                    if parse_name(name) not in have:
                        entry, rows = self._read(name)
                        times = rows["timestamp"].cast(pa.int64())
                        chosen = pc.less_equal(times, to_ms(end))
                        if topic not in _STANDING:
                            chosen = pc.and_(chosen, pc.greater_equal(times, to_ms(begin)))
                        if is_about is not None:
                            chosen = pc.and_(chosen, is_about(rows["key"]))
                        _write(kept, entry, rows.filter(chosen))
        _log.info("post-mortem kept name=%s files=%d", one.name, len(kept.names()))

    def _add_standing(self, kept: Store, topic: str, names: Sequence[str], begin: Time) -> None:
        """Add the newest record of each key of the files before the last one of some; none if it is a tombstone."""
        *earlier, following = names
        behind = entry_of(self._store, following)
        if not earlier:
            return
        newest: dict[bytes, tuple[Newest, str]] = {}
        for name in around(earlier, max(begin - ALARMS_BACK, NEVER), begin):
            newest |= {key: (found, name) for key, found in self._newest[topic].whole(name).items()}
        offsets: dict[str, list[int]] = {}
        for found, name in newest.values():
            if found.content != (None,):
                offsets.setdefault(name, []).append(found.offset)
        tables: list[pa.Table] = []
        for name in (name for name in earlier if name in offsets):
            entry, rows = self._read(name)  # one at a time, as these are the files of a month
            if entry.log == behind.log:
                tables.append(rows.filter(pc.is_in(rows["offset"], pa.array(offsets[name]))))
        if tables:
            rows = pa.concat_tables(tables).sort_by("offset")
            first, hour = rows["offset"][0].as_py(), hour_of(from_ms(rows["timestamp"].cast(pa.int64())[0].as_py()))
            entry = replace(behind, number=behind.number - 1, hour=hour, first=first, next=behind.first)
            _write(kept, entry, rows)

    def _read(self, name: str) -> tuple[ArchiveEntry, pa.Table]:
        with opened(self._store, name) as file:
            return read_entry(file.metadata), file.read(use_threads=False).replace_schema_metadata(None)

    def _place_of(self, source: str) -> tuple[str, str]:
        """Return the location and the name of the smallest place of a source; empty: it is nowhere."""
        return next(iter(self._places(source).items()), ("", ""))

    def _is_about(self, source: str) -> Callable[[pa.ChunkedArray], pa.ChunkedArray]:
        """Return what tells of each key of the history whether its device is at the place of a source, or nowhere."""
        place = self._place_of(source)

        def is_about(keys: pa.ChunkedArray) -> pa.ChunkedArray:
            known = [key for key in pc.unique(keys).to_pylist() if key is not None]
            devices = {key: key.decode(errors="replace").partition("/")[2].rpartition("/")[0] for key in known}
            some = [key for key in known if not (at := self._places(devices[key])) or place in at.items()]
            return pc.is_in(keys, pa.array(some, pa.binary()))

        return is_about


def _write(kept: Store, entry: ArchiveEntry, rows: pa.Table) -> None:
    contents = replace(entry, records=len(rows), sha256=_BLANK)
    with suppress(FileExistsError):  # of a process that another release ran
        kept.write(contents.name, encode(rows.to_batches(), contents))


def _size(store: Store, name: str) -> int:
    with store.open(name) as file:
        return file.seek(0, SEEK_END)
