"""Finds the package's files that are not Python: schemas, Kafka's pom, package lists."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


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
