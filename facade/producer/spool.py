"""A bounded queue of batches on disk: append-only files of frames, and a mark of what is done.

What was appended outlives a crash of the process, as the operating system has it then. A torn end is cut at the start.
A batch that the disk does not take waits in memory, as far as there is room; what neither takes is refused.
"""

import fcntl
import os
import struct
import threading
import uuid
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from facade.errors import ConfigError

MOST_BYTES: Final = 1 << 30
"""Most that waits on disk, unless asked otherwise."""
_SEGMENT_BYTES: Final = 8 << 20
_MEMORY_BYTES: Final = 32 << 20
"""Most that waits in memory while the disk takes nothing."""
_FRAME: Final = struct.Struct("<IIQQI")
"""Length and CRC-32 of all that follows the CRC; sequence, time [Unix us], rows; then the content."""
_MARK: Final = struct.Struct("<qqI")
"""Newest sequences that are done and that were posted, and the CRC-32 of both."""
_UNKNOWN: Final = 2**62

Append = Callable[[int, bytes], None]


def write_all(file: int, content: bytes) -> None:
    """Write to the end of a file, given by its descriptor.

    Raises
    ------
    OSError
        The disk does not take it; a part may be there.
    """
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]


@dataclass(slots=True)
class Stored:
    """A batch that waits."""

    sequence: int
    rows: int
    time_us: int
    """When it was made [Unix us]."""
    size: int
    content: bytes | None
    """None: it is on disk."""
    path: Path | None = None
    begin: int = 0
    """Where its frame begins in the file."""


