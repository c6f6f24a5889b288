"""A wheel of a clean source tree has the operator's page, with all that a browser loads."""

import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from http.client import NOT_FOUND
from pathlib import Path
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Browser, expect

from facade.infra import local
from facade.infra.ports import choose_port
from tests.interoperability.foreign import ROOT
from tests.support.deployment import Deployment
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

PARTS = re.compile(r"""(?:src|href|from|import)[=\s]\s*["']([\w./-]+\.(?:js|css|svg))["']""")
"""What a document or a module names beside it."""
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def clean_tree(folder: Path) -> Path:
    """Copy what is in the repository: no libraries of the page among it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    assert not (folder / "clients/sdp_facade_clients/web/static/vendor").exists()
    return folder


def test_the_installed_page_has_each_script_and_shows_the_judgement(
    infra: local.Endpoints, browser: Browser, tmp_path: Path
) -> None:
    source, wheels, installed = clean_tree(tmp_path / "source"), tmp_path / "wheels", tmp_path / "installed"
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(source)], check=True, timeout=5 * HANG)
    (wheel,) = wheels.iterdir()
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(installed), str(wheel)], check=True, timeout=HANG)
    with Deployment(infra, tmp_path) as deployment:
        deployment.prepare()
        deployment.server("control")
        port = choose_port()
        argv = [str(installed / "bin/sdp-facade"), "web", "--port", str(port)]
        deployment.start("web", argv, PYTHONPATH=str(installed)).says(f"http://localhost:{port}/")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def get(address: str) -> str:
            with opener.open(address, timeout=HANG) as answer:
                return str(answer.read().decode(errors="replace"))

        def begins() -> bool:
            try:
                return bool(get(f"http://localhost:{port}/"))
            except ConnectionError:
                return False
            except urllib.error.URLError as error:
                return not isinstance(error.reason, ConnectionError)

        until(begins, "the installed page answers")
        wanted = [f"http://localhost:{port}/", f"http://localhost:{port}/explore/"]
        for address in wanted:  # it grows
            text = get(address)
            if "/vendor/" not in address:
                wanted += [one for part in PARTS.findall(text) if (one := urljoin(address, part)) not in wanted]
        names = {one.rpartition("/")[2] for one in wanted}
        assert {"app.js", "stream.js", "plugin.js", "lit-html.js", "repeat.js", "uPlot.esm.js", "openmct.js"} <= names
        complaints: list[str] = []
        page = browser.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("response", lambda answer: complaints.append(answer.url) if answer.status == NOT_FOUND else None)
        page.goto(f"http://localhost:{port}/")
        judgement = page.locator("section", has=page.get_by_role("heading", name="Is all well?"))
        # The other device servers do not run: the page says what to do about each.
        expect(judgement).to_contain_text("sdp-facade serve alerts", timeout=HANG * 1000)
        expect(judgement.locator(".big")).to_have_text(re.compile("DEGRADED|FAILED|UNKNOWN"))
        assert complaints == []


def test_a_build_that_cannot_fetch_says_what_to_do(tmp_path: Path) -> None:
    source = clean_tree(tmp_path / "source")
    (source / "clients/sdp_facade_clients/web/.npmrc").write_text("registry=http://127.0.0.1:9/\nfetch-retries=0\n")
    argv = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    done = subprocess.run(argv, cwd=source, capture_output=True, text=True, timeout=5 * HANG, check=False)
    assert done.returncode != 0
    assert "the libraries of the operator's page could not be fetched; let npm reach its registry" in done.stderr
    assert "Traceback" not in done.stderr
