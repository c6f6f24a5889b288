"""The interface of a flow to the rest of the system.

A flow is a folder that plugs in. Its manifest is one frozen object, which the entry point `GROUP` of a
distribution names; those of this distribution are in ``pyproject.toml``. Generic code (composition of a device
server, command line, exports, registration, conformance) goes through the manifests and names no flow, no topic and
no device class.

A manifest loads quickly: it names objects as ``module:name``, and `load` imports them at their first use.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, NamedTuple, get_args

from facade.kernel.clock import Time
from facade.kernel.errors import ConfigError
from facade.kernel.extras import advice
from facade.kernel.names import ENTRY_POINTS, PROGRAM

GROUP = f"{ENTRY_POINTS}.flows"
"""Entry-point group of the manifests."""
SUBCOMMANDS = f"{ENTRY_POINTS}.subcommands"
"""Entry-point group of tables of sub-commands outside the flows; each entry names a `Sequence[Subcommand]`."""

ImportPath = str
"""``module:name`` of an object that is imported at its first use."""


class Isolation(Enum):
    """Isolation of a topic's reader from transactions; Kafka's ``isolation.level``."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


Section = Literal["Operate", "Publish", "Deploy", "Develop"]
SECTIONS: tuple[Section, ...] = get_args(Section)
"""Sections in the help of the program, in order."""


class Subcommand(NamedTuple):
    """One sub-command of the program; its module is imported when it is run."""

    words: tuple[str, ...]
    """Such as ``("tables",)``, or ``("simulate", "quality")`` for one of a group."""
    target: ImportPath
    """A function, whose module may have an ``EPILOG`` for its help, or a Typer application; empty: a group with
    sub-commands from other entries."""
    summary: str
    """One line for the help of the program or of the group."""
    section: Section = "Operate"
    """Section of the help of the program, for a sub-command of one word."""


class WorkerEntry(NamedTuple):
    """A kind of worker process, which reads a topic as a member of the consumer group of its role."""

    name: str
    """Its role in the ICD."""
    topics: tuple[str, ...]
    """Topics that it reads; empty: by the ICD."""
    start: tuple[str, ...]
    """Words of the sub-command that runs it."""
    gone: str = "workerGone"
    """Alarm condition of the ICD while no such worker is alive."""

    @property
    def start_another(self) -> str:
        """Return the command that starts one more worker."""
        return f"{PROGRAM} {' '.join(self.start)}"

    def reads(self, windowed: Iterable[str]) -> set[str]:
        """Return the topics that it reads, given those with windows."""
        return {*self.topics} or {*windowed}


class AuditEntry(NamedTuple):
    """One action of a person or of a program, done or refused, for the sub-command ``audit``."""

    time: Time
    """Time of the request."""
    act: str
    """The action, such as a command, or an acknowledgement of an alarm."""
    target: str
    """Its target, such as a device, or an alarm."""
    client: str
    """Host and process of the client, as reported by Tango or the system; empty: unknown."""
    operator: str
    """Name stated by the caller, unchecked; empty: none."""
    said: str = ""
    """Comment of the operator, argument of the command, or reason of the refusal."""
    kind: str = ""
    """One of `AUDIT_KINDS`."""


