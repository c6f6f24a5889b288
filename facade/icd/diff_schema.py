"""Compares two JSON Schemas: what no longer holds for those who write by the old one, and for those who read by it.

Whoever writes is broken when less is allowed than before; whoever reads, when something is no longer there or is of
another type. That more may come (a further field, a wider range, one more value) is a minor step, on the understanding
that readers take the new interface before writers make use of it: those of this project refuse what they do not know.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from facade.icd.diff_rules import (
    TEXT,
    Change,
    Difference,
    Meaning,
    Rule,
    adds,
    breaks,
    changed,
    entries,
    measured,
    text,
)
from facade.icd.fields import Schema

_TEXTS = frozenset(("title", "description", "default", "$comment", "examples", "x-example-key", "$id", "$schema"))
_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_PARTS = ("items", "additionalProperties")
_APART = frozenset(("const", "enum", "required", "properties", "patternProperties", "$defs", *_PARTS))
"""Keywords that are not judged by their values alone."""
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


class Sides:
    """Who writes by a schema and who reads by it, and what follows for them."""

    def __init__(self, producers: tuple[str, ...], consumers: tuple[str, ...]) -> None:
        self.narrowed, self.widened = breaks(*producers), adds(*consumers)
        self.retyped, self.broken = breaks(*consumers), breaks(*producers, *consumers)
        self.rules: Mapping[str, Rule] = {
            **dict.fromkeys(_TEXTS, text),
            **dict.fromkeys(_LOWER, measured(less=self.widened, more=self.narrowed, none=float("-inf"))),
            **dict.fromkeys(_UPPER, measured(less=self.narrowed, more=self.widened)),
            "type": self._type,
            "x-unit": changed(self.broken),
            "propertyNames": changed(self.narrowed),
            "pattern": lambda old, new: changed(self.widened if new is None else self.narrowed)(old, new),
            "uniqueItems": measured(less=self.widened, more=self.narrowed, none=0),
        }
        self.other = changed(self.broken, note=", which cannot be judged and so counts as breaking")

    def step(self, *, narrower: bool, wider: bool) -> Meaning:
        """Return what it means that less is allowed than before, or more, or another thing."""
        return self.narrowed if narrower else self.widened if wider else self.broken

    def _type(self, old: Any, new: Any) -> Iterator[Change]:
        before, after = _types(old), _types(new)
        if before != after:
            meaning = self.narrowed if after < before else self.retyped if after > before else self.broken
            yield meaning(f"{_joined(old)} -> {_joined(new)}")


def schema_differences(where: str, old: Schema, new: Schema, sides: Sides) -> Iterator[Difference]:
    """Compare two schemas and all that is in them."""
    if old == new:
        return
    below = partial(schema_differences, sides=sides)
    yield from (Difference(where, change) for change in _values(_allowed(old), _allowed(new), sides))
    for keyword in sorted({*old, *new} - _APART):
        for change in sides.rules.get(keyword, sides.other)(old.get(keyword), new.get(keyword)):
            yield Difference(f"{where}.{keyword}", change)
    yield from _properties(where, old, new, sides)
    # A definition that comes or goes shows in what refers to it.
    for keyword, gone, more in (("patternProperties", sides.broken, sides.widened), ("$defs", TEXT, TEXT)):
        tables = old.get(keyword, {}), new.get(keyword, {})
        yield from entries(f"{where}.{keyword}", *tables, below, removed=gone, added=more)
    for keyword in _PARTS:
        before, after = old.get(keyword, True), new.get(keyword, True)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from below(f"{where}.{keyword}", before, after)
        elif before != after:
            what = "narrowed" if before is True or after is False else "widened"
            yield Difference(f"{where}.{keyword}", (sides.narrowed if what == "narrowed" else sides.widened)(what))


def _properties(where: str, old: Schema, new: Schema, sides: Sides) -> Iterator[Difference]:
    """Compare the fields: one that is new breaks those who do not write it yet, if it is required."""
    before, after = old.get("properties", {}), new.get("properties", {})
    was, now = set(old.get("required", ())), set(new.get("required", ()))

    def one(place: str, field: Schema, other: Schema) -> Iterator[Difference]:
        yield from schema_differences(place, field, other, sides)
        name = place.rpartition(".")[2]
        if name in now - was:
            yield Difference(place, sides.narrowed("optional -> required"))
        if name in was - now:
            yield Difference(place, sides.retyped("required -> optional"))

    known = {name: field for name, field in after.items() if name in before}
    yield from entries(where, before, known, one, removed=sides.broken, added=sides.widened)
    for name in (name for name in after if name not in before):
        change = sides.narrowed("added, required") if name in now else sides.widened("added")
        yield Difference(f"{where}.{name}", change)


def _values(before: list[Any] | None, after: list[Any] | None, sides: Sides) -> Iterator[Change]:
    """Compare the values that are listed; None: they are not."""
    if before == after:
        return
    if before is None or after is None or not any(one in after for one in before):
        meaning = sides.step(narrower=before is None, wider=after is None)
        yield meaning(f"{_joined(before)} -> {_joined(after)}")
        return
    if gone := [one for one in before if one not in after]:
        yield sides.narrowed(f"without {_joined(gone)}")
    if more := [one for one in after if one not in before]:
        yield sides.widened(f"also {_joined(more)}")


def _allowed(schema: Schema) -> list[Any] | None:
    found = [schema["const"]] if "const" in schema else schema.get("enum")
    return found if found is None else sorted(found, key=str)


def _types(found: Any) -> frozenset[str]:
    """Return the types that are allowed; each number is also an integer's type, no type is each."""
    types = _TYPES if found is None else (found,) if isinstance(found, str) else found
    return frozenset((*types, *(("integer",) if "number" in types else ())))


def _joined(found: Any) -> str:
    return "any" if found is None else found if isinstance(found, str) else ", ".join(map(str, found))
