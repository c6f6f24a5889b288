"""The kit finds what is wrong: a system that is wrong in many places at once is red there, and nowhere else."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tango

from facade.admin.topics import create_topics
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.instances import devices_of
from facade.kernel.resources import resource
from sdp_facade_clients.events import open_database
from tests.conformance.mutants import MUTANTS, served
from tests.conftest import Deploy
from tests.support.deployment import CLOCK, Deployment, subarray_device
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

ROOT = Path(__file__).parents[2]
INSTANCE = "control"
TIMING = re.compile(r"expected (an answer within|ATTR_INVALID after|events at least|at most \S+ events/s)")
"""What the kit says of a system that is too slow or too quick."""
LATE = re.compile(r"expected .+ within \S+ s, got|confirmed it within|API_DeviceTimedOut")
"""What the kit says of an effect or an answer that has not come yet, or never comes."""
MISSING, NOT_SERVED = "mid-sdp/quality/02", "mid-sdp/ingest/0001"


def run_kit(
    deployment: Deployment, *options: object, is_red: Callable[[str], bool] = lambda id: False
) -> tuple[int, dict[str, str], str]:
    """Run the kit; return its exit code, the outcome of each check by its id, and what it printed.

    A failure is "slow" if what failed was a limit of time, and "late" if the kit waited in vain. A busy machine may be
    late once, and the kit is run again: what never comes is late again. Checks that are to be red are no reason for it.
    """
    found = run_once(deployment, *options)
    is_late = any(outcome == "late" and not is_red(id) for id, outcome in found[1].items())
    if not is_late:
        return found
    if "--active" in options:
        until(lambda: is_put_back(deployment.proxy(subarray_device(1))), "the subarray is as before the kit", every=1.0)
    return run_once(deployment, *options)


def is_put_back(subarray: tango.DeviceProxy) -> bool:
    """Return whether a subarray is as the kit wants it, or give the command that leads there.

    The kit waited in vain, so it may have left the subarray in the middle of an observation.
    """
    with suppress(tango.DevFailed):
        state = subarray.obsState.name
        if state == "EMPTY" and subarray.state() == tango.DevState.OFF:
            return True
        subarray.command_inout("Off" if state == "EMPTY" else "Restart" if state in ("ABORTED", "FAULT") else "Abort")
    return False


def run_once(deployment: Deployment, *options: object) -> tuple[int, dict[str, str], str]:
    junit = deployment.folder / "conformance.xml"
    junit.unlink(missing_ok=True)
    argv = ["sdp-facade", "conformance", "--junit", str(junit), *map(str, options)]
    environment = {**deployment.environment, "SDP_WITHOUT": ""}  # all classes are served
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=4 * HANG, check=False)
    outcomes = {}
    for case in ElementTree.parse(junit).iter("testcase") if junit.exists() else ():
        id = case.get("name", "").partition("[")[2].removesuffix("]")
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcomes[id] = "passed" if bad is None else kind_of(bad)
    return done.returncode, outcomes, done.stdout + done.stderr


def kind_of(bad: ElementTree.Element) -> str:
    text = bad.get("message", "")
    return "slow" if TIMING.search(text) else "late" if bad.tag == "failure" and LATE.search(text) else bad.tag


def one_instance(folder: Path) -> Icd:
    shutil.copytree(resource("schemas"), folder)
    for path in (folder / "icd").glob("Sdp*.toml"):
        # Two antennas are as good as all of them.
        lines = re.sub(r"(each = ).*", r'\1["SKA001..SKA002"]', path.read_text()).splitlines()
        if path.stem == "SdpCalibration":
            path.write_text("\n".join(lines))
            continue
        path.write_text("\n".join(f'instance = "{INSTANCE}"' if x.startswith("instance =") else x for x in lines))
    return load(folder)


def register(icd: Icd, tango_host: str) -> None:
    database = open_database(tango_host)
    settings = Settings(nodes=2, subarrays=2)
    for device_class in icd.classes.values():
        for names in devices_of(device_class, settings).values():
            for name in names:
                if name != MISSING:
                    info = tango.DbDevInfo()
                    info.name, info._class = name, device_class.name
                    info.server = f"{'Nobody' if name == NOT_SERVED else 'SdpFacade'}/{INSTANCE}"
                    database.add_device(info)


def mode_on_bus(mode: str) -> bytes:
    fields = {"schema": "state/1", "device": "mid-sdp/control/0", "attribute": "adminMode", "value": mode}
    return json.dumps({**fields, "time": CLOCK.now_us(), "origin": "mutants"}).encode()


def write_wrong_records(deployment: Deployment) -> None:
    settings = Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix)
    writer = KafkaWriter(Connection(settings, clock=CLOCK), health=BusHealth(), client="mutants")
    for record in (
        Record(topic="command-acks", key=b"x", value=b"{not json"),
        Record(topic="quality", key=b"x", value=b"1", headers=(("metric", b"{}"),)),
        Record(topic="dead-letters", key=b"x", value=b"1"),
        Record(topic="alert-packets", key=None, value=b"1"),
        Record(topic="settings", key=b"mid-sdp/control/0/adminMode", value=mode_on_bus("OFFLINE")),
    ):
        writer.send_durably(record, 10.0)


def is_to_be_red(id: str) -> bool:
    return any(fnmatchcase(id, one) for mutant in MUTANTS for one in mutant.red)


def test_each_mutant_is_red_in_its_check_and_nothing_else_is(deploy: Deploy) -> None:
    deployment = deploy(prepare=False, nodes=2)
    folder = deployment.folder / "schemas"
    icd = one_instance(folder)
    settings = Settings(bootstrap=deployment.bootstrap, prefix=deployment.prefix)
    create_topics(Connection(settings, clock=CLOCK), served(icd).topics)
    write_wrong_records(deployment)
    register(icd, deployment.tango_host)
    argv = [sys.executable, "-m", "tests.conformance.fake", str(folder), INSTANCE]
    fake = deployment.start("fake", argv, PYTHONPATH=str(ROOT))
    deployment.await_server(fake, INSTANCE)
    master = deployment.proxy("mid-sdp/control/0")
    until(lambda: master.sdpVersion is not None, "the fake shows its values")
    master.poll_attribute("versionId", 1000)

    options = ("--icd", folder, "--window", 3, "--nodes", 2, "--subarrays", 2)
    code, outcomes, text = run_kit(deployment, *options, is_red=is_to_be_red)

    assert code == 1, text
    red = {id for id, outcome in outcomes.items() if outcome in ("failure", "slow", "late")}
    assert not [id for id, outcome in outcomes.items() if outcome == "error"], text
    for mutant in MUTANTS:
        for pattern in mutant.red:
            wanted = {id for id in outcomes if fnmatchcase(id, pattern)}
            shown = {id for id in wanted if outcomes[id] != "skipped"}
            assert shown, f"{mutant.what}: there is no check {pattern}"
            assert shown <= red, f"{mutant.what}: not red: {sorted(shown - red)}"
    too_many = {id for id in red if not is_to_be_red(id)}
    assert not too_many, "\n".join(line for line in text.splitlines() if any(id in line for id in too_many))
