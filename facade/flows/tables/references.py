"""The claim check: a record names the location of a table, and this module verifies the table there.

Only configured locations are read. Temporary errors (the network, a busy store, too many open files) lead to further
attempts. A mount or a store may hang, so that a call never returns. Its thread is abandoned. A root with several such
threads is left alone: its tables fail at once, and one of them is tried from time to time until the root answers.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from urllib.parse import unquote

from facade.flows.tables.buffers import CHUNK, BufferPool
from facade.flows.tables.places import (
    AT,
    NOT_CONFIGURED,
    UNAVAILABLE,
    Address,
    Files,
    Opened,
    Resolve,
    Root,
    Stores,
    Unreadable,
    shown,
    unreadable,
)
from facade.kernel.clock import Clock, SystemClock
from facade.kernel.outcome import RecordRejected

MAY_BE_SENT_AGAIN = (UNAVAILABLE, NOT_CONFIGURED)
"""Reasons without a fault of the table: the same reference may come again under its id."""
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses before further attempts [s]."""
_WAIT = 0.2
"""Longest wait of a step [s]."""
_MOST_HANGING, _HANGS_AGAIN = 3, 300.0
"""Reads that hang below a root until it is left alone, and time until it is tried again [s]."""
_UNKNOWN = -1
"""Size of a table if its location does not give it."""


Place = Files | Stores


