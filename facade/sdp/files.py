"""Files that a reader never sees half-written."""

import os
import uuid
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


def write_new(path: Path, content: bytes) -> None:
    """Write a temporary file, make it durable, and give it its name; `FileExistsError` if that name is taken."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(part)  # unlike a rename this replaces nothing
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
