"""The claim check: a record says where a table is, and this says whether it is there, whole and unchanged.

Only places that the configuration allows are looked at, whatever a record says: it may come from anybody who can
write to the bus. What may pass in a moment (the network, a store that is busy, too many open files) is tried again.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from facade.clock import Clock, SystemClock
from facade.flows.tables.files import Files
from facade.flows.tables.messages import Refused
from facade.flows.tables.objects import Objects
from facade.flows.tables.roots import AT, NOT_CONFIGURED, Address, Root, shown
from facade.flows.tables.sources import CHUNK, UNAVAILABLE, Source, Unreadable

NOT_ITS_FAULT = (UNAVAILABLE, NOT_CONFIGURED)
"""Reasons after which the same reference may be sent again under its id."""
_MOST_LOOKED_INTO = 64_000_000
"""Larger tables are verified, and no summary is made of them [bytes]."""
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Before it is tried again [s]."""

Sink = Callable[[bytes], object]
"""Takes the bytes of a table in their order."""


class Place(Protocol):
    """Where tables are."""

    def open(self, url: str, most: int) -> AbstractContextManager[Source]:
        """Open one of them, of which at most so many bytes will be read; see `Unreadable`."""


class Claims:
    """Verifies references.

    Parameters
    ----------
    roots
        Directories and URLs with tables; with none every reference is refused.
    limit
        Largest table [bytes].
    patience
        Longest time for one [s]: while it is read no records are taken, and the group gives up on a member after
        five minutes.
    silence
        For so long nothing may come from a store [s].
    """

    def __init__(
        self,
        roots: Sequence[Root],
        *,
        clock: Clock | None = None,
        limit: int = 20_000_000_000,
        patience: float = 150.0,
        silence: float = 30.0,
    ) -> None:
        self._clock = clock or SystemClock()
        self._limit, self._patience = limit, patience
        files = [root for root in roots if isinstance(root, Path)]
        stores = [root for root in roots if isinstance(root, Address)]
        objects = Objects(stores, silence=min(silence, patience))
        self._places: dict[str, Place] = {root.scheme: objects for root in stores}
        if files:
            self._places["file"] = Files(files)

    def look(self, url: str, size: int, sha256: str) -> memoryview | Refused | None:
        """Check what a reference refers to, and give its bytes; None: they are too many.

        They are bytes of our own: a file that is mapped ends the process when somebody cuts it short meanwhile.
        """
        content = bytearray()
        is_small = size <= _MOST_LOOKED_INTO

        def begin() -> Sink:
            content.clear()
            return content.extend if is_small else len

        refused = self.copy(url, size, sha256, begin)
        if refused is not None:
            return refused
        return memoryview(content).toreadonly() if is_small else None

    def copy(self, url: str, size: int, sha256: str, begin: Callable[[], Sink]) -> Refused | None:
        """Read what a reference refers to; None: it was all there, and what it should be.

        Parameters
        ----------
        begin
            Is called before each attempt, and gives what takes the bytes.
        """
        place = self._places.get(url.partition(":")[0].lower())
        if place is None:
            return self._not_configured(url)
        if size > self._limit:
            return Refused("too-large", "headers.segment.size", f"expected at most {self._limit} bytes, got {size}")
        began, pauses = self._clock.monotonic(), iter(_PAUSES)
        while True:
            try:
                with place.open(url, size + 1) as source:
                    return self._read(source, size, sha256, begin(), began)
            except Unreadable as trouble:
                refused = trouble.refused
                if not trouble.passing:
                    return refused
            tried = self._clock.monotonic() - began
            pause = next(pauses, self._patience)
            if tried + pause >= self._patience:
                return Refused(refused.reason, refused.path, f"{refused.detail}; tried for {tried:.1f} s")
            self._clock.sleep(pause)

    def _not_configured(self, url: str) -> Refused:
        if not self._places:
            what = "expected segments: references are not configured here (SDP_TABLE_ROOTS names no place)"
        else:
            kinds = ", ".join(f"{scheme}://" for scheme in self._places)
            what = f"expected {kinds} (SDP_TABLE_ROOTS), got {shown(url)}"
        return Refused(NOT_CONFIGURED, AT, what)

    def _read(self, source: Source, size: int, sha256: str, sink: Sink, began: float) -> Refused | None:
        """Read it once, and never more than one byte beyond its size."""
        said = source.size()
        if said not in (None, size):
            return _size(size, f"{said} at its place")
        digest, got = hashlib.sha256(), 0
        while part := source.read(min(CHUNK, size + 1 - got)):
            got += len(part)
            if got > size:
                return _size(size, "more")
            digest.update(part)
            sink(part)
            if got < size and self._clock.monotonic() - began >= self._patience:
                raise _cut_short(f"expected {size} bytes within {self._patience:g} s, got {got}")
        if got < size:
            if said == size:
                raise _cut_short(f"expected {size} bytes, as the place says, got its end after {got}")
            return _size(size, str(got))
        if digest.hexdigest() != sha256:
            return Refused("digest", "headers.segment.sha256", f"expected {sha256}, got {digest.hexdigest()} of it")
        return None


def _size(expected: int, got: str) -> Refused:
    return Refused("size", "headers.segment.size", f"expected {expected} bytes, got {got}")


def _cut_short(what: str) -> Unreadable:
    return Unreadable(Refused(UNAVAILABLE, AT, what), passing=True)
