"""What the client of the fault run writes down: so many bytes for each entry, so that none is lost with a process."""

import struct
from pathlib import Path

import msgspec

_LINE = struct.Struct("<q8s")


class ClientReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the client says of itself at its end."""

    by_event: int
    by_page: int
    """Entries filled by GetAlertsSince."""
    again: int
    """Events that came though they were known already."""
    overtaken: int
    """Events that came before others that belong before them."""
    overflowed: int
    """Events for which the slow client had no room."""
    unusable: int
    renewed: int
    """How often it has subscribed."""
    silence: float
    """Longest time without an entry, but for its own slowness [s]."""
    lost: list[str]
    """What it was told that nobody can deliver."""


def line(sequence: int, digest: bytes) -> bytes:
    """Return what is written for an entry."""
    return _LINE.pack(sequence, digest)


def count(path: Path) -> int:
    """Count the entries so far."""
    return path.stat().st_size // _LINE.size if path.exists() else 0


def read(path: Path) -> list[tuple[int, bytes]]:
    """Return sequence number and digest of all entries, in the order in which they came."""
    content = path.read_bytes() if path.exists() else b""
    return list(_LINE.iter_unpack(content[: len(content) // _LINE.size * _LINE.size]))
