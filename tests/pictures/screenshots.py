"""``python -m tests.pictures.screenshots [PICTURE ...] [OPTION OF demo ...]``: take the pictures of what a demo shows.

Each picture is what a command of the page printed on a terminal of a fixed width.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from facade.flows.alerts.source import AlertSource
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.clock import SystemClock
from facade.kernel.config import load_settings
from facade.kernel.console import ERR
from sdp_facade_lab.demo.plan import OBSERVATION
from tests.pictures.node_logs import ship

if TYPE_CHECKING:
    from playwright.sync_api import APIRequestContext

IMAGES = Path(__file__).parents[2] / "docs" / "images"
PROGRAM = str(Path(sys.executable).with_name("sdp-facade"))
WIDTH = 120
PRINTED = {"status.svg": "status", "alerts.svg": "alerts list"}
"""Pictures of what a command prints."""
DRAWN = {"watch.svg": "watch --seconds 8 --picture", "gains.png": "tables plot subarray/01/gains --output"}
"""Pictures that a command draws itself, into the file at its end."""
PAGES = {
    "page-overview.png": "#/",
    "page-alarms.png": "#/alarms",
    "page-alarm.png": "#/alarms/receiveOverrun@receive/0005",
    "page-acts.png": "#/acts",
    "page-subarray.png": "#/subarray/mid-sdp/subarray/01",
    "page-node.png": "#/node/mid-sdp/ingest/0001",
    "page-bus.png": "#/bus",
    "page-devices.png": "#/devices",
    "page-calibration.png": "#/flow/tables",
    "page-quality.png": "#/flow/quality",
    "page-logs.png": "#/flow/logs",
    "page-mirror.png": "#/flow/mirror",
    "page-blocks.png": "#/flow/blocks",
    "page-reservations.png": "#/flow/reservations",
    "page-explore.png": "explore/#/browse/sdp:root/sdp:SdpBus/sdp:mid-sdp~bus~0/sdp:mid-sdp~bus~0~ingestHeapsRate",
}
"""Pictures of the operator's page, by address; see docs/how-to/operators-page.md."""
_ARCHIVED = "demo-archive.svg"
"""Picture of the end of a demo with an archive; see docs/how-to/archive.md."""
_WHOLE = ("page-overview.png", "page-alarm.png")
"""Pictures of a whole page, as long as it is."""
_END = {"page-overview.png": "Streams"}
"""Tile above which a picture ends: this one is the first screen of the README."""
_SETTLED = 60.0
"""Time in which the page gets its values, and trends and waterfalls some points [s]."""
_LONGEST = 600.0
"""Longest time in which a page opens or is drawn: there are fifteen, and the machine may be busy [s]."""
_COLOURS = 256
"""Of the picture of a page, which has few: it is stored in half the bytes."""
_LOSSY = ("5:0.02", "9:0.004")
"""Nodes that lose packets, and their shares; the first one raises an alarm."""
_NODES, _RATE = 24, 400.0
"""Nodes of the demo, and heaps/s of each."""
_SUBARRAY = "mid-sdp/subarray/01"
_TOKEN = "token-of-anna-the-operator"
_SCAN, _FIRST_NUMBER = 3, 101
"""The last step of the observation, and a number that no step of the demo has."""
_LAST_WORDS = 40
"""Lines of a demo that ended too early."""
_POLL = 0.2
"""Time between two looks at the outcome of a command [s]."""


def picture_of(printed: str, command: str) -> str:
    """Return what a command has printed, with its colours, as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(printed), soft_wrap=False)
    svg = console.export_svg(title=f"sdp-facade {command}", unique_id=command.replace(" ", "-"))
    # Without the fonts that it would fetch from elsewhere: the reader's own monospaced one does.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def take(environment: Mapping[str, str], images: Path = IMAGES, only: Collection[str] = ()) -> None:
    """Take all pictures of a deployment that runs, or some of its pages."""
    raise_overrun(environment)
    if only:
        take_pages(environment, images, only)
        return
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


def take_archive(images: Path, options: list[str]) -> None:
    """Play a demo with an archive to its end, and take the picture of its last lines."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [PROGRAM, "demo", "--archive", "--no-live", "--state-dir", folder, *options]
        coloured = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
        done = subprocess.run(argv, env=coloured, stdout=subprocess.PIPE, text=True, check=True)
    at = done.stdout.index("archived: ")
    printed = done.stdout[done.stdout.rindex("\n", 0, at) + 1 :].replace(folder, ".run")
    (images / _ARCHIVED).write_text(picture_of(printed, "demo --archive") + "\n")
    ERR.print(images / _ARCHIVED)


