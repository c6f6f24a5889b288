"""What stands in the pages is so: commands and options exist, Python compiles, TOML is an interface, links hold."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import unquote

import pytest
import tango
from jsonschema import Draft202012Validator

import sdp_facade_sdk
from facade.kernel.config import ENVIRONMENT
from facade.kernel.icd.load import inspect, load
from facade.sdp.words import runbook
from facade.tools.config import PROCESS_VARIABLES
from tests.support.command_line import descend
from tests.support.waiting import HANG

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *(ROOT / one for one in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "tango-db/README.md")),
        *DOCS.rglob("*.md"),
    ]
)
SCHEMAS = ROOT / "schemas"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    found = re.findall(rf"^( *)```{language}\b([^\n]*)\n(.*?)^\1```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [(info.strip(), re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)) for indent, info, text in found]


def calls(page: Path) -> Iterator[list[str]]:
    text = page.read_text()
    code = [line for _, block in blocks(page, "sh") for line in block.splitlines()]
    code += re.findall(r"`(sdp-facade [^`\n]+)`", text)
    for line in code:
        for call in re.findall(r"(?:^|[ /(])sdp-facade ([^|&>#)$]*)", line):
            yield call.replace('"', "").split()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_and_option_exists(page: Path) -> None:
    for words in calls(page):
        if words[:1] == ["weather"]:
            continue  # the example flow's own, which runs in tests/integration/test_example_flow.py
        command, rest = descend(words)
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        known |= {"--help", "--install-completion"}
        given = {word.split("=")[0] for word in rest if word.startswith("-") and not re.fullmatch(r"-[\d.]+", word)}
        assert given <= known, f"sdp-facade {' '.join(words)}"
        if hasattr(command, "commands") and not given:
            # A list such as `alerts intake` / `follow` names the others alone; a group by itself is no mistake.
            assert not rest or rest[0] in ("/", "...", "\\"), f"sdp-facade {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_compiles_and_its_imports_are_there(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples" / "weather")
    for _, block in blocks(page, "python"):
        tree = ast.parse(dedent(block), filename=name(page))
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), name(page), "exec"), {})


def test_python_uses_no_name_that_its_page_does_not_define(tmp_path: Path) -> None:
    for page in PAGES:
        code = "\n".join(dedent(block) for info, block in blocks(page, "python") if not info.startswith("title="))
        (tmp_path / f"{name(page).replace('/', '-')}.py").write_text(code)
    argv = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--no-cache", tmp_path]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_of_a_solution_is_a_table_that_tango_can_show() -> None:
    block = next(text for _, text in blocks(DOCS / "how-to" / "send-calibration.md", "python") if "Solution(" in text)
    kept = [line for line in block.splitlines() if not line.startswith(("tables ", "tables."))]
    names: dict[str, Any] = {}
    exec("\n".join(kept), names)
    solution = names["solution"]
    assert solution.valid_until > solution.valid_from > 1_700_000_000_000_000
    assert names["encode_solution"](solution)


def test_messages_that_pages_show_are_messages() -> None:
    seen = []
    for page in PAGES:
        for _, block in blocks(page, "json"):
            message = json.loads(block)
            said = message.get("schema", "").partition("/")[0]
            if said and "..." not in block:
                schema = json.loads((SCHEMAS / "messages" / f"{said}.schema.json").read_text())
                Draft202012Validator(schema).validate(message)
                seen.append(said)
    assert {"heap", "alert"} <= set(seen)


def test_the_api_reference_shows_exactly_the_public_surface() -> None:
    described = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    shown = re.findall(r"^::: (\S+)$", described, re.MULTILINE)
    assert sorted(shown) == sorted(f"sdp_facade_sdk.{name}" for name in sdp_facade_sdk.__all__)


def test_pages_import_from_the_public_surface_only() -> None:
    imported = {
        (node.module or "").partition(".")[0]
        for page in PAGES
        if page.stem not in ("add-a-flow", "test-a-flow")  # they are about the inside of the package
        for _, block in blocks(page, "python")
        for node in ast.walk(ast.parse(dedent(block)))
        if isinstance(node, ast.ImportFrom)
    }
    assert "sdp_facade_sdk" in imported
    assert not imported & {"facade", "devices", "sdp_facade_clients", "sdp_facade_lab"}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_devices_have_the_attributes_that_are_read(page: Path) -> None:
    icd = load()
    every = {entry.name for one in icd.classes.values() for entry in (*one.attributes, *one.commands, *one.queries)}
    every |= {*icd.conditions, "State", "Status"}
    for _, block in blocks(page, "python"):
        tree = ast.parse(dedent(block))
        proxies = {
            node.targets[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and ast.unparse(node.value).startswith("tango.DeviceProxy('mid-sdp/")
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in proxies:
                assert node.attr in every or hasattr(tango.DeviceProxy, node.attr), f"{node.value.id}.{node.attr}"


def test_what_the_page_adds_to_the_interface_is_taken(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "add-to-the-interface.md"
    schemas = tmp_path / "schemas"
    shutil.copytree(SCHEMAS, schemas)
    before = load()
    added = blocks(page, "toml")
    assert len(added) >= 4
    for info, block in added:
        file = schemas / "icd" / re.fullmatch(r'title="(.+)"', info).group(1)  # type: ignore[union-attr]
        file.write_text(f"{file.read_text()}\n{block}")
    icd, findings = inspect(schemas, thorough=True)
    assert [str(one) for one in findings] == []
    assert icd is not None
    assert set(icd.conditions) - set(before.conditions) == {"bufferFull"}
    new = {entry.name for one in icd.classes.values() for entry in (*one.attributes, *one.commands)} - {
        entry.name for one in before.classes.values() for entry in (*one.attributes, *one.commands)
    }
    assert new == {"latencyP90", "pipelineVersion", "Flush", "bufferFull"}


@pytest.mark.parametrize("page", sorted((DOCS / "how-to").glob("*.md")), ids=name)
def test_a_how_to_begins_with_what_is_needed_and_ends_with_how_to_check_it(page: Path) -> None:
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert (headings[0], headings[-1]) == ("What you need", "How to see that it worked")


def test_the_page_of_settings_has_each_variable_and_no_other() -> None:
    rows = [line for line in (DOCS / "reference" / "settings.md").read_text().splitlines() if line.startswith("|")]
    listed = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", "\n".join(rows)))
    assert listed == {*ENVIRONMENT, *PROCESS_VARIABLES}


def broken_links(site: Path) -> Iterator[str]:
    pages = {page: page.read_text() for page in site.rglob("*.html")}
    places = {page: {"", *map(unescape, re.findall(r'\b(?:id|name)="([^"]+)"', text))} for page, text in pages.items()}
    for page, text in pages.items():
        if page.name == "404.html":
            continue  # its links begin at the top of the server
        for link in map(unescape, re.findall(r'\b(?:href|src)="([^"]*)"', text)):
            where, _, place = unquote(link).partition("#")
            if re.match(r"[a-z]+:", where):
                continue
            goal = Path(os.path.normpath(page.parent / where.partition("?")[0])) if where else page
            if not goal.is_file() or (goal in places and place not in places[goal]):
                yield f"{page.relative_to(site)}: {link}"


def test_the_site_builds_without_a_warning_and_asks_nobody(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra docs is not installed")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=4 * HANG, check=False
    )
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|iframe)[^>]+src="(http[^"]+)', page.read_text())
        fetched += re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(http[^"]+)', page.read_text())
        assert fetched == []
    # From files, browsers load neither the index of the search as JSON nor its worker: both come as scripts.
    index = (tmp_path / "site" / "search" / "search_index.js").read_text().removeprefix("var __index = ")
    assert {"index.html", "tutorial.html"} <= {one["location"] for one in json.loads(index)["docs"]}
    for page in (tmp_path / "site" / "index.html", tmp_path / "site" / "how-to" / "deploy.html"):
        (script,) = re.findall(r'<script src="([^"]*iframe-worker[^"]*)">', page.read_text())
        assert "window.Worker = " in (page.parent / script).read_text()
    assert list(broken_links(tmp_path / "site")) == []
    for name in ("tutorial", "how-to/deploy"):
        linked = re.findall(
            r'<a class="term" href="[^"]*glossary.html#([^"]+)"',
            text := (tmp_path / "site" / f"{name}.html").read_text(),
        )
        assert len(linked) == len(set(linked)) >= 5, "the first use of a term, and no other"
        assert not re.search(r"<(h[1-6]|code)[^>]*>[^<]*<a class=.term", text)


def test_the_operators_page_leads_to_the_runbook_of_each_condition() -> None:
    page = (DOCS / "how-to" / "operate.md").read_text()
    linked = re.findall(r"\[`(\w+)`\]\(\.\./reference/alerts\.md#(\w+)\)", page)
    assert sorted(name for name, _ in linked) == sorted(load().conditions)
    assert all(f"alerts.md#{place}" == runbook(name) for name, place in linked)
