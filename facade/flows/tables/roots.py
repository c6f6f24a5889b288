"""Where tables may be that come as references: directories, and URLs of which a reference must lie below one.

``SDP_TABLE_ROOTS`` names them with ``:`` between, as in ``/data/tables:s3://bucket/tables:https://host:9000/tables``.
The ``:`` of ``://`` and that of a port belong to a URL; its path has none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from facade.errors import ConfigError
from facade.outcome import RecordRejected
from facade.printable import excerpt

AT = "headers.segment.url"
"""Where a record says where a table is."""
FORBIDDEN, NOT_CONFIGURED = "forbidden", "not-configured"
_SETTING = "table_roots (SDP_TABLE_ROOTS)"
_SCHEME = r"\s*[A-Za-z][A-Za-z0-9+.-]*://"
_EACH = re.compile(rf"{_SCHEME}(?:[^/:]|:(?!\s*/|{_SCHEME}))*(?:/[^:]*)?|[^:]+")
_WITHOUT_HOST = "memory"
"""Of fsspec's, for tests."""


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a URL in a store: of a root, or of a reference."""

    scheme: str
    place: str
    """Host and port, or the bucket."""
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}{self.path}"

    @property
    def is_web(self) -> bool:
        """Return whether it is on a web server, which takes no uploads and may redirect."""
        return self.scheme in ("http", "https")

    def is_below(self, root: "Address") -> bool:
        """Return whether it is the name of something below another."""
        within = root.path.rstrip("/") + "/"
        same = (self.scheme, self.place) == (root.scheme, root.place)
        return same and self.path.startswith(within) and not self.path.endswith("/")


Root = Path | Address


def parse_roots(text: str) -> list[Root]:
    """Read the setting.

    Raises
    ------
    ConfigError
        One is neither a directory nor a URL that can be a root.
    """
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
    """Take a URL in a store to pieces; it is read as it stands, and judged also as a server may decode it."""
    try:
        parts = urlsplit(url)
        path = _decoded(parts.path)
        _ = parts.port
    except ValueError as error:  # of urlsplit, a port, or text that is not UTF-8; its words repeat the URL
        return RecordRejected(FORBIDDEN, AT, f"expected a URL, got {shown(url)} ({type(error).__name__})")
    if "@" in parts.netloc or "?" in url or "#" in url:
        return RecordRejected(FORBIDDEN, AT, f"expected a URL without user, query and fragment, got {shown(url)}")
    if not parts.scheme or not (parts.netloc or parts.scheme == _WITHOUT_HOST) or not path.isprintable():
        return RecordRejected(
            FORBIDDEN, AT, f"expected scheme://host or bucket, and a printable path, got {shown(url)}"
        )
    # Some servers take \ for /, and cut a segment off at ;
    if any(one.partition(";")[0] in (".", "..") for one in path.replace("\\", "/").split("/")):
        return RecordRejected(FORBIDDEN, AT, f"expected a path without . and .., got {shown(url)}")
    return Address(parts.scheme, parts.netloc, parts.path)


def _decoded(path: str) -> str:
    """Decode as often as any server on the way could."""
    while (once := unquote(path, errors="strict")) != path:
        path = once
    return path


def forbidden(url: str, roots: Sequence[Root]) -> RecordRejected:
    """Refuse what is below none of these."""
    where = ", ".join(map(str, roots))
    return RecordRejected(FORBIDDEN, AT, f"expected a table below {where} (SDP_TABLE_ROOTS), got {shown(url)}")


def without_secrets(url: str) -> str:
    """Return as much of a URL as may be written down: no user, no password, no signature."""
    hidden = re.sub(r"(?<=:).*@", "***@", url, flags=re.DOTALL)
    return re.sub(r"[?#].*", "?***", hidden, flags=re.DOTALL)


def shown(url: str) -> str:
    """Return it for a message."""
    return excerpt(without_secrets(url)[:200])
