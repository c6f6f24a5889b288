"""What a reference refers to, as something that is read once from its beginning; and why that may fail."""

import errno
import os
from typing import Protocol

from facade.flows.tables.messages import Refused
from facade.flows.tables.roots import AT, FORBIDDEN

CHUNK = 1_000_000
"""Read at once [bytes]."""
UNAVAILABLE = "unavailable"
"""Reason that lies in the place of a table, or on the way there, and not in the table."""
_PERMANENT = {
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.ELOOP: "missing",
    errno.ENAMETOOLONG: "missing",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.ENXIO: FORBIDDEN,
    errno.EISDIR: FORBIDDEN,
}
"""What is the same tomorrow; all else (too many open files, an I/O error, the network) may pass."""
_KINDS: dict[type[Exception], int] = {
    FileNotFoundError: errno.ENOENT,
    NotADirectoryError: errno.ENOTDIR,
    PermissionError: errno.EACCES,
    IsADirectoryError: errno.EISDIR,
}
_REDIRECTED = "TooManyRedirects"
"""Of aiohttp, which has no status then; an optional package, so that it is known by its name."""
_STATUS = {401: "denied", 403: "denied", 404: "missing", 410: "missing"}


class Unreadable(Exception):
    """It cannot be read.

    Parameters
    ----------
    passing
        Whether it may be read a moment later.
    """

    def __init__(self, refused: Refused, *, passing: bool = False) -> None:
        super().__init__(refused.detail)
        self.refused = refused
        self.passing = passing


class Source(Protocol):
    """A table at its place, opened."""

    def size(self) -> int | None:
        """Return its size as the place says [bytes]; None: the place does not say."""

    def read(self, most: int) -> bytes:
        """Return the next bytes; none: that was all.

        Raises
        ------
        Unreadable
            The rest cannot be read.
        """


def unreadable(error: Exception, where: str) -> Unreadable:
    """Judge what a system call or a library has raised.

    Its own words are left out, unless they are the system's: a library may put anything into them, even a key.
    """
    number = getattr(error, "errno", None) or next((no for kind, no in _KINDS.items() if isinstance(error, kind)), 0)
    status = getattr(error, "status", None)
    what = type(error).__name__ + (f" ({os.strerror(number)})" if number else "")
    if type(error).__name__ == _REDIRECTED:
        return Unreadable(Refused(FORBIDDEN, AT, f"expected the table at {where}, got a redirection, never followed"))
    if isinstance(status, int):
        what += f", status {status}"
    reason = _PERMANENT.get(number) or (_STATUS.get(status) if isinstance(status, int) else None)
    detail = f"{where} cannot be read: {what}"
    return Unreadable(Refused(reason or UNAVAILABLE, AT, detail), passing=reason is None)
