"""A device server without a bus, whose devices are wrong on purpose: see `mutants`.

Run as a program: ``python -m tests.conformance.fake FOLDER INSTANCE`` with TANGO_HOST set; FOLDER has the ICD.
"""

import json
import sys
import threading
from pathlib import Path

import tango
from tango.server import run

from devices.alerts import SdpAlerts
from devices.calibration import SdpCalibration
from devices.commands import CommandedDevice
from devices.kernel import base
from devices.kernel.classes import device_classes
from devices.kernel.queries import refusal
from facade.kernel.clock import SystemClock
from facade.kernel.icd.load import load
from facade.kernel.reading import Quality, Reading
from tests.conformance.mutants import served

CLOCK = SystemClock()
_FAST = 0.1
"""Between two events of the attribute that speaks too often [s]."""


def wrong_values(icd_version: str) -> dict[tuple[str, str], Reading]:
    now = CLOCK.now_us()
    return {
        ("mid-sdp/control/0", "latencyP99"): Reading(0.1, now + 3_600_000_000),
        ("mid-sdp/ingest/0000", "latencyMin"): Reading(0.1, now - 100_000_000),
        ("mid-sdp/alerts/0", "worstSeverity"): Reading("WORSE", now),
        ("mid-sdp/control/0", "sdpVersion"): Reading(json.dumps({"icd": f"{icd_version}.9"}), now),
    }


def answer_queries() -> None:
    CommandedDevice.query_GetCommandHistory = lambda self, most: _list(most)
    SdpCalibration.query_ListTables = lambda self: "none"
    SdpCalibration.query_GetTable = SdpCalibration.query_GetTableContent = lambda self, name: _refuse(name)
    SdpAlerts.query_GetAlertsSince = lambda self, sequence: '{"newest": 0, "entries": []}'
    SdpAlerts.query_GetAlertHistory = lambda self, text: "[]" if text.startswith('{"') else _refuse(text)
    SdpAlerts.query_GetAlarms = lambda self: "{}"
    for name in ("Acknowledge", "Shelve", "Unshelve", "RemoveFromService", "ReturnToService"):
        setattr(SdpAlerts, f"query_{name}", lambda self, text: _refuse(text))
    SdpAlerts.query_Reset = lambda self, text: _refuse(text, "no")
    SdpAlerts.query_Comment = lambda self, text: "id"
    for name in ("GetCommand", "GiveCommand", "ApproveCommand", "WithdrawCommand"):
        setattr(CommandedDevice, f"query_{name}", lambda self, text: _refuse(text))


def _list(most: int) -> str:
    return "[]" if most > 0 else _refuse(most)


def _refuse(got: object, text: str = "expected something else, got {}") -> str:
    raise refusal(text.format(got), "fake")


def after_start(version: str) -> None:
    present = base.FacadeDevice.present
    for (device, attribute), reading in wrong_values(version).items():
        present[device].show(attribute, reading)
    present["mid-sdp/control/0"].set_change_event("nodesExpected", False, False)
    threading.Thread(target=speak_too_often, args=(present["mid-sdp/bus/0"],), daemon=True).start()


def speak_too_often(device: base.FacadeDevice) -> None:
    with tango.EnsureOmniThread():
        number = 0.0
        while True:
            number += 1
            reading = Reading(number, CLOCK.now_us(), Quality.VALID)
            device.show("ingestHeapsRate", reading)
            device.push("ingestHeapsRate", reading)
            CLOCK.sleep(_FAST)


def main() -> None:
    folder, instance = sys.argv[1:]
    icd = load(Path(folder))
    base._check_handlers = lambda entry, made: None  # what is missing is missing on purpose
    answer_queries()
    classes = device_classes(served(icd))
    run(tuple(classes), args=["SdpFacade", instance], post_init_callback=lambda: after_start(icd.version))


if __name__ == "__main__":
    main()
