"""The files of a spool: as much of a disk as it needs, so that a disk that fills up can be simulated."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Final, Protocol

from facade.errors import ConfigError

_OPEN: Final = 4
"""Files that stay open between two writes."""


class Folder(Protocol):
    """Files in one folder, which has one owner; what the disk does not do is an OSError."""

    def names(self) -> list[str]:
        """Return the names of all files."""

    def read(self, name: str, begin: int = 0, size: int | None = None) -> bytes:
        """Return bytes of a file, fewer at its end."""

    def write(self, name: str, begin: int, content: bytes) -> None:
        """Let a file have this content at a place, and its end behind it; if the disk is full, a part may be there."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def close(self) -> None:
        """Let another process be the owner."""


class DiskFolder:
    """A folder of the file system; see `Folder`.

    Raises
    ------
    ConfigError
        Another process uses it.
    OSError
        It cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, int] = {}
        """Descriptors of what was written last: the mark, and the newest file of batches."""
        self._guard = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._guard)
            what = "another process uses it; give each producer its own folder"
            raise ConfigError(f"spool {path}: {what}") from error

    def __str__(self) -> str:
        return str(self._path)

    def names(self) -> list[str]:
        """Return the names of all files."""
        return sorted(one.name for one in self._path.iterdir())

    def read(self, name: str, begin: int = 0, size: int | None = None) -> bytes:
        """Return bytes of a file, fewer at its end."""
        with (self._path / name).open("rb") as file:
            file.seek(begin)
            return file.read(size)

    def write(self, name: str, begin: int, content: bytes) -> None:
        """Let a file have this content at a place, and its end behind it; if the disk is full, a part may be there."""
        file, end = self._open(name), begin + len(content)
        left = memoryview(content)
        while left:
            left = left[os.pwrite(file, left, end - len(left)) :]
        if os.fstat(file).st_size > end:
            os.ftruncate(file, end)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        self._release(name)
        (self._path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process be the owner; a second call does nothing."""
        for name in [*self._files]:
            self._release(name)
        if self._guard >= 0:
            os.close(self._guard)
            self._guard = -1

    def _open(self, name: str) -> int:
        if self._guard < 0:
            raise OSError(errno.EBADF, f"{os.strerror(errno.EBADF)}: another process may own the folder")
        if (file := self._files.get(name)) is None:
            if len(self._files) >= _OPEN:
                self._release(next(iter(self._files)))
            file = self._files[name] = os.open(self._path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return file

    def _release(self, name: str) -> None:
        if (file := self._files.pop(name, None)) is not None:
            os.close(file)
