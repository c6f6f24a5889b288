"""taurus, itango and dsconfig: what operators and engineers have on their desks."""

import json
import math
from pathlib import Path

import pytest

from tests.interoperability.conftest import SILENT
from tests.interoperability.expectations import FAMILIES, expected
from tests.interoperability.foreign import DESK, HERE, ROOT, installed, run
from tests.support.deployment import ICD, MASTER, node_device, subarray_device

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

MODES = ICD.enums["AdminMode"]
UNITS = {"s": "s", "Hz": "Hz", "B": "B", "rad": "rad", "1/s": "1 / s", "%": "%", "degC": "°C"}
"""Units that taurus knows, as it writes them; values in others (Jy, records, packets ...) it shows without a unit."""
SUBARRAY = subarray_device(2)
REGISTRATION = ROOT / "tango-db/sdp.json"


def test_taurus_models(client_settings: dict[str, str], tmp_path: Path) -> None:
    live = {f"{node_device(0)}/latencyMean": 3, f"{FAMILIES['SdpQuality']}/noiseBaseline": 2}
    stale = f"{node_device(SILENT)}/latencyMean"
    wanted = {
        "devices": list(FAMILIES.values()),
        "read": [*expected(), stale],
        # What stood still for 3 s is stale for a moment.
        "valid": [f"{node_device(0)}/scanID", f"{FAMILIES['SdpQuality']}/noiseBaseline"],
        "write": [
            f"{SUBARRAY}/adminMode",
            [MODES.index("ENGINEERING"), MODES.index("RESERVED"), MODES.index("ONLINE")],
        ],
        "listen": live,
    }
    argv = [installed(DESK / "bin/python"), str(HERE / "taurus_session.py")]
    found = json.loads(run(argv, client_settings, tmp_path, text=json.dumps(wanted)).stdout.splitlines()[-1])
    assert found["devices"] == dict.fromkeys(FAMILIES.values(), "Ready")
    read = found["read"]
    assert {name: read[name]["label"] for name in expected()} == {n: one.label for n, one in expected().items()}
    units = {
        name: UNITS.get(one.unit, "")
        for name, one in expected().items()
        if one.type not in ("DevString", "DevEnum", "DevBoolean") and read[name]["quality"] != "ATTR_INVALID"
    }
    assert {name: read[name]["units"] for name in units} == units
    assert read[f"{MASTER}/adminMode"]["value"] == "ONLINE"
    assert read[f"{node_device(0)}/scanID"]["value"] == 7
    image = read[f"{FAMILIES['SdpQuality']}/noiseBaseline"]
    assert (image["shape"], [len(row) for row in image["value"]]) == ("_2D", [6] * 6)
    assert all(math.isnan(row[at]) for at, row in enumerate(image["value"]))
    assert (read[stale]["value"], read[stale]["quality"]) == ("None", "ATTR_INVALID")
    engineering, refused, online = found["write"]
    assert (engineering["value"], online["value"]) == ("ENGINEERING", "ONLINE")
    assert "control model does not lead to RESERVED" in refused["failed"]
    assert {name: found["listen"][name] >= count for name, count in live.items()} == dict.fromkeys(live, True)


ITANGO = """
import tango

node = SdpIngestNode("mid-sdp/ingest/0000")
print("heaps", node.read_attribute("heapsTotal").quality, node.heapsTotal > 0)
master = Device("mid-sdp/control/0")
print("master", master.state(), repr(master.adminMode), repr(master.healthState))
print(master.status())
subarray = SdpSubarray("mid-sdp/subarray/02")
try:
    subarray.AssignResources("{}")
except tango.DevFailed as failed:
    print("refused:", failed.args[0].desc)
get_ipython().run_line_magic("lsdev", "")
get_ipython().run_line_magic("lsserv", "")
"""


def test_an_itango_session(client_settings: dict[str, str], tmp_path: Path) -> None:
    argv = [installed(DESK / "bin/itango3"), "--simple-prompt", "--no-banner", "--colors=NoColor", "-c", ITANGO]
    text = run(argv, client_settings, tmp_path).stdout
    assert "heaps ATTR_VALID True" in text
    assert "master ON <adminMode.ONLINE: 0> <healthState.DEGRADED: 1>" in text
    assert f"ingest/{SILENT:04d} (node {SILENT}) sends no records" in text
    assert "refused: AssignResources: $: expected at least one of the keys resources" in text
    for name, device in FAMILIES.items():
        assert any(device in line and name in line for line in text.splitlines()), device
    assert "SdpFacade/control" in text


def test_dsconfig_finds_what_is_committed(client_settings: dict[str, str], tmp_path: Path) -> None:
    json2tango = installed(DESK / "bin/json2tango")
    assert "No changes needed" in run([json2tango, str(REGISTRATION)], client_settings, tmp_path).stderr
    changed = json.loads(REGISTRATION.read_text())
    devices = changed["servers"]["SdpFacade"]
    devices["subarray"]["SdpSubarray"]["mid-sdp/subarray/99"] = {}
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(changed))
    assert "mid-sdp/subarray/99" in run([json2tango, str(file)], client_settings, tmp_path, code=3).stdout
    dump = run([installed(DESK / "bin/tango2json"), "server:SdpFacade/*"], client_settings, tmp_path).stdout
    del devices["subarray"]["SdpSubarray"]["mid-sdp/subarray/99"]
    assert json.loads(dump)["servers"]["SdpFacade"] == devices
