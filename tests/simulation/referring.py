"""Tables by reference: a place that has them, what goes wrong with it, and who reads there."""

import errno
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from facade.flows.tables.places import Opened
from facade.flows.tables.references import Place, References
from tests.simulation.scheduler import Process

_PART = 60
"""Most that one read gives [bytes]."""
_SILENCE, _PATIENCE = 3.0, 8.0
"""See `facade.flows.tables.references.References` [s]; the usual ones are longer than a run."""


class Store:
    """A place of tables, which may be slow, away, or have another table than it was told."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        """By URL."""
        self.spoiled: set[str] = set()
        """URLs of tables that are gone, changed or cut."""
        self.given: dict[str, set[str]] = defaultdict(set)
        """By URL: checksums of what any reader has got from its beginning on."""
        self.slow_until = self.away_until = 0.0
        """Simulated times [s]."""

    def spoil(self, how: str) -> None:
        """Let something happen to the newest table."""
        url = next(reversed(self.files), None)
        if url is None:
            return
        content = self.files[url]
        match how:
            case "gone":
                del self.files[url]
            case "cut":
                self.files[url] = content[: len(content) // 2]
            case _:
                self.files[url] = bytes(255 - one for one in content)
        if self.files.get(url) != content:
            self.spoiled.add(url)


class StorePlace:
    """What a process sees of a store; see `facade.flows.tables.references.Place`."""

    def __init__(self, store: Store, process: Process) -> None:
        self._store, self._process = store, process

    @contextmanager
    def open(self, url: str, most: int) -> Iterator[Opened]:
        """Open a table; it may become another one while it is read."""
        store, at, got = self._store, 0, sha256()
        self._wait()
        if url not in store.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        size = len(store.files[url])
        store.given[url].add(got.hexdigest())

        def read(limit: int) -> bytes:
            nonlocal at
            self._wait()
            part = store.files.get(url, b"")[at : at + min(limit, _PART)]
            at += len(part)
            got.update(part)
            store.given[url].add(got.hexdigest())
            return part

        yield size, read

    def _wait(self) -> None:
        scheduler = self._process.scheduler
        is_slow = scheduler.now < self._store.slow_until
        self._process.clock.sleep(scheduler.random.random() * (5.0 if is_slow else 0.3))
        if scheduler.now < self._store.away_until:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class StoreReferences(References):
    """Knows the one store of a site."""

    def __init__(self, store: Store, process: Process) -> None:
        super().__init__([], clock=process.clock, patience=_PATIENCE, silence=_SILENCE)
        self._place = StorePlace(store, process)

    def place(self, url: str) -> Place:
        return self._place
