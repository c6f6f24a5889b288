"""The SDK works where none of the extras is."""

import subprocess
import sys

import sdp_facade_sdk
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from tests.support.waiting import HANG

SDK = """
import sys

for name in ("jinja2", "jsonschema", "numpy", "prometheus_client",
             "psutil", "pyarrow", "tango", "yaml"):
    sys.modules[name] = None
import sdp_facade_sdk

for name in ("AlertFilter", "AlertSource", "BlockSource", "Controller", "KafkaBus", "MemoryBus", "ReservationSource",
             "StateSource", "TableProducer", "load_settings", "open_bus", "read_ledger", "run"):
    getattr(sdp_facade_sdk, name)
"""


def test_controllers_and_producers_need_no_extra() -> None:
    """PyTango and numpy took most of the time and of the space of an installation."""
    done = subprocess.run([sys.executable, "-c", SDK], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr


def test_an_alert_and_a_state_are_published() -> None:
    bus = MemoryBus(log := MemoryLog())
    sdp_facade_sdk.AlertSource("receive/0007", bus).raise_alert("receiveOverrun", "ALARM", "records were dropped")
    sdp_facade_sdk.StateSource("controller", bus).publish("mid-sdp/subarray/01", "obsState", "IDLE")
    assert [len(log.records(topic)) for topic in ("alerts", "state")] == [1, 1]
