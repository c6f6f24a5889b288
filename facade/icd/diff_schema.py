"""Compares two JSON Schemas: what no longer holds for those who write by the old one, and for those who read by it.

Whoever writes is broken when less is allowed than before; whoever reads, when something is no longer there or is of
another type. That more may come (a further field, a wider range, one more value) is a minor step, on the understanding
that readers take the new interface before writers make use of it: those of this project refuse what they do not know.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from facade.icd.diff_rules import (
    Change,
    Difference,
    Meaning,
    Rule,
    Step,
    adds,
    breaks,
    changed,
    entries,
    measured,
    switched,
    text,
)
from facade.icd.fields import Schema

_TEXTS = frozenset(("title", "description", "default", "$comment", "examples", "$id", "$schema"))
_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_TABLES = ("properties", "patternProperties", "$defs")
_PARTS = ("items", "additionalProperties")
_INTERNAL = Meaning(Step.PATCH, ())


class Sides:
    """Who writes by a schema and who reads by it, and what follows for them."""

    def __init__(self, producers: tuple[str, ...], consumers: tuple[str, ...]) -> None:
        both = (*producers, *consumers)
        self.narrowed = breaks(*producers)
        self.widened = adds(*consumers)
        self.retyped = breaks(*consumers)
        self.broken = breaks(*both)
        self.rules: Mapping[str, Rule] = {
            **dict.fromkeys(_TEXTS, text),
            **dict.fromkeys(_LOWER, measured(less=self.widened, more=self.narrowed, none=float("-inf"))),
            **dict.fromkeys(_UPPER, measured(less=self.narrowed, more=self.widened)),
            "type": self._type,
            "x-unit": changed(self.broken),
            "pattern": self._pattern,
            "propertyNames": changed(self.narrowed),
            "uniqueItems": switched(on=self.narrowed, off=self.widened),
        }

    def _type(self, old: Any, new: Any) -> Iterator[Change]:
        before, after = _types(old), _types(new)
        if before == after:
            return
        what = f"{_joined(old)} -> {_joined(new)}"
        yield (self.narrowed if after < before else self.retyped if after > before else self.broken).of(what)

    def _pattern(self, old: str | None, new: str | None) -> Iterator[Change]:
        yield from changed(self.widened if new is None else self.narrowed)(old, new)


def schema_differences(where: str, old: Schema, new: Schema, sides: Sides) -> Iterator[Difference]:
    """Compare two schemas and all that is in them."""
    if old == new:
        return
    for change in _values(old, new, sides):
        yield Difference(where, change)
    for keyword in sorted({*old, *new} - {"const", "enum", "required", *_TABLES, *_PARTS}):
        rule = sides.rules.get(
            keyword, changed(sides.broken, note=", which cannot be judged and so counts as breaking")
        )
        for change in rule(old.get(keyword), new.get(keyword)):
            yield Difference(f"{where}.{keyword}", change)
    yield from _properties(where, old, new, sides)
    yield from _required(where, old, new, sides)
    for keyword in ("patternProperties", "$defs"):
        yield from _table(f"{where}.{keyword}", old.get(keyword, {}), new.get(keyword, {}), sides, keyword)
    for keyword in _PARTS:
        yield from _part(f"{where}.{keyword}", old.get(keyword, True), new.get(keyword, True), sides)


def _properties(where: str, old: Schema, new: Schema, sides: Sides) -> Iterator[Difference]:
    """Compare the fields: one that is new breaks those who do not write it yet, if it is required."""
    required = set(new.get("required", ()))
    before, after = old.get("properties", {}), new.get("properties", {})
    yield from entries(
        where,
        before,
        {name: field for name, field in after.items() if name in before},
        lambda place, one, other: schema_differences(place, one, other, sides),
        removed=sides.broken,
        added=sides.widened,
    )
    for name in after:
        if name not in before:
            meaning, what = (sides.narrowed, "added, required") if name in required else (sides.widened, "added")
            yield Difference(f"{where}.{name}", meaning.of(what))


def _required(where: str, old: Schema, new: Schema, sides: Sides) -> Iterator[Difference]:
    """Compare what is required among the fields that were there and still are."""
    before, after = set(old.get("required", ())), set(new.get("required", ()))
    for name in old.get("properties", {}):
        if name not in new.get("properties", {}):
            continue
        if name in after - before:
            yield Difference(f"{where}.{name}", sides.narrowed.of("optional -> required"))
        if name in before - after:
            yield Difference(f"{where}.{name}", sides.retyped.of("required -> optional"))


def _table(where: str, old: Schema, new: Schema, sides: Sides, keyword: str) -> Iterator[Difference]:
    """Compare schemas by name; a definition that comes or goes shows in what refers to it."""
    gone, more = (_INTERNAL, _INTERNAL) if keyword == "$defs" else (sides.broken, sides.widened)
    yield from entries(
        where,
        old,
        new,
        lambda place, one, other: schema_differences(place, one, other, sides),
        removed=gone,
        added=more,
    )


def _part(where: str, old: Schema | bool, new: Schema | bool, sides: Sides) -> Iterator[Difference]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from schema_differences(where, old, new, sides)
    elif old != new:
        narrowed = old is True or new is False
        yield Difference(
            where, (sides.narrowed if narrowed else sides.widened).of("narrowed" if narrowed else "widened")
        )


def _values(old: Schema, new: Schema, sides: Sides) -> Iterator[Change]:
    before, after = _allowed(old), _allowed(new)
    if before == after:
        return
    if before is None or after is None:
        yield (sides.narrowed if before is None else sides.widened).of(f"{_joined(before)} -> {_joined(after)}")
        return
    gone = [one for one in before if one not in after]
    more = [one for one in after if one not in before]
    if len(gone) == len(before):
        yield sides.broken.of(f"{_joined(before)} -> {_joined(after)}")
        return
    if gone:
        yield sides.narrowed.of(f"without {_joined(gone)}")
    if more:
        yield sides.widened.of(f"also {_joined(more)}")


def _allowed(schema: Schema) -> list[Any] | None:
    """Return the values that are listed; None: they are not."""
    found = [schema["const"]] if "const" in schema else schema.get("enum")
    return found if found is None else sorted(found, key=str)


def _types(found: Any) -> frozenset[str]:
    """Return the types that are allowed; each number is also an integer's type, no type is each."""
    every = ("object", "array", "string", "number", "integer", "boolean", "null")
    types = every if found is None else (found,) if isinstance(found, str) else found
    return frozenset((*types, *(("integer",) if "number" in types else ())))


def _joined(found: Any) -> str:
    return "any" if found is None else found if isinstance(found, str) else ", ".join(map(str, found))
