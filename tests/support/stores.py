"""Places for tables that fail as they are told: a kind of file system for fsspec, and a web server."""

import errno
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import ClassVar

from fsspec import AbstractFileSystem

from tests.support.waiting import HANG

SCHEME = "faulty"
Fault = Exception | bytes | Callable[[], object]
"""What a read gives: an error, bytes, or what a call does before the next one."""


class Faulty(AbstractFileSystem):
    """Opens what `script` says, one entry for each attempt and the last one for all further ones."""

    protocol = SCHEME
    cachable = False
    script: ClassVar[list[Exception | tuple[int | None, list[Fault]]]] = []
    opened: ClassVar[list[str]] = []
    given = 0

    @classmethod
    def follow(cls, *script: Exception | tuple[int | None, list[Fault]]) -> None:
        cls.script, cls.opened, cls.given = list(script), [], 0

    def open(self, path, mode="rb", **kwargs):
        Faulty.opened.append(path)
        step = Faulty.script.pop(0) if len(Faulty.script) > 1 else Faulty.script[0]
        if isinstance(step, Exception):
            raise step
        return _File(*step)


class _File(io.RawIOBase):
    def __init__(self, size: int | None, faults: list[Fault]) -> None:
        self.size, self._faults, self._rest = size, list(faults), b""

    def read(self, most: int = -1) -> bytes:
        while not self._rest and self._faults:
            fault = self._faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            self._rest = fault if isinstance(fault, bytes) else fault() or b""
        part, self._rest = self._rest[:most], self._rest[most:]
        Faulty.given += len(part)
        return part


class StatusError(Exception):
    """As the clients of web servers raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"{status} with key=HUSHHUSH")
        self.status = status


IO_ERROR = OSError(errno.EIO, "HUSHHUSH")


@contextmanager
def web_server(answers: dict[str, list[tuple[int, dict[str, str], bytes]]]) -> Iterator[tuple[str, list[str]]]:
    """Serve some paths, one answer after the other and the last one for ever; gives host:port and what was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            left = answers.get(self.path, [(404, {}, b"")])
            status, headers, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def until(event: Event) -> Callable[[], object]:
    """Return a read that says nothing until then."""
    return lambda: event.wait(HANG) and None
