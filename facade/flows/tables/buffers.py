"""The bytes of tables under way: in memory up to a common limit, otherwise in unnamed temporary files.

Bytes are stored in the order of arrival, and hashed in the order of the table: a segment in order at once, an early one
when the gap before it closes. Memory and disk grow with received bytes, never with a header's claims.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

Content = memoryview | Path
"""A whole table: in memory, or in a file that is deleted with its buffer."""

CHUNK = 1_000_000


def unnamed_file() -> BinaryIO:
    """Open a temporary file without a name, so that a killed process leaves nothing behind."""
    return tempfile.TemporaryFile(buffering=0)


class BufferPool:
    """Counts the bytes of all buffers; one that would exceed `memory` [bytes] goes to a file of `open_file`."""

    def __init__(self, memory: int, open_file: Callable[[], BinaryIO] = unnamed_file) -> None:
        self.memory = memory
        self.open_file = open_file
        self.in_memory = 0
        self.on_disk = 0

    def buffer(self, *, keep: bool = True) -> "SegmentBuffer":
        """Return the buffer of one table; without `keep` its bytes are only counted and hashed."""
        return SegmentBuffer(self, keep=keep)


class SegmentBuffer:
    """The bytes of one table, in segments; after an OSError only `close` may be called."""

    def __init__(self, pool: BufferPool, *, keep: bool) -> None:
        self._pool = pool
        self.is_kept = keep
        self._memory: dict[int, bytes] | None = {}
        """Segments by position in the order of arrival; None: they are in the file."""
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._early: dict[int, tuple[int, int]] = {}
        """Segments after a missing one: position and length, by index."""
        self._runs: list[tuple[int, int]] = []
        """Positions and lengths of the hashed bytes, in the order of the table."""
        self.size = 0
        self.hashed = 0
        """Bytes of the segments before `next`."""
        self.next = 0
        """Index of the first missing segment."""

    @property
    def is_on_disk(self) -> bool:
        """Whether it is in a file."""
        return self._file is not None

    def __contains__(self, index: int) -> bool:
        return index < self.next or index in self._early

    def add(self, index: int, content: bytes) -> None:
        """Add a new segment."""
        position = self._keep(content)
        if index != self.next:
            self._early[index] = (position, len(content))
            return
        self._hash(position, len(content), content)
        while (place := self._early.pop(self.next, None)) is not None:
            self._hash(*place, None)

    def sha256(self) -> str:
        """Return the checksum of the segments before `next`."""
        return self._digest.hexdigest()

    def content(self) -> Content:
        """Return the segments before `next` as one content, valid until `close`."""
        if self._memory is not None and len(self._memory) < 2:
            return memoryview(next(iter(self._memory.values()), b""))
        if self._memory is not None or len(self._runs) > 1:
            self._line_up()
        return Path(f"/proc/self/fd/{self._open_file().fileno()}")

    def close(self) -> None:
        """Free memory and disk."""
        if self._memory is not None:
            self._pool.in_memory -= sum(map(len, self._memory.values()))
            self._memory = None
        if self._file is not None:
            self._pool.on_disk -= self.size
            self._file.close()
            self._file = None
        free = min(self._pool.in_memory, self._pool.on_disk)
        assert free >= 0, f"{-free} bytes were freed more often than taken: later tables would exceed the limits"

    def _keep(self, content: bytes) -> int:
        position = self.size
        if not self.is_kept:
            self.size += len(content)
            return position
        if self._memory is not None and self._pool.in_memory + len(content) > self._pool.memory:
            self._spill(self._memory)
        self.size += len(content)
        if self._memory is None:
            # Counted before the write: a full disk stores only a part of it.
            self._pool.on_disk += len(content)
            write_all(self._open_file(), content)
        elif content:
            self._pool.in_memory += len(content)
            self._memory[position] = content
        return position

    def _spill(self, memory: dict[int, bytes]) -> None:
        self._file = self._pool.open_file()
        self._pool.on_disk += self.size
        self._pool.in_memory -= self.size
        self._memory = None
        for part in memory.values():
            write_all(self._file, part)

    def _hash(self, position: int, length: int, content: bytes | None) -> None:
        for part in self._read(position, length) if content is None else (content,):
            self._digest.update(part)
        self.next += 1
        self.hashed += length
        if self._runs and sum(self._runs[-1]) == position:
            self._runs[-1] = (self._runs[-1][0], self._runs[-1][1] + length)
        else:
            self._runs.append((position, length))

    def _read(self, position: int, length: int) -> Iterator[bytes]:
        while length > 0:
            if self._memory is not None:
                part = self._memory[position]
            else:
                part = os.pread(self._open_file().fileno(), min(CHUNK, length), position)
            if not part:
                raise OSError(f"expected {length} bytes more in a temporary file, got its end")
            yield part
            position += len(part)
            length -= len(part)

    def _line_up(self) -> None:
        file = self._pool.open_file()
        try:
            for run in self._runs:
                for part in self._read(*run):
                    write_all(file, part)
        except OSError:
            file.close()
            raise
        self.close()
        self._file = file
        self._pool.on_disk += self.size
        self._runs = [(0, self.size)]

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            raise ValueError("the buffer is closed")
        return self._file


def write_all(file: BinaryIO, content: bytes) -> None:
    """Write all bytes: a write to an unbuffered file may be partial."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]
