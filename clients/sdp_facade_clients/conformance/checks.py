"""A check of a running system: its subject, its result, and the checks that flows add.

A check compares one aspect of one entry of the ICD with the running system. Its `judge` returns the measured value as
text, or raises `Mismatch` or `NotShown`. Any other exception is a failure of the system, too: a kit that stops at the
first odd answer finds one defect a day.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tango

from facade.kernel.bus.port import Record
from facade.kernel.errors import FacadeError
from facade.kernel.icd.model import Icd
from facade.kernel.manifest import load, manifests

if TYPE_CHECKING:
    from sdp_facade_clients.conformance.live_system import LiveSystem


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Choices for one run; see the options of `sdp_facade_clients.conformance.runner.conformance`."""

    tango_host: str
    bootstrap: str
    prefix: str
    only: tuple[str, ...] = ()
    thorough: bool = False
    active: bool = False
    subarray: str = ""
    outcome: tuple[str, str] | None = None
    """A command, and the outcome that its controller is set to; None: all commands are expected to complete."""
    nodes: int | None = None
    subarrays: int | None = None
    window: float = 10.0
    icd: Path | None = None
    junit: Path | None = None
    html: Path | None = None


class Mismatch(AssertionError):
    """The system differs from the ICD."""

    def __init__(self, expected: object, got: object) -> None:
        super().__init__(f"expected {expected}, got {got}")


class NotShown(Exception):
    """The system shows nothing to judge; the text says why. Not a pass."""


def explain(error: Exception) -> str:
    """Return the expectation and the cause of a failure in words."""
    if isinstance(error, Mismatch):
        return str(error)
    if isinstance(error, tango.DevFailed):
        return f"expected an answer, got {error.args[0].reason}: {error.args[0].desc}"
    if isinstance(error, FacadeError):
        return f"expected an answer, got {error}"
    return f"expected an answer that can be understood, got {type(error).__name__}: {error}"


def demand(expected: object, got: object) -> str:
    """Demand that two values are equal, and return the value."""
    if expected != got:
        raise Mismatch(repr(expected), repr(got))
    return str(got)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An entry of the ICD in its place: of one device, of a topic, or of the interface."""

    entry: Any
    """An attribute, command, query, device class, topic or the ICD."""
    name: str = ""
    """Of a topic."""
    device: str = ""
    device_class: Any = None


Judge = Callable[["LiveSystem", Subject], str]


@dataclass(frozen=True, slots=True)
class LiveCheck:
    """One aspect of one kind of entry."""

    aspect: str
    judge: Judge
    applies: Callable[[Subject], bool] = lambda _: True
    asks: bool = True
    """Whether it needs an answer of the device: while the device is silent, it is not shown."""


@dataclass(frozen=True, slots=True)
class Case:
    """A check of one entry: one item of a run."""

    id: str
    check: LiveCheck
    of: Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The end of one case."""

    id: str
    outcome: Literal["passed", "failed", "skipped"]
    detail: str
    """The measured value, the mismatch, or the reason why nothing is shown."""
    seconds: float = 0.0


def cases(checks: Iterable[LiveCheck], of: Subject, id: str) -> Iterator[Case]:
    """Yield the cases of one entry."""
    return (Case(f"{id}/{check.aspect}", check, of) for check in checks if check.applies(of))


def decide(case: Case, system: "LiveSystem") -> CheckResult:
    """Run a case."""
    begin, check, of = system.clock.monotonic(), case.check, case.of
    outcome: Literal["passed", "failed", "skipped"]
    try:
        if check.asks and of.device and system.is_silent(of.device):
            raise NotShown(f"{of.device} does not answer")
        outcome, detail = "passed", check.judge(system, of)
    except NotShown as reason:
        outcome, detail = "skipped", str(reason)
    except Exception as error:
        outcome, detail = "failed", explain(error)
    return CheckResult(id=case.id, outcome=outcome, detail=detail, seconds=system.clock.monotonic() - begin)


def not_shown(reason: str) -> Judge:
    """Return the judge of an aspect that this run cannot show."""

    def judge(_: "LiveSystem", __: Subject) -> str:
        raise NotShown(reason)

    return judge


FindInvalid = Callable[[Icd, list[Record]], list[tuple[Record, str]]]
"""Returns the invalid records of a topic, each with its mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowChecks:
    """The checks that a flow adds to those from the ICD; its manifest names them (`Manifest.conformance`)."""

    commands: Callable[["LiveSystem", Subject], Iterable[LiveCheck]] = lambda system, of: ()
    """Further checks of a command or a query."""
    device: Callable[["LiveSystem", Subject], Iterable[LiveCheck]] = lambda system, of: ()
    """Checks of a device as a whole, after all its entries."""
    records: Mapping[str, FindInvalid] = field(default_factory=dict)
    """Topics whose bytes are not JSON."""
    takes_any: frozenset[str] = frozenset()
    """Queries that accept every argument of their type."""
    prepare: Callable[["LiveSystem"], None] = lambda _: None
    """Demands the conditions of a run before it begins; raises ConfigError."""


def flow_checks() -> list[FlowChecks]:
    """Return the checks of all installed flows."""
    return [load(one.conformance) for one in manifests() if one.conformance is not None]
