"""The newest record of each key before a time, and all records of a time, from the files of a topic.

Files never change, so a reader keeps the times of each file, the newest record of each of its keys, and the rows of the
files that it read last. A second look at a near time therefore opens no file, and starts no thread. For a file that
ends before the time, the newest records are enough; the rows are searched, and their newest records decoded, only if
the time lies within the file.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import chain
from threading import Lock
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from facade.archive.files import by_partition
from facade.archive.reading import around, bounds, opened, read_columns, read_keyed
from facade.archive.stores import Store
from facade.kernel.bus.port import Record
from facade.kernel.clock import FOREVER, MINUTE, NEVER, Time, from_ms

_DISORDER: Final = MINUTE
"""Largest step back of the times in a partition: the clocks of brokers differ [us]."""
_READERS: Final = 4
"""Files read at the same time."""
_MOST_FILES = 20_000
"""Files whose times are kept: a month of a topic that changes all the time."""
_MOST_NEWEST = 500_000
"""Newest records that are kept: of 11 files, if each has all attributes of 1,500 nodes."""
_MOST_ROWS = 6
"""Files whose rows are kept, each of up to 32 MB."""
_MOST_RECORDS = 2_000
"""Files whose records are kept, of topics with few records."""
_Key = TypeVar("_Key")
_Read = TypeVar("_Read")


class _Rows(NamedTuple):
    """Rows of a file in the order of keys, then of times; all arrays are of shape (rows,)."""

    key: npt.NDArray[np.int64]
    """Place of the key in `keys`."""
    at: npt.NDArray[np.int64]
    """Kafka's time [Unix us]."""
    offset: npt.NDArray[np.int64]
    values: pa.Array
    keys: list[bytes]


class Newest(NamedTuple):
    """The newest record of a key."""

    at: Time
    offset: int
    content: Any
    """What the decoder made of its value."""


class ReadCache(Generic[_Key, _Read]):
    """A cache of results by key, such as the records of a file. The least recently used ones are dropped first.

    Any thread may use it. Missing results of a request are read several at a time.

    Parameters
    ----------
    most
        Bound of the sum of sizes. The newest result is kept at any size.
    size
        Returns the size of a result; by default 1.
    """

    def __init__(
        self, read: Callable[[_Key], _Read], most: int, size: Callable[[_Read], int] = lambda found: 1
    ) -> None:
        self._read, self._most, self._size = read, most, size
        self._found: OrderedDict[_Key, _Read] = OrderedDict()
        self._kept = 0
        self._lock = Lock()

    def __call__(self, key: _Key) -> _Read:
        """Return the result of one key."""
        return self.each([key])[0]

    def each(self, keys: Sequence[_Key]) -> list[_Read]:
        """Return the results of several keys, in their order."""
        with self._lock:
            known = {key: self._found[key] for key in keys if key in self._found}
            for key in known:
                self._found.move_to_end(key)
        if missing := [key for key in keys if key not in known]:
            with ThreadPoolExecutor(_READERS) as pool:
                read = dict(zip(missing, pool.map(self._read, missing), strict=True))
            known |= read
            with self._lock:
                added = {key: one for key, one in read.items() if key not in self._found}  # another thread may have
                self._found |= added
                self._kept += sum(map(self._size, added.values()))
                while self._kept > self._most and len(self._found) > 1:
                    self._kept -= self._size(self._found.popitem(last=False)[1])
        return [known[key] for key in keys]


