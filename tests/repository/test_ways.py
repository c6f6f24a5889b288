"""The count of the files that an item goes through: each way comes to its end, and what runs anyway does not count."""

import json
from contextlib import nullcontext

import pytest

from devices.kernel.base import FacadeDevice
from tests import ways


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tango.AutoTangoAllowThreads", lambda device: nullcontext())


def ended(site: ways.Site) -> ways.Site:
    site.send()
    site.call()
    site.cycle()
    return site


def shown(site: ways.Site, name: str) -> object:
    return FacadeDevice.read_shown(site.shown, name)[0]


def test_each_item_comes_to_the_end_of_its_way() -> None:
    assert shown(ended(ways.Heap()), "heapsTotal") == 1
    command = ended(ways.On())
    assert [json.loads(one.value)["status"] for one in command.broker.read("command-acks")][-1] == "COMPLETED"
    assert "COMPLETED" in shown(command, "longRunningCommandStatus")
    assert shown(ended(ways.Alert()), "alertsTotal") == 1
    table = ended(ways.Table())
    assert shown(table, "solutionId") == "s1"
    mirrored = ended(ways.MirroredValue())
    assert mirrored.log.records[-1].value.count(b"1.5")


def test_loops_that_run_anyway_and_the_client_of_kafka_do_not_count() -> None:
    files = ways.files_of(ways.Heap)
    assert {"facade/flows/telemetry/reduce.py", "facade/flows/telemetry/ledger.py", "devices/kernel/base.py"} <= {
        *files
    }
    assert not [name for name in files if name.startswith(ways.CLIENT) or "heartbeats" in name]
