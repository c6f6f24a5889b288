"""The claim check: a record says where a table is, and this says whether it is there, whole and unchanged.

Only files below directories that the configuration allows are looked at, whatever a record says: it may come
from anybody who can write to the bus. Other places (http, object stores) need access of their own, and are refused.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from facade.tables.messages import Refused, printable

_CHUNK = 1_000_000
_MOST_LOOKED_INTO = 64_000_000
"""Larger files are verified, and no summary is made of them [bytes]."""
_HERE = ("", "localhost")
_AT = "headers.segment.url"


class Claims:
    """Verifies references.

    Parameters
    ----------
    roots
        Directories with tables; with none every reference is refused.
    limit
        Largest table [bytes]: while one is read no records are taken, and the group gives up on a member after minutes.
    """

    def __init__(self, roots: Sequence[Path], *, limit: int = 20_000_000_000) -> None:
        self._roots = [root.resolve() for root in roots]
        self._limit = limit

    @contextmanager
    def open(self, url: str, size: int, sha256: str) -> Iterator[Path | Refused]:
        """Open what a reference refers to, and check it.

        The path that is given leads to the file as it was opened, whatever becomes of its name meanwhile.
        """
        found = self._locate(url)
        if isinstance(found, Refused):
            yield found
            return
        try:
            # Without waiting: it may be a pipe that nobody writes to.
            number = os.open(found, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            yield Refused("missing", _AT, f"{printable(url)} cannot be opened: {error.strerror}")
            return
        try:
            yield self._check(number, url, size, sha256) or Path(f"/proc/self/fd/{number}")
        finally:
            os.close(number)

    def look(self, url: str, size: int, sha256: str) -> memoryview | Refused | None:
        """Check what a reference refers to, and give its bytes; None: they are too many.

        They are bytes of our own: a file that is mapped ends the process when somebody cuts it short meanwhile.
        """
        with self.open(url, size, sha256) as found:
            if isinstance(found, Refused):
                return found
            if size > _MOST_LOOKED_INTO:
                return None
            content = found.read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            return Refused("digest", "headers.segment.sha256", f"{printable(url)} changed while it was read")
        return memoryview(content)

    def _locate(self, url: str) -> Path | Refused:
        if not self._roots:
            what = "expected segments: references are not configured here (SDP_TABLE_ROOTS names no directory)"
            return Refused("not-configured", _AT, what)
        try:
            parts = urlsplit(url)
            scheme, host, path = parts.scheme, parts.netloc, unquote(parts.path, errors="strict")
        except ValueError as error:  # of urlsplit, or of text that is not UTF-8
            return Refused("forbidden", _AT, f"expected a URL, got {printable(url)}: {printable(str(error))}")
        if scheme != "file":
            what = f"expected file://, the only kind of place that is configured, got {printable(url)}"
            return Refused("not-configured", _AT, what)
        if host not in _HERE or parts.query or parts.fragment:
            return Refused("forbidden", _AT, f"expected file:/// and a path, got {printable(url)}")
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
            return Refused("forbidden", _AT, f"expected an absolute path without .., got {printable(url)}")
        try:
            resolved = Path(path).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            # Outside the roots not even whether a file exists is told.
            if not self._is_allowed(Path(path)):
                return self._forbid(url)
            return Refused("missing", _AT, f"{printable(url)} is not there: {printable(str(error))}")
        return resolved if self._is_allowed(resolved) else self._forbid(url)

    def _forbid(self, url: str) -> Refused:
        roots = ", ".join(map(str, self._roots))
        return Refused("forbidden", _AT, f"expected a file below {roots} (SDP_TABLE_ROOTS), got {printable(url)}")

    def _is_allowed(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self._roots)

    def _check(self, number: int, url: str, size: int, sha256: str) -> Refused | None:
        # A directory on the way may have become a link since it was looked at.
        if not self._is_allowed(Path(os.readlink(f"/proc/self/fd/{number}"))):
            return self._forbid(url)
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            return Refused("forbidden", _AT, f"expected a regular file, got another at {printable(url)}")
        if found.st_size != size:
            return Refused("size", "headers.segment.size", f"expected {size} bytes, got {found.st_size} in the file")
        if size > self._limit:
            return Refused("too-large", "headers.segment.size", f"expected at most {self._limit} bytes, got {size}")
        try:
            digest = _digest(number, size)
        except OSError as error:
            return Refused("missing", _AT, f"{printable(url)} cannot be read: {error.strerror}")
        if digest != sha256:
            return Refused("digest", "headers.segment.sha256", f"expected {sha256}, got {digest} of the file")
        return None


def _digest(number: int, size: int) -> str:
    """Give the digest of so many bytes; one that grows meanwhile has another."""
    digest, at = hashlib.sha256(), 0
    while at <= size and (part := os.pread(number, _CHUNK, at)):
        digest.update(part)
        at += len(part)
    return digest.hexdigest()