class References:
    """The locations of tables.

    Parameters
    ----------
    roots
        Directories and URLs with tables; without any, every reference is rejected.
    limit
        Largest table [bytes].
    patience
        Longest time for one table [s].
    silence
        Longest time without bytes [s].
    resolve
        Returns the addresses of web servers' names; None: the system's resolver.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        *,
        clock: Clock | None = None,
        limit: int = 20_000_000_000,
        patience: float = 150.0,
        silence: float = 30.0,
        resolve: Resolve | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.limit, self.patience, self.silence = limit, patience, min(silence, patience)
        self._names = [str(root.absolute() if isinstance(root, Path) else root) for root in roots]
        self._hanging: dict[str, list[threading.Thread]] = {}
        """The abandoned reads of each root that hangs."""
        self._tried_at = 0.0
        """Time of the last abandoned read [monotonic s]."""
        files = [root for root in roots if isinstance(root, Path)]
        stores = [root for root in roots if isinstance(root, Address)]
        objects = Stores(stores, resolve)
        self._places: dict[str, Place] = {root.scheme: objects for root in stores}
        if files:
            self._places["file"] = Files(files)

    def place(self, url: str) -> Place | RecordRejected:
        """Return the opener for a URL."""
        found = self._places.get(url.partition(":")[0].lower())
        hanging = sum(one.is_alive() for one in self._hanging.get(self._root(url), ()))
        if hanging >= _MOST_HANGING and self.clock.monotonic() < self._tried_at + _HANGS_AGAIN:
            what = f"expected {self._root(url)} to answer, {hanging} reads of earlier tables there hang"
            return RecordRejected(UNAVAILABLE, AT, what)
        if found is not None:
            return found
        if not self._places:
            what = "expected segments: references are not configured here (SDP_TABLE_ROOTS names no place)"
        else:
            kinds = ", ".join(f"{scheme}://" for scheme in self._places)
            what = f"expected {kinds} (SDP_TABLE_ROOTS), got {shown(url)}"
        return RecordRejected(NOT_CONFIGURED, AT, what)

    def abandon(self, url: str, thread: threading.Thread) -> None:
        """Note that a read hangs."""
        self._hanging.setdefault(self._root(url), []).append(thread)
        self._tried_at = self.clock.monotonic()

    def answers(self, url: str) -> None:
        """Note that a table was read to its end."""
        self._hanging.pop(self._root(url), None)

    def _root(self, url: str) -> str:
        at = unquote(url).removeprefix("file://").removeprefix("localhost")
        return max((name for name in self._names if at.startswith(name.rstrip("/") + "/")), key=len, default="")


class ReferenceReader:
    """Reads the table of a reference; call `step` until it returns True, and `close` at the end.

    It keeps a copy, as a mapped file that is truncated would end the process. Without `keep` the bytes are only
    verified.
    """

    def __init__(
        self, references: References, url: str, size: int, sha256: str, pool: BufferPool, *, keep: bool = True
    ) -> None:
        self._references, self._url, self._size, self._sha256 = references, url, size, sha256
        self._pool, self._keep = pool, keep
        self._clock = references.clock
        self.buffer = pool.buffer(keep=keep)
        self.rejected: RecordRejected | None = None
        """After the last step: reason why the table is unusable; None: it is usable."""
        self._source: _ReadAhead | None = None
        self._place_size = _UNKNOWN
        self._began = self._clock.monotonic()
        self._next_attempt, self._pauses = self._began, iter(_PAUSES)

    def step(self) -> bool:
        """Continue, with a short wait; return whether this was the last step. An OSError comes from our own disk."""
        early = self._next_attempt - self._clock.monotonic()
        if early > 0:
            self._clock.sleep(min(early, _WAIT))
            return False
        try:
            if self._take():
                self._references.answers(self._url)
                self._verify()
                self._end_attempt()
                return True
        except Unreadable as trouble:
            self._end_attempt()
            if trouble.passing:
                return not self._may_try_again(trouble.rejected)
            self.rejected = trouble.rejected
            return True
        return False

    def close(self) -> None:
        """Free the memory of the bytes, and stop reading."""
        self._end_attempt()
        self.buffer.close()

    def _take(self) -> bool:
        if self._source is None:
            self._source = self._open()
        part = self._source.next()
        if isinstance(part, bytes):
            if part:
                self._add(part)
            return not part
        if part is not None:
            self._place_size = part
            if part not in (_UNKNOWN, self._size):
                raise Unreadable(_wrong_size(self._size, f"{part} at its place"))
        return False

    def _open(self) -> "_ReadAhead":
        place, most = self._references.place(self._url), self._references.limit
        if isinstance(place, RecordRejected):
            raise Unreadable(place)
        if self._size > most:
            what = f"expected at most {most} bytes, got {self._size}"
            raise Unreadable(RecordRejected("too-large", "headers.segment.size", what))
        self.buffer.close()
        self.buffer = self._pool.buffer(keep=self._keep)
        url, size, references = self._url, self._size + 1, self._references
        abandon = partial(references.abandon, url)
        return _ReadAhead(lambda: place.open(url, size), size, shown(url), references.silence, abandon)

    def _add(self, part: bytes) -> None:
        buffer, patience = self.buffer, self._references.patience
        if buffer.size + len(part) > self._size:
            raise Unreadable(_wrong_size(self._size, "more"))
        buffer.add(buffer.next, part)
        if buffer.size < self._size and self._clock.monotonic() - self._began >= patience:
            raise _cut_short(f"expected {self._size} bytes within {patience:g} s, got {buffer.size}")

    def _verify(self) -> None:
        got, checksum = self.buffer.size, self.buffer.sha256()
        if got < self._size == self._place_size:
            raise _cut_short(f"expected {self._size} bytes, as the place says, got its end after {got}")
        if got < self._size:
            raise Unreadable(_wrong_size(self._size, str(got)))
        if checksum != self._sha256:
            what = f"expected {self._sha256}, got {checksum} of it"
            raise Unreadable(RecordRejected("digest", "headers.segment.sha256", what))

    def _may_try_again(self, trouble: RecordRejected) -> bool:
        now, patience = self._clock.monotonic(), self._references.patience
        tried, pause = now - self._began, next(self._pauses, patience)
        if tried + pause < patience:
            self._next_attempt = now + pause
            return True
        self.rejected = RecordRejected(trouble.reason, trouble.path, f"{trouble.detail}; tried for {tried:.1f} s")
        return False

    def _end_attempt(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None


class _ReadAhead:
    """Reads a table in another thread, since a library's call may never return."""

    def __init__(
        self,
        open_table: Callable[[], AbstractContextManager[Opened]],
        most: int,
        where: str,
        silence: float,
        abandon: Callable[[threading.Thread], None],
    ) -> None:
        self._abandon = abandon
        self._open, self._most, self._where, self._silence = open_table, most, where, silence
        self._silent = 0.0
        self._parts: Queue[int | bytes | Exception] = Queue(2)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="table-reader", daemon=True)
        self._thread.start()

    def next(self) -> int | bytes | None:
        wait = min(_WAIT, self._silence)
        try:
            part = self._parts.get(timeout=wait)
        except Empty:
            self._silent += wait
            if self._silent < self._silence:
                return None
            self._abandon(self._thread)
            raise _cut_short(f"{self._where} cannot be read: nothing came for {self._silence:g} s") from None
        self._silent = 0.0
        if isinstance(part, Exception):
            raise unreadable(part, self._where) from part
        return part

    def close(self) -> None:
        self._is_closed.set()
        while True:  # there is room for the item that it may be putting right now
            try:
                self._parts.get_nowait()
            except Empty:
                return

    def _run(self) -> None:
        try:
            with self._open() as (size, read):
                self._give(_UNKNOWN if size is None else size)
                left = self._most
                while left > 0 and not self._is_closed.is_set() and (part := read(min(CHUNK, left))):
                    left -= len(part)
                    self._give(bytes(part))
            self._give(b"")
        except Exception as error:  # any error of a library is judged by the reader
            self._give(error)

    def _give(self, part: int | bytes | Exception) -> None:
        if not self._is_closed.is_set():
            self._parts.put(part)


def _wrong_size(expected: int, got: str) -> RecordRejected:
    return RecordRejected("size", "headers.segment.size", f"expected {expected} bytes, got {got}")


def _cut_short(what: str) -> Unreadable:
    return Unreadable(RecordRejected(UNAVAILABLE, AT, what), passing=True)