class Spool:
    """The queue of one producer.

    Parameters
    ----------
    folder
        Of this producer alone; made if it is not there.
    append
        How a file is written; for simulated faults.

    Raises
    ------
    ConfigError
        The folder cannot be used, or another process uses it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int = MOST_BYTES,
        segment_bytes: int = _SEGMENT_BYTES,
        memory_bytes: int = _MEMORY_BYTES,
        append: Append = write_all,
    ) -> None:
        self._most, self._segment_bytes, self._memory_bytes = most_bytes, segment_bytes, memory_bytes
        self._folder, self._append, self._lock = folder, append, threading.RLock()
        self.waiting: deque[Stored] = deque()
        """In their order."""
        self.trouble = ""
        """Why the disk took no batch the last time; empty text: it did."""
        self.cut = 0
        """Bytes at torn ends that were cut at the start."""
        self.missing = 0
        """Batches that waited in memory when the process before this one ended."""
        self.size = 0
        """How much waits [bytes]."""
        self._segments: dict[Path, int] = {}
        """The newest sequence in each file; the last one is written to."""
        self._file = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._guard = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            self._marks = os.open(folder / "mark", os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.id = self._identity()
            self.done, self.posted = self._read_marks()
            self.next = max(self._read_segments(), self.done, self.posted) + 1
        except BlockingIOError as error:
            raise ConfigError(f"spool {folder}: another process uses it; give each producer its own folder") from error
        except OSError as error:
            raise ConfigError(f"spool {folder}: expected a folder that can be written: {error}") from error

    def head(self, count: int) -> list[Stored]:
        """Return the first batches that wait, at most so many."""
        with self._lock:
            return list(islice(self.waiting, count))

    def add(self, content: bytes, rows: int, time_us: int) -> bool:
        """Append a batch as number `next`; False: there is no room, and nothing was kept."""
        with self._lock:
            size = _FRAME.size + len(content)
            if self.size + size > self._most:
                return False
            stored = Stored(self.next, rows, time_us, size, None)
            try:
                self._write(stored, content)
                self.trouble = ""
            except OSError as error:
                self.trouble = f"{self._folder}: {error.strerror or error}"
                if size + sum(one.size for one in self.waiting if one.content is not None) > self._memory_bytes:
                    return False
                stored.content = content
            self.waiting.append(stored)
            self.size += size
            self.next += 1
            return True

    def read(self, stored: Stored) -> bytes | None:
        """Return the content of a batch; None: the disk does not give it back."""
        if stored.content is not None or stored.path is None:
            return stored.content
        try:
            with stored.path.open("rb") as file:
                file.seek(stored.begin)
                frame = file.read(stored.size)
        except OSError:
            return None
        return frame[_FRAME.size :] if len(frame) == stored.size and _is_whole(frame) else None

    def mark(self, *, done: int, posted: int) -> bool:
        """Keep up to which batch all are done, and which may be on the bus; forget what is done.

        False: the disk does not take the mark, and all stays as it was.
        """
        with self._lock:
            if (done, posted) != (self.done, self.posted):
                try:
                    os.pwrite(self._marks, _sealed(done, posted), 0)
                except OSError as error:
                    self.trouble = f"{self._folder}: {error.strerror or error}"
                    return False
                self.done, self.posted = done, posted
            while self.waiting and self.waiting[0].sequence <= done:
                self.size -= self.waiting.popleft().size
            for path in [path for path, newest in [*self._segments.items()][:-1] if newest <= done]:
                path.unlink(missing_ok=True)
                del self._segments[path]
            return True

    def close(self) -> None:
        """Let another process use the folder."""
        for file in (self._file, self._marks, self._guard):
            if file >= 0:
                os.close(file)
        self._file = self._marks = self._guard = -1

    def _identity(self) -> str:
        """Return what no other spool has: when the folder is lost, its numbers begin again."""
        path = self._folder / "id"
        if not path.exists() or not (found := path.read_text(encoding="ascii").strip()):
            found = uuid.uuid4().hex[:12]
            path.write_text(found, encoding="ascii")
        return found

    def _write(self, stored: Stored, content: bytes) -> None:
        path, begin = next(reversed(self._segments), None), 0
        if self._file >= 0:
            begin = os.lseek(self._file, 0, os.SEEK_END)
        if path is None or self._file < 0 or begin >= self._segment_bytes:
            self._close_segment()
            path, begin = self._folder / f"{stored.sequence:020d}.spool", 0
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o644)
            self._segments[path] = stored.sequence
        try:
            self._append(self._file, _frame(stored, content))
        except OSError:
            os.ftruncate(self._file, begin)  # else what follows would stand behind a torn frame
            raise
        self._segments[path] = stored.sequence
        stored.path, stored.begin = path, begin

    def _close_segment(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read_marks(self) -> tuple[int, int]:
        content = os.pread(self._marks, _MARK.size, 0)
        if len(content) == _MARK.size and content == _sealed(*_MARK.unpack(content)[:2]):
            done, posted, _ = _MARK.unpack(content)
            return done, posted
        return -1, _UNKNOWN  # everything that is there may be on the bus

    def _read_segments(self) -> int:
        """Find what waits, cut torn ends, and return the newest sequence."""
        newest = -1
        for path in sorted(self._folder.glob("*.spool")):
            content, begin = path.read_bytes(), 0
            while stored := _stored_at(content, begin, path):
                if stored.sequence > max(newest, self.done):
                    self.waiting.append(stored)
                    self.size += stored.size
                newest = max(newest, stored.sequence)
                begin += stored.size
            if begin < len(content):
                self.cut += len(content) - begin
                os.truncate(path, begin)
            self._segments[path] = newest
        first = self.done + 1
        if self.posted == _UNKNOWN:
            first, self.posted = self.waiting[0].sequence if self.waiting else newest + 1, newest
        self.missing = max(newest, self.posted) + 1 - first - len(self.waiting)
        return newest


def _frame(stored: Stored, content: bytes) -> bytes:
    tail = _FRAME.pack(0, 0, stored.sequence, stored.time_us, stored.rows)[8:] + content
    return struct.pack("<II", len(tail), zlib.crc32(tail)) + tail


def _is_whole(frame: bytes | memoryview) -> bool:
    length, crc = struct.unpack_from("<II", frame)
    return bool(len(frame) == 8 + length and zlib.crc32(frame[8:]) == crc)


def _stored_at(content: bytes, begin: int, path: Path) -> Stored | None:
    """Return the frame at a place; None: there is no whole one."""
    if begin + _FRAME.size > len(content):
        return None
    length, _, sequence, time_us, rows = _FRAME.unpack_from(content, begin)
    if length < _FRAME.size - 8 or not _is_whole(memoryview(content)[begin : begin + 8 + length]):
        return None
    return Stored(sequence, rows, time_us, 8 + length, None, path, begin)


def _sealed(done: int, posted: int) -> bytes:
    return _MARK.pack(done, posted, zlib.crc32(struct.pack("<qq", done, posted)))
