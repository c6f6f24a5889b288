"""The locations of referenced tables: directories of this host, and URLs that fsspec can read and write.

``SDP_TABLE_ROOTS`` names them with ``:`` between, as in ``/data/tables:s3://bucket/tables:https://host:9000/tables``.
The ``:`` of ``://`` and of a port belong to a URL; its path has none. Nothing outside these roots is read. Stores and
web servers need the extra ``[objects]``. Keys and endpoints are in fsspec's own configuration (``FSSPEC_S3_KEY``,
``~/.config/fsspec``), and never read here.
"""

import errno
import importlib
import os
import re
import socket
import stat
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from facade.flows.tables.buffers import write_all
from facade.kernel.errors import ConfigError
from facade.kernel.outcome import RecordRejected
from facade.kernel.printable import excerpt

AT = "headers.segment.url"
"""Path of a reference in its record."""
FORBIDDEN, NOT_CONFIGURED = "forbidden", "not-configured"
_SETTING = "table_roots (SDP_TABLE_ROOTS)"
_SCHEME = r"\s*[A-Za-z][A-Za-z0-9+.-]*://"
_EACH = re.compile(rf"{_SCHEME}(?:[^/:]|:(?!\s*/|{_SCHEME}))*(?:/[^:]*)?|[^:]+")
_WITHOUT_HOST = "memory"
"""fsspec's scheme for tests."""


@dataclass(frozen=True, slots=True)
class Address:
    """A URL in a store: of a root, or of a reference."""

    scheme: str
    place: str
    """Host and port, or the bucket."""
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}{self.path}"

    @property
    def is_web(self) -> bool:
        """Whether it is on a web server, which accepts no uploads and may redirect."""
        return self.scheme in ("http", "https")

    def is_below(self, root: "Address") -> bool:
        """Return whether it is the name of a table below a root."""
        within = root.path.rstrip("/") + "/"
        same = (self.scheme, self.place) == (root.scheme, root.place)
        return same and self.path.startswith(within) and not self.path.endswith("/")


Root = Path | Address


def parse_roots(text: str) -> list[Root]:
    """Parse the setting, or raise a ConfigError that names the first entry that cannot be a root."""
    return [_root(one) for one in map(str.strip, _EACH.findall(text)) if one]


def _root(text: str) -> Root:
    if "://" not in text:
        if text.startswith("//"):
            what = f"expected directories and URLs (scheme://host:port/path) with : between, got {shown(text)}"
            raise ConfigError(f"{_SETTING}: {what}")
        return Path(text)
    if text.startswith("file://"):
        if not text.startswith("file:///"):
            raise ConfigError(f"{_SETTING}: expected file:/// and a directory, got {shown(text)}")
        return Path(unquote(text.removeprefix("file://")))
    address = split(text)
    if isinstance(address, RecordRejected):
        raise ConfigError(f"{_SETTING}: {address.detail}")
    if address.scheme == "local":
        raise ConfigError(f"{_SETTING}: expected a directory by its path, got {shown(text)}")
    return address


def split(url: str) -> Address | RecordRejected:
    """Parse a URL in a store. It is judged as written, and as a server may decode it."""
    try:
        parts = urlsplit(url)
        path = _decoded(parts.path)
        _ = parts.port
    except ValueError as error:  # of urlsplit, a port, or text that is not UTF-8; its text repeats the URL
        return RecordRejected(FORBIDDEN, AT, f"expected a URL, got {shown(url)} ({type(error).__name__})")
    if "@" in parts.netloc or "?" in url or "#" in url:
        return RecordRejected(FORBIDDEN, AT, f"expected a URL without user, query and fragment, got {shown(url)}")
    if not parts.scheme or not (parts.netloc or parts.scheme == _WITHOUT_HOST) or not path.isprintable():
        return RecordRejected(
            FORBIDDEN, AT, f"expected scheme://host or bucket, and a printable path, got {shown(url)}"
        )
    # Some servers treat \ as /, and cut a segment at ;
    if any(one.partition(";")[0] in (".", "..") for one in path.replace("\\", "/").split("/")):
        return RecordRejected(FORBIDDEN, AT, f"expected a path without . and .., got {shown(url)}")
    return Address(parts.scheme, parts.netloc, parts.path)