AUDIT_KINDS = ("command", "approval", "refusal", "order", "alarm", "mode", "redrive", "sign-in", "comment")
"""Kinds of audit entries; an approval is anything that is said about a command that waits for a second person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPage:
    """The page of a flow in the operator's page. The form of an attribute follows from the ICD."""

    title: str
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Attributes by device class; empty: those of the flow's own classes, except attributes for experts."""
    over: Mapping[str, str] = field(default_factory=dict)
    """For an array: the attribute with the name or the frequency of each element."""
    waterfalls: tuple[str, ...] = ()
    """Spectra that the page also draws as waterfalls."""
    each: tuple[str, ...] = ()
    """Attributes of a table with a row for each device, above the values of one; none: no such table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One flow, for the rest of the system."""

    name: str
    """Name of the flow and of its folder."""
    summary: str
    """One line for people."""
    topics: Mapping[str, Isolation] = field(default_factory=dict)
    """Topics of the flow in the ICD, with the isolation of device servers on each; workers read committed records."""
    set_aside_by: Mapping[str, str] = field(default_factory=dict)
    """For topics that device servers of several roles read: the role that writes the dead letters of records that no
    reader can use. Otherwise, one bad record would become as many dead letters as there are readers."""
    device_classes: Mapping[str, ImportPath] = field(default_factory=dict)
    """Tango base class of each device class of the flow, by its name in the ICD."""
    compose: ImportPath | None = None
    """``Callable[[Server], None]``: adds the flow's part to a device server that has devices of its classes; see
    `facade.kernel.runtime.composition`."""
    for_all: bool = False
    """Whether `compose` is for each device server, with any devices."""
    for_commands: bool = False
    """Whether `compose` is also for devices of other flows with commands."""
    for_sources: bool = False
    """Whether `compose` is also for devices of other flows with attributes that have a `source`."""
    reporter: ImportPath | None = None
    """``Callable[[Server, Find, finds, topics], Reporter]``: raises alerts about the faults found by other flows; one
    flow has it."""
    alert_source: ImportPath | None = None
    """``Callable[[str, Writer, Clock], Alerts]``: raises and clears alerts of a named source, for workers of other
    flows; see `facade.kernel.runtime.flow.Alerts`. One flow has it."""
    log_export: ImportPath | None = None
    """``Callable[[Icd, Settings, str, Clock], None]``: sends the log of a process with a name to a topic from now on.
    One flow has it; see `facade.kernel.logs.start_log_export`."""
    health: ImportPath | None = None
    """``Callable[[Server], HealthSource]``: reports the flow's health issues; see
    `facade.kernel.runtime.health_issues`."""
    workers: tuple[WorkerEntry, ...] = ()
    processes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Processes that a site may run or not, by their role in the ICD: the words of the sub-command that runs one. They
    are missed only if they were heard of and have not ended in order."""
    subcommands: tuple[Subcommand, ...] = ()
    """Including simulators, below ``simulate``."""
    trials: ImportPath | None = None
    """``Callable[[Icd, Settings], Mapping[str, Callable[[Record], Outcome]]]``: by topic, the outcome that a reader
    would give one record now; for `dead-letters redrive`. Other topics are judged by the schema of their message."""
    audit: Mapping[str, ImportPath] = field(default_factory=dict)
    """By topic: ``Callable[[Record], AuditEntry | None]``, which makes the entry of a record."""
    page: FlowPage | None = None
    """Its page in the operator's page, if one of its devices is deployed; None: it has none."""
    interface: ImportPath | None = None
    """``package:folder`` with the flow's part of the ICD (``icd/``, ``messages/``), or ``:folder`` below the shipped
    ``schemas/``; None: it is in ``schemas/`` itself."""
    conformance: ImportPath | None = None
    """``FlowChecks`` of the conformance kit: the flow's own checks of a running system,
    beside those for every topic and device class."""


def load(reference: ImportPath) -> Any:
    """Return the named object.

    Raises
    ------
    ConfigError
        It cannot be imported.
    """
    module, _, name = reference.partition(":")
    try:
        loaded: Any = import_module(module)
        return getattr(loaded, name) if name else loaded
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and (line := advice(error, module)):
            raise ConfigError(f"{error.name} is missing: {line}") from error
        raise ConfigError(f"{reference}: expected an object that can be imported, got {error}") from error


@cache
def _entry_points() -> Any:
    # Read once: each installed distribution has a file of them.
    return entry_points()


@cache
def manifests() -> tuple[Manifest, ...]:
    """Return the manifests of all installed flows, in the order of their names.

    Raises
    ------
    ConfigError
        One cannot be loaded, is no manifest, or has the name, a topic or a device class of another one.
    """
    found: list[Manifest] = []
    for point in sorted(_entry_points().select(group=GROUP), key=lambda point: point.name):
        manifest = load(point.value)
        if not isinstance(manifest, Manifest) or manifest.name != point.name:
            raise ConfigError(f"entry point {GROUP}: {point.name} = {point.value}: expected a manifest of that name")
        for other in found:
            for what in ("topics", "device_classes"):
                if twice := getattr(manifest, what).keys() & getattr(other, what).keys():
                    raise ConfigError(f"flows {other.name} and {manifest.name}: {what}: both have {sorted(twice)}")
        found.append(manifest)
    return tuple(found)


def subcommands() -> Iterator[Subcommand]:
    """Return the sub-commands of all flows, and those of the entry-point group `SUBCOMMANDS`.

    Raises
    ------
    ConfigError
        A manifest or a table of sub-commands cannot be loaded.
    """
    for manifest in manifests():
        yield from manifest.subcommands
    for point in sorted(_entry_points().select(group=SUBCOMMANDS), key=lambda point: point.name):
        yield from load(point.value)
