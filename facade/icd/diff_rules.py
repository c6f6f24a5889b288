"""What a rule of the comparison of two interfaces is, and the few kinds of rules that most of them are.

A rule looks at the old and the new value of one thing and says what that means, for whom. The rules of each part of the
interface are a table, by field: see `facade.icd.diff_tables`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

from facade.icd.explain import shown

Thing = TypeVar("Thing")

CLIENTS, CONTROLLERS, OPERATORS, ENGINEERS = "Tango clients", "controllers", "operators", "site engineers"
PRODUCERS, CONSUMERS = "producers of {}", "consumers of {}"


class Step(IntEnum):
    """Step of the version that a difference asks for (semantic versioning)."""

    NONE = 0
    PATCH = 1
    MINOR = 2
    MAJOR = 3


MEANINGS: Mapping[Step, str] = {Step.MAJOR: "breaking", Step.MINOR: "added", Step.PATCH: "text only"}
"""What each step says of the difference. Added: whoever kept to the old interface goes on as before."""


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one thing, and what it means."""

    step: Step
    whom: tuple[str, ...]
    """Who has to know of it; nobody has to for a text."""
    what: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A change with its place."""

    where: str
    """Dotted path, such as ``SdpMaster.totalLost.type``."""
    change: Change


Meaning = Callable[[str], Change]
"""What a kind of change means: the step and for whom; gives the change that is said in some words."""
Rule = Callable[[Any, Any], Iterator[Change]]
TEXT: Meaning = partial(Change, Step.PATCH, ())


def breaks(*whom: str) -> Meaning:
    """Say that a change breaks somebody."""
    return partial(Change, Step.MAJOR, whom)


def adds(*whom: str) -> Meaning:
    """Say that a change is more than before, and takes nothing from anybody."""
    return partial(Change, Step.MINOR, whom)


def text(old: Any, new: Any) -> Iterator[Change]:
    """Judge what only people read."""
    if old != new:
        yield TEXT("text changed")


def ignored(old: Any, new: Any) -> Iterator[Change]:
    """Judge what shows elsewhere."""
    yield from ()


def changed(meaning: Meaning, note: str = "") -> Rule:
    """Judge any change alike."""

    def rule(old: Any, new: Any) -> Iterator[Change]:
        if old != new:
            yield meaning(from_to(old, new) + note)

    return rule


def measured(*, less: Meaning, more: Meaning, none: float = float("inf")) -> Rule:
    """Judge a number, or what is either so (more) or not (less); `none` is what its absence stands for."""

    def rule(old: float | None, new: float | None) -> Iterator[Change]:
        before, after = none if old is None else old, none if new is None else new
        if before != after:
            yield (less if after < before else more)(from_to(old, new))

    return rule


def members(*, removed: Meaning, added: Meaning, empty_is_any: bool = False) -> Rule:
    """Judge a list whose order says nothing; where an empty one stands for all there is, that is the widest."""

    def rule(old: Collection[str], new: Collection[str]) -> Iterator[Change]:
        if empty_is_any and bool(old) != bool(new):
            yield (removed if new else added)(from_to(" ".join(old) or "any", " ".join(new) or "any"))
            return
        if gone := [one for one in old if one not in new]:
            yield removed(f"without {', '.join(gone)}")
        if more := [one for one in new if one not in old]:
            yield added(f"also {', '.join(more)}")

    return rule


def fields(where: str, rules: Mapping[str, Rule], old: object, new: object) -> Iterator[Difference]:
    """Compare two structs, field by field."""
    for name, rule in rules.items():
        for change in rule(getattr(old, name), getattr(new, name)):
            yield Difference(f"{where}.{name}", change)


def entries(
    where: str,
    old: Mapping[str, Thing],
    new: Mapping[str, Thing],
    compare: Callable[[str, Thing, Thing], Iterable[Difference]],
    *,
    removed: Meaning,
    added: Meaning,
    subject: Callable[[str], str] | None = None,
) -> Iterator[Difference]:
    """Compare two tables: what is gone, what is new, and what is in both.

    `subject` gives what is put into the place that those concerned have for an entry: ``producers of {}``.
    """
    for name in {**old, **new}:
        place = f"{where}.{name}" if where else name
        if name in old and name in new:
            found = compare(place, old[name], new[name])
        else:
            found = [Difference(place, removed("removed") if name in old else added("added"))]
        for one in found:
            whom = tuple(each.replace("{}", subject(name)) for each in one.change.whom) if subject else one.change.whom
            yield Difference(one.where, Change(one.change.step, whom, one.change.what))


def from_to(old: Any, new: Any) -> str:
    """Say what a value was and what it has become."""
    return f"{_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value else "none" if value is None else shown(value)