class NewestRecords:
    """Records of a topic with keys, for any thread.

    Parameters
    ----------
    decode
        Gives the content of a value; None: the record does not count, and hides no earlier one.
    """

    def __init__(self, store: Store, topic: str, decode: Callable[[bytes | None], Any]) -> None:
        self._store, self._topic, self._decode = store, topic, decode
        self._listed: tuple[Sequence[str], list[list[str]]] = (), []
        self.span = ReadCache(self._read_span, _MOST_FILES)
        self._rows = lru_cache(_MOST_ROWS)(self._read_rows)
        self.whole: ReadCache[str, dict[bytes, Newest]] = ReadCache(
            lambda name: self._search(name, NEVER, FOREVER), _MOST_NEWEST, lambda found: len(found) + 1
        )
        self._records: ReadCache[str, list[Record]] = ReadCache(lambda name: [*self._read_records(name)], _MOST_RECORDS)

    @property
    def is_kept(self) -> bool:
        """Return whether the archive has the topic."""
        return bool(self._store.names(self._topic))

    def at(self, begin: Time, time: Time) -> dict[bytes, Newest]:
        """Return the newest record of each key from `begin` to `time`, both included [Unix us]."""
        names = self.files(begin, time)
        spans = dict(zip(names, self.span.each(names), strict=True))
        within = [name for name, (first, last) in spans.items() if begin <= first and last <= time]
        newest: dict[bytes, Newest] = {}
        for found in (
            *self.whole.each(within),
            *(self._search(name, begin, time) for name in names if name not in within),
        ):
            if not newest:
                newest |= found
                continue
            for key, one in found.items():
                if key not in newest or newest[key][:2] < one[:2]:
                    newest[key] = one
        return newest

    def records(self, begin: Time, time: Time) -> Iterator[Record]:
        """Return the records from `begin` to `time`, both included, in the order of each partition's log."""
        for found in self._records.each(self.files(begin, time)):
            yield from (one for one in found if begin <= one.timestamp_us <= time)

    def newest(self, begin: Time, time: Time) -> Time:
        """Return the time of the newest record from `begin` to `time`, both included; `NEVER`: there is none."""
        names = self.files(begin, time)
        ends = [last for _, last in self.span.each(names)]
        last = [name for name, end in zip(names, ends, strict=True) if end > time]
        times = (
            one.timestamp_us for some in self._records.each(last) for one in some if begin <= one.timestamp_us <= time
        )
        return max(chain((end for end in ends if end <= time), times), default=NEVER)

    def partitions(self) -> list[list[str]]:
        """Return the files of each partition in the order of its log."""
        names = self._store.names(self._topic)
        if names != self._listed[0]:
            self._listed = names, [*by_partition(names).values()]
        return self._listed[1]

    def files(self, begin: Time, time: Time) -> list[str]:
        """Return the files that have records from `begin` to `time`, both included."""
        names = [*self._around(begin, time)]
        spans = zip(names, self.span.each(names), strict=True)
        return [name for name, (first, last) in spans if first <= time and last >= begin]

    def each(self, begin: Time, time: Time, read: Callable[[str], _Read]) -> Iterator[_Read]:
        """Read each file, by its name, that may have records from `begin` to `time`; yield the results."""
        with ThreadPoolExecutor(_READERS) as pool:
            yield from pool.map(read, self._around(begin, time))

    def has(self, name: str, begin: Time, time: Time) -> bool:
        """Return whether a file of any topic may have records from `begin` to `time`."""
        first, last = self.span(name)
        return first <= time and last >= begin

    def _around(self, begin: Time, time: Time) -> Iterator[str]:
        return chain.from_iterable(around(files, begin - _DISORDER, time + _DISORDER) for files in self.partitions())

    def _search(self, name: str, begin: Time, time: Time) -> dict[bytes, Newest]:
        rows = self._rows(name)
        places = np.flatnonzero((rows.at >= int(begin)) & (rows.at <= int(time)))
        ends = np.append(np.flatnonzero(np.diff(rows.key[places])), len(places) - 1) if len(places) else places
        newest = places[ends]
        found, first = {}, 0
        columns = (one[newest].tolist() for one in (rows.key, rows.at, rows.offset))
        values = rows.values.take(pa.array(newest)).to_pylist()  # at once, as each alone would take ten times as long
        for end, key, at, offset, value in zip(ends.tolist(), *columns, values, strict=True):
            one, place = Newest(at, offset, self._decode(value)), end
            while one.content is None and place > first:
                row = int(places[place := place - 1])
                content = self._decode(rows.values[row].as_py())
                one = Newest(Time(int(rows.at[row])), int(rows.offset[row]), content)
            first = end + 1
            if one.content is not None:
                found[rows.keys[key]] = one
        return found

    def _read_span(self, name: str) -> tuple[Time, Time]:
        with opened(self._store, name) as file:
            if not file.metadata.num_rows:  # a post-mortem has files without a record about its place
                return FOREVER, NEVER
            times = bounds(file, "timestamp")
        known = [one for one in times if one is not None]
        if len(known) < len(times):
            return NEVER, FOREVER
        return from_ms(min(low for low, _ in known)), from_ms(max(high for _, high in known))

    def _read_rows(self, name: str) -> _Rows:
        table = read_keyed(self._store, name)[1].combine_chunks()
        coded = table["key"].combine_chunks().dictionary_encode()
        key, at, offset = (one.to_numpy() for one in (coded.indices, table["at_us"], table["offset"]))
        order = np.lexsort((offset, at, key))
        values = table["value"].combine_chunks().take(pa.array(order))
        return _Rows(key[order].astype(np.int64), at[order], offset[order], values, coded.dictionary.to_pylist())

    def _read_records(self, name: str) -> Iterator[Record]:
        for columns in read_columns(self._store, [name]):
            yield from columns.records()


def undecoded(value: bytes | None) -> Sequence[bytes | None]:
    """Return the bytes of a value, undecoded; those of a tombstone are None."""
    return (value,)
