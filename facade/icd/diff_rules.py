"""What a rule of the comparison of two interfaces is, and the few kinds of rules that most of them are.

A rule looks at the old and the new value of one thing and says what that means, for whom. The rules of each part of the
interface are a table, by field: see `facade.icd.diff_tables`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from facade.icd.explain import shown

Thing = TypeVar("Thing")

CLIENTS = "Tango clients"
CONTROLLERS = "controllers"
OPERATORS = "operators"
ENGINEERS = "site engineers"
PRODUCERS = "producers of {}"
CONSUMERS = "consumers of {}"


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


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a kind of change means: the step, and for whom."""

    step: Step
    whom: tuple[str, ...]

    def of(self, what: str) -> Change:
        """Return the change."""
        return Change(self.step, self.whom, what)


Rule = Callable[[Any, Any], Iterator[Change]]


def breaks(*whom: str) -> Meaning:
    """Say that a change breaks somebody."""
    return Meaning(Step.MAJOR, whom)


def adds(*whom: str) -> Meaning:
    """Say that a change is more than before, and takes nothing from anybody."""
    return Meaning(Step.MINOR, whom)


def text(old: Any, new: Any) -> Iterator[Change]:
    """Judge what only people read."""
    if old != new:
        yield Change(Step.PATCH, (), "text changed")


def ignored(old: Any, new: Any) -> Iterator[Change]:
    """Judge what shows elsewhere."""
    yield from ()


def changed(meaning: Meaning, note: str = "") -> Rule:
    """Judge any change alike."""

    def rule(old: Any, new: Any) -> Iterator[Change]:
        if old != new:
            yield meaning.of(_from_to(old, new) + note)

    return rule


def switched(*, on: Meaning, off: Meaning) -> Rule:
    """Judge what is either so or not."""

    def rule(old: bool, new: bool) -> Iterator[Change]:
        if old != new:
            yield (on if new else off).of(_from_to(old, new))

    return rule


def measured(*, less: Meaning, more: Meaning, none: float = float("inf")) -> Rule:
    """Judge a number; `none` is what its absence stands for."""

    def rule(old: float | None, new: float | None) -> Iterator[Change]:
        before, after = none if old is None else old, none if new is None else new
        if before != after:
            yield (less if after < before else more).of(_from_to(old, new))

    return rule


def members(*, removed: Meaning, added: Meaning, empty_is_any: bool = False) -> Rule:
    """Judge a list whose order says nothing; where an empty one stands for all there is, that is the widest."""

    def rule(old: Collection[str], new: Collection[str]) -> Iterator[Change]:
        if empty_is_any and bool(old) != bool(new):
            yield (removed if new else added).of(_from_to(" ".join(old) or "any", " ".join(new) or "any"))
            return
        if gone := [one for one in old if one not in new]:
            yield removed.of(f"without {', '.join(gone)}")
        if more := [one for one in new if one not in old]:
            yield added.of(f"also {', '.join(more)}")

    return rule


def fields(where: str, rules: Mapping[str, Rule], old: object, new: object) -> Iterator[Difference]:
    """Compare two structs, field by field."""
    if old == new:
        return
    for name, rule in rules.items():
        for change in rule(getattr(old, name), getattr(new, name)):
            yield Difference(f"{where}.{name}", change)


def entries(
    where: str,
    old: Mapping[str, Thing],
    new: Mapping[str, Thing],
    compare: Callable[[str, Thing, Thing], Iterator[Difference]],
    *,
    removed: Meaning,
    added: Meaning,
) -> Iterator[Difference]:
    """Compare two tables: what is gone, what is new, and what is in both."""
    for name, one in old.items():
        place = f"{where}.{name}" if where else name
        if name in new:
            yield from compare(place, one, new[name])
        else:
            yield Difference(place, removed.of("removed"))
    for name in new:
        if name not in old:
            yield Difference(f"{where}.{name}" if where else name, added.of("added"))


def about(subject: str, differences: Iterator[Difference]) -> Iterator[Difference]:
    """Put a subject, such as a topic, into the place that those concerned have for it: ``producers of {}``."""
    for one in differences:
        whom = tuple(each.replace("{}", subject) for each in one.change.whom)
        yield Difference(one.where, Change(one.change.step, whom, one.change.what))


def _from_to(old: Any, new: Any) -> str:
    return f"{_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value else "none" if value is None else shown(value)
