"""The kit against the whole real system: green, and the system is afterwards as it was before."""

import json
import signal
from io import StringIO

import pytest
import tango
from rich.console import Console

from facade.kernel.bus.kafka import timeouts
from sdp_facade_clients.conformance.checks import CheckOptions
from sdp_facade_clients.conformance.runner import NOT_RUN, run
from tests.conformance.test_conformance_mutants import run_kit
from tests.conftest import Deploy
from tests.support.deployment import CLOCK, Deployment, node_device, subarray_device
from tests.support.ports import nobody
from tests.support.topics import ORDER, send
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

WALK = "SdpSubarray/mid-sdp/subarray/01"
ALERTS, TABLES, QUALITY = "mid-sdp/alerts/0", "mid-sdp/calibration/01", "mid-sdp/quality/01"
PACE = "SdpIngestNode/heapsTotal/pace"


def start(deployment: Deployment) -> None:
    instances = ("control", "subarray", "ingest-00", "alerts", "calibration", "quality", "mirror", "logs")
    # One after the other: all at once they hold each other up, until the controller is late at its group.
    for name, server in {name: deployment.server(name, ready=False) for name in instances}.items():
        deployment.await_server(server, name)
    deployment.controller(speed=4.0)
    deployment.worker()
    deployment.start("assemble", ["sdp-facade", "tables", "assemble"])
    deployment.simulate("--rate", 40)
    deployment.start("intake", ["sdp-facade", "alerts", "intake"])
    deployment.command(*"simulate alerts --night --visits 1 --burst 30 --size 1000 --garbage 0.3".split())
    deployment.start("send-quality", ["sdp-facade", "simulate", "quality"])
    # The account of a stream that is silent for 5 s is stale.
    tables = ["--every", "3", "--megabytes", "0.5", "--antennas", "8"]
    deployment.start("send-tables", ["sdp-facade", "simulate", "calibration", *tables])
    until(lambda: deployment.read_one(subarray_device(1), "healthState") == 0, "the controller is heard")
    for device, attribute in ((node_device(1), "heapRate"), (TABLES, "solutionId"), (QUALITY, "flaggedFraction")):
        until(lambda d=device, a=attribute: deployment.read_one(d, a) is not None, f"{attribute} has a value")


def write_nonsense(deployment: Deployment) -> None:
    device = subarray_device(1)
    no_time = {"schema": "state/1", "device": device, "attribute": "obsState", "value": "FAULT", "origin": "x"}
    values = [
        b"[" * 20_000,
        json.dumps(no_time).encode(),
        json.dumps({**no_time, "time": 1, "value": "HAPPY"}).encode(),
    ]
    key = f"{device}/obsState".encode()
    send(deployment.bootstrap, deployment.topic("state"), [(key, value) for value in values], settings=ORDER)


def test_the_whole_system_conforms_and_is_left_as_it_was(deploy: Deploy) -> None:
    deployment = deploy(nodes=2, subarrays=1)
    start(deployment)
    write_nonsense(deployment)
    html = deployment.folder / "report.html"
    code, outcomes, text = run_kit(deployment, "--active", "--window", 5, "--html", html)
    # Whether the system is quick enough is judged where the kit is meant to run: `make conformance`.
    assert set(outcomes.values()) <= {"passed", "slow", "skipped"}, text
    assert code == ("slow" in outcomes.values()), text
    if outcomes[PACE] == "skipped":  # beside load no event came in 5 s: a longer look finds it
        outcomes[PACE] = run_kit(deployment, "--window", 60)[1][PACE]
    passed = {id for id, outcome in outcomes.items() if outcome != "skipped"}
    wanted = {
        "SdpMaster/healthState/enum",
        PACE,
        "SdpIngestNode/heapRate/fresh",
        "SdpSubarray/Scan/durable",
        "SdpSubarray/obsState/on-bus",
        "SdpSubarray/Abort/overtakes",
        "SdpSubarray/AssignResources/refuses-state",
        f"{WALK}/put-back",
        "SdpMaster/On/refuses-state",
        "SdpAlerts/Acknowledge/effect",
        "topics/ingest.heaps/records",
        "topics/command-acks/records",
        "topics/state/records",
        "topics/alert-packets/records",
        "SdpCalibration/GetTableContent/content",
    }
    assert wanted <= passed, sorted(wanted - passed)
    assert outcomes[f"{WALK}/times-out"] == "skipped"
    assert all(id in html.read_text() for id in wanted)
    subarray = deployment.proxy(subarray_device(1))
    assert (subarray.state(), subarray.obsState) == (tango.DevState.OFF, 0)
    assert "conformance/kit" not in deployment.proxy(ALERTS).GetAlarms()
    interrupt(deployment)
    assert (subarray.state(), subarray.obsState) == (tango.DevState.OFF, 0)


def interrupt(deployment: Deployment) -> None:
    subarray = deployment.proxy(subarray_device(1))
    kit = deployment.start("kit", ["sdp-facade", "conformance", "--active", "--only", "SdpSubarray/Scan/taken"])
    until(lambda: subarray.obsState != 0, "the kit commands the subarray")
    kit.signal(signal.SIGTERM)
    assert kit.exit_code() == NOT_RUN


def test_where_nothing_can_be_asked_the_kit_says_so(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = deploy(prepare=False)
    here = {"tango_host": deployment.tango_host, "bootstrap": deployment.bootstrap, "prefix": deployment.prefix}
    with nobody() as nowhere:
        for options, words in (
            ({"tango_host": nowhere}, f"the Tango database at '{nowhere}' does not answer"),
            ({"tango_host": "nothing"}, "expected host:port"),
            ({"bootstrap": nowhere}, f"brokers {nowhere}"),
            ({"active": True, "subarray": "a/b/c"}, "--subarray: expected one of none in the database, got a/b/c"),
            ({"only": ("SdpNothing",)}, "--only SdpNothing: expected the beginning of an entry"),
        ):
            printed = StringIO()
            with monkeypatch.context() as patience:
                if "bootstrap" in options:
                    patience.setattr(timeouts, "COMMAND", 1.0)  # nobody will answer
                assert run(CheckOptions(**{**here, **options}), Console(file=printed, width=200), CLOCK) == NOT_RUN
            assert words in " ".join(printed.getvalue().split())
