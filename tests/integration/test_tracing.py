"""One trace from the caller's Tango call through the bus and the controller to the acknowledgement."""

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.read_range import read_range
from facade.kernel.config import Settings
from tests.support.deployment import Deployment
from tests.support.waiting import HANG, until

CALL = """
import tango
proxy = tango.DeviceProxy("mid-sdp/subarray/01")
proxy.set_timeout_millis(60_000)
proxy.command_inout("On")
"""


class Receiver:
    """Takes what is exported, as an OpenTelemetry collector would (OTLP over HTTP)."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                receiver.bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.mark.slow
def test_one_trace_from_the_call_to_the_acknowledgement(infra, tmp_path: Path, receiver: Receiver) -> None:
    """The trace of the caller is in the headers of the command and of every acknowledgement, and caller, device
    server and controller export spans of it."""
    telemetry = {
        "TANGO_TELEMETRY_ENABLE": "on",
        "TANGO_TELEMETRY_TRACING_EXPORTERS": "http",
        "TANGO_TELEMETRY_TRACING_ENDPOINTS": f"{receiver.url}/v1/traces",
        "TANGO_TELEMETRY_LOGGING_EXPORTERS": "http",
        "TANGO_TELEMETRY_LOGGING_ENDPOINTS": f"{receiver.url}/v1/logs",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    with Deployment(infra, tmp_path, nodes=1, patient=True) as deployment:
        deployment.prepare()
        controller = ["sdp-facade", "simulate", "controller", "--subarrays", "1"]
        deployment.start("controller", controller, **telemetry)
        deployment.server("subarray", **telemetry)
        subarray = deployment.proxy("mid-sdp/subarray/01")
        until(lambda: subarray.healthState == 0, "the subarray is ready")
        environment = {**deployment.environment, **telemetry, "HOME": os.environ.get("HOME", "/")}
        subprocess.run([sys.executable, "-c", CALL], env=environment, check=True, timeout=HANG, capture_output=True)
        until(lambda: str(subarray.state()) == "ON", "the command has taken effect")
        until(lambda: subarray.commandsFinished == 1, "its outcome is known")
        headers = traceparents(deployment)
        traces = {value.split("-")[1] for values in headers.values() for value in values}
        assert len(headers["commands"]) == 1
        assert len(headers["command-acks"]) >= 2
        (trace,) = traces
        for name in (b"pytango.client", b"On COMPLETED", b"On ACCEPTED", b"simulated-controller On"):
            until(lambda name=name: name in b"".join(receiver.bodies), f"a span {name!r}")
        until(lambda: b"".join(receiver.bodies).count(bytes.fromhex(trace)) >= 5, "all spans are of the trace")


def traceparents(deployment: Deployment) -> dict[str, list[str]]:
    """Return the trace headers of each record of the command topics."""
    topics = ("commands", "command-acks")
    connection = Connection(Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix))
    return {
        topic: [
            dict(record.headers)["traceparent"].decode()
            for record in read_range(connection, topic, find_range(connection, topic))
        ]
        for topic in topics
    }
