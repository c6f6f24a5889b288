"""Logs and metrics from real shippers, through a worker that is killed, to SdpLogs; each record is counted once."""

import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tango

from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.port import Record
from sdp_facade_lab.demo.shipping import LogSocket, Shippers
from tests.conftest import Deploy
from tests.support.deployment import BUS, Deployment
from tests.support.waiting import HANG, until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

LOGS = "mid-sdp/logs/0"
EACH = 2000
"""Records that are sent in each part of the test."""


def test_what_shippers_send_is_counted_once_through_a_kill(deploy: Deploy, tmp_path: Path) -> None:
    """rsyslog ships what programs log, collectd what this machine is like; one record is nonsense."""
    folder = tmp_path / "shippers"
    shippers = Shippers(folder, print)
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
        KafkaBus(deployment.connection, client="test").writer().send_durably(nonsense, HANG)
        deployment.launch("logs-aggregate-0", "logs", "aggregate", "--slot", "0")
        servers[1].kill()
        deployment.server("logs")
        # What rsyslog says of itself comes beside it.
        until(lambda: totals(deployment.read(LOGS, "errors", "holes")) == (2 * EACH // 100, 0), "each is counted once")

    def first(attribute: str) -> str:
        return (deployment.read_one(LOGS, attribute) or ("",))[0]

    worst = f"flagger: {2 * EACH // 100} errors of 5 min"
    until(lambda: first("worstComponents").startswith(worst), worst)

    def newest_of_flagger() -> str:
        """Return the end of the newest error that is not rsyslog's own, of which there may be later ones."""
        return next((one[-11:] for one in deployment.read_one(LOGS, "newestErrors") or () if "flagger" in one), "")

    until_equal(newest_of_flagger, f"record {2 * EACH - 100}", "the newest error")
    until(lambda: first("worstLocations").startswith(f"r01/{socket.gethostname()}: "), "where they come from")

    def of_the_node() -> dict[str, Any]:
        """Return what is shown once both metrics have come, each by itself."""
        shown = deployment.read(LOGS, "nodes", "memoryUsed", "nodeMemoryUsed", "nodeLoad")
        is_whole = (
            shown["nodes"] == ("node-0007",) and not np.isnan([shown["nodeMemoryUsed"][0], shown["nodeLoad"][0]]).any()
        )
        return shown if is_whole else {}

    shown = until(of_the_node, "metrics of the node come")
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


def test_our_own_processes_are_components_once_they_export_their_logs(deploy: Deploy) -> None:
    """A worker and a device server log beside the worker of logs, which exports its log too, and feeds on no line."""
    deployment = deploy(nodes=1)
    export = {"SDP_LOG_EXPORT": "logs", "OTEL_RESOURCE_ATTRIBUTES": "host.name=n7,rack=r01"}
    servers = {name: deployment.server(name, ready=False, **export) for name in ("control", "logs")}
    worker = deployment.launch("logs-aggregate-0", "logs", "aggregate", "--slot", "0", **export)
    tables = deployment.launch("tables", "tables", "assemble", **export)
    for name, process in servers.items():
        deployment.await_server(process, name)
    wanted = {"sdp-facade/SdpFacade-control", "sdp-facade/SdpFacade-logs", "sdp-facade/tables-assemble-0"}
    until(lambda: wanted <= components(deployment), "device servers and a worker are components")
    # What a process says last is sent before it ends.
    admin = deployment.proxy("dserver/SdpFacade/control")
    admin.SetLoggingLevel([[int(tango.LogLevel.LOG_WARN)], ["*"]])
    said = "log level is now WARNING, as Tango says"
    until(lambda: said in servers["control"].text, "the device server follows")
    assert servers["control"].terminate() == 0
    assert tables.terminate() == 0
    assert said in exported(deployment)["SdpFacade-control"]

    def all_is_shown() -> dict[str, list[str]]:
        sent = exported(deployment)
        wanted = {"records": sum(map(len, sent.values())), "components": len(sent), "holes": 0}
        return sent if deployment.read(LOGS, *wanted) == wanted else {}

    sent = until(all_is_shown, "all is shown")
    assert worker.running
    for name, lines in sent.items():
        text = deployment.processes[PROCESSES[name]].text
        assert all(line.splitlines()[0] in text for line in lines), "it is on its own output as well"


PROCESSES = {
    "SdpFacade-control": "control",
    "SdpFacade-logs": "logs",
    "tables-assemble-0": "tables",
    "logs-aggregate-0": "logs-aggregate-0",
}


def components(deployment: Deployment) -> set[str]:
    """Return the components that are on the sums that SdpLogs reads."""
    read = KafkaBus(deployment.connection, client="test").read_all("logs.summary")
    summaries = (msgspec.json.decode(record.value or b"{}") for record in read)
    return {one["component"] for summary in summaries for one in summary.get("counts", ())}


def exported(deployment: Deployment) -> dict[str, list[str]]:
    """Return the lines on the topic, by the process that wrote them."""
    found: dict[str, list[str]] = {}
    for record in KafkaBus(deployment.connection, client="test").read_all("logs"):
        (resource,) = msgspec.json.decode(record.value or b"")["resourceLogs"]
        (name,) = [
            one["value"]["stringValue"] for one in resource["resource"]["attributes"] if one["key"] == "service.name"
        ]
        lines = [one["body"]["stringValue"] for scope in resource["scopeLogs"] for one in scope["logRecords"]]
        found.setdefault(name, []).extend(lines)
    return found
