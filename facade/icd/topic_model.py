"""The shape of topics in the ICD, and of their writers and readers; see `facade.icd.model`."""

from typing import Any, Literal

import msgspec

Encoding = Literal["json", "arrow"]
Side = Literal["send", "receive"]
Trait = Literal["correlated", "traced", "commands"]
Right = Literal["Read", "Write", "Create", "Describe", "DescribeConfigs"]
"""A right on a topic or a group, as Kafka calls it."""
Figure = Literal[
    "consumed", "rate", "used", "late", "suppressed", "dead_lettered", "in_flight", "balance", "lag", "lag_time",
    "overlap", "skipped", "corrected", "redriven",
]  # fmt: skip


_SUMMARIES: dict[Side, str] = {"send": "Write records.", "receive": "Read records."}


class IcdTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the TOML files."""


class Limits(IcdTable, frozen=True, kw_only=True):
    """Alarm and warning limits, in the attribute's unit (Tango's min_alarm and its kin)."""

    min_alarm: float | None = None
    min_warning: float | None = None
    max_warning: float | None = None
    max_alarm: float | None = None


class Window(IcdTable, frozen=True, kw_only=True):
    """How the records of a topic are aggregated in event-time windows."""

    summary: str = "telemetry.summary"
    """Topic of the partial aggregates; the default is for all that have no topic of their own."""
    length: float
    """Length of a window [s]; windows start at whole multiples of it since the Unix epoch."""
    lateness: float
    """A record whose data time is older than the broker's append time by more than this is late [s]."""
    ahead: float
    """A record whose data time is ahead of the broker's append time by more than this is refused [s]."""
    disorder: float
    """A window is closed when all records are read that the broker appended up to this long after its end [s]: so late
    may records come, and so much may the clocks of two brokers differ. A record that comes later corrects the window,
    which is ATTR_WARNING from then on."""
    time: str
    """Field with the data time [us]."""
    group: str | None = None
    """Field that says what a record is about (a node, a subarray, a name); also the key. None: one group for all."""
    groups: Literal["node", "subarray"] | None = None
    """The groups are the nodes or the subarrays of the deployment; records of others are dead letters."""
    most_groups: int = 0
    """Without `groups`: numbers are below this, and of names there are at most so many."""
    all_expected: bool = False
    """Whether each group is to be in each window: values over all groups are ATTR_WARNING while one is missing."""
    sequence: str | None = None
    """Field that counts the records of one group within `epoch`; None: nothing says what is missing or comes twice."""
    epoch: str | None = None
    """Field whose change restarts the sequence."""
    quantile_error: float | None = None
    """Bound of the relative error of quantiles; None: there are none."""


class Account(IcdTable, frozen=True, kw_only=True):
    """Texts and figures of the account of a stream; its attributes are made by `DeviceClass.accounts`."""

    about: str
    """Which records are accounted for, and by whom."""
    figures: tuple[Figure, ...] = (
        "consumed", "used", "suppressed", "dead_lettered", "balance", "overlap", "skipped", "corrected",
    )  # fmt: skip
    """Figures that the account has; with a lag it has a lag_time."""
    suppressed: str = "repeated ones, and those without a value"
    """Which records are left out on purpose."""
    lag: Limits | None = None
    """Limits of the lag; the other figures have the same ones for all streams."""


class Role(IcdTable, frozen=True, kw_only=True):
    """One kind of process that takes part in the bus; rights are given to roles."""

    description: str
    side: Literal["SDP", "facade"]
    """Whose it is."""
    group: str = ""
    """Consumer group of its processes, without the deployment's prefix; empty: none that the interface names."""
    own_groups: bool = False
    """Whether each of its processes has a group of its own to name."""
    transactional_id: str = ""
    """Transactional id of its processes, without the deployment's prefix. A * at its end stands for the slot of a
    worker. Empty: they have no transactions."""
    every_topic: tuple[Right, ...] = ()
    """Rights on each topic, beside those to write and to read the topics that name the role."""
    every_group: tuple[Right, ...] = ()
    """Rights on the group of each role."""


READER = "reader"
"""Group that each reader names which is no member of one, as Kafka's client wants a name; without the prefix. Nothing
is ever committed to it."""


def slot_name(group: str, slot: str) -> str:
    """Return the transactional id of a worker slot, which also is its name in the group; both without the prefix."""
    return f"{group}-{slot}"


class Operation(IcdTable, frozen=True, kw_only=True):
    """The purpose of sending to a topic, or of receiving from it."""

    action: Side
    summary: str
    """One sentence or two."""
    roles: tuple[str, ...] = ()
    """Roles with this purpose; none: all roles that no other operation of the topic names."""
    messages: tuple[str, ...] = ()
    """Messages of the topic that are meant; none: all."""
    reply: str | None = None
    """Topic of the answers."""


class RecordHeader(IcdTable, frozen=True, kw_only=True):
    """The header that describes the bytes of a record."""

    name: str
    message: str
    """Message schema of the JSON in the header."""


class Topic(IcdTable, frozen=True, kw_only=True):
    """One Kafka topic."""

    description: str
    message: str | None = None
    """Name of the message schema under ``schemas/messages``; None: bytes as they came."""
    also: tuple[str, ...] = ()
    """Further messages of the topic, told apart by their field ``schema``."""
    encodings: tuple[Encoding, ...] = ("json",)
    """How its records may be written: ``json``, a message each; ``arrow``, many messages as columns, see
    ``docs/decisions/0022``."""
    key: str
    """What the record key is, in words."""
    writers: tuple[str, ...] = ()
    """Roles that write to it."""
    readers: tuple[str, ...] = ()
    """Roles that read from it."""
    operations: tuple[Operation, ...] = ()
    """Purposes of writing and reading, for the AsyncAPI document; where one is missing, a default summary stands."""
    header: RecordHeader | None = None
    """For records of bytes: the header that describes them."""
    bytes: dict[str, Any] = msgspec.field(default_factory=dict)
    """For records of bytes without such a header: their Message Object, as AsyncAPI has it. An ``x-file`` in it is a
    schema of Avro, which gives description and payload."""
    traits: tuple[Trait, ...] = ()
    """``correlated``: the message has the id of a command; ``traced``: its headers may carry a trace; ``commands``: it
    gives the commands of the ICD, which the AsyncAPI document lists there."""
    partitions: int
    partitions_may_grow: bool = False
    """Whether a deployment may have more of them: no reader minds that a key has moved to another partition."""
    cleanup: Literal["delete", "compact"]
    retention: float | None = None
    """How long records are kept [s]; for ``delete`` only."""
    timestamp: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    max_bytes: int = 1_048_576
    """Largest record [bytes]."""
    qos: Literal["bulk", "log", "telemetry", "state", "command", "alert"]
    setting: str = ""
    """Setting of the deployment without which nothing is written to it; empty: always something may be."""
    window: Window | None = None
    account: Account | None = None
    """None: nobody accounts for its records."""
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
