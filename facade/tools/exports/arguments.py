"""Derives the example arguments of commands from their schemas: a file for each command, to be read, changed and sent.

An example stands where all versions of a schema find it: in the definition that they refer to. So it names no version.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from facade.kernel.icd.model import Icd

_WIDTH = 118
_INDENT = "  "


def export(icd: Icd) -> Mapping[str, str]:
    """Return the example of each command, by its path."""
    commands = (command for one in icd.classes.values() for command in one.commands)
    found = ((command.name, example(icd, command.argument)) for command in commands if command.argument)
    return {f"examples/observation/{name}.json": f"{as_text(one)}\n" for name, one in found if one is not None}


def example(icd: Icd, family: str) -> Any:
    """Return the example of an argument by its oldest version; None: the schema has none."""
    schema = next(iter(icd.arguments[family].values()))
    definition = schema.get("$defs", {}).get(schema.get("$ref", "").rpartition("/")[2], schema)
    interface = schema["properties"]["interface"]["const"]
    return next(({"interface": interface, **one} for one in definition.get("examples", ())), None)


def as_text(value: Any) -> str:
    """Return a value as JSON for readers: what fits into a line stands in one."""
    return "\n".join(_lines(value, "", ""))


def _lines(value: Any, before: str, indent: str) -> Iterator[str]:
    line = indent + before + json.dumps(value, ensure_ascii=False)
    if not (isinstance(value, dict | list) and value) or len(line) <= _WIDTH:
        yield line
        return
    names = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    entries = value.values() if isinstance(value, dict) else value
    begin, end = "{}" if isinstance(value, dict) else "[]"
    yield indent + before + begin
    for index, (name, entry) in enumerate(zip(names, entries, strict=True), 1):
        *head, last = _lines(entry, name, indent + _INDENT)
        yield from head
        yield last + ("," if index < len(value) else "")
    yield indent + end
