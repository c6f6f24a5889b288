"""Finds all mistakes of a parsed TOML table, not only the first one.

msgspec stops at the first error and counts list entries by index. This module walks the same structs field by field,
which is slow and therefore only done after msgspec has refused the table.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec.structs import fields

_WORDS: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true or false"}
_LONGEST = 120

Complaint = tuple[str, str]
"""Key and mistake."""


def explain(value: object, wanted: Any, key: str = "") -> Iterator[Complaint]:
    """Yield each reason why a value does not have the wanted type."""
    wanted = _without_none(wanted)
    bare = get_args(wanted)[0] if get_origin(wanted) is Annotated else wanted  # without its bounds
    arguments = get_args(bare)
    if _is_table(bare):
        yield from _explain_table(value, bare, key)
    elif get_origin(bare) is tuple and isinstance(value, list) and value:
        for index, entry in enumerate(value):
            yield from explain(entry, arguments[0], f"{key}[{_name_of(entry, index)}]")
    elif get_origin(bare) is dict and isinstance(value, dict):
        for name, entry in value.items():
            yield from explain(entry, arguments[1], f"{key}[{name}]")
    elif not _fits(value, wanted):
        yield key, f"expected {_in_words(wanted)}, got {shown(value)}"


def shown(value: object) -> str:
    """Return a value for a message, at most one line."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _explain_table(value: object, wanted: type[msgspec.Struct], key: str) -> Iterator[Complaint]:
    if not isinstance(value, dict):
        yield key, f"expected a table, got {shown(value)}"
        return
    known = {field.name: field for field in fields(wanted)}
    prefix = f"{key}." if key else ""
    for name in value.keys() - known.keys():
        yield f"{prefix}{name}", f"expected one of the keys {', '.join(known)}, got an unknown key"
    for name, field in known.items():
        if name in value:
            yield from explain(value[name], field.type, f"{prefix}{name}")
        elif field.required:
            yield f"{prefix}{name}", f"expected {_in_words(_without_none(field.type))}, got no such key"


def _name_of(entry: object, index: int) -> str | int:
    name = entry.get("name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) else index


def _is_table(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)


def _without_none(wanted: Any) -> Any:
    """Strip None from an optional type: TOML has no null."""
    rest = [argument for argument in get_args(wanted) if argument is not type(None)]
    return rest[0] if len(rest) == 1 and len(get_args(wanted)) == 2 else wanted


def _fits(value: object, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    return True


def _in_words(wanted: Any) -> str:
    arguments = get_args(wanted)
    if get_origin(wanted) is Annotated:
        return next((one.description for one in get_args(wanted) if isinstance(one, msgspec.Meta)), None) or ""
    if get_origin(wanted) is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if get_origin(wanted) is tuple:
        return f"a list of {_in_words(arguments[0])}"
    if get_origin(wanted) is dict or _is_table(wanted):
        return "a table"
    return _WORDS.get(wanted, str(wanted))
