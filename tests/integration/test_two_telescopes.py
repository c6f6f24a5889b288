"""SDP of two telescopes, on one broker and one Tango database: neither sees what is meant for the other."""

import json
from typing import Any
from urllib.request import urlopen

import pytest
import tango

from facade.infra.ports import choose_port
from facade.kernel.bus.kafka.admin import members_of
from sdp_facade_clients.events import open_database
from tests.conftest import Deploy
from tests.support.deployment import Deployment
from tests.support.waiting import HANG, until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

HEAPS = 40
WITHOUT = "alerts,calibration,quality,mirror,logs,alerts-intake,tables-assemble,logs-aggregate"
ON = tango.DevState.ON
SERVERS = ("control", "ingest-00", "subarray")


def got(deployment: Deployment) -> dict[str, Any]:
    """Return what a deployment has got, as its own devices show it."""
    domain = f"{deployment.settings.telescope}-sdp"
    history = json.loads(deployment.proxy(f"{domain}/subarray/01").command_inout("GetCommandHistory", 9))
    return {
        "heaps": deployment.read_one(f"{domain}/ingest/0000", "heapsTotal") or 0,
        "commands": [(one["name"], one["status"]) for one in history if one["status"] != "UNDELIVERED"],
        "undelivered": sum(one["status"] == "UNDELIVERED" for one in history),
    }


def is_given(deployment: Deployment, device: str, command: str) -> bool:
    """Give a command; return whether it was taken."""
    try:
        deployment.proxy(device).command_inout(command)
    except tango.DevFailed:
        return False
    return True


def other(telescope: str) -> str:
    return {"mid": "low", "low": "mid"}[telescope]


def said(deployment: Deployment, *words: str) -> str:
    """Run a command to its end, and return all that it printed; a deployment without alarms is not OK."""
    return deployment.run(*words).stdout.decode()


def test_what_is_for_one_telescope_is_not_seen_at_the_other(deploy: Deploy):
    mid = deploy(nodes=1, subarrays=1, without=WITHOUT)
    low = deploy(nodes=1, subarrays=1, without=WITHOUT, telescope="low", tango_host=mid.tango_host)
    metrics = {}
    for each in (mid, low):
        telescope = each.settings.telescope
        each.worker("0", log=f"{telescope}-aggregate")
        for name in SERVERS:
            port = metrics[telescope, name] = choose_port()
            # They are started by the same words, and learn their telescope from the settings.
            each.server(name, name=f"{telescope}-{name}", ready=False, SDP_METRICS_PORT=str(port))
    for each in (mid, low):
        for device in each.devices("SdpMaster", "SdpSubarray", "SdpIngestNode"):
            until(lambda each=each, device=device: each.read_one(device, "State") is not None, f"{device} answers")  # type: ignore[misc]
    low.controller(log="low-controller")

    assert low.simulate("--rate", 400, "--count", HEAPS, name="low-simulate").process.exit_code() == 0
    subarray = "low-sdp/subarray/01"
    tries: list[bool] = []
    # A call may be refused because a slow broker does not confirm its command, which arrives all the same.
    until(
        lambda: tries.append(is_given(low, subarray, "On")) or tries[-1] or low.read_one(subarray, "State") == ON,
        "Low takes the command",
    )

    taken = {"heaps": HEAPS, "commands": [("On", "COMPLETED")], "undelivered": 0}
    until_equal(lambda: got(low) | {"undelivered": 0}, taken, "what was for Low")
    assert got(low)["undelivered"] < len(tries)
    assert got(mid) == {"heaps": 0, "commands": [], "undelivered": 0}
    assert mid.messages("ingest.heaps") == mid.messages("commands") == []

    # The names of all that a cluster and a Tango database have only once.
    servers = {*open_database(mid.tango_host).get_server_list("SdpFacade/*")}
    assert {f"SdpFacade/{begin}{name}" for begin in ("", "low-") for name in SERVERS} <= servers
    assert mid.prefix != low.prefix
    for each in (mid, low):
        assert members_of(each.connection, "aggregate") == {"aggregate-0"}
    for (telescope, name), port in metrics.items():
        text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG).read().decode()
        assert f'device="{telescope}-sdp/' in text, name
        assert f'device="{other(telescope)}-sdp/' not in text, name

    # The tools of either telescope show its own devices.
    for each in (mid, low):
        watched, seen = (said(each, *words) for words in (("watch", "--seconds", "1"), ("status", "--json")))
        for text in (watched, seen):
            assert f"{other(each.settings.telescope)}-sdp" not in text
        assert json.loads(seen)["servers"] == dict.fromkeys(SERVERS, True)
