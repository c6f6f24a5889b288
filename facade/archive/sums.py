"""Partial sums of windows in an archive, merged in memory that does not grow with the archive.

The partial sums of a window may be anywhere in an archive. So they are sorted into parts, each with some windows; what
memory does not hold goes to temporary files, and one part after the other is read and merged
(`facade.kernel.windows.frame`).
"""

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from facade.flows.telemetry.consistency import BOUNDS, unbounded
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import INCONSISTENT, RecordRejected, Unused
from facade.kernel.printable import excerpt
from facade.kernel.windows.frame import Array, Frame, distinct, merge, merge_alike
from facade.sdp.messages import IngestSummary, RackSummary, TelemetrySummary, Watermark
from facade.sdp.summaries import frames_of

_KINDS: Final = (IngestSummary, TelemetrySummary, RackSummary, Watermark)
_MOST_WAITING = 100_000
"""Rows that wait in memory for their files, or of one part to be merged."""


class Summed(NamedTuple):
    """The partial sums of one record."""

    stream: str
    """Windowed topic."""
    group: str | None
    """Name of the group; None: the frames have the numbers of nodes."""
    frames: list[Frame]
    summary: IngestSummary | RackSummary | TelemetrySummary
    """The message, with the offsets of its records."""


class SummaryTopic:
    """Decodes the records of one topic with summaries.

    Parameters
    ----------
    name
        Name of the topic.
    wanted
        Statistics to decode, see `facade.sdp.summaries.frames_of`.
    """

    def __init__(self, icd: Icd, name: str, wanted: Mapping[str, Collection[str]] | None = None) -> None:
        self._wanted = wanted
        windows = {stream: topic.window for stream, topic in icd.topics.items() if topic.window is not None}
        self.windowed = {stream: window for stream, window in windows.items() if window.summary == name}
        """Windows of the topics that are summed up there, by topic."""
        entry = icd.topics[name]
        tags = {str(one.__struct_config__.tag).partition("/")[0]: one for one in _KINDS}
        self._decode = BatchDecoder[Any](*(one for tag, one in tags.items() if tag in (entry.message, *entry.also)))

    def decode(self, value: bytes | None) -> Summed | Watermark | Unused:
        """Return the partial sums of a record, or the watermark; a bad record is a result."""
        item = self._decode.decode_one(value)
        if isinstance(item, Unused):
            return item
        stream = next(iter(self.windowed)) if isinstance(item, IngestSummary) else str(item.stream)
        if stream not in self.windowed:
            what = f"expected a windowed topic, got {stream}"
            return RecordRejected(INCONSISTENT, "$.stream", excerpt(what))
        if isinstance(item, Watermark):
            return item
        try:
            frames = frames_of(item, self._wanted)
        except (ValueError, OverflowError) as error:
            return RecordRejected(INCONSISTENT, "$", excerpt(str(error)))
        if wide := next((name for rows in frames for name in unbounded(rows)), None):
            return RecordRejected(INCONSISTENT, f"$.fields.{wide}", BOUNDS)
        return Summed(stream, item.group if isinstance(item, TelemetrySummary) else None, frames, item)


class Sums:
    """Partial sums of one stream.

    Parameters
    ----------
    folder
        Folder for its files, which is created when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[int, list[Frame]] = {}
        self._size = 0
        self.parts: set[int] = set()
        """Numbers of the parts with rows."""

    def add(self, rows: Frame, parts: Array) -> None:
        """Add rows, each with the number of its part."""
        for part in distinct(parts):
            self.parts.add(part)
            self._waiting.setdefault(part, []).append(rows.take(parts == part))
        self._size += len(rows)
        if self._size >= _MOST_WAITING:
            self._flush()

    def _flush(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for part, frames in self._waiting.items():
            with self._file(part).open("ab") as file:
                pickle.dump(frames, file)
        self._waiting, self._size = {}, 0

    def _file(self, part: int) -> Path:
        return self._folder / str(part)

    def records(self, part: int) -> list[Frame]:
        """Return the merged rows of a part without runs, over all epochs.

        See `facade.kernel.windows.frame.merge_alike`.
        """
        # Further runs of a row have no records.
        found = (one.take(one.count > 0).without_runs() for one in self._rows(part))
        return _merged((one for one in found if len(one)), partial(merge_alike, epochs=False))

    def runs(self, part: int) -> list[Frame]:
        """Return the merged runs of a part, in one frame without fields; none if the part has no rows."""
        return _merged((replace(one, fields={}) for one in self._rows(part)), lambda frames: [merge(frames)])

    def _rows(self, part: int) -> Iterator[Frame]:
        if (path := self._file(part)).exists():
            with path.open("rb") as file:
                while file.peek(1):
                    yield from pickle.load(file)  # noqa: S301 - our own file, in our own temporary folder
        yield from self._waiting.get(part, ())


def _merged(rows: Iterator[Frame], merge: Callable[[list[Frame]], list[Frame]]) -> list[Frame]:
    found, size = list[Frame](), 0
    for one in rows:
        found.append(one)
        if (size := size + len(one)) >= _MOST_WAITING:
            found, size = merge(found), 0
    return merge(found) if found else []
