"""The files that are derived from the ICD: written by ``sdp-facade icd export``, compared by its ``--check``.

They are committed, so that whoever has the sources, or looks at them in a browser, need not run anything to get them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from facade.exports import tango_db
from facade.icd.model import Icd

Export = Callable[[Icd], Mapping[str, str]]
"""Gives contents by path, relative to the top of the sources."""

EXPORTS: Mapping[str, Export] = {
    "tango-db": tango_db.export,
}
"""All of them, by what they are called on the command line. Each owns its files: see `owned`."""


def derive(icd: Icd, names: tuple[str, ...] = ()) -> dict[str, str]:
    """Give the content of every derived file by its path; of some exports only, if any are named."""
    return {path: content for name in names or EXPORTS for path, content in EXPORTS[name](icd).items()}


def write(files: Mapping[str, str], root: Path) -> list[str]:
    """Write what is missing or differs, and give the paths of it."""
    differing = stale(files, root)
    for path in differing:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(files[path], encoding="utf-8")
    return differing


def stale(files: Mapping[str, str], root: Path) -> list[str]:
    """Give the paths of the files that are missing or differ."""
    return [path for path, content in files.items() if _content(root / path) != content]


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
