"""Logs and metrics from real shippers, through a worker that is killed, to SdpLogs; each record is counted once."""

import socket
from contextlib import closing
from pathlib import Path

import pytest

from facade.bus.kafka.bus import KafkaBus
from facade.bus.port import Record
from facade.errors import InfraError
from proving.shippers import LogSocket, Shippers
from tests.conftest import Deploy
from tests.support.deployment import BUS
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

LOGS = "mid-sdp/logs/0"
EACH = 2000
"""Records that are sent in each part of the test."""


def test_what_shippers_send_is_counted_once_through_a_kill(deploy: Deploy, tmp_path: Path) -> None:
    """rsyslog ships what programs log, collectd what this machine is like; one record is nonsense."""
    folder = tmp_path / "shippers"
    try:
        shippers = Shippers(folder, print)
    except InfraError as error:
        pytest.skip(str(error))
    deployment = deploy(nodes=1)
    servers = [deployment.server(name, ready=False) for name in ("control", "logs")]
    worker = deployment.launch("logs-aggregate-0", "logs", "aggregate", "--slot", "0")
    address = folder / "log"
    rsyslog = shippers.rsyslog(deployment, address)
    shippers.collectd(deployment, "r07/node-0007")
    for process, name in zip(servers, ("control", "logs"), strict=True):
        deployment.await_server(process, name)
    until(address.exists, "rsyslog listens")
    with closing(LogSocket(address)) as log:

        def write(first: int) -> None:
            for number in range(first, first + EACH):
                # As the C library writes: with a priority, user.err or user.info.
                priority = 11 if number % 100 == 0 else 14
                log.write(priority, "flagger", f"record {number}")

        write(0)
        until(lambda: (deployment.read_one(LOGS, "records") or 0) > 0, "the first records are shown")
        worker.kill()
        write(EACH)
        nonsense = Record(topic="logs", key=b"r07/node-0007", value=b"\xff\xfe what is this")
        KafkaBus(deployment.connection, client="test").writer().send_durably(nonsense, 30.0)
        deployment.launch("logs-aggregate-0", "logs", "aggregate", "--slot", "0")
        servers[1].kill()
        deployment.server("logs")
        # What rsyslog says of itself comes beside it.
        until(lambda: totals(deployment.read(LOGS, "errors", "holes")) == (2 * EACH // 100, 0), "each is counted once")
    (worst, *_) = deployment.read_one(LOGS, "worstComponents")
    assert worst.startswith(f"flagger: {2 * EACH // 100} errors of 5 min")
    assert deployment.read_one(LOGS, "newestErrors")[0].endswith(f"record {2 * EACH - 100}")
    assert deployment.read_one(LOGS, "worstLocations")[0].startswith(f"r01/{socket.gethostname()}: ")
    until(lambda: deployment.read_one(LOGS, "nodes") == ("node-0007",), "metrics of the node come")
    shown = deployment.read(LOGS, "memoryUsed", "nodeMemoryUsed", "nodeLoad")
    assert 0.0 < shown["memoryUsed"] == shown["nodeMemoryUsed"][0] < 100.0
    assert shown["nodeLoad"][0] >= 0.0
    rsyslog.stop()
    until(lambda: balanced(deployment.read(BUS, *FIGURES)), "the account is whole")


FIGURES = ("logsConsumed", "logsBalance", "logsDeadLettered", "logsSkipped", "metricsBalance", "logsSummaryBalance")


def totals(shown: dict[str, int | None]) -> tuple[int | None, ...]:
    return tuple(shown.values())


def balanced(shown: dict[str, int | None]) -> bool:
    consumed = shown.pop("logsConsumed")
    expected = {name: int(name == "logsDeadLettered") for name in shown}
    return (consumed or 0) > 2 * EACH and shown == expected
