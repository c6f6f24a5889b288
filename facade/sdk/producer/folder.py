"""The files of a spool: an interface to the disk that tests replace, to simulate a full disk."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Final, Protocol

from facade.kernel.errors import ConfigError

_OPEN: Final = 4
"""Files that stay open between two writes."""


class Folder(Protocol):
    """Files in one folder, which has one owner; failures of the disk are OSErrors."""

    def names(self) -> list[str]:
        """Return the names of all files."""

    def read(self, name: str, begin: int = 0, size: int | None = None) -> bytes:
        """Return bytes of a file, fewer at its end."""

    def write(self, name: str, begin: int, content: bytes) -> None:
        """Write content at a position of a file, and truncate the file after it.

        On a full disk a part may be written.
        """

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def close(self) -> None:
        """Release the folder for another process."""


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
        """Descriptors of the last written files: the mark, and the newest file of batches."""
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
        """Write content at a position of a file, and truncate the file after it.

        On a full disk a part may be written.
        """
        file, end = self._open(name), begin + len(content)
        left = memoryview(content)
        while left:
            left = left[os.pwrite(file, left, end - len(left)) :]
        if os.fstat(file).st_size > end:
            os.ftruncate(file, end)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        self._release(name)
        (self._path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the folder for another process; a second call does nothing."""
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
