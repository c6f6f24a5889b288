"""Compares the Avro schemas beside the messages, which are no part of `facade.icd.model`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from facade.errors import IcdError
from facade.icd.diff_rules import CONSUMERS, PRODUCERS, Change, Difference, Step, about, adds, breaks, entries

_BOTH = (PRODUCERS, CONSUMERS)


def avro_differences(old: Path, new: Path) -> Iterator[Difference]:
    """Compare ``messages/*.avsc`` below two folders.

    A reader knows the schema of a datum by its fingerprint and takes no other, so all but a text breaks both sides.

    Raises
    ------
    IcdError
        A file that is not JSON.
    """
    before, after = _schemas(old / "messages"), _schemas(new / "messages")
    for name in {**before, **after}:
        pair = [{name: one[name]} if name in one else {} for one in (before, after)]
        yield from about(name, entries("messages", pair[0], pair[1], _one, removed=breaks(*_BOTH), added=adds(*_BOTH)))


def _one(where: str, old: Any, new: Any) -> Iterator[Difference]:
    if _without_texts(old) != _without_texts(new):
        yield Difference(where, breaks(*_BOTH).of("its fingerprint changed, so packets by the other one are refused"))
    elif old != new:
        yield Difference(where, Change(Step.PATCH, (), "text changed"))


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_texts(part) for key, part in schema.items() if key not in ("doc", "default")}
    return [_without_texts(part) for part in schema] if isinstance(schema, list) else schema


def _schemas(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.glob("*.avsc")):
        try:
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise IcdError(f"{path}: expected JSON, got: {error}") from error
    return found
