"""The page about the security of the operator's page: its tests exist, and no requirement stands there twice."""

import re
from collections import Counter
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = {
    "app": "clients/test_web_app.py",
    "timeline": "clients/test_timeline.py",
    "doors": "clients/test_web_doors.py",
    "oidc": "clients/test_web_oidc.py",
    "proxies": "interoperability/test_web_proxies.py",
    "browser": "interoperability/test_web.py",
    "history": "clients/test_web_history.py",
    "displays": "clients/test_web_displays.py",
}
ROWS = re.findall(
    r"^\| ([\d., to]+) \| ([^|]+) \| ([^|]*) \|([^|]*)\|$",
    (ROOT / "docs/reference/web-security.md").read_text(),
    re.MULTILINE,
)


def numbers(cell: str) -> list[str]:
    found = []
    for part in cell.split(", "):
        first, _, last = part.partition(" to ")
        head, _, number = first.rpartition(".")
        end = int((last or first).rpartition(".")[2])
        found += [f"{head}.{one}" for one in range(int(number), end + 1)]
    return found


def test_each_test_that_the_page_names_exists() -> None:
    named = [
        (file, name)
        for *_, tests in ROWS
        for file, names in re.findall(r"(\S+): ((?:`\w+`(?:, )?)+)", tests)
        for name in re.findall(r"`(\w+)`", names)
    ]
    assert len(named) > 40
    text = {file: (ROOT / "tests" / FILES.get(file, file)).read_text() for file, _ in named}
    assert [name for file, name in named if f"def {name}(" not in text[file]] == []
    assert sum(tests.count("`test_") for *_, tests in ROWS) == len(named)


def test_each_requirement_stands_there_once() -> None:
    counts = Counter(chain.from_iterable(numbers(cell) for cell, *_ in ROWS))
    assert [one for one, count in counts.items() if count > 1] == []
    assert len(counts) > 150
