"""A node that loses packets, with real processes: what is red on the page is a reason of health, and an alarm."""

import json

import tango

from clients.status import QUESTIONS, judge, see
from facade.findings import OK
from facade.judgement import Judgement
from tests.conftest import Deploy
from tests.support.deployment import ICD, Deployment, node_device
from tests.support.waiting import until

ALERTS = "mid-sdp/alerts/0"
LEFT_OUT = "subarray,calibration,quality,mirror,logs,alerts-intake,tables-assemble,logs-aggregate"
ALARM = "nodeDegraded@ingest/0001"


def look(deployment: Deployment) -> Judgement:
    """Judge as the page and `sdp-facade status` do."""
    answers = {}
    for name, (device, attributes) in QUESTIONS.items():
        found = deployment.read(device, *attributes)
        answers[name] = found | ({"State": str(found["State"])} if "State" in found else {})
    try:
        alarms = json.loads(deployment.proxy(ALERTS).GetAlarms())
    except tango.DevFailed:  # it has not read all alerts yet
        alarms = None
    return judge(see(answers, alarms, [], lambda instance: "", ICD.enums["HealthState"]), ICD.conditions)


def states(judged: Judgement) -> dict[str, str]:
    return {one.alarm: one.text.split()[1].rstrip(":") for one in judged.findings if one.alarm}


def test_a_node_beyond_an_alarm_limit_is_an_alarm_until_it_is_well(deploy: Deploy) -> None:
    """A node that lost 5 % of its packets was red, and nothing else told of it."""
    deployment = deploy(nodes=2, rack_size=2, without=LEFT_OUT)
    for instance in ("control", "alerts", "ingest-00"):
        deployment.server(instance)
    deployment.worker()
    lossy = deployment.simulate("--nodes", 2, "--rate", 40, "--loss", "1:0.05")

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
    deployment.simulate("--nodes", 2, "--rate", 40, name="whole")
    until(lambda: states(look(deployment)).get(ALARM) == "RTNUN", "it is over, and asks for an acknowledgement")
