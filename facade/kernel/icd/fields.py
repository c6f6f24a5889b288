"""Access to a message's JSON Schema without trust in its form.

The checks run before a schema is known to be well formed, so these functions skip malformed parts;
`facade.kernel.icd.check_topics` reports them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import Window

ALIASES = "x-aliases"
"""Keyword of a property: its names in earlier versions of the message, the newest first."""
_EXACT = 2**53
_EARLIER = re.compile(r"(.+)-([1-9]\d*)")

Schema = dict[str, Any]


def properties(schema: Schema) -> dict[str, Schema]:
    """Return the properties of an object schema by name."""
    found = schema.get("properties")
    if not isinstance(found, dict):
        return {}
    return {name: field for name, field in found.items() if isinstance(field, dict)}


def kind(field: Schema) -> str:
    """Return the JSON type of a field; a const or an enum without a type counts as a string."""
    found = field.get("type")
    if isinstance(found, str):
        return found
    return "string" if "const" in field or "enum" in field else ""


def is_numeric(field: Schema) -> bool:
    """Return whether a field holds numbers."""
    return kind(field) in ("integer", "number")


def bound(field: Mapping[str, Any], key: str, default: float) -> float:
    """Return the ``minimum`` or ``maximum`` of a field; the default if it has none, or an invalid one."""
    found = field.get(key)
    return default if isinstance(found, bool) or not isinstance(found, int | float) else found


def message_of(icd: Icd, topic: str) -> Schema | None:
    """Return the schema of a topic's message, if the topic is known and has one."""
    found = icd.topics.get(topic)
    if found is None or found.message is None:
        return None
    return icd.messages.get(found.message)


def split_version(name: str) -> tuple[str, str]:
    """Return message and number of an earlier version: ``state`` and ``1`` of ``state-1``; ``state`` has none."""
    found = _EARLIER.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def earlier_versions(icd: Icd, message: str) -> list[Schema]:
    """Return the earlier versions of a message, which its readers also accept."""
    return [schema for name, schema in icd.messages.items() if name != message and split_version(name)[0] == message]


@dataclass(frozen=True, slots=True)
class Translation:
    """Translation of an earlier version of a message to the current one."""

    names: dict[str, str]
    """Current names of the common fields, by their names in the earlier version."""
    defaults: dict[str, Any]
    """Values of the fields that only the current version has; fields without a default are missing."""


def aliases(part: Schema) -> list[str]:
    """Return the names of a field in earlier versions of its message."""
    found = part.get(ALIASES)
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else []


def first_name(field: str, part: Schema) -> str:
    """Return the name of a field in the first version of its message, which summaries keep for ever."""
    return [field, *aliases(part)][-1]


def translation(current: Schema, earlier: Schema) -> Translation:
    """Return the translation of a message from an earlier version to the current one."""
    names, defaults, known = dict[str, str](), dict[str, Any](), properties(earlier)
    for name, part in properties(current).items():
        former = next((one for one in (name, *aliases(part)) if one in known), None)
        if former is not None:
            names[former] = name
        elif "default" in part:
            defaults[name] = part["default"]
    return Translation(names, defaults)


def window_of(icd: Icd, topic: str) -> Window | None:
    """Return the window of a topic, if the topic is known and has one."""
    found = icd.topics.get(topic)
    return None if found is None else found.window


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Visit every schema below one: its dotted path, itself, and whether it is a named property."""
    for name, field in properties(schema).items():
        below = f"{path}properties.{name}"
        yield below, field, True
        yield from walk(field, f"{below}.")
    for keyword in ("items", "additionalProperties"):
        part = schema.get(keyword)
        if isinstance(part, dict):
            yield f"{path}{keyword}", part, False
            yield from walk(part, f"{path}{keyword}.")


def why_no_column(part: Mapping[str, Any], *, required: bool) -> str | None:
    """Return the reason why a property of a message cannot be a column; None: it can."""
    if not required:
        return "expected a required property, as columns have no holes"
    if "const" in part or "enum" in part:
        return None
    if part.get("type") not in ("integer", "number", "string", "boolean"):
        return f"expected integer, number, string, boolean or const, got {part.get('type')!r}"
    if (
        part.get("type") == "integer"
        and not -_EXACT < bound(part, "minimum", -_EXACT) <= bound(part, "maximum", _EXACT) < _EXACT
    ):
        return "expected minimum and maximum within 2^53, as columns are exact only there"
    return None
