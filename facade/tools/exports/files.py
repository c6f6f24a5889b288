"""The files that are derived from the ICD: written by ``sdp-facade icd export``, compared by its ``--check``.

They are committed, so that readers of the sources need not generate them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from facade.kernel.icd.model import Icd
from facade.tools.exports import arguments, asyncapi, messages, pogo, reference, tables, tango_db

Export = Callable[[Icd], Mapping[str, str]]
"""Returns contents by path, relative to the top of the sources."""

EXPORTS: Mapping[str, Export] = {
    "asyncapi": asyncapi.export,
    "tango-db": tango_db.export,
    "pogo": pogo.export,
    "archiving": tango_db.export_archiving,
    "alarms": tango_db.export_rules,
    "reference": reference.export,
    "messages": messages.export,
    "examples": arguments.export,
    "tables": tables.export,
}
"""All exports, by their names on the command line. Each has its own files."""

WHOLLY_OWNED = ("pogo/*.xmi", "docs/reference/*.md", "schemas/tables/*.schema.json")
"""Files that are all derived: any other existing file is stale."""

BY_HAND = frozenset(
    f"docs/reference/{page}.md"
    for page in (
        "archive",
        "command-life",
        "extras",
        "glossary",
        "kafka",
        "limits",
        "packages",
        "positions",
        "quality",
        "settings",
        "web-security",
    )
)
"""Exceptions: written by hand, but for `quality`, which tests/quality.py writes."""


def derive(icd: Icd, names: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the content of every derived file by its path; only of some exports, if any are named."""
    return {path: content for name in names or EXPORTS for path, content in EXPORTS[name](icd).items()}


def write(files: Mapping[str, str], root: Path) -> list[str]:
    """Write missing and differing files, remove stale ones, and return the paths of all."""
    differing = stale(files, root)
    for path in differing:
        target = root / path
        if path not in files:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(files[path], encoding="utf-8")
    return differing


def stale(files: Mapping[str, str], root: Path) -> list[str]:
    """Return the paths of missing and differing files, and of stale ones."""
    return [path for path, content in files.items() if _content(root / path) != content] + _left(files, root)


def _left(files: Mapping[str, str], root: Path) -> list[str]:
    """Return the formerly derived files of the given exports."""
    owned = [pattern for pattern in WHOLLY_OWNED if any(PurePosixPath(path).match(pattern) for path in files)]
    there = (path.relative_to(root).as_posix() for pattern in owned for path in sorted(root.glob(pattern)))
    return [path for path in there if path not in files and path not in BY_HAND]


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
