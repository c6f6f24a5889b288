"""The shape of the ICD: what the TOML files under ``schemas/icd`` may say.

Every struct refuses unknown keys, so that a misspelt key is an error and not a silent default.
Durations are in seconds; names are those that Tango, Kafka and the SKA control model use.
"""

from string import Formatter
from typing import Any, ClassVar, Literal

import msgspec

from facade.icd.topic_model import Figure, IcdTable, Limits, Role, Topic

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


class Sampling(IcdTable, frozen=True, kw_only=True):
    """How often an attribute may speak; see ``facade.runtime.publisher`` for the exact rule."""

    shortest: float = 1.0
    """Least time between two events [s]."""
    longest: float = 10.0
    """Most time between two events while the stream is alive, changed or not [s]."""
    absolute: float = 0.0
    """Absolute deadband, in the attribute's unit."""
    relative: float = 0.0
    """Relative deadband, as a fraction of the last value sent."""


class Source(IcdTable, frozen=True, kw_only=True):
    """Which records an attribute is made of, and by which rule."""

    topic: str
    """Topic of the raw records (ICD name, without the deployment's prefix)."""
    rule: Rule
    field: str | None = None
    """Field of the topic's message; none for rules over whole records (count, rate, gaps ...)."""
    over: Over = "window"
    """``window``: the newest closed window; ``total``: everything since the ledger began."""
    q: float | None = None
    """For ``quantile``: the probability, 0 to 1."""
    of: tuple[str, ...] = ()
    """For ``fraction``: the fields whose sum is the whole; `field` is the part."""


class AccountSource(IcdTable, frozen=True, kw_only=True):
    """A figure of the account of one stream; see ``facade.runtime.accounts``."""

    stream: str
    """Topic whose records are accounted for."""
    figure: Figure


class AccountFigure(IcdTable, frozen=True, kw_only=True):
    """Template of the attribute that shows one figure of the account of each stream."""

    label: str
    """The attribute's label is the stream's name, a colon and this text."""
    description: str
    """Without a full stop; ``{suppressed}`` stands for what the stream's account says about it."""
    format: str = "%d"
    stale_after: float | None = None
    """As for an attribute."""
    limits: Limits | None = None
    expert: bool = False


MOST_PUSHED = 2047
"""Elements of an array that may go as an event. Larger ones Tango does not copy, and sends nothing else before the last
client has them: one that is stopped would hold up all events of the server (seen with cppTango 10)."""


class Attribute(IcdTable, frozen=True, kw_only=True):
    """One Tango attribute: made from records, from an account, or provided by its device class."""

    name: str
    type: TangoType
    label: str
    """Label in Tango clients such as Jive."""
    description: str
    source: Source | None = None
    account: AccountSource | None = None
    """Neither of both, nor `reported`: the device class provides the value itself, under the attribute's name."""
    unit: str | None = None
    """Only for attributes without a field; otherwise it follows from the field and the rule."""
    format: str = ""
    """Tango display format, such as ``%.3f``."""
    access: Literal["READ", "READ_WRITE"] = "READ"
    enum: str | None = None
    """For DevEnum: a name in ``enums.toml``."""
    length: int = 0
    """0: a scalar; otherwise the longest spectrum, or row of an image."""
    height: int = 0
    """0: no image; otherwise the most rows."""
    each: tuple[str, ...] = ()
    """One attribute for each of these, in the place of ``{}`` in name, label and description: ``SKA001..SKA133``."""
    expert: bool = False
    """Shown to experts only (Tango's display level)."""
    sampling: Sampling | None = None
    """None: the class's."""
    stale_after: float | None = None
    """Silence after which the value is ATTR_INVALID [s]; None: the class's; 0: never."""
    limits: Limits | None = None
    reported: bool = False
    """Whether its value is the newest one on topic ``state`` under the attribute's name."""
    initial: str | None = None
    """Only with `reported`: the value until anything was reported, as text."""

    @property
    def is_pushed(self) -> bool:
        """Return whether it goes as change and archive event; else clients are told that it is ready to be read."""
        return self.type == "DevString" or self.length * max(self.height, 1) <= MOST_PUSHED


