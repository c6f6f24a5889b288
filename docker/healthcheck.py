"""Tell whether the main process of this container does its work; exit code 0 if so, else 1 and a sentence.

A device server must answer a Tango ping; what serves metrics must serve them. Of anything else nothing is known but
that it runs.
"""

import http.client
import os
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

SERVER = "SdpFacade"
PROGRAM = "sdp-facade"
SERVING = (
    ("aggregate",),
    ("tables", "assemble"),
    ("alerts", "intake"),
    ("logs", "aggregate"),
    ("simulate", "controller"),
)
"""Sub-commands that serve /metrics."""
PATIENCE = 3.0
"""How long an answer may take [s]."""


def main() -> None:
    """Find the role of process 1, and ask the device or the metrics that this role serves."""
    program, arguments = role(Path("/proc/1/cmdline").read_bytes())
    if program == SERVER:
        _ping(arguments[0])
    elif program == PROGRAM and any(tuple(arguments[: len(words)]) == words for words in SERVING):
        _scrape(int(os.environ.get("SDP_METRICS_PORT") or 0))


def role(command_line: bytes) -> tuple[str, Sequence[str]]:
    """Return the program and its arguments; an interpreter or an init process may stand before it."""
    words = command_line.decode().rstrip("\0").split("\0")
    for index, word in enumerate(words):
        if PurePath(word).name in (SERVER, PROGRAM):
            return PurePath(word).name, words[index + 1 :]
    return "", ()


def _ping(instance: str) -> None:
    import tango  # a worker need not load it

    try:
        server = tango.DeviceProxy(f"dserver/{SERVER}/{instance}")
        server.set_timeout_millis(round(PATIENCE * 1000))
        server.ping()
    except tango.DevFailed as failed:
        sys.exit(f"{SERVER} {instance} does not answer: {failed.args[0].desc}")


def _scrape(port: int) -> None:
    if not port:
        return
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/metrics")
        status = connection.getresponse().status
    except OSError as error:
        sys.exit(f"http://127.0.0.1:{port}/metrics: no answer: {error}")
    if status != http.HTTPStatus.OK:
        sys.exit(f"http://127.0.0.1:{port}/metrics: expected status 200, got {status}")


if __name__ == "__main__":
    main()
