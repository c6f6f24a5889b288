"""Calibration through real processes: a table in segments becomes images and offsets that any Tango client gets."""

import json

import pytest
import tango

from facade.tables.content import ARROW
from tests.conftest import Deploy
from tests.support.deployment import Deployment
from tests.support.events import Subscriber
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

DEVICE = "mid-sdp/calibration/01"


def solve(deployment: Deployment, count: int, seed: int) -> list[str]:
    """Let a pipeline send some tables; gives their ids."""
    options = ["--count", count, "--every", 0, "--megabytes", 2, "--antennas", 8, "--seed", seed]
    return deployment.command("simulate", "calibration", *map(str, options)).split()


def test_a_solution_is_shown_and_is_back_at_once_after_a_kill(deploy: Deploy) -> None:
    """As change and archive events, and images that are ready to be read; whoever starts late needs no new table."""
    deployment = deploy(nodes=1)
    deployment.start("assemble", ["sdp-facade", "tables", "assemble"])
    server = deployment.server("calibration")
    until(lambda: deployment.proxy(DEVICE).state() == tango.DevState.ON, 15.0, "the tables are read")
    subscriber = Subscriber(deployment, [DEVICE])
    solved = solve(deployment, 2, seed=1)
    proxy = deployment.proxy(DEVICE)

    def newest() -> str:
        found = json.loads(proxy.ListTables())
        return next((one["table"] for one in found if one["product"] == "subarray/01/gains"), "")

    until_equal(newest, solved[-1], 40.0, "the newest table is announced")
    until_equal(lambda: proxy.solutionId, "sim-1-000002", 10.0, "the newest solution is shown")
    for kind in ("change", "archive"):
        shown = lambda kind=kind: subscriber.value(DEVICE, "solutionId", kind)  # noqa: E731
        until_equal(shown, "sim-1-000002", 10.0, f"the solution as {kind} event")
    until(lambda: subscriber.newest(DEVICE, "gainAmplitude", "ready"), 10.0, "an image that is ready to be read")
    assert len(subscriber.value(DEVICE, "gainAmplitude", "ready")) == 8
    assert proxy.gainPhase.shape == (8, 64)
    assert proxy.antennas[0] == "SKA001"
    assert proxy.read_attribute("pointing_cal_SKA001").value[0] == 2.0  # the scan
    table = json.loads(proxy.GetTable("subarray/01/gains"))
    assert (table["topic"], table["content_type"]) == ("calibration", ARROW)
    with pytest.raises(tango.DevFailed, match="expected the id of a complete table"):
        proxy.GetTable("nothing")
    before = proxy.digest

    server.kill()
    deployment.forget_proxies()
    deployment.server("calibration")
    until_equal(lambda: deployment.read_one(DEVICE, "digest"), before, 15.0, "the solution is back")
    assert deployment.proxy(DEVICE).gainAmplitude.shape == (8, 64)
    (later,) = solve(deployment, 1, seed=2)
    until(lambda: later in deployment.proxy(DEVICE).ListTables(), 20.0, "it goes on")
