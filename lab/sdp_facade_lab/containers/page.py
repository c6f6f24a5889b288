"""Opens the operator's page of the image in a browser."""

import re
import shutil
from http.client import NOT_FOUND
from typing import Final

from facade.kernel.errors import InfraError
from sdp_facade_lab.containers.project import Project
from sdp_facade_lab.progress import ProgressLine

SERVICE: Final = "page"
_WITHIN: Final = 120_000.0
"""[ms]"""


def see(project: Project, progress: ProgressLine) -> None:
    """Open the page, and demand all of its scripts and the answer to *Is all well?*."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import expect, sync_playwright
    except ImportError:
        program = None
    if program is None:
        progress.step("the page was not opened in a browser, as there is none: scripts/bootstrap clients installs one")
        return
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("response", lambda one: complaints.append(f"no {one.url}") if one.status == NOT_FOUND else None)
        page.goto(f"http://127.0.0.1:{project.ports['PAGE_PORT']}/", timeout=_WITHIN)
        judgement = page.locator("section", has=page.get_by_role("heading", name="Is all well?")).locator(".big")
        expect(judgement).to_have_text(re.compile("OK|ATTENTION|DEGRADED|FAILED|UNKNOWN"), timeout=_WITHIN)
        said = judgement.inner_text()
        browser.close()
    if complaints:
        raise InfraError(f"the page of the image: expected no error in the browser, got {'; '.join(complaints)[:2000]}")
    progress.step(f"the page of the image says in a browser: Is all well? {said}")
