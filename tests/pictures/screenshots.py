"""``python -m tests.pictures.screenshots [OPTION OF demo ...]``: start a demo, and take the pictures of what it shows.

Each picture is what a command of the page printed on a terminal of a fixed width.
"""

import io
import os
import re
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
