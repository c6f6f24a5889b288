"""A network between a client and its broker that delays: what a client takes for lost may still arrive."""

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, END_TXN = 0, 1, 2, 3, 10, 26
"""Kafka's keys of requests."""
_HOST = "127.0.0.1"


class KafkaProxy:
    """Stands between clients and a broker on this machine; use it in a `with` statement.

    Addresses of the broker in its answers become those of the proxy, so that clients come back to it.
    """

    def __init__(self, bootstrap: str) -> None:
        broker_port = int(bootstrap.rpartition(":")[2])
        self._broker = (_HOST, broker_port)
        self._listener = socket.create_server((_HOST, 0))
        port = self._listener.getsockname()[1]
        self.bootstrap = f"{_HOST}:{port}"
        # In Metadata and FindCoordinator a broker is its host and, right behind, its port.
        self._address = tuple(_HOST.encode() + struct.pack(">i", number) for number in (broker_port, port))
        self.asked = Counter[int]()
        """Requests so far, by kind."""
        self._late: set[int] = set()
        """Kinds of requests whose answers are kept."""
        self._arrive = threading.Event()
        self._arrive.set()
        self._hold: int | None = None
        self._held = b""
        self._sockets: list[socket.socket] = [self._listener]
        self._is_away = False

    def __enter__(self) -> "KafkaProxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            _cut(each)

    def hold_next(self, api_key: int) -> None:
        """Keep the next request of a kind on its way, while its client loses the connection."""
        self._hold = api_key

    def keep_answers(self, *api_keys: int) -> None:
        """Keep answers to requests of some kinds on their way, and all behind them on the same connections."""
        self._arrive.clear()
        self._late = {*api_keys}

    def release_answers(self) -> None:
        """Let the answers arrive that were kept, and keep none."""
        self._late = set()
        self._arrive.set()

    @property
    def holds_one(self) -> bool:
        """Return whether a request is on its way."""
        return bool(self._held)

    def leave(self) -> None:
        """Cut all connections, and take no new ones."""
        self._is_away = True
        for each in self._sockets[1:]:
            _cut(each)

    def come_back(self) -> None:
        self._is_away = False

    def deliver(self) -> int:
        """Let the broker have the request that is on its way; return the error code of its answer to an EndTxn."""
        with socket.create_connection(self._broker) as broker:
            broker.sendall(self._held)
            self._held = b""
            answer = next(_frames(broker))
        return int(struct.unpack(">h", answer[12:14])[0])  # behind length, correlation id and throttle time

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_away:
                    _cut(client)
                    continue
                broker = socket.create_connection(self._broker)
                self._sockets += [client, broker]
                asked: dict[bytes, int] = {}
                for target in (self._requests, self._answers):
                    threading.Thread(target=target, args=(client, broker, asked), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket, asked: dict[bytes, int]) -> None:
        with suppress(OSError):
            for request in _frames(client):
                key = struct.unpack(">h", request[4:6])[0]
                asked[request[8:12]] = key  # by correlation id
                self.asked[key] += 1
                if key == self._hold:
                    self._hold, self._held = None, request
                    break
                broker.sendall(request)
        _cut(client)
        _cut(broker)

    def _answers(self, client: socket.socket, broker: socket.socket, asked: dict[bytes, int]) -> None:
        with suppress(OSError):
            for answer in _frames(broker):
                if asked.pop(answer[4:8], None) in self._late:
                    self._arrive.wait()
                client.sendall(answer.replace(*self._address))
        _cut(client)


def _frames(source: socket.socket) -> Iterator[bytes]:
    """Give requests or answers whole, each with its length before it, until the connection ends."""
    while len(head := source.recv(4, socket.MSG_WAITALL)) == 4:
        yield head + source.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
