"""Stands for an Olog: takes entries and finds them by a property, in the form that its documentation gives."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

LOGIN = "sdp:secret"
LOGBOOK, TAG = "Operations", "SDP"


class OlogServer:
    """Keeps the entries; as the real one, it knows some logbooks and tags, and takes them from its users only."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []
        self.searches = 0
        self.hangs, self.freed = Event(), Event()
        self.dies_after_taking = False
        """Whether it takes an entry and breaks the connection before it answers."""
        self.answers_always: Any = None
        """What it answers to each search; None: the entries."""
        self.refuses = ""
        """Part of the text of entries that it refuses."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.olog = self  # type: ignore[attr-defined]
        self.address = f"http://127.0.0.1:{self._server.server_port}/Olog"

    @contextmanager
    def served(self) -> Iterator["OlogServer"]:
        thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self.freed.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def find(self, query: str) -> list[dict[str, Any]]:
        """Return the entries with a property NAME.ATTRIBUTE.VALUE."""
        name, attribute, value = query.split(".")
        return [
            log
            for log in self.logs
            for one in log["properties"]
            if one["name"] == name and {"name": attribute, "value": value, "state": "Active"} in one["attributes"]
        ]

    def take(self, log: dict[str, Any]) -> tuple[int, Any]:
        """Keep an entry, and return status and answer."""
        if not log.get("logbooks") or not log.get("title"):
            return 400, "A log entry must specify a title and at least one logbook"
        if {one["name"] for one in log["logbooks"]} - {LOGBOOK} or {one["name"] for one in log["tags"]} - {TAG}:
            return 400, "One or more invalid logbook or tag name(s)"
        if self.refuses and self.refuses in log["description"]:
            return 400, "not this one"
        self.logs.append({"id": len(self.logs) + 1, "attachments": [], **log})
        return 200, self.logs[-1]


class _Handler(BaseHTTPRequestHandler):
    olog: OlogServer

    def handle_one_request(self) -> None:
        self.olog = self.server.olog  # type: ignore[attr-defined]
        super().handle_one_request()

    def do_GET(self) -> None:
        if self.olog.hangs.is_set():
            self.olog.freed.wait()
        asked = urlsplit(self.path)
        if asked.path != "/Olog/logs/search":
            self._say(404, "no such place")
            return
        self.olog.searches += 1
        logs, told = self.olog.find(parse_qs(asked.query)["properties"][0]), self.olog.answers_always
        self._say(200, {"hitCount": len(logs), "logs": logs} if told is None else told)

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != f"Basic {base64.b64encode(LOGIN.encode()).decode()}":
            self._say(401, "Unauthorized")
        elif self.path != "/Olog/logs":
            self._say(404, "no such place")
        else:
            status, said = self.olog.take(body)
            if self.olog.dies_after_taking:
                self.close_connection = True
                return
            self._say(status, said)

    def _say(self, status: int, said: Any) -> None:
        content = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
