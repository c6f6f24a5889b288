"""The places where references say that tables are: files of this host, and whatever fsspec can read and write.

Only what is below the roots of the configuration is opened for reading. Object stores and web servers need the extra
``[objects]``. Keys and endpoints are fsspec's own configuration (``FSSPEC_S3_KEY``, ``~/.config/fsspec``), and are
never seen here.
"""

import errno
import importlib
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from facade.errors import ConfigError
from facade.flows.tables.buffers import write_all
from facade.flows.tables.roots import AT, FORBIDDEN, NOT_CONFIGURED, Address, forbidden, shown, split
from facade.flows.tables.web import Resolve, client_maker
from facade.outcome import RecordRejected

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
_FILE = "file://"
_THIS_HOST = ("", "localhost")

Opened = tuple[int | None, Callable[[int], bytes]]
"""The size of a table as its place says [bytes], None if it does not say, and what reads at most so many bytes."""


class Unreadable(Exception):
    """A table cannot be read.

    Parameters
    ----------
    passing
        Whether it may be read a moment later.
    """

    def __init__(self, rejected: RecordRejected, *, passing: bool = False) -> None:
        super().__init__(rejected.detail)
        self.rejected = rejected
        self.passing = passing


def unreadable(error: Exception, where: str) -> Unreadable:
    """Judge what a system call or a library has raised.

    Its own words are left out, unless they are the system's: a library may put anything into them, even a key.
    """
    if isinstance(error, Unreadable):
        return error
    number = getattr(error, "errno", None) or next((no for kind, no in _KINDS.items() if isinstance(error, kind)), 0)
    status = getattr(error, "status", None)
    what = type(error).__name__ + (f" ({os.strerror(number)})" if number else "")
    if type(error).__name__ == _REDIRECTED:
        return _forbidden(f"expected the table at {where}, got a redirection, never followed")
    if isinstance(status, int):
        what += f", status {status}"
    reason = _PERMANENT.get(number) or (_STATUS.get(status) if isinstance(status, int) else None)
    detail = f"{where} cannot be read: {what}"
    return Unreadable(RecordRejected(reason or UNAVAILABLE, AT, detail), passing=reason is None)


