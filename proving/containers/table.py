"""A table that is sent from outside, and is shown by SdpCalibration."""

import sys
from pathlib import Path
from typing import Final

import tango

from facade.infra import tools
from proving.containers.project import Project
from proving.progress import Progress

_SHOWN_WITHIN_S: Final = 300.0
"""No pace is judged: only what does not come at all takes so long [s]."""


def send_table(project: Project, progress: Progress) -> str:
    """Send a table and return its digest when SdpCalibration shows it."""
    argv = [str(Path(sys.executable).with_name("sdp-facade")), "simulate", "calibration"]
    tools.run([*argv, "--count", "1", "--megabytes", "1"], what="sending a table", env=project.outside)
    return await_table(project, progress, "")


def await_table(project: Project, progress: Progress, digest: str) -> str:
    """Wait until SdpCalibration shows a table, of this digest if there is one; return its digest."""
    shown: list[str] = []

    def is_shown() -> bool:
        device = f"tango://{project.outside['TANGO_HOST']}/mid-sdp/calibration/01"
        try:
            shown[:] = [tango.DeviceProxy(device).read_attribute("digest").value or ""]
        except tango.DevFailed:
            return False
        return bool(shown[0]) and shown[0] == (digest or shown[0])

    progress.demand(is_shown, _SHOWN_WITHIN_S, "the table in SdpCalibration")
    return shown[0]
