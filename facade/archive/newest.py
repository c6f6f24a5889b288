"""The newest record of each key before a time, and all records of a time, from the files of a topic.

Files never change, so a reader keeps the times of each file, the newest record of each of its keys, and the rows of the
files that it read last. A second look at a near time therefore opens no file. For a file that ends before the time, the
newest records are enough; the rows are searched only if the time lies within the file.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

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
"""Files whose times and newest records are kept: a month of a topic that changes all the time."""
_MOST_ROWS = 6
"""Files whose rows are kept, each of up to 32 MB."""
_MOST_RECORDS = 2_000
"""Files whose records are kept, of topics with few records."""
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


class NewestRecords:
    """Records of a topic with keys, for any thread.

    Parameters
    ----------
    decode
        Gives the content of a value; None: the record does not count, and hides no earlier one.
    """

    def __init__(self, store: Store, topic: str, decode: Callable[[bytes | None], Any]) -> None:
        self._store, self._topic, self._decode = store, topic, decode
        self.span = lru_cache(_MOST_FILES)(self._read_span)
        self._rows = lru_cache(_MOST_ROWS)(self._read_rows)
        self.whole = lru_cache(_MOST_FILES)(lambda name: self._search(name, NEVER, FOREVER))
        self._records = lru_cache(_MOST_RECORDS)(
            lambda name: [record for columns in read_columns(store, [name]) for record in columns.records()]
        )

    @property
    def is_kept(self) -> bool:
        """Return whether the archive has the topic."""
        return bool(self._store.names(self._topic))

    def at(self, begin: Time, time: Time) -> dict[bytes, Newest]:
        """Return the newest record of each key from `begin` to `time`, both included [Unix us]."""
        newest: dict[bytes, Newest] = {}
        for found in self.each(begin, time, lambda name: self._newest_of(name, begin, time)):
            for key, one in found.items():
                if key not in newest or newest[key][:2] < one[:2]:
                    newest[key] = one
        return newest

    def records(self, begin: Time, time: Time) -> Iterator[Record]:
        """Return the records from `begin` to `time`, both included, in the order of each partition's log."""
        for found in self.each(begin, time, lambda name: self._records(name) if self.has(name, begin, time) else []):
            yield from (one for one in found if begin <= one.timestamp_us <= time)

    def each(self, begin: Time, time: Time, read: Callable[[str], _Read]) -> Iterator[_Read]:
        """Read each file, by its name, that may have records from `begin` to `time`; yield the results."""
        partitions = by_partition(self._store.names(self._topic)).values()
        names = chain.from_iterable(around(files, begin - _DISORDER, time + _DISORDER) for files in partitions)
        with ThreadPoolExecutor(_READERS) as pool:
            yield from pool.map(read, names)

    def has(self, name: str, begin: Time, time: Time) -> bool:
        """Return whether a file of any topic may have records from `begin` to `time`."""
        first, last = self.span(name)
        return first <= time and last >= begin

    def _newest_of(self, name: str, begin: Time, time: Time) -> dict[bytes, Newest]:
        first, last = self.span(name)
        if first > time or last < begin:
            return {}
        return self.whole(name) if begin <= first and last <= time else self._search(name, begin, time)

    def _search(self, name: str, begin: Time, time: Time) -> dict[bytes, Newest]:
        rows = self._rows(name)
        places = np.flatnonzero((rows.at >= int(begin)) & (rows.at <= int(time)))
        keys = rows.key[places]
        found = {}
        for end in (np.flatnonzero(np.diff(keys)) + 1).tolist() + [len(places)] * bool(len(places)):
            key, place = keys[end - 1], end - 1
            while place >= 0 and keys[place] == key:
                row = places[place]
                if (content := self._decode(rows.values[row].as_py())) is not None:
                    found[rows.keys[key]] = Newest(Time(int(rows.at[row])), int(rows.offset[row]), content)
                    break
                place -= 1
        return found

    def _read_span(self, name: str) -> tuple[Time, Time]:
        with opened(self._store, name) as file:
            times = bounds(file, "timestamp")
        known = [one for one in times if one is not None]
        if not times:  # a post-mortem has files without a record about its place
            return FOREVER, NEVER
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


def undecoded(value: bytes | None) -> Sequence[bytes | None]:
    """Return the bytes of a value, undecoded; those of a tombstone are None."""
    return (value,)
