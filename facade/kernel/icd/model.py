"""The form of the ICD: the allowed content of the TOML files under ``schemas/icd``.

Every struct refuses unknown keys, so that a misspelt key is an error and not a silent default.
Durations are in seconds; names are those that Tango, Kafka and the SKA control model use.
"""

from string import Formatter
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from facade.kernel.icd.topic_model import (
    Count,
    Figure,
    IcdTable,
    Label,
    Limits,
    PositiveSeconds,
    Role,
    Seconds,
    Sentence,
    Share,
    Topic,
    UpperCamelCase,
)
from facade.kernel.messages import AlertSeverity
from facade.kernel.names import TELESCOPE

Rule = Literal[
    "count",
    "rate",
    "sum",
    "mean",
    "min",
    "max",
    "last",
    "std",
    "quantile",
    "fraction",
    "gaps",
    "duplicates",
    "late",
]
TangoType = Literal["DevBoolean", "DevLong", "DevLong64", "DevULong64", "DevDouble", "DevString", "DevEnum"]
Over = Literal["window", "total"]
_TOTALS: Final = frozenset(
    ("consumed", "used", "late", "suppressed", "dead_lettered", "overlap", "skipped", "corrected", "redriven")
)
"""Figures of an account that count all records since the ledger began."""


class Sampling(IcdTable, frozen=True, kw_only=True):
    """The rate of an attribute's events; see ``facade.kernel.runtime.publisher`` for the exact rule."""

    shortest: Seconds = 1.0
    """Least time between two events [s]."""
    longest: Seconds = 10.0
    """Longest time between two events while the stream is alive [s]."""
    absolute: Seconds = 0.0
    """Absolute deadband, in the attribute's unit."""
    relative: Seconds = 0.0
    """Relative deadband, as a fraction of the last value sent."""

    def is_outside(self, new: float, old: float) -> bool:
        """Return whether a number is outside the deadband of an earlier one."""
        return abs(new - old) > max(self.absolute, self.relative * abs(old))


class Source(IcdTable, frozen=True, kw_only=True):
    """The records that an attribute is derived from, and the rule."""

    topic: str
    """Topic of the raw records (ICD name, without the deployment's prefix)."""
    rule: Rule
    field: str | None = None
    """Field of the topic's message; none for rules over whole records (count, rate, gaps ...)."""
    over: Over = "window"
    """``window``: the newest closed window; ``total``: all records since the ledger began."""
    q: Share | None = None
    """For ``quantile``: the probability, 0 to 1."""
    of: tuple[str, ...] = ()
    """For ``fraction``: the fields whose sum is the whole; `field` is the part."""


class AccountSource(IcdTable, frozen=True, kw_only=True):
    """A figure of the account of one stream; see ``facade.kernel.runtime.accounts``."""

    stream: str
    """Topic whose records are accounted for."""
    figure: Figure


class AccountFigure(IcdTable, frozen=True, kw_only=True):
    """Template of the attribute that shows one figure of the account of each stream."""

    label: str
    """The attribute's label is the stream's name, a colon and this text."""
    description: str
    """Without a full stop; ``{suppressed}`` is replaced by the text in the stream's account."""
    format: str = "%d"
    stale_after: Seconds | None = None
    """As for an attribute."""
    limits: Limits | None = None
    expert: bool = False


MOST_PUSHED = 2047
"""Most elements of an array in an event. Larger ones Tango does not copy, and it sends nothing else before the last
client has received them: a suspended client would hold up all events of the server (seen with cppTango 10)."""


class Attribute(IcdTable, frozen=True, kw_only=True):
    """One Tango attribute: derived from records, from an account, or provided by its device class."""

    name: str
    type: TangoType
    label: Label
    """Label in Tango clients such as Jive."""
    description: Sentence
    source: Source | None = None
    account: AccountSource | None = None
    """Without `source`, `account` and `reported` the device class provides the value itself, under the attribute's
    name."""
    total: bool = False
    """Whether a value without source and account counts what came since a beginning, and so grows while all is well."""
    unit: str | None = None
    """Only for attributes without a field; otherwise it follows from the field and the rule."""
    format: str = ""
    """Tango display format, such as ``%.3f``."""
    access: Literal["READ", "READ_WRITE"] = "READ"
    enum: str | None = None
    """For DevEnum: a name in ``enums.toml``."""
    length: Count = 0
    """0: a scalar; otherwise the longest spectrum, or row of an image."""
    height: Count = 0
    """0: no image; otherwise the most rows."""
    each: tuple[str, ...] = ()
    """One attribute for each of these, with it instead of ``{}`` in name, label and description: ``SKA001..SKA133``."""
    telescopes: tuple[str, ...] = ()
    """Only devices of these telescopes have it; none named: those of all telescopes."""
    expert: bool = False
    """Shown to experts only (Tango's display level)."""
    sampling: Sampling | None = None
    """None: the class's."""
    stale_after: Seconds | None = None
    """Silence after which the value is ATTR_INVALID [s]; None: the class's; 0: never."""
    limits: Limits | None = None
    reported: bool = False
    """Whether its value is the newest one on `topic` under the attribute's name."""
    topic: str = "state"
    """Only with `reported`: the topic of the reports; its writers alone may report the value."""
    initial: str | None = None
    """Only with `reported`: the value before the first report, as text."""

    @property
    def is_total(self) -> bool:
        """Return whether it counts what came since a beginning, by its source or its account or by `total`."""
        counts = self.source is not None and self.source.over == "total"
        return self.total or counts or (self.account is not None and self.account.figure in _TOTALS)

    @property
    def is_pushed(self) -> bool:
        """Return whether it is sent as change and archive event; otherwise clients get data-ready events."""
        return self.type == "DevString" or self.length * max(self.height, 1) <= MOST_PUSHED


