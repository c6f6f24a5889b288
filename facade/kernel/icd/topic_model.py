"""The form of topics in the ICD, and of their writers and readers; see `facade.kernel.icd.model`."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from facade.kernel.names import FAMILIES, OTHER_SIDE

Encoding = Literal["json", "arrow"]
Side = Literal["send", "receive"]
Trait = Literal["correlated", "traced", "commands", "signed"]
Right = Literal["Read", "Write", "Create", "Describe", "DescribeConfigs"]
"""A right on a topic or a group, by Kafka's name."""
Figure = Literal[
    "consumed", "rate", "used", "late", "suppressed", "dead_lettered", "in_flight", "balance", "lag", "lag_time",
    "overlap", "skipped", "corrected", "redriven",
]  # fmt: skip

# What a value must be, with the words of a finding; NaN and infinity are outside of all bounds.
_LARGEST = 1e300
Number = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST, description="a finite number")]
Seconds = Annotated[float, Meta(ge=0, le=_LARGEST, description="a finite number >= 0")]
PositiveSeconds = Annotated[float, Meta(gt=0, le=_LARGEST, description="a finite number > 0")]
Share = Annotated[float, Meta(gt=0, lt=1, description="number > 0 and < 1")]
UpToADay = Annotated[float, Meta(ge=0, le=86_400, description="number from 0 to 86400")]
Count = Annotated[int, Meta(ge=0, description="integer >= 0")]
PositiveCount = Annotated[int, Meta(ge=1, description="integer >= 1")]
Label = Annotated[str, Meta(pattern=r"\S", description="text")]
Sentence = Annotated[str, Meta(pattern=r"\.\s*$", description="text that ends with a full stop")]
UpperCamelCase = Annotated[str, Meta(pattern=r"^[A-Z][A-Za-z0-9]*$", description="UpperCamelCase")]


def _one_of(*words: str) -> Meta:
    return Meta(pattern=f"^({'|'.join(words)})$", description=f"one of {', '.join(map(repr, words))}")


Family = Annotated[str, _one_of(*FAMILIES)]
Participant = Annotated[str, _one_of(OTHER_SIDE, "facade")]

_SUMMARIES: dict[Side, str] = {"send": "Write records.", "receive": "Read records."}


class IcdTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the TOML files."""


class Limits(IcdTable, frozen=True, kw_only=True):
    """Alarm and warning limits, in the attribute's unit (Tango's min_alarm and its kin)."""

    min_alarm: Number | None = None
    min_warning: Number | None = None
    max_warning: Number | None = None
    max_alarm: Number | None = None


REBUILT = 1.0
"""Longest windows of groups that are rebuilt after a restart [s]; see
`facade.kernel.runtime.event_loop.Timing.rebuild`."""


class Window(IcdTable, frozen=True, kw_only=True):
    """Aggregation of the records of a topic in event-time windows."""

    summary: str = "telemetry.summary"
    """Topic of the partial aggregates; the default is shared by all topics without their own."""
    length: Annotated[float, Meta(ge=1, le=86_400, description="number from 1 to 86400")]
    """Length of a window [s]: a worker that is behind commits once a second, and the longest window is a day. Windows
    start at whole multiples of it since the Unix epoch."""
    lateness: UpToADay
    """A record whose data time is older than the broker's append time by more than this is late [s]."""
    ahead: UpToADay
    """A record whose data time is ahead of the broker's append time by more than this is refused [s]."""
    disorder: UpToADay
    """Time after the end of a window up to which the append times of its records count [s]; the window is closed when
    all these records are read. So records may be late by this time, and the clocks of two brokers may differ by it. A
    later record corrects the window, which is ATTR_WARNING from then on."""
    time: str
    """Field with the data time [us]."""
    group: str | None = None
    """Field with the group of a record (a node, a name); also the key. None: one group for all."""
    groups: Family | None = None
    """Family of devices whose numbers are the groups. Records of others are dead letters."""
    most_groups: int = 0
    """Without `groups`: upper bound of the numbers, or of the number of names."""
    all_expected: bool = False
    """Whether each group is expected in each window: values over all groups are ATTR_WARNING while one is missing."""
    sequence: str | None = None
    """Field that counts the records of one group within `epoch`; None: missing and repeated records are unknown."""
    epoch: str | None = None
    """Field whose change restarts the sequence."""
    quantile_error: Share | None = None
    """Bound of the relative error of quantiles; None: there are no quantiles."""


class Account(IcdTable, frozen=True, kw_only=True):
    """Texts and figures of the account of a stream; its attributes are made by `DeviceClass.accounts`."""

    about: str
    """The records of the account, and their reader."""
    figures: tuple[Figure, ...] = (
        "consumed", "used", "suppressed", "dead_lettered", "balance", "overlap", "skipped", "corrected",
    )  # fmt: skip
    """Figures of the account; a lag implies a lag_time."""
    suppressed: str = "repeated ones, and those without a value"
    """Records that are left out on purpose."""
    lag: Limits | None = None
    """Limits of the lag; other figures have the same limits for all streams."""


