"""Whichever process of a system is killed is named by SdpMaster, and raises one alarm; both end with its return."""

import json
from collections import Counter
from collections.abc import Callable

import pytest

from tests.conftest import Deploy
from tests.support.deployment import MASTER, Deployment
from tests.support.processes import Running
from tests.support.waiting import until, until_equal

INSTANCES = ("alerts", "calibration", "control", "ingest-00", "quality", "subarray")
WORKERS = {
    "aggregate-0": ("aggregate", "--slot", "0"),
    "aggregate-1": ("aggregate", "--slot", "1"),
    "alerts-intake-0": ("alerts", "intake"),
    "tables-assemble-0": ("tables", "assemble"),
}
CONTROLLER = "simulated-controller"
VICTIMS: dict[str, tuple[str, str]] = {
    "ingest-00": ("serverGone", "sdp-facade/ingest-00"),
    "calibration": ("serverGone", "sdp-facade/calibration"),
    "quality": ("serverGone", "sdp-facade/quality"),
    "alerts-intake-0": ("intakeGone", "sdp-facade"),
    "tables-assemble-0": ("assemblerGone", "sdp-facade"),
    "aggregate-0": ("workerSilent", "sdp-facade/aggregate-0"),
    CONTROLLER: ("controllerSilent", f"sdp-facade/{CONTROLLER}"),
}
"""What is killed at once, and the one alarm that each raises; of all workers, tests/fault/test_responses.py."""
MANY = ("processesGone", "all")
"""The alarm that stands for the device servers and the worker of these."""


def reasons(deployment: Deployment) -> list[str]:
    """Return healthInfo; empty while nobody answers."""
    return list(deployment.read_one(MASTER, "healthInfo") or ())


def alerts(deployment: Deployment) -> list[tuple[str, str, str]]:
    """Return condition, source and state of each change that the facade has told of; new texts of one are none."""
    found: list[tuple[str, str, str]] = []
    last: dict[tuple[str, str], str] = {}
    for message in deployment.messages("alerts"):
        one = json.loads(message.value())
        key = (one["condition"], one["source"])
        if last.get(key) != one["state"]:
            found.append((*key, one["state"]))
        last[key] = one["state"]
    return found


def changes(deployment: Deployment) -> Counter[tuple[str, str, str]]:
    """Count the changes, but for a server that catches up on a busy machine for longer than streamLagging waits."""
    return Counter(one for one in alerts(deployment) if one[0] != "streamLagging")


def heard_of(deployment: Deployment) -> set[str]:
    """Return the processes that have given a sign of life, by the names of this page."""
    found = (json.loads(one.value()) for one in deployment.messages("heartbeats"))
    return {one["component"].removeprefix("SdpFacade-") for one in found}


@pytest.mark.slow
def test_whichever_process_is_killed_is_named_and_raises_one_alarm(deploy: Deploy) -> None:
    """While nobody observes, so that nodes rest, and all is well."""
    deployment = deploy(nodes=2, subarrays=2, without="mirror,logs,logs-aggregate")
    starts: dict[str, Callable[[], Running]] = {
        **{name: lambda name=name: deployment.server(name, ready=False) for name in INSTANCES},
        **{name: lambda name=name, words=words: deployment.launch(name, *words) for name, words in WORKERS.items()},
        CONTROLLER: deployment.controller,
    }
    running = {name: start() for name, start in starts.items()}
    # All may be well before each worker has given its first sign of life; one that never did is not missed.
    until(lambda: heard_of(deployment) >= running.keys(), "everybody gives signs of life")
    until(lambda: deployment.read_one(MASTER, "healthState") == 0, "all is well")
    assert not changes(deployment)
    for name in VICTIMS:
        running[name].kill()
    for name, alarm in VICTIMS.items():
        until(lambda name=name: any(name in one for one in reasons(deployment)), f"{name} is named")
        until(lambda alarm=alarm: (*alarm, "ACTIVE") in alerts(deployment), f"the alarm about {name}")
    until_equal(lambda: deployment.read_one("mid-sdp/alerts/0", "suppressedCount"), 4, "four of them are one alarm")
    for name in VICTIMS:
        running[name] = starts[name]()
    until(lambda: deployment.read_one(MASTER, "healthState") == 0, "all is well")
    expected = Counter((*key, state) for key in {*VICTIMS.values(), MANY} for state in ("ACTIVE", "CLEARED"))
    until_equal(lambda: changes(deployment), expected, "each has raised one alarm, which has ended")
    # One that ends in good order is missed as well, while the deployment has it.
    assert running["quality"].terminate() == 0
    until(lambda: any("device server quality was stopped" in one for one in reasons(deployment)), "it is missed")
