"""The Python code on the pages runs as it stands there, on a system that runs."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.interoperability.conftest import send_solution, switch_off
from tests.interoperability.expectations import FAMILIES
from tests.interoperability.foreign import ROOT
from tests.support.deployment import Deployment, node_device, subarray_device
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", DOCS / "tutorial.md", *sorted((DOCS / "how-to").glob("*.md"))]
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
LEFT_OUT = {
    "def on_result(": "test_documents.py",
    "Controller(": "a controller of one's own: test_documents.py, and test_controller_guide.py in the unit tests",
    "wait_for(": "test_documents.py, with that controller",
    "def give(": "test_documents.py",
    "GiveCommand(": "test_documents.py",
    "import history": "needs an archive: test_history_thinned.py, in the unit tests",
    "h5py.File(": "test_archive_nexus.py, in the unit tests",
    "alarm/handler/01": "needs a PyAlarm",
    "tango/admin/myhost": "needs a Starter",
}
"""Text of the blocks that do not run here, and where they do, or why nowhere."""
ELSEWHERE = {
    "add-a-flow.md": "tests/integration/test_example_flow.py runs the flow that it makes",
    "test-a-flow.md": "tests/integration/test_example_flow.py runs its tests",
    "test-a-tango-client.md": "tests/flows/test_memory_context.py runs its test, which needs no system",
}
BEGIN = f"""
import tango
_connect = tango.DeviceProxy.__init__
def _patient(self, *arguments, **options):
    _connect(self, *arguments, **options)
    self.set_timeout_millis({round(HANG * 1000)})
tango.DeviceProxy.__init__ = _patient
"""
"""A dozen programs start at once: a busy machine may take more than Tango's own 3 s for an answer."""
END = "import os\nos._exit(0)"
"""A reader does not leave while a subscription is being made, which Tango's library does not survive."""
OTHERS = {"controller-in-another-language.md": subarray_device(2)}
"""Subarrays of pages that are not to meet the others' on the first one."""


def script(page: Path, tango_host: str) -> str:
    blocks = [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in BLOCK.findall(page.read_text())]
    found = "\n".join(one for one in blocks if not any(text in one for text in LEFT_OUT))
    found = found and f"{BEGIN}\n{found}\n{END}"
    return found.replace("host:10000", tango_host).replace(
        subarray_device(1), OTHERS.get(page.name, subarray_device(1))
    )


def simulated_alarms(system: Deployment) -> bool:
    """Return whether an alarm of a simulated source waits for its acknowledgement, as the tutorial's reader has it."""
    waiting = map(json.loads, system.read_one("mid-sdp/alerts/0", "unacknowledgedAlerts") or ())
    return any(alarm["source"].startswith("simulated-") for alarm in waiting)


def test_the_pages(system: Deployment, tmp_path: Path) -> None:
    for name in ("difference.fits", "template.fits"):
        (tmp_path / name).write_bytes(b"SIMPLE")
    pages = {page.name: script(page, system.tango_host) for page in PAGES if page.name not in ELSEWHERE}
    pages = {name: code for name, code in pages.items() if code}
    assert len(pages) >= 10
    environment = {**os.environ, **system.environment, "PYTHONPATH": str(ROOT)}
    switched = [system.proxy(subarray_device(number)) for number in (1, 2)]
    switch_off(switched)  # other tests may have left them on
    alone = {"README.md": pages.pop("README.md")}  # as the tutorial, it switches the first subarray on
    for together in (pages, alone):
        system.command(*"simulate alerts --flood --sources 4 --count 8 --rate 100".split())
        until(lambda: simulated_alarms(system), "alarms wait")
        running = {
            name: subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", code],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for name, code in together.items()
        }
        failed = {}
        for name, process in running.items():
            try:
                output, _ = process.communicate(timeout=HANG)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # it says where it stands
                output = f"did not end\n{process.communicate()[0]}"
            if process.returncode:
                failed[name] = output
        assert not failed, "\n\n".join(f"{name}: {output}" for name, output in failed.items())
        switch_off(switched)
    node = system.proxy(node_device(0))
    settings = node.get_attribute_config("latencyP99")
    settings.alarms.max_warning = ""  # what a page has changed
    node.set_attribute_config(settings)
    send_solution(system)
    until(lambda: np.shape(system.read_one(FAMILIES["SdpCalibration"], "gainPhase")) == (8, 64), "the solution is back")