class Role(IcdTable, frozen=True, kw_only=True):
    """One kind of process on the bus; rights are given to roles."""

    description: Sentence
    side: Participant
    """Owner of the process."""
    group: str = ""
    """Consumer group of its processes, without the deployment's prefix; empty: none."""
    own_groups: bool = False
    """Whether its processes choose their own group names."""
    transactional_id: str = ""
    """Transactional id of its processes, without the deployment's prefix. A * at its end is a placeholder for the slot
    of a worker. Empty: they have no transactions."""
    every_topic: tuple[Right, ...] = ()
    """Rights on each topic, beside those on the topics that name the role."""
    every_group: tuple[Right, ...] = ()
    """Rights on the group of each role."""
    setting: str = ""
    """Setting of the deployment without which it has no rights; empty: it always has them."""


READER = "reader"
"""Group name of each reader outside a group, as Kafka's client requires one; without the prefix. Nothing is ever
committed to it."""


def slot_name(group: str, slot: str) -> str:
    """Return the transactional id of a worker slot, which is also its name in the group; both without the prefix."""
    return f"{group}-{slot}"


class Operation(IcdTable, frozen=True, kw_only=True):
    """Purpose of sending to a topic, or of receiving from it."""

    action: Side
    summary: str
    """One sentence or two."""
    roles: tuple[str, ...] = ()
    """Roles with this purpose; none: all roles that are not named by another operation of the topic."""
    messages: tuple[str, ...] = ()
    """The messages of the topic for it; none: all."""
    reply: str | None = None
    """Topic of the answers."""


class RecordHeader(IcdTable, frozen=True, kw_only=True):
    """The header that describes the bytes of a record."""

    name: str
    message: str
    """Message schema of the JSON in the header."""


class Topic(IcdTable, frozen=True, kw_only=True):
    """One Kafka topic."""

    description: Sentence
    message: str | None = None
    """Name of the message schema under ``schemas/messages``; None: raw bytes."""
    also: tuple[str, ...] = ()
    """Further messages of the topic, identified by their field ``schema``."""
    encodings: tuple[Encoding, ...] = ("json",)
    """Encodings of its records: ``json``, a message each; ``arrow``, many messages as columns, see
    ``docs/decisions/0022``."""
    key: str
    """The record key, in words."""
    writers: tuple[str, ...] = ()
    """Roles that write to it. The brokers know topics, not messages: each of them can write any record there."""
    shared: str = ""
    """Only with several writers: why they share the topic, and what a record proves then."""
    readers: tuple[str, ...] = ()
    """Roles that read from it."""
    operations: tuple[Operation, ...] = ()
    """Purposes of writing and reading, for the AsyncAPI document; a missing one has a default summary."""
    header: RecordHeader | None = None
    """For records of bytes: the header that describes them."""
    bytes: dict[str, Any] = msgspec.field(default_factory=dict)
    """For records of bytes without such a header: their Message Object, in the form of AsyncAPI. An ``x-file`` in it is
    a schema of Avro, which gives description and payload."""
    traits: tuple[Trait, ...] = ()
    """``correlated``: the message has the id of a command; ``traced``: its headers may have a trace; ``commands``: it
    carries the commands of the ICD, which the AsyncAPI document lists there; ``signed``: its records have signatures if
    the deployment has keys, and their keys begin with the name of a device."""
    of_people: bool = False
    """Whether device servers write down on it what people do: a replay plays it like the topics of the other side."""
    partitions: PositiveCount
    partitions_may_grow: bool = False
    """Whether a deployment may have more of them: no reader minds the move of a key to another partition."""
    cleanup: Literal["delete", "compact"]
    retention: PositiveSeconds | None = None
    """Time for which records are kept [s]; for ``delete`` only."""
    timestamp: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    max_bytes: PositiveCount = 1_048_576
    """Largest record [bytes]."""
    qos: Literal["bulk", "log", "telemetry", "state", "command", "alert"]
    setting: str = ""
    """Setting of the deployment without which the topic is not written; empty: it is always written."""
    window: Window | None = None
    account: Account | None = None
    """None: its records are not accounted for."""
    config: dict[str, str] = msgspec.field(default_factory=dict)
    """Further Kafka topic settings, by Kafka's own names."""

    def operation(self, role: str, action: Side) -> Operation:
        """Return the purpose of a role on one side of the topic."""
        found = [one for one in self.operations if one.action == action and (role in one.roles or not one.roles)]
        found.sort(key=lambda one: not one.roles)
        return found[0] if found else Operation(action=action, summary=_SUMMARIES[action])

    def allows(self, partitions: int) -> bool:
        """Return whether a deployment may have this many partitions."""
        return partitions == self.partitions or (self.partitions_may_grow and partitions > self.partitions)
