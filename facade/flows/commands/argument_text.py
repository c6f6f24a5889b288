"""Reads the text of an argument strictly: what two readers could take differently is refused.

Repeated keys, NaN, numbers beyond 64 bits and halves of surrogate pairs are legal for Python's JSON
reader, but could not be handed on to controllers, or would be read by them in some other way.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from facade.errors import ArgumentError
from facade.icd.explain import shown

LONGEST = 1_000_000
"""Longest text of an argument [characters]."""
DEEPEST = 64
"""Deepest nesting of an argument [levels]."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN_NAME = 60

Path = tuple[str | int, ...]
"""Keys and indices from the top down."""


def parse(text: str) -> dict[str, Any]:
    """Read an argument.

    Raises
    ------
    ArgumentError
        It is no JSON object, or says something that cannot be handed on.
    """
    if len(text) > LONGEST:
        raise ArgumentError(f"$: expected at most {LONGEST} characters, got {len(text)}")
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        what = f"{shown(text)} ({error})" if text.strip() else "an empty text"
        raise ArgumentError(f"$: expected a JSON object, got {what}") from None
    if not isinstance(document, dict):
        raise ArgumentError(f"$: expected a JSON object, got {shown(document)}")
    _refuse_unsafe(document, ())
    return document


def json_path(path: Path) -> str:
    """Write a path as JSON paths are written: ``$.beams[0].function``."""
    return "$" + "".join(map(_step, path))


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    if _NAME.fullmatch(part) and len(part) <= _SHOWN_NAME:
        return f".{part}"
    return f"[{part[:_SHOWN_NAME]!r}]"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {shown(repeated)} is there more than once in one object")
    return found


def _refuse_unsafe(value: dict[str, Any] | list[Any], path: Path) -> None:
    """Refuse what is legal for Python's reader, but not for everybody."""
    if len(path) + bool(value) > DEEPEST:
        raise ArgumentError(f"$: expected at most {DEEPEST} levels, got more at {json_path(path[:4])}")
    if isinstance(value, dict) and (broken := next(filter(_SURROGATE.search, value), None)) is not None:
        raise ArgumentError(f"{json_path(path)}: expected keys of whole characters, got {shown(broken)}")
    for name, entry in _entries(value):
        if isinstance(entry, dict | list):
            if entry:
                _refuse_unsafe(entry, (*path, name))
        elif problem := _problem(entry):
            raise ArgumentError(f"{json_path((*path, name))}: {problem}")


def _entries(value: dict[str, Any] | list[Any]) -> Iterable[tuple[str | int, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value)


def _problem(value: Any) -> str:
    if isinstance(value, str) and _SURROGATE.search(value):
        return f"expected text of whole characters, got {shown(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"expected a finite number, got {value}"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"expected an integer of at most 64 bits, got {shown(value)}"
    return ""
