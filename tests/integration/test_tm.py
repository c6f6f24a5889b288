"""The command path as TM's software sees it, through the Tango database, with the reference controller behind it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Deploy
from tests.support.deployment import MASTER, Deployment, subarray_device
from tests.support.waiting import HANG, until, until_equal

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

TM = Path(__file__).parents[1] / "support" / "tm.py"


def run_tm(deployment: Deployment, *arguments: str) -> list[dict[str, object]]:
    """Run a program that knows nothing of ours; give what it has checked."""
    environment = {
        name: value for name, value in deployment.environment.items() if not name.startswith(("SDP_", "KAFKA_"))
    }
    # It gets nothing of ours, neither settings nor a place from which it could import.
    done = subprocess.run(
        [sys.executable, "-I", str(TM), *arguments],
        env=environment,
        cwd=deployment.folder,
        capture_output=True,
        text=True,
        timeout=4 * HANG,
        check=False,
    )
    print(done.stdout, done.stderr)  # shown by pytest when the test has failed
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


ENTRIES = {"processingBlocks": ("pb_id", "state"), "reservations": ("owner", "kind", "state")}
"""Attributes whose entries are JSON objects, and what is looked at of each."""


def shown(deployment: Deployment, device: str, *names: str) -> dict[str, Any]:
    found = deployment.read(device, *names)
    for name, keys in ENTRIES.items():
        found[name] = [tuple(json.loads(entry)[key] for key in keys) for entry in found[name] or ()]
    return found


def test_tm_software_observes_and_is_refused(deploy: Deploy) -> None:
    """A client that knows only SKA's names drives a full observation, aborts and resets, and tries whatever has to be
    refused: obsState goes as the control model says, each refusal names what is wrong and changes nothing."""
    deployment = deploy(
        nodes=1,
        subarrays=1,
        patient=True,
        without="ingest,alerts,calibration,quality,mirror,logs,alerts-intake,tables-assemble,logs-aggregate",
    )
    servers = [deployment.server(instance, ready=False) for instance in ("subarray", "control")]
    deployment.worker()
    deployment.simulate("--rate", 20)
    controller = deployment.controller(speed=4.0)
    for server in servers:
        deployment.await_server(server, server.name)
    until(lambda: deployment.read_one(subarray_device(1), "healthState") == 0, "its controller is heard")
    until(lambda: deployment.read_one(MASTER, "healthState") == 0, "SDP as a whole is well")
    checks = run_tm(deployment)
    assert checks[-1]["check"] == "all was checked"
    # Each AssignResources had the same processing block: it counts once.
    wanted = {
        "blocksRunning": 1,
        "blocksFinished": 0,
        "processingBlocks": [("pb-mvp01-20261121-00000", "RUNNING")],
        "reservationsHeld": 1,
        "reservationConflicts": 0,
        "reservations": [("subarray/01", "receptors", "GRANTED")],
    }
    for device in (subarray_device(1), MASTER):
        until_equal(lambda device=device: shown(deployment, device, *wanted), wanted, f"{device} shows what is held")
    said = json.loads(deployment.command("reservations", "list", "--json"))
    assert ([one["id"] for one in said["reservations"]], said["conflicts"]) == (["subarray-01/receptors"], {})
    # Commands that hang are under way for as long as it takes to look at them.
    assert controller.terminate() == 0
    deployment.controller("--fault", "hang:Configure", "--fault", "hang:AssignResources", speed=4.0)
    until(lambda: deployment.read_one(subarray_device(1), "healthState") == 0, "its controller is heard again")
    checks += run_tm(deployment, "interrupt")
    wrong = [check for check in checks if not check["ok"]]
    assert not wrong, "\n".join(map(json.dumps, wrong))
    assert checks[-1]["check"] == "all was checked"
    assert len(checks) > 60
