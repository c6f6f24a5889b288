"""What a check is, and what it is about."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch
from facade.icd.model import Attribute, Command, Condition, DeviceClass, Query, Topic

Entry = TypeVar("Entry", Attribute, Command, Query)


@dataclass(frozen=True)
class EntryOf(Generic[Entry]):
    """An entry of one device's class."""

    device_class: DeviceClass
    device: str
    id: str
    entry: Entry


AttributeOf = EntryOf[Attribute]
CommandOf = EntryOf[Command]
QueryOf = EntryOf[Query]


@dataclass(frozen=True, slots=True)
class TopicOf:
    """A topic."""

    name: str
    id: str
    entry: Topic


@dataclass(frozen=True, slots=True)
class ConditionOf:
    """An alarm condition, and the device that shows it."""

    name: str
    device: str
    id: str
    entry: Condition


@dataclass(frozen=True, slots=True)
class ClassOf:
    """A device class."""

    id: str
    entry: DeviceClass


@dataclass(frozen=True, slots=True)
class DeviceOf:
    """One device."""

    device_class: DeviceClass
    device: str
    id: str


@dataclass(frozen=True, slots=True)
class WholeIcd:
    """The interface as a whole."""

    id: str = "icd"


Subject = TypeVar("Subject")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A check of one entry: one item of the run."""

    id: str
    run: Callable[[System], str]


def cases(checks: tuple[Check[Subject], ...], subject: Subject, id: str) -> list[Case]:
    """Return the cases of one entry."""
    return [
        Case(id=f"{id}/{check.aspect}", run=_bound(check.judge, subject)) for check in checks if check.applies(subject)
    ]


def demand(expected: object, got: object) -> str:
    """Demand that two values are equal; gives the value as what was measured."""
    if expected != got:
        raise Mismatch(repr(expected), repr(got))
    return str(got)


def _bound(judge: Callable[[System, Subject], str], subject: Subject) -> Callable[["System"], str]:
    return lambda system: judge(system, subject)
