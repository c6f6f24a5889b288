"""The code in the how-to pages runs as it stands there, and their table is the ICD's."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tango

from facade.infra.kafka import libraries
from facade.kernel.icd.load import load
from tests.conftest import Deploy
from tests.support.deployment import Deployment
from tests.support.waiting import HANG, until

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to"
FROM_TM, CONTROLLER = HOW_TO / "command-from-tm.md", HOW_TO / "a-small-controller.md"
SUBARRAY = "mid-sdp/subarray/01"


def code(file: Path, containing: str) -> str:
    """Return the only Python block of a page that contains a text."""
    blocks = re.findall(r"^```python\n(.*?)^```$", file.read_text(), re.DOTALL | re.MULTILINE)
    (found,) = (block for block in blocks if containing in block)
    return str(found)


def test_the_code_is_as_short_as_promised() -> None:
    for page, text in ((CONTROLLER, "Controller("), (FROM_TM, "subscribe_event(name")):
        written = [line for line in code(page, text).splitlines() if line.strip()]
        assert len(written) <= 20


def test_the_table_of_commands_is_that_of_the_icd() -> None:
    table = FROM_TM.read_text().partition("\n| command |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()[2:]]
    found = {row[0]: row[1:] for row in rows}
    commands = load().classes["SdpSubarray"].commands
    assert list(found) == [command.name for command in commands]
    for command in commands:
        argument = f"ska-sdp-{command.argument}" if command.argument else ""
        allowed = " or ".join(command.state) + (f", {' or '.join(command.obs_state)}" if command.obs_state else "")
        argument_found, allowed_found, leads_to = found[command.name]
        assert (argument_found, allowed_found) == (argument, allowed)
        labels = re.split(", | or ", leads_to)
        assert labels[0] == (command.transitional or command.targets[0])
        assert set(labels) <= {command.transitional, *command.targets}


@pytest.mark.kafka
@pytest.mark.tango
@pytest.mark.slow
def test_tm_of_the_page_commands_the_small_controller(deploy: Deploy) -> None:
    """And the Java program of another page publishes a state of the same subarray."""
    deployment = deploy(patient=True)
    environment = deployment.environment
    controller = deployment.folder / "controller.py"
    controller.write_text(code(CONTROLLER, "Controller("))
    deployment.start("controller", [sys.executable, str(controller)], PYTHONPATH=str(ROOT))
    deployment.server("subarray")
    subarray = deployment.proxy(SUBARRAY)
    until(lambda: str(subarray.State()) == "OFF" and subarray.healthState == 0, "a controller is heard of")

    def run(script: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    tm = code(FROM_TM, "subscribe_event(name")
    for _ in range(2):
        run(tm)
        run(code(ROOT / "docs" / "explanation" / "tango-for-kafka-people.md", "obsState"))
    # Then, with the resources still assigned, a second command, as the page on lost answers gives it.
    argument = {"scan_type": "target:a", "transaction_id": "txn-tm-20261121-0002"}
    script = f"{tm.partition('subarray.ReleaseAllResources')[0]}\n{code(FROM_TM, 'def give')}\n"
    script += f"argument = json.loads({json.dumps(json.dumps(argument))})\n"
    script += "assert give('Configure', argument) == give('Configure', argument)\n"
    script += "wait_for('obsState', 4)\n"
    script += f"argument['transaction_id'] = 'txn-tm-20261121-0003'\n{code(FROM_TM, 'GiveCommand(')}\n"
    script += f"for one in ids:{tm.partition('for one in ids:')[2]}"
    run(script)
    until(lambda: subarray.commandsPending == 0, "the outcome of the last command")
    history = json.loads(subarray.GetCommandHistory(4))
    assert [(one["name"], one["status"], one["operator"]) for one in history] == [
        ("Configure", "COMPLETED", "ann"),
        ("Configure", "COMPLETED", ""),
        ("AssignResources", "COMPLETED", ""),
        ("ReleaseAllResources", "COMPLETED", ""),
    ]
    with pytest.raises(tango.DevFailed, match="not allowed when obsState is READY"):
        subarray.ReleaseAllResources()
    the_java_program_publishes_a_state(deployment)


def the_java_program_publishes_a_state(deployment: Deployment) -> None:
    page = (HOW_TO / "publish-a-state.md").read_text()
    (name, program), *others = re.findall(r'^```java title="([^"\n]+)"\n(.*?)^```$', page, re.DOTALL | re.MULTILINE)
    assert not others
    source = deployment.folder / name
    source.write_text(program)
    done = subprocess.run(
        ["java", "-cp", f"{libraries(print)}/*", str(source)],
        env={**os.environ, **deployment.environment},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    subarray = deployment.proxy(SUBARRAY)
    until(lambda: list(subarray.errorMessages or ()) == ["receive/0007: disk full"], "the state is shown")


TITLED = re.compile(r'^```(?:json|python) title="([^"\n]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
OBSERVATION = ROOT / "examples" / "observation"


def test_the_observation_of_the_page_is_that_of_the_examples() -> None:
    """Whose arguments are derived from the schemas."""
    shown = dict(TITLED.findall(FROM_TM.read_text()))
    assert shown == {one.name: one.read_text() for one in OBSERVATION.iterdir() if one.is_file()}


def test_the_page_names_the_commands_that_never_wait_for_a_second_person() -> None:
    (line,) = (one for one in FROM_TM.read_text().splitlines() if "cannot be listed" in one)
    named = set(re.findall(r"`(\w+)`", line))
    assert named == {one.name for one in load().classes["SdpSubarray"].commands if not one.approval_within}


@pytest.mark.kafka
@pytest.mark.tango
@pytest.mark.slow
def test_a_reader_of_the_page_observes_with_an_execution_block_of_his_own(deploy: Deploy) -> None:
    """With nothing else than what the page shows, twice, and the second time from IDLE."""
    deployment = deploy(patient=True)
    deployment.controller(speed=20.0)
    deployment.server("subarray")
    subarray = deployment.proxy(SUBARRAY)
    until(lambda: subarray.healthState == 0, "a controller is heard of")
    folder = deployment.folder / "observation"
    folder.mkdir()
    for name, text in TITLED.findall(FROM_TM.read_text()):
        own = text.replace("mvp01-20261121", "mine-20261128").replace("target:a", "target:mine")
        (folder / name).write_text(own)

    def run() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-I", str(folder / "observe.py")],
            env={name: one for name, one in deployment.environment.items() if not name.startswith(("SDP_", "KAFKA_"))},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=4 * HANG,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    observed = [
        "AssignResources: COMPLETED, obsState IDLE",
        "Configure: COMPLETED, obsState READY",
        "Scan: COMPLETED, obsState SCANNING",
        "EndScan: COMPLETED, obsState READY",
        "End: COMPLETED, obsState IDLE",
        "ReleaseResources: COMPLETED, obsState IDLE",
        "ReleaseAllResources: COMPLETED, obsState EMPTY",
    ]
    assert run() == ["On: COMPLETED, obsState EMPTY", *observed]
    subarray.AssignResources('{"resources": {"receptors": ["SKA001"]}}')
    until(lambda: subarray.commandsPending == 0 and subarray.obsState.name == "IDLE", "the subarray is IDLE already")
    assert run() == observed
