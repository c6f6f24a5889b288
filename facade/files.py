"""Files that a reader never meets half of."""

import os
from pathlib import Path
from typing import Any

import msgspec


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place and rename it: a reader, or a crash, meets the new or the old content."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON that people can read, whole, in a folder that is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
