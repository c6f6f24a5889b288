"""A rack that says nothing, with real processes: one alarm, its nodes listed, and nothing left to do for them after."""

import json
from collections import Counter

import tango

from tests.conftest import Deploy
from tests.support.deployment import Deployment
from tests.support.waiting import until_equal

ALERTS = "mid-sdp/alerts/0"
LEFT_OUT = "ingest,subarray,calibration,quality,mirror,logs,alerts-intake,tables-assemble,logs-aggregate"


def alarms(deployment: Deployment) -> Counter[tuple[str, str]]:
    """Count the alarms of silence that SdpAlerts shows, by condition and state."""
    try:
        found = json.loads(deployment.proxy(ALERTS).GetAlarms())
    except tango.DevFailed:  # it has not read all alerts yet
        return Counter()
    return Counter(
        (one["condition"], one["state"]) for one in found if one["condition"] in ("rackSilent", "streamSilent")
    )


def test_a_silent_rack_is_one_alarm(deploy: Deploy) -> None:
    deployment = deploy(nodes=8, rack_size=4, without=LEFT_OUT)
    for instance in ("control", "alerts"):
        deployment.server(instance)
    deployment.worker()
    half = deployment.simulate("--nodes", 4, "--rate", 40)
    rack = {("rackSilent", "UNACK"): 1, ("streamSilent", "DSUPR"): 4}
    until_equal(lambda: alarms(deployment), rack, "nodes 4 to 7 are silent, and their rack explains it")
    until_equal(lambda: deployment.read_one(ALERTS, "suppressedCount"), 4, "each one is counted")
    half.stop()
    deployment.simulate("--nodes", 8, "--rate", 80, name="whole")
    until_equal(lambda: alarms(deployment), {("rackSilent", "RTNUN"): 1}, "the rack asks for an acknowledgement")
