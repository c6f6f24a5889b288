"""One deployment of the whole facade for all clients: flows that come, one node that has fallen silent."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tango

from facade.infra import local
from tests.interoperability.foreign import environment
from tests.support.deployment import MASTER, Deployment, node_device, subarray_device
from tests.support.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SILENT = 3
"""The node that has said something once, and nothing since."""


@pytest.fixture(scope="session")
def system(infra: local.Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with whole_system(infra, tmp_path_factory.mktemp("system")) as deployment:
        yield deployment


@contextmanager
def chromium(*options: str) -> "Iterator[Browser]":
    """Run the browser of the distribution."""
    from playwright.sync_api import sync_playwright  # scripts/bootstrap clients

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "there is no chromium; install it by: scripts/bootstrap clients"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", *options])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with chromium() as browser:
        yield browser


@contextmanager
def whole_system(infra: local.Endpoints, folder: Path, *ingest: object, approvals: str = "") -> Iterator[Deployment]:
    """Run a deployment in which everything has a value; `ingest` are more options of the simulator of the nodes."""
    # What tango-db/sdp.json registers: that is what dsconfig compares with.
    left_out = "alerts-intake,logs-aggregate"
    with Deployment(
        infra, folder, nodes=4, subarrays=2, patient=True, approvals=approvals, without=left_out
    ) as deployment:
        deployment.prepare()
        deployment.worker()
        instances = [*deployment.instances, "alerts", "calibration", "logs", "mirror", "quality"]
        servers = {instance: deployment.server(instance, ready=False) for instance in instances}
        deployment.start("assemble", ["sdp-facade", "tables", "assemble"])
        # What is sent before a server is up waits for it on the bus.
        deployment.simulate("--rate", 100, "--scan-id", 7, "--silence", f"{SILENT}:3:1000000", *ingest)
        deployment.start("simulate-quality", ["sdp-facade", "simulate", "quality", "--antennas", "6"])
        deployment.controller(speed=20.0)
        send_solution(deployment)
        for instance, process in servers.items():
            deployment.await_server(process, instance)
        await_values(deployment)
        yield deployment


def send_solution(deployment: Deployment) -> None:
    """Send gains of 8 antennas in 64 channels."""
    deployment.command(*"simulate calibration --count 1 --every 0 --megabytes 1 --antennas 8".split())


def await_values(deployment: Deployment) -> None:
    def heard() -> dict[str, object]:
        return {
            "solution": deployment.read_one("mid-sdp/calibration/01", "solutionId"),
            "metrics": deployment.read_one("mid-sdp/quality/01", "scanID") == 1,
            "subarrays": all(deployment.read_one(subarray_device(n), "healthState") == 0 for n in (1, 2)),
            "node": deployment.quality(node_device(0), "heapRate") == "VALID",
            "silent": deployment.read_one(node_device(SILENT), "heapsTotal") and silent(deployment),
            "sum": deployment.read_one(MASTER, "heapRate"),
            "alert": deployment.proxy("mid-sdp/alerts/0").state() == tango.DevState.ALARM,
        }

    until(lambda: all(heard().values()), "everything has a value")


def silent(deployment: Deployment) -> bool:
    return deployment.quality(node_device(SILENT), "heapRate") == "INVALID"


def is_settled(subarray: tango.DeviceProxy) -> bool:
    """Return whether the State is that of the last command: a program may have ended before its last command has."""
    if subarray.commandsPending:
        return False
    _, name, status = (subarray.lastCommand or "- - -").split()
    after = {"On": tango.DevState.ON, "Off": tango.DevState.OFF}.get(name)
    return after is None or status != "COMPLETED" or subarray.State() == after


def switch_off(subarrays: Iterable[tango.DeviceProxy]) -> None:
    for subarray in subarrays:
        until(lambda one=subarray: is_settled(one), f"{subarray.dev_name()} has done all")
        if subarray.State() == tango.DevState.ON:
            subarray.Off()
        until(lambda one=subarray: one.State() == tango.DevState.OFF, f"{subarray.dev_name()} is off")


@pytest.fixture
def client_settings(system: Deployment, tmp_path: Path) -> dict[str, str]:
    return environment(system.tango_host, tmp_path)