class CommandDefinition(IcdTable, frozen=True, kw_only=True):
    """One command that a device takes from TM and a controller executes."""

    name: UpperCamelCase
    description: Sentence
    argument: str | None = None
    """Family of JSON Schemas under ``schemas/commands``; None: no argument."""
    state: tuple[str, ...] = ()
    """Tango states in which it is allowed; none: it is an executor's command, without states."""
    obs_state: tuple[str, ...] = ()
    """Values of obsState in which it is allowed; none: any, or the class has no obsState."""
    reports: Literal["obsState", "State"] = "obsState"
    """The attribute whose new report shows the effect."""
    transitional: str | None = None
    """Value of `reports` until the controller reports a newer one, or the command has its outcome."""
    targets: tuple[str, ...] = ()
    """Values of `reports` that end it, the expected one first; none, as for `state`."""
    commanded: str | None = None
    """commandedObsState after it; None: the first of `targets` where `reports` is obsState, else unchanged."""
    repeatable: bool
    """Whether a second execution, after a crash, does no harm."""
    start_within: PositiveSeconds
    """Time after the call within which a controller must begin [s]."""
    deadline: PositiveSeconds
    """Expected time until the outcome [s]; reported progress extends it."""
    ceiling: PositiveSeconds
    """Time after which the wait for the outcome ends, whatever is reported [s]."""
    overtakes: bool = False
    """Whether it is allowed while another command is under way; it cancels that and all queued ones."""
    approval_within: Seconds = 0.0
    """Time for the approval, if the deployment requires a second person [s]; 0: never required."""
    orders: tuple[str, ...] = ()
    """Commands that its controller may order of other controllers while it executes it, such as ``Dome.Open``."""


class Query(IcdTable, frozen=True, kw_only=True):
    """One command that the device answers by itself."""

    name: UpperCamelCase
    description: Sentence
    argument: Literal["DevVoid", "DevString", "DevLong", "DevLong64"]
    argument_description: str = ""
    result: Literal["DevString", "DevLong", "DevEncoded", "DevVarLongStringArray"]
    result_description: Sentence
    max_bytes: int = 0
    """For DevEncoded: the largest content [bytes]."""


Delay = Annotated[float, Meta(ge=0, le=3600, description="0 to 3600")]
STREAM = "stream"
"""Location of a suppressor that is about the source's own stream: it lags, or a process that reads it has gone."""


class Condition(IcdTable, frozen=True, kw_only=True):
    """One alarm condition (IEC 62682): meaning, response, and rules of its alarm."""

    label: Label
    description: Sentence
    response: Sentence
    """Action of the operator."""
    priority: Literal["LOW", "MEDIUM", "HIGH", "HIGHEST"]
    severity: AlertSeverity | None = None
    """Severity of an alert that the facade raises, unless its source gives another; None: each source gives it."""
    causes: tuple[Sentence, ...] = ()
    """Possible causes, the most likely one first."""
    check: Sentence = ""
    """How the operator finds the cause."""
    ends: Sentence = ""
    """When the alarm clears, and what remains to be done."""
    latching: bool = False
    """Whether an alarm stays after the condition has cleared, until it is reset."""
    on_delay: Delay = 0.0
    """Time for which the condition must be active before it is an alarm [s]."""
    off_delay: Delay = 0.0
    """Time for which it must be gone before the alarm clears [s]."""
    re_alarm: Delay = 0.0
    """Time after which a new alert of an acknowledged alarm is a re-alarm [s]; 0: never."""
    re_alarm_growth: float = 0.0
    """Growth factor of a value since the acknowledgement that leads to a re-alarm at once; 0: never."""
    suppressed_by: tuple[str, ...] = ()
    """Conditions that explain this one: while an alarm of one is active, this one is suppressed by design. With
    ``@LOCATION`` after the name, only by an alarm of the source's own place, such as ``rackSilent@rack``, or of its
    stream, such as ``serverGone@stream``."""
    gathers: Count = 0
    """Number of simultaneous alarms from which the facade raises this condition to explain them; 0: others raise it."""

    @property
    def suppressors(self) -> tuple[tuple[str, str], ...]:
        """Return each condition that explains this one, with its location; empty: anywhere."""
        return tuple((one.partition("@")[0], one.partition("@")[2]) for one in self.suppressed_by)