def _decoded(path: str) -> str:
    """Decode as often as any server may."""
    while (once := unquote(path, errors="strict")) != path:
        path = once
    return path


def forbidden(url: str, roots: Sequence[Root]) -> RecordRejected:
    """Return the refusal of a URL outside the roots."""
    where = ", ".join(map(str, roots))
    return RecordRejected(FORBIDDEN, AT, f"expected a table below {where} (SDP_TABLE_ROOTS), got {shown(url)}")


def without_secrets(url: str) -> str:
    """Return a URL without user, password and signature."""
    hidden = re.sub(r"(?<=:).*@", "***@", url, flags=re.DOTALL)
    return re.sub(r"[?#].*", "?***", hidden, flags=re.DOTALL)


def shown(url: str) -> str:
    """Return a URL for a message."""
    return excerpt(without_secrets(url)[:200])


Resolve = Callable[[str, int, socket.AddressFamily], Awaitable[Sequence[Mapping[str, Any]]]]
"""Returns the addresses of a host's name, port and family in the form of aiohttp's resolvers: under the key
``host``."""


class JudgedNames:
    """Returns the addresses of names to aiohttp, unless one of them is refused.

    A name server may change its answer, so the judged answer is the one used for the connection.
    """

    def __init__(self, ask: Resolve) -> None:
        self._ask = ask

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> Sequence[Mapping[str, Any]]:
        """Return the addresses of a name."""
        found = await self._ask(host, port, family)
        for one in found:
            if why := _trouble(host, one["host"]):
                raise _forbidden(f"{excerpt(host)} leads to {one['host']}, {why}")
        return found

    async def close(self) -> None:
        """Do nothing; aiohttp calls it."""


def _client_maker(ask: Resolve | None = None) -> Callable[..., Awaitable[Any]]:
    async def make(**options: Any) -> Any:
        aiohttp = importlib.import_module("aiohttp")
        names = JudgedNames(ask or aiohttp.ThreadedResolver().resolve)
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=names), **options)

    return make


def _trouble(name: str, address: str) -> str:
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return "which is no web server's: expected an address of the network"
    if ip.is_loopback and name.lower() not in ("localhost", socket.gethostname().lower()):
        return "which is this host: expected an address of the network, or localhost as the name"
    return ""


UNAVAILABLE = "unavailable"
"""Reason of a rejection caused by the location of a table, or by the network."""
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
"""Permanent errors; all others (too many open files, an I/O error, the network) may pass."""
_KINDS: dict[type[Exception], int] = {
    FileNotFoundError: errno.ENOENT,
    NotADirectoryError: errno.ENOTDIR,
    PermissionError: errno.EACCES,
    IsADirectoryError: errno.EISDIR,
}
_REDIRECTED = "TooManyRedirects"
"""Error of aiohttp, known by its name as the package is optional."""
_STATUS = {401: "denied", 403: "denied", 404: "missing", 410: "missing"}
_FILE = "file://"
_THIS_HOST = ("", "localhost")

Opened = tuple[int | None, Callable[[int], bytes]]
"""The size of a table at its location [bytes], or None if it is unknown, and a function that reads at most a number of
bytes."""


class Unreadable(Exception):
    """A table cannot be read; if `passing`, perhaps a moment later."""

    def __init__(self, rejected: RecordRejected, *, passing: bool = False) -> None:
        super().__init__(rejected.detail)
        self.rejected = rejected
        self.passing = passing


