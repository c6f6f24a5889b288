"""Tables in object stores, on web servers and wherever else fsspec can read; it is installed with ``[objects]``.

Keys and endpoints are fsspec's own configuration (``FSSPEC_S3_KEY``, ``~/.config/fsspec``), and are never seen here.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from queue import Empty, Queue
from threading import Event, Thread
from typing import Any

from facade.flows.tables.messages import Refused
from facade.flows.tables.roots import AT, NOT_CONFIGURED, Address, forbidden, shown, split
from facade.flows.tables.sources import CHUNK, UNAVAILABLE, Source, Unreadable, unreadable


class Objects:
    """Opens what references below URLs refer to.

    Parameters
    ----------
    roots
        URLs below which tables are.
    silence
        For so long nothing may come [s].
    """

    def __init__(self, roots: Sequence[Address], *, silence: float) -> None:
        self._roots = roots
        self._silence = silence
        self._systems: dict[str, Any] = {}
        """What fsspec has for each scheme: some take a second to make, and hold connections."""

    @contextmanager
    def open(self, url: str, most: int) -> Iterator[Source]:
        """Open an object, of which at most so many bytes are read.

        Raises
        ------
        Unreadable
            It is not allowed, not there, or cannot be opened.
        """
        address = split(url)
        if isinstance(address, Refused):
            raise Unreadable(address)
        if not any(address.is_below(root) for root in self._roots):
            raise Unreadable(forbidden(url, self._roots))
        try:
            with closing(_Remote(lambda: self._open(address, most), most, shown(url), self._silence)) as source:
                yield source
        except Unreadable as trouble:
            if trouble.passing:
                self._systems.pop(address.scheme, None)
            raise

    def _open(self, address: Address, most: int) -> Any:
        system = self._systems.get(address.scheme)
        if system is None:
            system = self._systems[address.scheme] = filesystem(address)
        system.invalidate_cache()  # it may remember what was there before
        if address.is_web:
            # One answer as it comes. Told a size, fsspec does not ask for it first, which makes any error "not found".
            return system.open(str(address), "rb", block_size=0, size=most)
        return system.open(str(address), "rb")


def filesystem(address: Address) -> Any:
    """Return what fsspec has for a scheme, anew.

    Raises
    ------
    Unreadable
        A package is not installed.
    """
    scheme = address.scheme
    # A redirection could lead to any other host; the first one is an error.
    options = {"max_redirects": 1} if address.is_web else {}
    try:
        module = importlib.import_module("fsspec")
    except ImportError as error:
        what = f"{scheme}:// needs fsspec where tables are read: pip install 'sdp-tango-facade[objects]'"
        raise Unreadable(Refused(NOT_CONFIGURED, AT, what)) from error
    try:
        kind = module.get_filesystem_class(scheme)
    except (ImportError, ValueError) as error:  # its words name the package, or say that no such scheme is known
        raise Unreadable(Refused(NOT_CONFIGURED, AT, f"{scheme}:// cannot be read here: {error!s:.200}")) from error
    return kind(skip_instance_cache=True, **options)


class _Remote:
    """An object that another thread reads ahead of us, since no library promises to come back; see `Source`.

    The thread ends when it has nothing more to say, or with the first thing that it has to say to nobody.
    """

    def __init__(self, open_file: Callable[[], Any], most: int, where: str, silence: float) -> None:
        self._open, self._most, self._where, self._silence = open_file, most, where, silence
        self._said: Queue[int | bytes | Exception | None] = Queue(2)
        self._is_left = Event()
        self._rest = b""
        Thread(target=self._run, name="table-reader", daemon=True).start()

    def size(self) -> int | None:
        found = self._hear()
        return found if isinstance(found, int) else None

    def read(self, most: int) -> bytes:
        part = self._rest or self._hear()
        if not isinstance(part, bytes):
            return b""
        self._rest = part[most:]
        return part[:most]

    def close(self) -> None:
        self._is_left.set()
        while True:  # there is room for the one thing that it may be saying right now
            try:
                self._said.get_nowait()
            except Empty:
                return

    def _hear(self) -> int | bytes | None:
        try:
            said = self._said.get(timeout=self._silence)
        except Empty as error:
            what = f"{self._where} cannot be read: nothing came for {self._silence:g} s"
            raise Unreadable(Refused(UNAVAILABLE, AT, what), passing=True) from error
        if isinstance(said, Unreadable):
            raise said
        if isinstance(said, Exception):
            raise unreadable(said, self._where) from said
        return said

    def _run(self) -> None:
        try:
            with self._open() as file:
                size = getattr(file, "size", None)
                self._say(size if isinstance(size, int) else None)
                left = self._most
                while left > 0 and not self._is_left.is_set() and (part := file.read(min(CHUNK, left))):
                    left -= len(part)
                    self._say(bytes(part))
            self._say(b"")
        except Exception as error:  # whatever a library raises is judged where it is heard
            self._say(error)

    def _say(self, what: int | bytes | Exception | None) -> None:
        if not self._is_left.is_set():
            self._said.put(what)
