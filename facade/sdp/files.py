"""Files that a reader never sees half-written."""

import os
from pathlib import Path
from typing import Any

import msgspec


def write_whole(path: Path, content: bytes) -> None:
    """Write a temporary file and rename it: a reader, or a crash, sees the new or the old content."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(path)


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON atomically, in a folder that is created if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
