"""All devices in one process, on the bus in memory: the page's test runs as it stands there, and what it is made of."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tango

from devices.in_memory import MemoryContext
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from tests.support.waiting import HANG, until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "test-a-tango-client.md"


@pytest.mark.needs("sdp_facade_sdk")
def test_the_test_of_the_page_passes_as_it_stands_there(tmp_path: Path) -> None:
    """With a client of its own, as its reader runs it: nothing of these tests is at hand."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    file = tmp_path / "test_client.py"
    file.write_text(block)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)]
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("TANGO", "KAFKA", "SDP"))}
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=4 * HANG, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


@pytest.mark.forked
def test_every_device_of_the_deployment_is_there_but_the_mirror() -> None:
    settings = Settings(nodes=3, rack_size=2, subarrays=2, archives=1)
    with MemoryContext(MemoryLog(), settings=settings, timeout=HANG) as context:
        names = tango.DeviceProxy(context.get_server_access()).QueryDevice()
        found = {name.partition("::")[2].lower() for name in names}
        assert {"mid-sdp/ingest/0002", "mid-sdp/subarray/02", "mid-sdp/control/0", "mid-sdp/alerts/0"} <= found
        assert {name.partition("::")[0] for name in names} == load().classes.keys() - {"SdpMirror"}
        for name in found:
            device = context.get_device(name)
            until(
                lambda device=device: (
                    device.State() != tango.DevState.UNKNOWN or "No worker has read" in device.Status()
                ),
                f"{name} shows a state, or that nobody has read the bus for it",
            )


@pytest.mark.forked
def test_a_device_that_is_restarted_shows_what_it_showed() -> None:
    """As in a device server of its own; see tests/fault/test_absence.py."""
    with MemoryContext(MemoryLog(), ["SdpSubarray", "SdpAlerts"], timeout=HANG) as context:
        subarray = context.get_device("mid-sdp/subarray/01")
        until(lambda: subarray.State() == tango.DevState.OFF, "it shows a state")
        tango.DeviceProxy(context.get_server_access()).DevRestart("mid-sdp/subarray/01")
        assert subarray.State() == tango.DevState.OFF
        assert subarray.read_attribute("obsState").quality == tango.AttrQuality.ATTR_VALID


def bus_and_log(**partitions: int) -> tuple[MemoryBus, MemoryLog]:
    log = MemoryLog(partitions, ManualClock(1_700_000_000.0))
    return MemoryBus(log), log


def test_a_key_has_one_partition_and_its_records_their_order() -> None:
    bus, log = bus_and_log(state=4)
    for number in range(3):
        bus.send(Record(topic="state", key=b"a", value=b"%d" % number))
        bus.send_durably(Record(topic="state", key=b"b", value=b""), 1.0)
    found = [record for record in log.records("state") if record.key == b"a"]
    assert [record.value for record in found] == [b"0", b"1", b"2"]
    assert len({record.partition for record in found}) == 1
    assert {record.timestamp_us for record in found} == {1_700_000_000_000_000}


def test_a_reader_goes_on_where_it_is_told_and_says_how_far_it_is() -> None:
    bus, log = bus_and_log(state=2)
    bus.post([Record(topic="state", key=None, value=b"%d" % n, partition=n % 2) for n in range(6)]).wait(0.0)
    reader = bus.open_reader({"state": None}, {"state": {1: 2}})
    assert [record.value for record in reader.take(3, 0.0)] == [b"0", b"2", b"4"]
    assert not reader.caught_up("state")
    assert reader.behind("state") == {0: 0, 1: 1}
    assert [record.value for record in reader.take(3, 0.0)] == [b"5"]
    assert reader.caught_up("state")
    assert reader.take(1, 0.0) == []
    log.append(Record(topic="state", key=None, value=b"6", partition=0))
    assert reader.caught_up("state"), "all that stood there at the start was taken"
    assert reader.reached("state") == {0: 3, 1: 3}
    assert [record.offset for record in bus.open_reader({"state": [0]}, {}).take(9, 0.0)] == [0, 1, 2, 3]