class CommandDefinition(IcdTable, frozen=True, kw_only=True):
    """One command that a device takes from TM and a controller executes."""

    name: str
    description: str
    argument: str | None = None
    """Family of JSON Schemas under ``schemas/commands``; None: the command takes nothing."""
    state: tuple[str, ...] = ()
    """Tango states in which it is allowed; none: the command is that of an executor, which has no states."""
    obs_state: tuple[str, ...] = ()
    """Values of obsState in which it is allowed; none: any, or the class has no obsState."""
    reports: Literal["obsState", "State"] = "obsState"
    """The attribute whose fresh report shows that it took effect."""
    transitional: str | None = None
    """What `reports` shows until the controller reports anything newer, or the command has its outcome."""
    targets: tuple[str, ...] = ()
    """Values of `reports` that end it, the expected one first; none, as for `state`."""
    commanded: str | None = None
    """commandedObsState after it; None: the first of `targets` where `reports` is obsState, else unchanged."""
    repeatable: bool
    """Whether executing it a second time, after a crash, does no harm."""
    start_within: float
    """A controller must not begin later than this after the call [s]."""
    deadline: float
    """The outcome is expected within this [s]; reported progress extends it."""
    ceiling: float
    """Time after which nobody waits any more, whatever is reported [s]."""
    overtakes: bool = False
    """Whether it is allowed while another command is under way, which it cancels, with all that is queued."""
    approval_within: float = 0.0
    """Time for the approval, where a deployment lets it wait for a second person [s]; 0: it never waits."""


class Query(IcdTable, frozen=True, kw_only=True):
    """One command that the device answers itself."""

    name: str
    description: str
    argument: Literal["DevVoid", "DevString", "DevLong", "DevLong64"]
    argument_description: str = ""
    result: Literal["DevString", "DevLong", "DevEncoded", "DevVarLongStringArray"]
    result_description: str
    max_bytes: int = 0
    """For DevEncoded: the largest content [bytes]."""


class Condition(IcdTable, frozen=True, kw_only=True):
    """One alarm condition (IEC 62682): its meaning, the response, and its way to an alarm."""

    label: str
    description: str
    response: str
    """What the operator is to do."""
    priority: Literal["LOW", "MEDIUM", "HIGH", "HIGHEST"]
    causes: tuple[str, ...] = ()
    """Possible causes, the most likely one first."""
    check: str = ""
    """How the operator finds out which cause it is."""
    ends: str = ""
    """When the alarm clears, and what then is left to do."""
    latching: bool = False
    """Whether an alarm stays, after the condition has cleared, until it is reset."""
    on_delay: float = 0.0
    """How long the condition must be there before it is an alarm [s]."""
    off_delay: float = 0.0
    """How long it must be gone before the alarm clears [s]."""
    re_alarm: float = 0.0
    """An acknowledged alarm asks anew when its source still has news of it so long after [s]; 0: it does not."""
    re_alarm_growth: float = 0.0
    """An acknowledged alarm asks anew at once when a value of it is so many times what it was then; 0: it does not."""
    suppressed_by: tuple[str, ...] = ()
    """Conditions that explain this one: while an alarm of one is active, this one is suppressed by design. With
    ``@LOCATION`` behind the name only an alarm of the place in which the source lies, such as ``rackSilent@rack``."""
    gathers: int = 0
    """The facade raises it when so many alarms are there at once that it explains and nothing else does; 0: others
    raise it."""

    @property
    def suppressors(self) -> tuple[tuple[str, str], ...]:
        """Return each condition that explains this one, with the location where; empty: anywhere."""
        return tuple((one.partition("@")[0], one.partition("@")[2]) for one in self.suppressed_by)


class Location(IcdTable, frozen=True, kw_only=True):
    """Places of one kind, such as racks."""

    description: str
    sources: tuple[str, ...]
    """Sources of alarms that are such a place, with the placeholders of `DeviceClass`; alarms that stand for the place
    as a whole have the first one."""
    within: str = ""
    """The next larger location, in which each place lies; empty: none."""


