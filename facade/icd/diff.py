"""Compares two interfaces, and says which step of the version that asks for."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
    adds,
    breaks,
    entries,
    fields,
    text,
)
from facade.icd.diff_schema import Sides, schema_differences
from facade.icd.diff_tables import ATTRIBUTE, CLASS, COMMAND, CONDITION, EXECUTOR, QUERY, ROLE, TOPIC, enum_labels
from facade.icd.fields import Schema
from facade.icd.model import DeviceClass, Executor, Icd
from facade.icd.units import unit_of

Compare = Callable[[str, Any, Any], Iterator[Difference]]

_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
_BOTH = (PRODUCERS, CONSUMERS)


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
    gone, more, operators = breaks(CLIENTS), adds(CLIENTS), (OPERATORS, PRODUCERS.replace("{}", "alerts"))
    both, sides, callers = (breaks(*_BOTH), adds(*_BOTH)), Sides(*((one,) for one in _BOTH)), Sides(*_ARGUMENTS)
    found = [
        *entries("", old.classes, new.classes, partial(_class, old, new), removed=gone, added=more),
        *entries(
            "executors",
            old.executors,
            new.executors,
            partial(_executor, old, new),
            removed=breaks(CONTROLLERS),
            added=adds(CONTROLLERS),
        ),
        *entries("enums", old.enums, new.enums, _labels, removed=gone, added=more),
        *entries(
            "conditions",
            old.conditions,
            new.conditions,
            _by(CONDITION),
            removed=breaks(*operators),
            added=adds(*operators),
        ),
        *entries("topics", old.topics, new.topics, _by(TOPIC), removed=both[0], added=both[1], subject=str),
        *entries("roles", old.roles, new.roles, _by(ROLE), removed=breaks(ENGINEERS), added=adds(ENGINEERS)),
        *entries(
            "messages",
            old.messages,
            new.messages,
            partial(schema_differences, sides=sides),
            removed=sides.broken,
            added=sides.widened,
            subject=lambda name: " and ".join(_carriers(new, name) or _carriers(old, name) or [name]),
        ),
        *entries(
            "arguments",
            old.arguments,
            new.arguments,
            partial(_family, callers),
            removed=callers.narrowed,
            added=adds(CLIENTS, CONTROLLERS),
        ),
    ]
    return sorted(found, key=lambda one: -one.change.step)


def compare_avro(old: Path, new: Path) -> Iterator[Difference]:
    """Compare ``messages/*.avsc`` below two folders, which are no part of `facade.icd.model`.

    A reader knows the schema of a datum by its fingerprint, so all but a text breaks both sides, unless the new folder
    keeps the old schema beside the new one: then both are read.

    Raises
    ------
    IcdError
        A file that is not JSON.
    """
    before, after = _avro(old / "messages"), _avro(new / "messages")
    yield from entries(
        "messages", before, after, partial(_fingerprint, after), removed=breaks(*_BOTH), added=adds(*_BOTH), subject=str
    )


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
    # A step back is none.
    at = next((at for at in range(3) if after[at] != before[at]), 0)
    made = (Step.MAJOR, Step.MINOR, Step.PATCH)[at] if after > before else Step.NONE
    if before[0] == 0 and largest is Step.MAJOR:
        return Verdict(Step.MINOR, made, "below 1.0.0 a minor step is enough for what breaks")
    return Verdict(largest, made, "semantic versioning")


def _numbers(version: str) -> tuple[int, ...]:
    found = _VERSION.fullmatch(version)
    if found is None:
        raise IcdError(f"icd.toml: version: expected MAJOR.MINOR.PATCH, got {version!r}")
    return tuple(map(int, found.groups()))


def _class(old: Icd, new: Icd, where: str, before: DeviceClass, after: DeviceClass) -> Iterator[Difference]:
    yield from fields(where, CLASS, before, after)
    for name, rules, whom in (
        ("attributes", ATTRIBUTE, (CLIENTS,)),
        ("commands", COMMAND, (CLIENTS, CONTROLLERS)),
        ("queries", QUERY, (CLIENTS,)),
    ):
        pair = _by_name(old, getattr(before, name)), _by_name(new, getattr(after, name))
        yield from entries(where, *pair, _by(rules), removed=breaks(CLIENTS), added=adds(*whom))


def _executor(old: Icd, new: Icd, where: str, before: Executor, after: Executor) -> Iterator[Difference]:
    yield from fields(where, EXECUTOR, before, after)
    pair = _by_name(old, before.commands), _by_name(new, after.commands)
    yield from entries(where, *pair, _by(COMMAND), removed=breaks(CONTROLLERS), added=adds(CONTROLLERS))


def _by_name(icd: Icd, things: Iterable[Any]) -> dict[str, Any]:
    """Return entries by name, attributes with the unit that clients see: most follow from fields of messages."""
    return {one.name: replace(one, unit=unit_of(icd, one)) if hasattr(one, "unit") else one for one in things}


def _by(rules: Mapping[str, Rule]) -> Compare:
    """Return what compares two structs by a table of rules."""
    return lambda where, old, new: fields(where, rules, old, new)


def _labels(where: str, before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[Difference]:
    yield from (Difference(where, change) for change in enum_labels(before, after))


_ARGUMENTS = ((CLIENTS,), (CONTROLLERS,))
"""Who writes the arguments of commands, and who reads them."""


def _family(sides: Sides, where: str, old: Mapping[str, Schema], new: Mapping[str, Schema]) -> Iterator[Difference]:
    below = partial(schema_differences, sides=sides)
    yield from entries(where, old, new, below, removed=sides.narrowed, added=adds(CLIENTS, CONTROLLERS))


def _carriers(icd: Icd, message: str) -> list[str]:
    """Return the topics that carry a message; one that stands in a header is said to in the topic's description."""
    return [
        name
        for name, topic in icd.topics.items()
        if message in (topic.message, *topic.also) or f"({message}.schema.json)" in topic.description
    ]


def _fingerprint(known: Mapping[str, Any], where: str, old: Any, new: Any) -> Iterator[Difference]:
    if _without_texts(old) != _without_texts(new):
        if kept := [name for name, schema in known.items() if _without_texts(schema) == _without_texts(old)]:
            yield Difference(where, adds(*_BOTH)(f"its fingerprint changed; packets by {kept[0]} are read as well"))
            return
        yield Difference(where, breaks(*_BOTH)("its fingerprint changed, so packets by the other one are refused"))
        return
    yield from (Difference(where, change) for change in text(old, new))


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_texts(part) for key, part in schema.items() if key not in ("doc", "default")}
    return [_without_texts(part) for part in schema] if isinstance(schema, list) else schema


def _avro(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.glob("*.avsc")):
        try:
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise IcdError(f"{path}: expected JSON, got: {error}") from error
    return found
