"""``python -m tests.pictures.screenshots [OPTION OF demo ...]``: start a demo, and take the pictures of what it shows.

Each picture is what a command of the page printed on a terminal of a fixed width.
"""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.text import Text

from facade.console import ERR

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PROGRAM = str(Path(sys.executable).with_name("sdp-facade"))
WIDTH = 120
PRINTED = {"status.svg": "status", "alerts.svg": "alerts list"}
"""Pictures of what a command prints."""
DRAWN = {"watch.svg": "watch --seconds 8 --picture", "gains.png": "tables plot subarray/01/gains --output"}
"""Pictures that a command draws itself, into the file at its end."""
PAGES = {
    "page-overview.png": "",
    "page-alarms.png": "alarms",
    "page-subarray.png": "subarray/mid-sdp/subarray/01",
    "page-node.png": "node/mid-sdp/ingest/0001",
    "page-bus.png": "bus",
    "page-calibration.png": "flow/tables",
    "page-quality.png": "flow/quality",
    "page-logs.png": "flow/logs",
    "page-blocks.png": "flow/blocks",
}
"""Pictures of the operator's page, by address; see docs/how-to/operators-page.md."""
_SETTLED = 20.0
"""Time in which the page gets its values, and trends some points [s]."""


def picture_of(printed: str, command: str) -> str:
    """Return what a command has printed, with its colours, as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(printed), soft_wrap=False)
    svg = console.export_svg(title=f"sdp-facade {command}", unique_id=command.replace(" ", "-"))
    # Without the fonts that it would fetch from elsewhere: the reader's own monospaced one does.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def take(environment: Mapping[str, str], images: Path = IMAGES) -> None:
    """Take all pictures of a deployment that runs."""
    for name, command in DRAWN.items():
        subprocess.run([PROGRAM, *command.split(), str(images / name)], env=environment, check=True)
        ERR.print(images / name)
    coloured = {**environment, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
    for name, command in PRINTED.items():
        # The exit code of `status` says how SDP is.
        done = subprocess.run([PROGRAM, *command.split()], env=coloured, stdout=subprocess.PIPE, text=True, check=False)
        (images / name).write_text(picture_of(done.stdout, command) + "\n")
        ERR.print(images / name)
    take_pages(environment, images)


def take_pages(environment: Mapping[str, str], images: Path) -> None:
    """Take the pictures of the operator's page, in the browser of the distribution."""
    from playwright.sync_api import sync_playwright  # scripts/bootstrap clients

    argv = [PROGRAM, "web", "--port", "0", "--banner", "Simulated SDP"]
    web = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)
    assert web.stdout is not None
    try:
        address = next(found[0] for line in web.stdout if (found := re.search(r"http://\S+", line)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            for name, place in PAGES.items():
                page.goto(f"{address}#/{place}")
                page.wait_for_timeout(_SETTLED * 1000)
                page.screenshot(path=images / name)
                ERR.print(images / name)
    finally:
        web.terminate()
        web.wait()


def main(options: list[str]) -> None:
    """Start a demo, take the pictures once it stays, and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [PROGRAM, "demo", "--stay", "--no-kills", "--no-live", "--state-dir", folder, *options]
        demo = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
        assert demo.stdout is not None
        try:
            for line in demo.stdout:
                if found := re.match(r"\s*export (.*)$", line):
                    variables = dict(one.split("=", 1) for one in found[1].split())
                    break
            else:
                raise SystemExit("the demo ended before it stayed")
            take({**os.environ, **variables})
        finally:
            demo.send_signal(signal.SIGINT)
            demo.communicate()


if __name__ == "__main__":
    main(sys.argv[1:])
