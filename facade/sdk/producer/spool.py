"""A bounded queue of batches on disk: append-only files of frames, and a mark of the confirmed batches.

Appended data survive a crash of the process, as the operating system has them. A torn end is cut at the start, and a
damaged batch before others is left out and counted. A batch that the disk refuses waits in memory, up to a limit, and
goes to the disk when that accepts it; otherwise it is refused. The older batches are always on disk, so a crash loses
only the newest: the mark has the number of batches in memory.
"""

import errno
import re
import secrets
import struct
import threading
import zlib
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Final

from facade.kernel.clock import Time
from facade.kernel.errors import ConfigError
from facade.sdk.producer.folder import Folder

MOST_BYTES: Final = 1 << 30
"""Default of the largest size on disk."""
_SEGMENT_BYTES: Final = 8 << 20
_MEMORY_BYTES: Final = 32 << 20
"""Largest size in memory while the disk accepts nothing."""
_FRAME: Final = struct.Struct("<IIQQI")
"""Length and CRC-32 of everything after the CRC; sequence, time [Unix us], rows; then the content."""
_MARK: Final = struct.Struct("<qqqI")
"""Newest sequences that are done, that were posted, and that were only in memory, and the CRC-32 of all three."""
_UNKNOWN: Final = 2**62
_LOST: Final = (errno.ENOENT, errno.EIO)
"""Errors of a read that a later attempt has as well: the file is gone, or a part of the disk."""
_MARK_NAME, _ID_NAME, _SUFFIX, _REMOVED = "mark", "id", ".spool", "removed"
_ID_BYTES: Final = 6
_ID: Final = re.compile(rb"[0-9a-f]{%d}" % (2 * _ID_BYTES))


@dataclass(slots=True)
class Stored:
    """A waiting batch."""

    sequence: int
    rows: int
    time_us: Time
    """Time of its creation."""
    size: int
    content: bytes | None
    """None: it is on disk."""
    name: str = ""
    """Its file; empty: it is in memory."""
    begin: int = 0
    """Begin of its frame in the file."""


