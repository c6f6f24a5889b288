"""SIGTERM ends every worker and every kind of device server in order."""

import signal

import pytest

from tests.conftest import Deploy

pytestmark = [pytest.mark.kafka, pytest.mark.tango, pytest.mark.slow]


def test_each_ends_with_exit_code_0(deploy: Deploy) -> None:
    """Those that test_absence does not end already; one after the other, so that none waits for the CPU."""
    deployment = deploy(nodes=1, subarrays=1)
    workers = [
        deployment.start("tables", ["sdp-facade", "tables", "assemble"]),
        deployment.start("intake", ["sdp-facade", "alerts", "intake"]),
        deployment.controller(),
    ]
    servers = [deployment.server(name, ready=False) for name in ("subarray", "alerts", "calibration", "quality")]
    for server in servers:
        deployment.await_server(server, server.name)
    for process in (*workers, *servers):
        process.await_handler(signal.SIGTERM)
        process.signal(signal.SIGTERM)
        assert process.exit_code() == 0, process.tail()