def unreadable(error: Exception, where: str) -> Unreadable:
    """Judge an error of a system call or a library; a library's text is left out, as it may contain a key."""
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
    """Opens the files below some directories; see `unreadable` for its errors."""

    def __init__(self, roots: Sequence[Path]) -> None:
        # Nothing is asked of a mount here: one that hangs would hold up the start of the process.
        self._roots = [root.absolute() for root in roots]

    @contextmanager
    def open(self, url: str, most: int) -> Iterator[Opened]:
        """Open a file; later changes of its name have no effect."""
        # Non-blocking: it may be a pipe without a writer.
        number = os.open(self._locate(url), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # A directory of the path may have become a link since the check.
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
            self._demand(Path(path), url)  # outside the roots not even the existence of a file is revealed
            if isinstance(error, RuntimeError):  # the error of older versions of Python for a link to itself
                raise Unreadable(
                    RecordRejected("missing", AT, f"{shown(url)} cannot be read: a link to itself")
                ) from error
            raise
        self._demand(resolved, url)
        return resolved

    def _demand(self, path: Path, url: str) -> None:
        by_name = any(path.is_relative_to(root) for root in self._roots)
        if not by_name and not any(path.is_relative_to(root.resolve()) for root in self._roots):
            raise Unreadable(forbidden(url, self._roots))


class Stores:
    """Opens the objects below some URLs; see `unreadable` for its errors."""

    def __init__(self, roots: Sequence[Address], resolve: Resolve | None = None) -> None:
        self._roots, self._resolve = roots, resolve
        self._systems: dict[str, Any] = {}
        """The file system of each scheme: some take a second to create, and hold connections."""

    @contextmanager
    def open(self, url: str, most: int) -> Iterator[Opened]:
        """Open an object, to read up to `most` bytes."""
        address = split(url)
        if isinstance(address, RecordRejected):
            raise Unreadable(address)
        if not any(address.is_below(root) for root in self._roots):
            raise Unreadable(forbidden(url, self._roots))
        # Removed while it is in use, so that a hanging one is not used again.
        system, is_sound = self._systems.pop(address.scheme, None) or filesystem(address, self._resolve), True
        system.invalidate_cache()
        # One streamed answer. With a given size, fsspec does not ask a web server for it first, which turns any error
        # into "not found".
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
    """Return a new file system of fsspec for a scheme; `Unreadable` without its package."""
    scheme = address.scheme
    # A redirection could lead to any host; the first one is an error.
    options = {"max_redirects": 1, "get_client": _client_maker(resolve)} if address.is_web else {}
    try:
        module = importlib.import_module("fsspec")
    except ImportError as error:
        what = f"{scheme}:// needs fsspec where tables are read: pip install 'sdp-tango-facade[objects]'"
        raise Unreadable(RecordRejected(NOT_CONFIGURED, AT, what)) from error
    try:
        kind = module.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:  # its text names the package, or the unknown scheme
        raise Unreadable(
            RecordRejected(NOT_CONFIGURED, AT, f"{scheme}:// cannot be read here: {error!s:.200}")
        ) from error
    return kind(skip_instance_cache=True, **options)


def upload(url: str, parts: Iterator[bytes]) -> None:
    """Write a new table to a file (``file://``) or a store: whole or, with a ConfigError, not at all."""
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
    except Exception as error:  # any error of a library; its text may contain a key
        number = getattr(error, "errno", None)
        what = type(error).__name__ + (f" ({os.strerror(number)})" if isinstance(number, int) else "")
        raise ConfigError(f"{shown(url)}: the table cannot be put there: {what}") from error


def _write_file(url: str, parts: Iterator[bytes]) -> None:
    path = Path(unquote(url.removeprefix(_FILE).removeprefix("localhost")))
    if not path.is_absolute() or ".." in path.parts:
        raise ConfigError(f"expected file:/// and an absolute path without .., got {shown(url)}")
    if "?" in url or "#" in url:  # nobody would read it, as they end the path of a URL
        raise ConfigError(f"expected %3F for ? and %23 for # in the path, got {shown(url)}")
    if path.exists():
        raise FileExistsError
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb", buffering=0) as file:
            for one in parts:
                write_all(file, one)
        path.hardlink_to(part)  # unlike a rename this replaces nothing
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
    # Without a transaction the end of a failed upload would publish a part.
    with store.transaction, store.open(str(address), "wb") as file:
        for one in parts:
            file.write(one)


def _forbidden(what: str) -> Unreadable:
    return Unreadable(RecordRejected(FORBIDDEN, AT, what))
