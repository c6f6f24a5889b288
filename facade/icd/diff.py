"""Compares two interfaces, and says which step of the version that asks for."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec.structs import replace

from facade.errors import IcdError
from facade.icd.diff_rules import (
    CLIENTS,
    CONSUMERS,
    CONTROLLERS,
    ENGINEERS,
    OPERATORS,
    PRODUCERS,
    Difference,
    Rule,
    Step,
    about,
    adds,
    breaks,
    entries,
    fields,
)
from facade.icd.diff_schema import Sides, schema_differences
from facade.icd.diff_tables import ATTRIBUTE, CLASS, COMMAND, CONDITION, QUERY, ROLE, TOPIC, enum_labels
from facade.icd.fields import Schema
from facade.icd.model import Attribute, Command, DeviceClass, Icd, Query
from facade.icd.units import unit_of

Named = TypeVar("Named", Command, Query)
Thing = TypeVar("Thing")
Compare = Callable[[str, Any, Any], Iterator[Difference]]

_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the version has made the step that the differences ask for."""

    needed: Step
    made: Step
    why: str

    @property
    def enough(self) -> bool:
        """Return whether the step is large enough."""
        return self.made >= self.needed


def compare(old: Icd, new: Icd) -> list[Difference]:
    """Return all differences of two interfaces, those first that break somebody."""
    found = [one for part in _PARTS for one in part(old, new)]
    return sorted(found, key=lambda one: -one.change.step)


def verdict(old: str, new: str, differences: Iterable[Difference]) -> Verdict:
    """Judge the step of the version.

    Semantic versioning: what breaks somebody asks for a major step, what is added for a minor one, a text for a patch.
    Below 1.0.0 nothing has been promised for good, and a minor step is enough for what breaks.

    Raises
    ------
    IcdError
        A version that is not MAJOR.MINOR.PATCH.
    """
    before, after = _numbers(old), _numbers(new)
    largest = max((one.change.step for one in differences), default=Step.NONE)
    if before[0] == 0 and largest is Step.MAJOR:
        return Verdict(Step.MINOR, _step(before, after), "below 1.0.0 a minor step is enough for what breaks")
    return Verdict(largest, _step(before, after), "semantic versioning")


def _step(before: tuple[int, ...], after: tuple[int, ...]) -> Step:
    """Return the step from one version to another; one back is none."""
    if after <= before:
        return Step.NONE
    return (Step.MAJOR, Step.MINOR, Step.PATCH)[next(at for at in range(3) if after[at] != before[at])]


def _numbers(version: str) -> tuple[int, ...]:
    found = _VERSION.fullmatch(version)
    if found is None:
        raise IcdError(f"icd.toml: version: expected MAJOR.MINOR.PATCH, got {version!r}")
    return tuple(map(int, found.groups()))


def _classes(old: Icd, new: Icd) -> Iterator[Difference]:
    gone, more = breaks(CLIENTS), adds(CLIENTS)

    def one_class(where: str, before: DeviceClass, after: DeviceClass) -> Iterator[Difference]:
        yield from fields(where, CLASS, before, after)
        attributes = _with_units(old, before), _with_units(new, after)
        yield from entries(where, *attributes, _by(ATTRIBUTE), removed=gone, added=more)
        commands = _by_name(before.commands), _by_name(after.commands)
        yield from entries(where, *commands, _by(COMMAND), removed=gone, added=adds(CLIENTS, CONTROLLERS))
        queries = _by_name(before.queries), _by_name(after.queries)
        yield from entries(where, *queries, _by(QUERY), removed=gone, added=more)

    yield from entries("", old.classes, new.classes, one_class, removed=gone, added=more)


def _by(rules: Mapping[str, Rule]) -> Compare:
    """Return what compares two structs by a table of rules."""
    return lambda where, old, new: fields(where, rules, old, new)


def _by_name(things: Iterable[Named]) -> dict[str, Named]:
    return {one.name: one for one in things}


def _with_units(icd: Icd, device_class: DeviceClass) -> dict[str, Attribute]:
    """Return the attributes, each with the unit that clients see: most follow from fields of messages."""
    return {one.name: replace(one, unit=unit_of(icd, one)) for one in device_class.attributes}


def _conditions(old: Icd, new: Icd) -> Iterator[Difference]:
    who = (OPERATORS, PRODUCERS.replace("{}", "alerts"))
    yield from entries(
        "conditions", old.conditions, new.conditions, _by(CONDITION), removed=breaks(*who), added=adds(*who)
    )


def _enums(old: Icd, new: Icd) -> Iterator[Difference]:
    def labels(where: str, before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[Difference]:
        yield from (Difference(where, change) for change in enum_labels(before, after))

    yield from entries("enums", old.enums, new.enums, labels, removed=breaks(CLIENTS), added=adds(CLIENTS))


def _topics(old: Icd, new: Icd) -> Iterator[Difference]:
    gone, more = breaks(PRODUCERS, CONSUMERS), adds(PRODUCERS, CONSUMERS)
    for name in {**old.topics, **new.topics}:
        before, after = _only(old.topics, name), _only(new.topics, name)
        yield from about(name, entries("topics", before, after, _by(TOPIC), removed=gone, added=more))


def _roles(old: Icd, new: Icd) -> Iterator[Difference]:
    yield from entries("roles", old.roles, new.roles, _by(ROLE), removed=breaks(ENGINEERS), added=adds(ENGINEERS))


def _messages(old: Icd, new: Icd) -> Iterator[Difference]:
    sides = Sides((PRODUCERS,), (CONSUMERS,))
    for name in {**old.messages, **new.messages}:
        before, after = _only(old.messages, name), _only(new.messages, name)
        found = entries("messages", before, after, _schemas(sides), removed=sides.broken, added=sides.widened)
        yield from about(" and ".join(_carriers(new, name) or _carriers(old, name) or [name]), found)


def _schemas(sides: Sides) -> Compare:
    """Return what compares two schemas for those who write and read by them."""
    return lambda where, old, new: schema_differences(where, old, new, sides)


def _carriers(icd: Icd, message: str) -> list[str]:
    """Return the topics that carry a message; one that stands in a header is said to in the topic's description."""
    return [
        name
        for name, topic in icd.topics.items()
        if message in (topic.message, *topic.also) or f"({message}.schema.json)" in topic.description
    ]


def _arguments(old: Icd, new: Icd) -> Iterator[Difference]:
    sides, more = Sides((CLIENTS,), (CONTROLLERS,)), adds(CLIENTS, CONTROLLERS)

    def family(where: str, before: Mapping[str, Schema], after: Mapping[str, Schema]) -> Iterator[Difference]:
        yield from entries(where, before, after, _schemas(sides), removed=sides.narrowed, added=more)

    yield from entries("arguments", old.arguments, new.arguments, family, removed=sides.narrowed, added=more)


def _only(things: Mapping[str, Thing], name: str) -> dict[str, Thing]:
    return {name: things[name]} if name in things else {}


_PARTS: tuple[Callable[[Icd, Icd], Iterator[Difference]], ...] = (
    _classes,
    _enums,
    _conditions,
    _topics,
    _roles,
    _messages,
    _arguments,
)