class Location(IcdTable, frozen=True, kw_only=True):
    """Places of one kind, such as racks."""

    description: Sentence
    sources: Annotated[tuple[str, ...], Meta(min_length=1, description="at least one source")]
    """Sources of alarms that are such a place, with the placeholders of `DeviceClass`; alarms of the whole place have
    the first one."""
    within: str = ""
    """The next larger location, which contains each place; empty: none."""


class DeviceClass(IcdTable, frozen=True, kw_only=True):
    """One Tango device class."""

    name: UpperCamelCase
    description: Sentence
    device: str
    """Device name; ``{node:04d}`` is its number in the family `node`: see
    `facade.kernel.instances`."""
    instance: str
    """Device-server instance of the device; ``{rack:02d}`` is the rack."""
    sampling: Sampling
    stale_after: Seconds
    attributes: tuple[Attribute, ...]
    commands: tuple[CommandDefinition, ...] = ()
    queries: tuple[Query, ...] = ()
    conditions: bool = False
    """Whether it has an additional attribute for each condition of ``conditions.toml``."""
    accounts: dict[Figure, AccountFigure] = msgspec.field(default_factory=dict)
    """Templates: an additional attribute for each figure of each stream's account (`Topic.account`)."""
    complains: Literal["always", "scanning"] = "always"
    """When a State of ALARM or FAULT is a problem: always, or only during a scan with the device."""
    state_source: str | None = None
    """Windowed topic that determines the Tango State: ON while windows come, STANDBY when its records have ended,
    UNKNOWN while no window says so; None: another flow determines it."""

    @property
    def family(self) -> str:
        """Return the placeholder in its device names, such as ``node``; empty: it has one device."""
        return _family(self.device)


class Executor(IcdTable, frozen=True, kw_only=True):
    """A program that executes orders and is not a Tango device, such as a processing controller."""

    description: Sentence
    device: str
    """Its name in records, with the placeholders of `DeviceClass.device`."""
    commands: Annotated[tuple[CommandDefinition, ...], Meta(min_length=1, description="at least one command")]
    """Its commands, without states, which only devices have."""
    attributes: ClassVar[tuple[Attribute, ...]] = ()
    instance: ClassVar[str] = ""
    """It has no device-server instance."""

    @property
    def family(self) -> str:
        """Return the placeholder in its names; see `DeviceClass.family`."""
        return _family(self.device)


def _family(template: str) -> str:
    return next((name for _, name, _, _ in Formatter().parse(template) if name is not None), "")


class Icd(IcdTable, frozen=True, kw_only=True):
    """The whole interface, checked."""

    version: str
    telescope: str = TELESCOPE
    """Telescope of whose devices it has the names; see `facade.kernel.icd.telescope`."""
    classes: dict[str, DeviceClass]
    topics: dict[str, Topic]
    roles: dict[str, Role] = msgspec.field(default_factory=dict)
    """Roles by name."""
    participants: tuple[str, ...] = ()
    """Programs outside the facade: a line for each kind, with its topics."""
    qos: dict[str, str] = msgspec.field(default_factory=dict)
    """Meaning of each class of topics."""
    quotas: dict[str, int] = msgspec.field(default_factory=dict)
    """Rate that each broker accepts from a client that writes only topics of a class, by class [bytes/s]."""
    messages: dict[str, dict[str, Any]]
    """JSON Schemas by message name."""
    enums: dict[str, tuple[str, ...]]
    """Labels by enum name; a label's position is its value."""
    conditions: dict[str, Condition] = msgspec.field(default_factory=dict)
    """Alarm conditions by name."""
    locations: dict[str, Location] = msgspec.field(default_factory=dict)
    """Locations of alarm sources, by name."""
    arguments: dict[str, dict[str, dict[str, Any]]] = msgspec.field(default_factory=dict)
    """JSON Schemas of command arguments by family ("assignres"), then by version ("0.4"), the oldest first."""
    executors: dict[str, Executor] = msgspec.field(default_factory=dict)
    """Programs that execute orders and are not Tango devices, by name."""
    units: tuple[str, ...] = ()
    """Units beyond those of `facade.kernel.icd.units`."""

    @property
    def commanded(self) -> dict[str, DeviceClass | Executor]:
        """Return all possible owners of commands, by name: device classes and executors."""
        return {**self.classes, **self.executors}

    def outputs(self, role: str) -> list[str]:
        """Return the topics that a worker writes to in transactions: it reads them to end an open one of its slot."""
        return [name for name, topic in self.topics.items() if role in topic.writers and role in topic.readers]

    def versions(self, family: str) -> str:
        """Return a text about the versions of an argument, and about those that are checked as another one."""
        own, copies = list[str](), dict[str, list[str]]()
        for version, schema in self.arguments[family].items():
            other = schema.get("$ref", "").partition("#")[0]
            is_copy = other and set(schema["properties"]) == {"interface"}
            (copies.setdefault(other, []) if is_copy else own).append(version)
        also = ", ".join(f"{', '.join(some)} (checked as {other})" for other, some in copies.items())
        return ", ".join(own) + (f"; also accepted: {also}" if also else "")


def instance_role(instance: str) -> str:
    """Return the role of a device-server instance as the ICD names it: ``ingest`` for ``ingest-{rack:02d}``."""
    return instance.partition("-{")[0]
