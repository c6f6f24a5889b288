"""What holds for each flow and part: checks ``tests/quality.toml``, and writes a page of it.

``python -m tests.quality`` writes the page. A claim names its evidence, which must exist and have the flow or part in
it: its package, a device class, or a topic. That the evidence is green is shown by the run of that test, and not here.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from facade.kernel.manifest import Manifest, manifests
from sdp_facade_lab.bench.cli import MEASUREMENTS
from sdp_facade_lab.fault_runs.frame import FLOWS as FAULT_RUNS
from tests.parts import PARTS, dotted
from tests.simulation.site import FLOWS as SIMULATED

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "reference" / "quality.md"
OF_FLOWS = {
    "counted": "each record ends in one outcome, and the totals are exact",
    "restarted": "a device that restarts, or whose server does, shows the same again",
    "on_the_page": "it is on the operator's page",
    "replayed": "a night that is played again gives the same results",
    "simulated": "it runs in the simulation, under drawn faults",
    "documented": "a page says how to use it",
    "measured": "a measurement of `make bench` has it",
}
"""Claims of a flow, with what they mean."""
OF_PARTS = {
    "alone": "`make parts` runs its tests where only its packages and its extra are",
    "frozen": "a change of its public surface is a line of a diff",
    "documented": OF_FLOWS["documented"],
    "measured": OF_FLOWS["measured"],
}
"""Claims of a part, with what they mean."""
LIFECYCLES = {
    "stable": "its interface changes only with a version of the ICD",
    "trial": "its interface may change with each release",
    "internal": "for developers of the facade",
}


def read() -> dict[str, dict[str, dict[str, Any]]]:
    """Return what is claimed: by kind (``flow``, ``part``), and by name."""
    return tomllib.loads(TABLE.read_text())


def faults(claims: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Say what is wrong, with the place: a flow without claims, a claim that is missing, evidence without the flow."""
    found = {one.name: one for one in manifests() if one.name in _shipped()}
    for name in found.keys() ^ claims["flow"].keys():
        yield f"flow.{name}: expected an entry for each manifest of this distribution, and no other"
    for name, entry in claims["flow"].items():
        yield from _fields(f"flow.{name}", entry, {*OF_FLOWS, "lifecycle", "owner"})
        if name in found:
            for claim in entry.keys() & OF_FLOWS.keys():
                yield from _claim(f"flow.{name}.{claim}", entry[claim], _words(found[name]), found[name])
    for name, entry in claims["part"].items():
        yield from _fields(f"part.{name}", entry, {*OF_PARTS, "lifecycle", "folder"})
        words = [*map(dotted, PARTS[name].packages), entry["folder"]] if name in PARTS else [entry["folder"]]
        for claim in entry.keys() & OF_PARTS.keys():
            yield from _claim(f"part.{name}.{claim}", entry[claim], words, None)


def _shipped() -> set[str]:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    return {*entries["sdp_facade.flows"]}


def _fields(where: str, entry: Mapping[str, Any], wanted: set[str]) -> Iterator[str]:
    for name in sorted(entry.keys() ^ wanted):
        yield f"{where}: {'unknown' if name in entry else 'missing'} {name}; expected {', '.join(sorted(wanted))}"
    if entry.get("lifecycle") not in LIFECYCLES:
        yield f"{where}.lifecycle: expected one of {', '.join(LIFECYCLES)}, got {entry.get('lifecycle')!r}"


def _words(manifest: Manifest) -> list[str]:
    """Return texts of which evidence about a flow has one: its package, device classes, quoted topics, sub-commands."""
    package = "facade.archive" if manifest.name == "archive" else f"facade.flows.{manifest.name}"
    quoted = [f"{mark}{topic}{mark}" for topic in manifest.topics for mark in ('"', "'", "`")]
    return [
        package,
        *manifest.device_classes,
        *quoted,
        *(f"sdp-facade {' '.join(one.words)}" for one in manifest.subcommands),
    ]