class Files:
    """Opens the files below some directories; what it raises is for `unreadable`."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [root.resolve() for root in roots]

    @contextmanager
    def open(self, url: str, most: int) -> Iterator[Opened]:
        """Open a file; what is read is that file, whatever becomes of its name meanwhile."""
        # Without waiting: it may be a pipe that nobody writes to.
        number = os.open(self._locate(url), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # A directory on the way may have become a link since it was looked at.
            self._demand(Path(os.readlink(f"/proc/self/fd/{number}")), url)
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode):
                raise _forbidden(f"expected a regular file, got another at {shown(url)}")
            yield found.st_size, lambda size: os.read(number, size)
        finally:
            os.close(number)

    def _locate(self, url: str) -> Path:
        try:
            parts = urlsplit(url)
            path = unquote(parts.path, errors="strict")
        except ValueError as error:  # of urlsplit, or of text that is not UTF-8
            raise _forbidden(f"expected a URL, got {shown(url)}") from error
        if parts.netloc not in _THIS_HOST or parts.query or parts.fragment:
            raise _forbidden(f"expected file:/// and a path, got {shown(url)}")
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise _forbidden(f"expected an absolute path without .., got {shown(url)}")
        try:
            resolved = Path(path).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            self._demand(Path(path), url)  # outside the roots not even whether a file exists is said
            if isinstance(error, RuntimeError):  # how older versions of Python name a link to itself
                raise Unreadable(
                    RecordRejected("missing", AT, f"{shown(url)} cannot be read: a link to itself")
                ) from error
            raise
        self._demand(resolved, url)
        return resolved

    def _demand(self, path: Path, url: str) -> None:
        if not any(path.is_relative_to(root) for root in self._roots):
            raise Unreadable(forbidden(url, self._roots))


class Stores:
    """Opens the objects below some URLs; what it raises is for `unreadable`.

    Parameters
    ----------
    resolve
        Gives the addresses of web servers' names; None: the system's.
    """

    def __init__(self, roots: Sequence[Address], resolve: Resolve | None = None) -> None:
        self._roots, self._resolve = roots, resolve
        self._systems: dict[str, Any] = {}
        """What fsspec has for each scheme: some take a second to make, and hold connections."""

    @contextmanager
    def open(self, url: str, most: int) -> Iterator[Opened]:
        """Open an object, of which at most so many bytes will be read."""
        address = split(url)
        if isinstance(address, RecordRejected):
            raise Unreadable(address)
        if not any(address.is_below(root) for root in self._roots):
            raise Unreadable(forbidden(url, self._roots))
        # Taken out as long as it is used, so that one that hangs is not used again.
        system, is_sound = self._systems.pop(address.scheme, None) or filesystem(address, self._resolve), True
        system.invalidate_cache()  # it may remember what was there before
        # One answer as it comes. Told a size, fsspec does not ask a web server for it first, which makes any error
        # "not found".
        options = {"block_size": 0, "size": most} if address.is_web else {}
        try:
            with system.open(str(address), "rb", **options) as file:
                size = getattr(file, "size", None)
                yield size if isinstance(size, int) else None, file.read
        except Exception as error:
            is_sound = not unreadable(error, "").passing
            raise
        finally:
            if is_sound:
                self._systems[address.scheme] = system


def filesystem(address: Address, resolve: Resolve | None = None) -> Any:
    """Return what fsspec has for a scheme, anew.

    Raises
    ------
    Unreadable
        A package is not installed.
    """
    scheme = address.scheme
    # A redirection could lead to any other host; the first one is an error.
    options = {"max_redirects": 1, "get_client": client_maker(Unreadable, resolve)} if address.is_web else {}
    try:
        module = importlib.import_module("fsspec")
    except ImportError as error:
        what = f"{scheme}:// needs fsspec where tables are read: pip install 'sdp-tango-facade[objects]'"
        raise Unreadable(RecordRejected(NOT_CONFIGURED, AT, what)) from error
    try:
        kind = module.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:  # its words name the package, or say that no such scheme is known
        raise Unreadable(
            RecordRejected(NOT_CONFIGURED, AT, f"{scheme}:// cannot be read here: {error!s:.200}")
        ) from error
    return kind(skip_instance_cache=True, **options)


def upload(url: str, parts: Iterator[bytes]) -> None:
    """Write a table to a file (``file://``) or a store: whole or not at all, and never over another one.

    Raises
    ------
    ConfigError
        It cannot be put there; what was written of it is not left there under its name.
    """
    try:
        (_write_file if url.startswith(_FILE) else _write_object)(url, parts)
    except ConfigError:
        raise
    except Unreadable as error:
        raise ConfigError(error.rejected.detail) from error
    except FileExistsError as error:
        raise ConfigError(f"{shown(url)} is there already: give each version of a table a name of its own") from error
    except NotImplementedError as error:
        raise ConfigError(f"{shown(url)}: expected a place that can be written to, got one to read from") from error
    except Exception as error:  # whatever a library raises; its own words may hold a key
        number = getattr(error, "errno", None)
        what = type(error).__name__ + (f" ({os.strerror(number)})" if isinstance(number, int) else "")
        raise ConfigError(f"{shown(url)}: the table cannot be put there: {what}") from error


def _write_file(url: str, parts: Iterator[bytes]) -> None:
    path = Path(unquote(url.removeprefix(_FILE).removeprefix("localhost")))
    if not path.is_absolute() or ".." in path.parts:
        raise ConfigError(f"expected file:/// and an absolute path without .., got {shown(url)}")
    if path.exists():
        raise FileExistsError
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb", buffering=0) as file:
            for one in parts:
                write_all(file, one)
        path.hardlink_to(part)  # unlike a change of its name this replaces nothing
    finally:
        part.unlink(missing_ok=True)


def _write_object(url: str, parts: Iterator[bytes]) -> None:
    address = split(url)
    if isinstance(address, RecordRejected):
        raise ConfigError(address.detail)
    store = filesystem(address)
    if address.is_web:
        raise NotImplementedError
    if store.exists(str(address)):
        raise FileExistsError
    # What is begun in a transaction and fails is discarded; without one, closing it would publish a part.
    with store.transaction, store.open(str(address), "wb") as file:
        for one in parts:
            file.write(one)


def _forbidden(what: str) -> Unreadable:
    return Unreadable(RecordRejected(FORBIDDEN, AT, what))
