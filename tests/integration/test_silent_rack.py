"""A rack that says nothing and a node that loses packets, with real processes: one alarm each, and its end."""

import json
from collections import Counter

import tango

from facade.kernel.findings import OK
from facade.sdp.judgement import Judgement
from sdp_facade_clients.status import judge, questions, see
from tests.conftest import Deploy
from tests.support.deployment import ICD, Deployment, node_device
from tests.support.waiting import until, until_equal

ALERTS = "mid-sdp/alerts/0"
LEFT_OUT = "subarray,calibration,quality,mirror,logs,alerts-intake,tables-assemble,logs-aggregate"
ALARM = "nodeDegraded@ingest/0001"


def listed(deployment: Deployment) -> list[dict[str, str]] | None:
    """Return the alarms that SdpAlerts shows; None while it has not read all alerts."""
    try:
        return list(json.loads(deployment.proxy(ALERTS).GetAlarms()))
    except tango.DevFailed:
        return None


def silent(deployment: Deployment) -> Counter[tuple[str, str]]:
    """Count the alarms of silence, by condition and state."""
    found = listed(deployment) or ()
    return Counter(
        (one["condition"], one["state"]) for one in found if one["condition"] in ("rackSilent", "streamSilent")
    )


def look(deployment: Deployment) -> Judgement:
    """Judge as the page and `sdp-facade status` do."""
    answers = {}
    for name, (device, attributes) in questions().items():
        found = deployment.read(device, *attributes)
        answers[name] = found | ({"State": str(found["State"])} if "State" in found else {})
    seen = see(answers, listed(deployment), [], lambda instance: "", ICD.enums["HealthState"])
    return judge(seen, ICD.conditions)


def states(judged: Judgement) -> dict[str, str]:
    return {one.alarm: one.text.split()[1].rstrip(":") for one in judged.findings if one.alarm}


def test_a_silent_rack_is_one_alarm_and_a_node_beyond_a_limit_another_until_they_are_well(deploy: Deploy) -> None:
    """A node that lost 5 % of its packets was red, and nothing else told of it."""
    deployment = deploy(nodes=8, rack_size=4, without=LEFT_OUT)
    deployment.serve()
    deployment.server("alerts")
    deployment.worker()
    lossy = deployment.simulate("--nodes", 4, "--rate", 40, "--loss", "1:0.05")
    rack = {("rackSilent", "UNACK"): 1, ("streamSilent", "DSUPR"): 4}
    until_equal(lambda: silent(deployment), rack, "nodes 4 to 7 are silent, and their rack explains it")
    until_equal(lambda: deployment.read_one(ALERTS, "suppressedCount"), 4, "each one is counted")

    def ill() -> Judgement | None:
        judged = look(deployment)
        return judged if states(judged).get(ALARM) == "UNACK" else None

    judged = until(ill, "the alarm of the node")
    assert judged is not None
    assert judged.state != OK
    (finding,) = (one for one in judged.findings if one.alarm == ALARM)
    assert f"{node_device(1)}: alarm limits were reached within 10 s: packetLossFraction (from 0.01)" in finding.text
    assert finding.do == ICD.conditions["nodeDegraded"].response
    assert "nodeDegraded@ingest/0000" not in states(judged)

    lossy.stop()
    deployment.simulate("--nodes", 8, "--rate", 80, name="whole")
    until_equal(lambda: silent(deployment), {("rackSilent", "RTNUN"): 1}, "the rack asks for an acknowledgement")
    until(lambda: states(look(deployment)).get(ALARM) == "RTNUN", "so does the node")
