"""Looks into a message's JSON Schema without trusting its shape.

The checks run before anybody has said that a schema is well formed, so these functions leave out
what they cannot make sense of; `check_messages` reports it.
"""

from collections.abc import Iterator
from typing import Any

from facade.icd.model import Icd

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
    """Say whether a field holds numbers."""
    return kind(field) in ("integer", "number")


def message_of(icd: Icd, topic: str) -> Schema | None:
    """Return the schema of a topic's message, if the topic is known and has one."""
    found = icd.topics.get(topic)
    if found is None or found.message is None:
        return None
    return icd.messages.get(found.message)


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