def _claim(where: str, claim: Any, words: list[str], manifest: Manifest | None) -> Iterator[str]:
    if isinstance(claim, dict):
        if len(claim) != 1 or not claim.keys() <= {"open", "exempt"} or not all(claim.values()):
            yield f'{where}: expected evidence, {{ open = "..." }} or {{ exempt = "..." }}, got {claim}'
        return
    if claim == "manifest":
        if manifest is None or manifest.page is None:
            yield f"{where}: expected a `page` in the manifest, got none"
        return
    kind, _, name = claim.partition(" ")
    if kind in _BY_NAME:
        # Of these, the name in the flow's or part's own table is the proof, except for a run that several flows share.
        file = _BY_NAME[kind].get(name)
        if file is None:
            yield f"{where}: {kind}: expected one of {', '.join(_BY_NAME[kind])}, got {name!r}"
        elif file and not _has((ROOT / file).read_text(), words):
            yield f"{where}: {file}: expected one of {', '.join(words)} in it"
        return
    path, _, test = claim.partition("::")
    if not (ROOT / path).is_file() or (path.startswith("tests/") and path.endswith(".py") and not test):
        yield f"{where}: expected a page, a test with its name, or one of {', '.join(_BY_NAME)}, got {claim!r}"
        return
    text = (ROOT / path).read_text()
    if test and not re.search(rf"^(?:async )?def {re.escape(test)}\(", text, re.MULTILINE):
        yield f"{where}: {path}: there is no {test}"
    if not _has(_with_support(ROOT / path), [*words, *(word.replace("/", ".") for word in words)]):
        yield f"{where}: {path}: expected one of {', '.join(words)} in it"


def _with_support(file: Path) -> str:
    """Return a text, and those of the modules of the tests that it imports."""
    found, waiting = dict[Path, str](), [file]
    while waiting:
        if (one := waiting.pop()) not in found and one.is_file():
            found[one] = one.read_text()
            waiting += [ROOT / f"{name.replace('.', '/')}.py" for name in re.findall(r"\btests(?:\.\w+)+", found[one])]
    return "\n".join(found.values())


def _has(text: str, words: list[str]) -> bool:
    return any(word in text for word in words)


def _file_of(reference: str) -> str:
    return f"lab/{reference.partition(':')[0].replace('.', '/')}.py"


_BY_NAME: Mapping[str, Mapping[str, str]] = {
    "prove": {name: _file_of(one) for name, one in FAULT_RUNS.items()},
    "bench": dict.fromkeys(MEASUREMENTS, ""),
    "simulate": dict.fromkeys(SIMULATED, ""),
    "parts": dict.fromkeys(PARTS, ""),
}
"""Kinds of evidence by name, with the file that must have the flow in it; empty: the name says it."""


def page(claims: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the page."""
    lines = [
        "# Quality of flows and parts",
        "",
        "<!-- Derived from tests/quality.toml by `python -m tests.quality`: change that file, not this page. -->",
        "",
        "The tables say which claims hold for each flow and part, and the lists below them name the evidence. A test"
        " checks that it exists and is about the flow or part.",
        "",
    ]
    for title, kind, means in (("Flows", "flow", OF_FLOWS), ("Parts", "part", OF_PARTS)):
        entries = claims[kind]
        lines += [f"## {title}", "", *(f"- *{_plain(name)}*: {what}" for name, what in means.items()), ""]
        lines += [_row([kind, "lifecycle", *map(_plain, means)]), _row(["---"] * (len(means) + 2))]
        lines += [
            _row([f"`{name}`", entry["lifecycle"], *(_state(entry[claim]) for claim in means)])
            for name, entry in entries.items()
        ]
        lines.append("")
        for name, entry in entries.items():
            lines += [f"### {kind.capitalize()} {name}", ""]
            lines += [f"- {_plain(claim)}: {_evidence(entry[claim])}" for claim in means]
            lines.append("")
    lines += ["## Who decides about its interface", ""]
    lines += [f"- `{name}`: {entry['owner']}" for name, entry in claims["flow"].items()]
    lines += ["", "## Lifecycles", "", *(f"- *{name}*: {what}" for name, what in LIFECYCLES.items())]
    return "\n".join([*lines, ""])


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _state(claim: Any) -> str:
    return next(iter(claim)) if isinstance(claim, dict) else "done"


def _evidence(claim: Any) -> str:
    """Return what shows a claim, or why nothing does; a page of ours as a link to it."""
    if isinstance(claim, dict):
        ((state, reason),) = claim.items()
        return f"{state}, {reason}"
    if claim.startswith("docs/"):
        page = claim.removeprefix("docs/")
        return f"[{page}](../{page})"
    if claim == "manifest":
        return "the page of its manifest"
    return f"`make parts ARGS={claim.removeprefix('parts ')}`" if claim.startswith("parts ") else f"`{claim}`"


if __name__ == "__main__":
    PAGE.write_text(page(read()))
