"""What a check is, what it is about, and how it ends."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch, NotShown, in_words
from facade.icd.model import Attribute, Command, Condition, DeviceClass, Icd, Query
from facade.icd.topic_model import Topic

Entry = TypeVar("Entry", Attribute, Command, Query, DeviceClass)
Named = TypeVar("Named", Topic, Condition, Icd)


@dataclass(frozen=True, kw_only=True)
class EntryOf(Generic[Entry]):
    """An entry of one device's class, or the class itself."""

    device_class: DeviceClass
    device: str
    entry: Entry


AttributeOf = EntryOf[Attribute]
CommandOf = EntryOf[Command]
QueryOf = EntryOf[Query]
DeviceOf = EntryOf[DeviceClass]


@dataclass(frozen=True, kw_only=True)
class NamedOf(Generic[Named]):
    """An entry of the interface that belongs to no device class."""

    name: str
    entry: Named
    device: str = ""
    """Of an alarm condition: the device that shows it."""


TopicOf = NamedOf[Topic]
ConditionOf = NamedOf[Condition]

Subject = TypeVar("Subject")
Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Generic[Subject]):
    """One aspect of one kind of ICD entry."""

    aspect: str
    claims: tuple[str, ...] = ()
    """Fields of the ICD that it looks at, such as ``Attribute.type``."""
    judge: Callable[[System, Subject], str]
    """Gives what was measured; raises `Mismatch` or `NotShown`."""
    applies: Callable[[Subject], bool] = lambda _: True
    """Whether an entry has this aspect."""
    asks: bool = True
    """Whether it asks the device of the entry, if that has one: nothing is shown where the device does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A check of one entry: one item of the run."""

    id: str
    run: Callable[[System], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one case."""

    id: str
    outcome: Outcome
    detail: str
    """What was measured, what was expected and got, or why nothing can be said."""
    seconds: float = 0.0


def cases(checks: tuple[Check[Subject], ...], subject: Subject, id: str) -> list[Case]:
    """Return the cases of one entry."""
    return [Case(id=f"{id}/{check.aspect}", run=_bound(check, subject)) for check in checks if check.applies(subject)]


def decide(case: Case, system: System) -> Result:
    """Run a case, and return what became of it; what cannot be understood is a failure of the system."""
    begin = system.clock.monotonic()

    def result(outcome: Outcome, detail: str) -> Result:
        return Result(id=case.id, outcome=outcome, detail=detail, seconds=system.clock.monotonic() - begin)

    try:
        return result("passed", case.run(system))
    except NotShown as reason:
        return result("skipped", str(reason))
    except Exception as error:
        return result("failed", in_words(error))


def demand(expected: object, got: object) -> str:
    """Demand that two values are equal; gives the value as what was measured."""
    if expected != got:
        raise Mismatch(repr(expected), repr(got))
    return str(got)


def _bound(check: Check[Any], subject: Any) -> Callable[[System], str]:
    def run(system: System) -> str:
        if check.asks and subject.device and system.is_silent(subject.device):
            raise NotShown(f"{subject.device} does not answer")
        return check.judge(system, subject)

    return run