class DeviceClass(IcdTable, frozen=True, kw_only=True):
    """One Tango device class."""

    name: str
    description: str
    device: str
    """Device name; ``{node:04d}`` stands for the number of the ingest node, ``{subarray:02d}`` for the subarray's: see
    `facade.instances`."""
    instance: str
    """Device-server instance that serves it; ``{rack:02d}`` stands for the rack."""
    sampling: Sampling
    stale_after: float
    attributes: tuple[Attribute, ...]
    commands: tuple[CommandDefinition, ...] = ()
    queries: tuple[Query, ...] = ()
    conditions: bool = False
    """Whether it has one attribute more for each condition of ``conditions.toml``."""
    accounts: dict[Figure, AccountFigure] = msgspec.field(default_factory=dict)
    """Templates: one attribute more for each figure of the account of each stream that has one (`Topic.account`)."""
    complains: Literal["always", "scanning"] = "always"
    """When a State of ALARM or FAULT is a problem of SDP: always, or only while the subarray of the device scans."""
    state_source: str | None = None
    """Windowed topic that gives the Tango State: ON while its records come, then STANDBY; None: another flow does."""

    @property
    def family(self) -> str:
        """Return what the number in its device names counts, ``node`` or ``subarray``; empty: it has one device."""
        return _family(self.device)


class Executor(IcdTable, frozen=True, kw_only=True):
    """A program that takes orders and is not a Tango device, such as a processing controller."""

    description: str
    device: str
    """Its name in records; the placeholders are those of `DeviceClass.device`."""
    commands: tuple[CommandDefinition, ...]
    """Without states and what they lead to, which only devices have."""
    attributes: ClassVar[tuple[Attribute, ...]] = ()
    instance: ClassVar[str] = ""
    """No device-server instance serves it."""

    @property
    def family(self) -> str:
        """Return what the number in its names counts; see `DeviceClass.family`."""
        return _family(self.device)


def _family(template: str) -> str:
    return next((name for _, name, _, _ in Formatter().parse(template) if name is not None), "")


class Icd(IcdTable, frozen=True, kw_only=True):
    """The whole interface, checked."""

    version: str
    classes: dict[str, DeviceClass]
    topics: dict[str, Topic]
    roles: dict[str, Role] = msgspec.field(default_factory=dict)
    """Roles by name."""
    participants: tuple[str, ...] = ()
    """Programs outside the facade: a line for each kind, with the topics that it writes and reads."""
    qos: dict[str, str] = msgspec.field(default_factory=dict)
    """Meaning of each class of topics."""
    quotas: dict[str, int] = msgspec.field(default_factory=dict)
    """What each broker takes of a client that writes topics of such a class and no others, by class [bytes/s]."""
    messages: dict[str, dict[str, Any]]
    """JSON Schemas by message name."""
    enums: dict[str, tuple[str, ...]]
    """Labels by enum name; a label's position is its value."""
    conditions: dict[str, Condition] = msgspec.field(default_factory=dict)
    """Alarm conditions by name."""
    locations: dict[str, Location] = msgspec.field(default_factory=dict)
    """Where sources of alarms are, by name."""
    arguments: dict[str, dict[str, dict[str, Any]]] = msgspec.field(default_factory=dict)
    """JSON Schemas of command arguments by family ("assignres"), then by version ("0.4"), the oldest first."""
    executors: dict[str, Executor] = msgspec.field(default_factory=dict)
    """Programs that take orders and are not Tango devices, by name."""
    units: tuple[str, ...] = ()
    """Units beyond those of `facade.icd.units`."""

    @property
    def commanded(self) -> dict[str, DeviceClass | Executor]:
        """Return all that may have commands, by name: device classes and executors."""
        return {**self.classes, **self.executors}

    def versions(self, family: str) -> str:
        """Return in words which versions of an argument there are, and which are checked as another one."""
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