def take_pages(environment: Mapping[str, str], images: Path, only: Collection[str] = ()) -> None:
    """Take the pictures of the operator's page, or some of them, in the browser of the distribution."""
    from PIL import Image  # comes with matplotlib
    from playwright.sync_api import sync_playwright  # scripts/bootstrap clients

    web = ["web", "--port", "0", "--banner", "Simulated SDP"]
    tokens = {"SDP_WEB_TOKENS": f"operator anna {_TOKEN}"}
    flags = ["simulate", "telemetry", "flagging", "--range", "flagged=1e5:2e5", "--range", "kept=9e5:1e6"]
    with ExitStack() as stack:
        stack.enter_context(_shipping(environment))
        stack.enter_context(_running(environment, "simulate", "quality", "--rate", "4"))
        stack.enter_context(_running(environment, *flags))
        printed = stack.enter_context(_running({**environment, **tokens}, *web))
        address = next(found[0] for line in printed if (found := re.search(r"http://[^\s/]+", line)))
        with sync_playwright() as playwright:
            observe(playwright.request.new_context(base_url=address, extra_http_headers={"Origin": address}))
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            pages = {name: browser.new_page(viewport={"width": 1280, "height": 860}) for name in PAGES}
            pages = {name: page for name, page in pages.items() if not only or name in only}
            for name, page in pages.items():
                page.set_default_timeout(_LONGEST * 1000)
                page.goto(f"{address}/{PAGES[name]}")
            time.sleep(_SETTLED)
            for name, page in pages.items():
                page.bring_to_front()
                taken = page.screenshot(full_page="flow/" in PAGES[name] or name in _WHOLE)
                picture = Image.open(io.BytesIO(taken)).convert("RGB").quantize(_COLOURS, Image.Quantize.MAXCOVERAGE)
                if name in _END:
                    heading = page.get_by_role("heading", name=_END[name], exact=True)
                    end = heading.evaluate("one => one.parentElement.getBoundingClientRect().top + scrollY")
                    picture = picture.crop((0, 0, picture.width, round(end)))
                picture.save(images / name, optimize=True)
                ERR.print(images / name)


@contextmanager
def _running(environment: Mapping[str, str], *arguments: str) -> Iterator[IO[str]]:
    """Run the program meanwhile; give what it prints."""
    process = subprocess.Popen([PROGRAM, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def _shipping(environment: Mapping[str, str]) -> Iterator[None]:
    stop = threading.Event()
    shipper = threading.Thread(target=ship, args=(load_settings(environment), stop))
    shipper.start()
    try:
        yield
    finally:
        stop.set()
        shipper.join()


def raise_overrun(environment: Mapping[str, str]) -> None:
    """Raise the alarm of an ingest node whose receiver loses packets, as such a node does."""
    writer = KafkaBus(Connection(load_settings(environment), clock=SystemClock()), client="screenshots").writer()
    source = AlertSource(f"receive/{int(_LOSSY[0].partition(':')[0]):04d}", writer)
    source.raise_alert("receiveOverrun", "ALARM", "2 % of the packets are lost: the receive buffer is full")


def observe(web: "APIRequestContext") -> None:
    """Begin an observation, as a person does by the page, and leave it at its scan: processing blocks are open then.

    A command that its state does not allow is refused.
    """
    web.post("/api/sign-in", data={"token": _TOKEN})
    for number, step in enumerate(OBSERVATION[: _SCAN + 1], _FIRST_NUMBER):
        argument = "" if step.argument is None else json.dumps(step.argument(1, number, f"{datetime.now(UTC):%Y%m%d}"))
        id = web.post("/api/command", data={"device": _SUBARRAY, "command": step.command, "argument": argument}).json()
        while not any(one["id"] == id and one["finished_time"] for one in _commands(web)):
            time.sleep(_POLL)
    web.post("/api/command", data={"device": _SUBARRAY, "command": "On", "argument": ""})


def _commands(web: "APIRequestContext") -> list[dict[str, Any]]:
    commands: list[dict[str, Any]] = web.get("/api/commands", params={"device": _SUBARRAY}).json()
    return commands


def main(options: list[str]) -> None:
    """Start a demo, take the pictures once it stays, and stop it.

    If pictures of pages are among the options, such as page-overview.png, only these are taken.
    """
    only = [one for one in options if one in PAGES]
    options = [one for one in options if one not in PAGES]
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            PROGRAM,
            "demo",
            "--stay",
            "--no-kills",
            "--no-live",
            "--logs",
            "--mirror",
            f"--nodes={_NODES}",
            f"--rate={_RATE}",
            *(f"--loss={one}" for one in _LOSSY),
            "--state-dir",
            folder,
            *options,
        ]
        demo = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
        assert demo.stdout is not None
        try:
            said: deque[str] = deque(maxlen=_LAST_WORDS)
            for line in demo.stdout:
                said.append(line)
                if found := re.match(r"\s*export (.*)$", line):
                    variables = dict(one.split("=", 1) for one in found[1].split())
                    break
            else:
                raise SystemExit(f"the demo ended before it stayed:\n{''.join(said)}")
            take({**os.environ, **variables}, only=only)
        finally:
            demo.terminate()  # SIGINT is ignored in the background of a shell
            demo.communicate()
    if not only:
        take_archive(IMAGES, options)


if __name__ == "__main__":
    main(sys.argv[1:])
