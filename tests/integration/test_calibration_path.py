"""Calibration through real processes: a table in segments becomes images and offsets that any Tango client gets."""

import hashlib
import json

import pytest
import tango

from facade.flows.alerts.messages import decode_alert
from facade.flows.tables.content import ARROW
from tests.conftest import Deploy
from tests.support.deployment import Deployment
from tests.support.events import Subscriber
from tests.support.tables import cut
from tests.support.waiting import until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

DEVICE = "mid-sdp/calibration/01"


def solve(deployment: Deployment, count: int, seed: int) -> list[str]:
    """Let a pipeline send some tables; gives their ids."""
    options = ["--count", count, "--every", 0, "--megabytes", 2, "--antennas", 8, "--seed", seed]
    return deployment.command("simulate", "calibration", *map(str, options)).split()


def digest_of_content(proxy: tango.DeviceProxy) -> str:
    """Return the digest of the newest table's bytes as the device gives them; why there are none, if so."""
    try:
        content_type, content = proxy.GetTableContent("subarray/01/gains")
    except tango.DevFailed as failed:
        return str(failed.args[0].desc)
    assert content_type == ARROW
    return hashlib.sha256(content).hexdigest()


def shape(deployment: Deployment, image: str) -> tuple[int, ...]:
    """Return the shape of an image; empty while it has no value."""
    found = deployment.read_one(DEVICE, image)
    return () if found is None else found.shape


def alerts_of(deployment: Deployment) -> list[str]:
    """Return the states of all alerts of lost tables, in their order."""
    records = deployment.messages("alerts")
    alerts = [decode_alert(record.value() or b"") for record in records]
    return [one.state for one in alerts if one.key == ("tableLost", "subarray/01/gains")]


def test_a_solution_is_shown_and_is_back_at_once_after_a_kill(deploy: Deploy) -> None:
    """As change and archive events, and images that are ready to be read; whoever starts late needs no new table."""
    deployment = deploy(nodes=1)
    deployment.start("assemble", ["sdp-facade", "tables", "assemble", "--slot", "0"])
    server = deployment.server("calibration")
    until(lambda: deployment.proxy(DEVICE).state() == tango.DevState.ON, "the tables are read")
    subscriber = Subscriber(deployment, [DEVICE])
    solved = solve(deployment, 2, seed=1)
    proxy = deployment.proxy(DEVICE)

    def newest() -> str:
        found = json.loads(proxy.ListTables())
        return next((one["table"] for one in found if one["product"] == "subarray/01/gains"), "")

    until_equal(newest, solved[-1], "the newest table is announced")
    until_equal(lambda: proxy.solutionId, "sim-1-000002", "the newest solution is shown")
    for kind in ("change", "archive"):
        shown = lambda kind=kind: subscriber.value(DEVICE, "solutionId", kind)  # noqa: E731
        until_equal(shown, "sim-1-000002", f"the solution as {kind} event")
    ready = until(lambda: subscriber.value(DEVICE, "gainAmplitude", "ready"), "an image that is ready to be read")
    assert len(ready) == 8
    until_equal(lambda: shape(deployment, "gainPhase"), (8, 64), "an image")
    until(lambda: list(proxy.antennas or ())[:1] == ["SKA001"], "the antennas")
    pointing = lambda: deployment.read_one(DEVICE, "pointing_cal_SKA001")  # noqa: E731
    until(lambda: pointing() is not None and pointing()[0] == 2.0, "the pointing of the second scan")
    table = json.loads(proxy.GetTable("subarray/01/gains"))
    assert (table["topic"], table["content_type"]) == ("calibration", ARROW)
    with pytest.raises(tango.DevFailed, match="expected the id of a complete table"):
        proxy.GetTable("nothing")
    until(lambda: proxy.digest and proxy.digest == digest_of_content(proxy), "its bytes are there")
    before = proxy.digest
    with pytest.raises(tango.DevFailed, match="expected the id of a complete table"):
        proxy.GetTableContent("nothing")

    server.kill()
    deployment.forget_proxies()
    deployment.server("calibration")
    until_equal(lambda: deployment.read_one(DEVICE, "digest"), before, "the solution is back")
    until_equal(lambda: digest_of_content(deployment.proxy(DEVICE)), before, "its bytes are back")
    until_equal(lambda: shape(deployment, "gainAmplitude"), (8, 64), "the image is back")
    # The bytes are not those that the producer says.
    deployment.send(*cut("lost", b"x", product="subarray/01/gains", sha256="0" * 64))
    (later,) = solve(deployment, 1, seed=2)
    until(lambda: later in deployment.proxy(DEVICE).ListTables(), "it goes on")
    until_equal(lambda: alerts_of(deployment), ["ACTIVE", "CLEARED"], "the lost one was told, and made good")
