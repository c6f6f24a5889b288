"""A request by HTTP, and the bound on the time of its answer.

A socket's own timeout begins again with each byte. A server that sends a byte now and then would hold its caller for
days, so the time until the last byte is bounded as well.
"""

import http.client
import io
import socket
from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from facade.kernel.clock import Clock


class HttpAnswer(NamedTuple):
    """The answer of a server."""

    status: int
    reason: str
    content: bytes


def send_request(
    method: str,
    url: str,
    body: str | bytes | None,
    headers: Mapping[str, str],
    *,
    within: float,
    largest: int,
    clock: Clock,
) -> HttpAnswer:
    """Return the answer to a request; a redirect is not followed.

    Parameters
    ----------
    within
        Longest time until the last byte of the answer, and for each step before the answer [s].
    largest
        The content is cut after this number of bytes.

    Raises
    ------
    OSError
        The server does not answer in time, or not by HTTP.
    ValueError
        The address cannot be used.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    until = clock.monotonic() + within

    def read(sock: socket.socket, **how: Any) -> http.client.HTTPResponse:
        bounded: Any = _Bounded(sock, until, within, clock)
        return http.client.HTTPResponse(bounded, **how)

    with closing(kind(parts.hostname or "", parts.port, timeout=within)) as client:
        client.response_class = read  # type: ignore[assignment]
        try:
            client.request(method, path, body, headers)
            answer = client.getresponse()
            return HttpAnswer(answer.status, answer.reason, answer.read(largest))
        except http.client.HTTPException as error:
            raise OSError(f"expected an answer by HTTP, got {type(error).__name__}: {error}") from error


class _Bounded(io.RawIOBase):
    """The bytes of an answer, all of which come until a time."""

    def __init__(self, sock: socket.socket, until: float, within: float, clock: Clock) -> None:
        self._sock, self._until, self._within, self._clock = sock, until, within, clock
        self._bytes = sock.makefile("rb", buffering=0)

    def makefile(self, _: str) -> io.BufferedReader:
        """Return the file that the answer is read from."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what has come."""
        if (left := self._until - self._clock.monotonic()) <= 0:
            raise TimeoutError(f"its answer takes longer than {self._within:g} s")
        self._sock.settimeout(left)
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        """Close the connection."""
        self._bytes.close()
        super().close()
