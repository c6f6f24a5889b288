"""A server that sends its answer byte by byte, and the clock of who waits for it."""

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress

from facade.kernel.clock import ManualClock


class Drip(ManualClock):
    """A clock of somebody who waits for bytes: with each look another one comes, a second later."""

    def __init__(self, server: socket.socket, head: bytes) -> None:
        super().__init__()
        server.setblocking(False)
        self._server, self._head, self._connection = server, head, ExitStack()
        self._send: Callable[[bytes], object] = lambda data: None

    def monotonic(self) -> float:
        with suppress(BlockingIOError):  # nobody has come, or somebody is here already
            connection, _ = self._server.accept()
            self._send = self._connection.enter_context(connection).sendall
            self._send(self._head)
        self._send(b"H")
        self.sleep(1.0)
        return super().monotonic()

    def close(self) -> None:
        self._connection.close()
