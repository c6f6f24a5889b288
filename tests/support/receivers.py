"""Receivers of notifications: a mail server and a web hook, which keep what they have taken."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Event, Thread
from typing import Any

HOST = "127.0.0.1"


class _Server:
    def __init__(self, server: Any) -> None:
        self.server = server
        self.port: int = server.server_address[1]
        server.daemon_threads = True
        server.sink = self
        self.hangs, self.freed = False, Event()
        """Whether it takes a message and then says nothing, as a receiver that is killed at this moment."""

    def start(self) -> None:
        self.server.server_activate()
        self._thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def stop(self) -> None:
        self.freed.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    @contextmanager
    def killed(self) -> Iterator[None]:
        """Listen no more until the end of the block, and drop what hangs."""
        self.stop()
        self.server.socket = socket.socket()
        self.server.server_bind()  # nobody else may get the port
        try:
            yield
        finally:
            self.hangs = False
            self.start()

    def answers(self) -> bool:
        """Return whether a message that was taken is answered: one that hangs never is."""
        if self.hangs:
            self.freed.wait()
            return False
        return True


class _TcpServer(ThreadingTCPServer):
    allow_reuse_address = True


class MailSink(_Server):
    """Takes mail, without TLS and login."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.refuse = b""
        super().__init__(_TcpServer((HOST, 0), _Smtp))


class _Smtp(StreamRequestHandler):
    def handle(self) -> None:
        sink: MailSink = self.server.sink  # type: ignore[attr-defined]
        self._say(b"220 sink")
        while line := self.rfile.readline().strip():
            verb = line[:4].upper()
            if verb == b"QUIT":
                self._say(b"221 bye")
                return
            if verb == b"RCPT" and sink.refuse:
                self._say(sink.refuse)
            elif verb == b"DATA":
                self._say(b"354 go on")
                lines = []
                while (text := self.rfile.readline().rstrip(b"\r\n")) != b".":
                    lines.append(text.removeprefix(b".") if text.startswith(b"..") else text)
                mail = message_from_bytes(b"\n".join(lines), policy=policy.default)
                assert isinstance(mail, EmailMessage)
                sink.mails.append(mail)
                if not sink.answers():
                    return
                self._say(b"250 taken")
            else:
                self._say(b"250 sink")

    def _say(self, text: bytes) -> None:
        self.wfile.write(text + b"\r\n")


class HookSink(_Server):
    """Takes POST requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], Any]] = []
        """Headers and JSON."""
        self.status = 200
        super().__init__(ThreadingHTTPServer((HOST, 0), _Hook))

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/hook"


class _Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        sink: HookSink = self.server.sink  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sink.requests.append((dict(self.headers), json.loads(body)))
        if not sink.answers():
            return
        self.send_response(sink.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def running(sink: _Server) -> Iterator[None]:
    """Serve in a thread until the end of the block."""
    sink.start()
    try:
        yield
    finally:
        sink.stop()