class Spool:
    """The queue of one producer.

    Parameters
    ----------
    folder
        Folder of this producer only; the spool closes it.

    Raises
    ------
    ConfigError
        The folder cannot be used.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        most_bytes: int = MOST_BYTES,
        segment_bytes: int = _SEGMENT_BYTES,
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        self._most, self._segment_bytes, self._memory_bytes = most_bytes, segment_bytes, memory_bytes
        self._folder, self._lock = folder, threading.RLock()
        self.waiting: deque[Stored] = deque()
        """In order."""
        self._in_memory: deque[Stored] = deque()
        """The newest of them, which the disk has not accepted."""
        self._troubles: dict[str, str] = {}
        """The disk's last refusal, by kind of file."""
        self.cut = 0
        """Bytes at torn ends that were cut at the start."""
        self.missing = 0
        """Batches that were in memory when the previous process ended, or that were damaged on the disk since."""
        self.size = 0
        """Size of the waiting batches [bytes]."""
        self._segments: dict[str, int] = {}
        """The newest sequence in each file; the last file is written to."""
        self._file, self._end = "", 0
        """The file that is written to, and its end."""
        try:
            self.id = self._identity()
            self.done, self.posted, self._held = self._read_marks()
            self.next = max(self._read_segments(), self.done, self.posted, self._held) + 1
            self._write_mark(self.done, self.posted)  # from now on it needs no further disk space
        except OSError as error:
            folder.close()
            raise ConfigError(f"spool {folder}: expected a folder that can be written: {error}") from error

    @property
    def trouble(self) -> str:
        """Reason of the disk's last failure; empty text: there was none."""
        return next(iter([*self._troubles.values()]), "")  # a copy: other threads change it

    def head(self, count: int) -> list[Stored]:
        """Return the first waiting batches, up to a number."""
        with self._lock:
            return list(islice(self.waiting, count))

    def add(self, content: bytes, rows: int, time_us: Time) -> bool:
        """Append a batch as number `next`; False: there is no room, and it was not stored."""
        with self._lock:
            size = _FRAME.size + len(content)
            if self.size + size > self._most:
                return False
            stored = Stored(self.next, rows, time_us, size, content)
            self._in_memory.append(stored)
            if not self.save():
                if sum(one.size for one in self._in_memory) > self._memory_bytes:
                    self._in_memory.pop()
                    return False
                self._hold(stored.sequence)
            self.waiting.append(stored)
            self.size += size
            self.next += 1
            return True

    def save(self) -> bool:
        """Write the batches in memory to the disk, the oldest first; return whether all are there."""
        with self._lock:
            try:
                while self._in_memory:
                    self._write(self._in_memory[0])
                    self._in_memory.popleft()
                    self._troubles.pop(_SUFFIX, None)
            except OSError as error:
                self._note(_SUFFIX, error)
            return not self._in_memory

    def read(self, stored: Stored) -> bytes | None:
        """Return the content of a batch; None: the disk has lost it.

        Raises
        ------
        OSError
            It cannot be read now, as when the process has too many open files.
        """
        if (content := stored.content) is not None:
            return content
        try:
            frame = self._folder.read(stored.name, stored.begin, stored.size)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            return None
        return frame[_FRAME.size :] if len(frame) == stored.size and _is_whole(frame) else None

    def mark(self, *, done: int, posted: int) -> bool:
        """Store the newest batch that is done, and the newest that may be on the bus; forget the done ones.

        False: the disk refuses the mark, and everything stays as it was.
        """
        with self._lock:
            if (done, posted) != (self.done, self.posted):
                if not self._try_mark(done, posted):
                    return False
                self.done, self.posted = done, posted
            while self.waiting and self.waiting[0].sequence <= done:
                self.size -= self.waiting.popleft().size
            while self._in_memory and self._in_memory[0].sequence <= done:
                self._in_memory.popleft()
            self._remove_done()
            return True

    def close(self) -> None:
        """Release the folder for another process."""
        self._folder.close()

    def _identity(self) -> str:
        """Return an identity that no other spool has: if the folder is lost, its numbers begin again."""
        found = self._folder.read(_ID_NAME) if _ID_NAME in self._folder.names() else b""
        if not _ID.fullmatch(found):  # the disk may have been full when it was written, or have lost power
            found = secrets.token_hex(_ID_BYTES).encode()
            self._folder.write(_ID_NAME, 0, found)
        return found.decode("ascii")

    def _note(self, kind: str, error: OSError) -> None:
        self._troubles[kind] = f"{self._folder}: {error.strerror or error}"

    def _hold(self, sequence: int) -> None:
        """Leave a note for a successor that a batch was only in memory, as far as the disk allows."""
        self._held = sequence
        self._try_mark(self.done, self.posted)

    def _try_mark(self, done: int, posted: int) -> bool:
        try:
            self._write_mark(done, posted)
        except OSError as error:
            self._note(_MARK_NAME, error)
            return False
        self._troubles.pop(_MARK_NAME, None)
        return True

    def _remove_done(self) -> None:
        """Remove the files of done batches, except the newest, which has the next number."""
        for name in [name for name, newest in [*self._segments.items()][:-1] if newest <= self.done]:
            try:
                self._folder.remove(name)
            except OSError as error:  # it is repeated with the next mark
                self._note(_REMOVED, error)
                return
            del self._segments[name]
        self._troubles.pop(_REMOVED, None)

    def _write(self, stored: Stored) -> None:
        if not self._file or self._end >= self._segment_bytes:
            self._file, self._end = f"{stored.sequence:020d}{_SUFFIX}", 0
        # At the last valid end: a failed write may have left data there, which are overwritten.
        self._folder.write(self._file, self._end, _frame(stored, stored.content or b""))
        self._segments[self._file] = stored.sequence
        stored.name, stored.begin, stored.content = self._file, self._end, None
        self._end += stored.size

    def _write_mark(self, done: int, posted: int) -> None:
        self._folder.write(_MARK_NAME, 0, _sealed(done, posted, self._held))

    def _read_marks(self) -> tuple[int, int, int]:
        content = self._folder.read(_MARK_NAME) if _MARK_NAME in self._folder.names() else b""
        if len(content) == _MARK.size and content == _sealed(*_MARK.unpack(content)[:3]):
            done, posted, held, _ = _MARK.unpack(content)
            return done, posted, held
        return -1, _UNKNOWN, -1  # all existing batches may be on the bus

    def _read_segments(self) -> int:
        """Find waiting batches, cut torn ends, and return the newest sequence."""
        newest = -1
        for name in sorted(one for one in self._folder.names() if one.endswith(_SUFFIX)):
            content, begin = self._folder.read(name), 0
            while stored := _stored_at(content, begin, name) or _after_damage(content, begin, name):
                if stored.sequence > max(newest, self.done):
                    self.waiting.append(stored)
                    self.size += stored.size
                newest = max(newest, stored.sequence)
                begin = stored.begin + stored.size
            if begin < len(content):
                self.cut += len(content) - begin
                self._folder.write(name, begin, b"")
            self._segments[name] = newest
        if self.posted == _UNKNOWN:
            self.done, self.posted = self.waiting[0].sequence - 1 if self.waiting else newest, newest
        self.missing = max(newest, self.posted, self._held) - self.done - len(self.waiting)
        return newest


def _frame(stored: Stored, content: bytes) -> bytes:
    tail = _FRAME.pack(0, 0, stored.sequence, stored.time_us, stored.rows)[8:] + content
    return struct.pack("<II", len(tail), zlib.crc32(tail)) + tail


def _is_whole(frame: bytes | memoryview) -> bool:
    length, crc = struct.unpack_from("<II", frame)
    return bool(len(frame) == 8 + length and zlib.crc32(frame[8:]) == crc)


def _stored_at(content: bytes, begin: int, name: str) -> Stored | None:
    """Return the frame at a position; None: there is no complete one."""
    if begin + _FRAME.size > len(content):
        return None
    length, _, sequence, time_us, rows = _FRAME.unpack_from(content, begin)
    if length < _FRAME.size - 8 or not _is_whole(memoryview(content)[begin : begin + 8 + length]):
        return None
    return Stored(sequence, rows, time_us, 8 + length, None, name, begin)


def _after_damage(content: bytes, begin: int, name: str) -> Stored | None:
    """Return the frame after a damaged one; None: there is no complete one, so the damage is a torn end."""
    while begin + _FRAME.size <= len(content):
        begin += 8 + struct.unpack_from("<I", content, begin)[0]
        if stored := _stored_at(content, begin, name):
            return stored
    return None


def _sealed(done: int, posted: int, held: int) -> bytes:
    content = struct.pack("<qqq", done, posted, held)
    return content + struct.pack("<I", zlib.crc32(content))
