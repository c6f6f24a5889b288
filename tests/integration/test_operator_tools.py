"""What an operator types, beside one running system: `status`, `alerts` and `commands`, as processes of their own."""

import json
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest

from tests.conftest import Deploy
from tests.support.alerting import alert
from tests.support.deployment import CLOCK, ICD, Deployment, subarray_device
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

WITHOUT = "ingest,calibration,quality,mirror,logs,aggregate,alerts-intake,tables-assemble,logs-aggregate"


def run(deployment: Deployment, *words: str, **changes: str) -> Any:
    """Call it with --json; give what it says."""
    code, said = call(deployment, *words, **changes)
    assert code == 0, said
    return said


def call(deployment: Deployment, *words: str, **changes: str) -> tuple[int, Any]:
    """Call it with --json; give its exit code, and what it says."""
    done = deployment.run(*words, "--json", **changes)
    print(done.stdout)  # shown by pytest when the test has failed
    return done.returncode, json.loads(done.stdout)


def state(deployment: Deployment) -> str:
    """Return the state of the alarm, straight from the device."""
    found = json.loads(deployment.proxy("mid-sdp/alerts/0").GetAlarms())
    return "".join(one["state"] for one in found if one["condition"] == "receiveOverrun")


def await_status(deployment: Deployment, code: int, *about: str) -> dict[str, Any]:
    """Call status until it ends with a code and names all of something: on a busy machine an answer may be late."""
    said: dict[str, Any] = {}

    def fits() -> bool:
        found, content = call(deployment, "status")
        said.update(content)
        return found == code and {*about} <= {one["about"] for one in content["findings"]}

    until(fits, f"status ends with {code} and names {about}")
    return said


def test_an_operator_sees_and_does_what_is_needed_from_a_terminal(deploy: Deploy) -> None:
    deployment = deploy(nodes=1, subarrays=1, patient=True, without=WITHOUT)
    servers = {name: deployment.server(name, ready=False) for name in ("control", "alerts", "subarray")}
    deployment.controller()
    for name, server in servers.items():
        deployment.await_server(server, name)
    until(lambda: deployment.read_one(subarray_device(1), "healthState") == 0, "the controller is heard")

    deployment.send(alert(severity="WARNING"))
    until(lambda: state(deployment) == "UNACK", "the alarm stands")
    (alarm,) = (one for one in run(deployment, "alerts", "list") if one["condition"] == "receiveOverrun")
    (done,) = run(deployment, "alerts", "ack", str(alarm["occurrence"]), "--user", "ann", "--comment", "seen")
    until(lambda: state(deployment) == "ACKED", "it is acknowledged")
    run(deployment, "alerts", "shelve", "receiveOverrun", "--for", "1h", "--comment", "known", "--user", "ben")
    until(lambda: state(deployment) == "SHLVD", "it is shelved")
    shelved, acknowledged, _ = run(deployment, "alerts", "history", "receiveOverrun")
    assert (acknowledged["action"]["id"], acknowledged["action"]["operator"]) == (done["id"], "ann")
    assert shelved["action"]["operator"] == "ben"
    assert shelved["action"]["until"] / 1e6 > CLOCK.now() + 3000

    deployment.proxy(subarray_device(1)).On()
    until(lambda: "COMPLETED" in (deployment.read_one(subarray_device(1), "lastCommand") or ""), "On is completed")
    (command,) = run(deployment, "commands", "list", "--subarray", "1", "--since", "10m")["commands"]
    assert (command["command"], command["outcome"]) == ("On", "COMPLETED")
    shown = run(deployment, "commands", "show", command["id"])
    assert [one["status"] for one in shown["acknowledgements"]][-1] == "COMPLETED"
    assert not run(deployment, "commands", "list", "--outcome", "FAILED")["commands"]

    status_of_each_kind(deployment, servers)


def status_of_each_kind(deployment: Deployment, servers: dict[str, Any]) -> None:
    """OK, DEGRADED while a server is frozen, UNKNOWN without SdpMaster, and without a database."""
    run(deployment, "alerts", "unshelve", "receiveOverrun")
    until(lambda: state(deployment) == "ACKED", "it stands again")
    alarm = "receiveOverrun of receive/1"
    degraded = await_status(deployment, 1, alarm)
    (found,) = (one for one in degraded["findings"] if one["about"] == alarm)
    assert found["do"] == ICD.conditions["receiveOverrun"].response
    assert degraded["servers"].keys() == {"alerts", "control", "subarray"}

    servers["alerts"].signal(SIGSTOP)
    assert not await_status(deployment, 1, "SdpAlerts")["servers"]["alerts"]
    servers["alerts"].signal(SIGCONT)

    servers["control"].kill()
    assert await_status(deployment, 3, "SdpMaster")["findings"][0]["about"] == "SdpMaster"
    code, nowhere = call(deployment, "status", TANGO_HOST="127.0.0.1:1")
    assert (code, "127.0.0.1:1" in nowhere["findings"][0]["text"]) == (3, True)
