"""Finds the package's files that are not Python: schemas, Kafka's pom, package lists."""

import os
from pathlib import Path

INTERFACE = "FACADE_INTERFACE"
"""Environment variable with the folder of another facility: its interface, in the layout of ``schemas/``, and its names
(`facade.kernel.names`). The facility's executables set it; without it, the shipped folder counts."""
_PACKAGE = Path(__file__).resolve().parents[1]


def interface() -> Path:
    """Return the folder with the names and the interface of the facility; raises as `resource`."""
    return Path(given) if (given := os.environ.get(INTERFACE)) else resource("schemas")


def resource(*parts: str) -> Path:
    """Return the path of a shipped file or folder.

    In a source tree the files are the top-level folders themselves; in an installed wheel they
    are copied below ``facade/_data``.

    Raises
    ------
    FileNotFoundError
        The file is in neither place.
    """
    candidates = [root.joinpath(*parts) for root in (_PACKAGE / "_data", _PACKAGE.parent)]
    for path in candidates:
        if path.exists():
            return path
    raise FileNotFoundError(f"{'/'.join(parts)} is not shipped; looked at {', '.join(map(str, candidates))}")
