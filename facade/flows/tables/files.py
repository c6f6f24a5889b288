"""Tables in files of this host: only those below the directories that the configuration allows."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from facade.flows.tables.messages import Refused
from facade.flows.tables.roots import AT, FORBIDDEN, forbidden, shown
from facade.flows.tables.sources import Source, Unreadable, unreadable

_HERE = ("", "localhost")


class Files:
    """Opens the files that references with ``file://`` refer to.

    Parameters
    ----------
    roots
        Directories with tables.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.resolve() for root in roots]

    @contextmanager
    def open(self, url: str, most: int) -> Iterator[Source]:
        """Open a file; what is read is that file, whatever becomes of its name meanwhile.

        Raises
        ------
        Unreadable
            It is not allowed, not there, or cannot be opened.
        """
        path = self._locate(url)
        try:
            # Without waiting: it may be a pipe that nobody writes to.
            number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise unreadable(error, shown(url)) from error
        try:
            yield self._checked(number, url)
        finally:
            os.close(number)

    def _locate(self, url: str) -> Path:
        try:
            parts = urlsplit(url)
            path = unquote(parts.path, errors="strict")
        except ValueError as error:  # of urlsplit, or of text that is not UTF-8
            raise _forbidden(f"expected a URL, got {shown(url)}") from error
        if parts.netloc not in _HERE or parts.query or parts.fragment:
            raise _forbidden(f"expected file:/// and a path, got {shown(url)}")
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise _forbidden(f"expected an absolute path without .., got {shown(url)}")
        try:
            resolved = Path(path).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            # Outside the roots not even whether a file exists is told.
            self._demand(Path(path), url)
            if isinstance(error, RuntimeError):  # how older versions of Python name a link to itself
                raise Unreadable(Refused("missing", AT, f"{shown(url)} cannot be read: a link to itself")) from error
            raise unreadable(error, shown(url)) from error
        self._demand(resolved, url)
        return resolved

    def _checked(self, number: int, url: str) -> Source:
        # A directory on the way may have become a link since it was looked at.
        self._demand(Path(os.readlink(f"/proc/self/fd/{number}")), url)
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise _forbidden(f"expected a regular file, got another at {shown(url)}")
        return _File(number, found.st_size, shown(url))

    def _demand(self, path: Path, url: str) -> None:
        if not any(path.is_relative_to(root) for root in self._roots):
            raise Unreadable(forbidden(url, self._roots))


class _File:
    """A file that is open; see `Source`."""

    def __init__(self, number: int, size: int, where: str) -> None:
        self._number, self._size, self._where = number, size, where

    def size(self) -> int:
        return self._size

    def read(self, most: int) -> bytes:
        try:
            return os.read(self._number, most)
        except OSError as error:
            raise unreadable(error, self._where) from error


def _forbidden(what: str) -> Unreadable:
    return Unreadable(Refused(FORBIDDEN, AT, what))
