"""The reduction of a windowed topic by the ICD: the columns to read, and the statistics of its groups."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from facade.flows.telemetry.partial import Group, StreamSummary, Summary, summary_form
from facade.kernel.bus.port import OffsetRange
from facade.kernel.clock import SECOND, Duration, as_duration
from facade.kernel.config import Settings
from facade.kernel.errors import IcdError
from facade.kernel.icd import model
from facade.kernel.icd.fields import first_name, kind, properties
from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import REBUILT, Window
from facade.kernel.instances import FAMILIES
from facade.kernel.windows.newest import Rule
from facade.sdp.messages import Partial, RackSummary

_RACKS = "rack-summary"
"""Second message of a summary topic, for summaries of racks."""
_STATISTICS: dict[model.Rule, frozenset[str]] = {
    "rate": frozenset({"sum"}),
    "sum": frozenset({"sum"}),
    "mean": frozenset({"sum"}),
    "fraction": frozenset({"sum"}),
    "min": frozenset({"min"}),
    "max": frozenset({"max"}),
    "last": frozenset({"last"}),
    "std": frozenset({"sum", "m2"}),
    "quantile": frozenset({"sketch"}),
}

FIGURES = ("heapRate", "packetLossFraction", "latencyMean", "heapsLate")
"""Attributes of a node that SdpMaster has of all nodes together, over `RECENT`; of late heaps, the rate."""
RECENT = 10 * SECOND
"""Period by which groups are judged, and of their figures."""


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """One field of the message, with the statistics to keep."""

    name: str
    first_name: str
    """Name in summaries; see `facade.kernel.icd.fields.first_name`."""
    integer: bool
    statistics: frozenset[str]


@dataclass(frozen=True)
class Plan:
    """Reduction of the records of one windowed topic."""

    topic: str
    message: str
    title: str
    """Name of a record in texts."""
    window: Window
    fields: tuple[FieldPlan, ...]
    form: type[Summary]
    names: bool
    """Whether groups have names instead of numbers."""
    racks: bool = False
    """Whether groups are nodes, and workers write one summary for each rack."""
    choices: tuple[str, ...] = ()
    """The names allowed by the schema; none: any."""

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Fields to read as numbers."""
        rule = self.window
        needed = (rule.time, rule.sequence, rule.epoch, *(field.name for field in self.fields))
        return tuple(dict.fromkeys(name for name in needed if name is not None))

    @cached_property
    def first_names(self) -> dict[str, str]:
        """Return the names of the fields in summaries, by their names in the message."""
        return {field.name: field.first_name for field in self.fields}

    @cached_property
    def length_us(self) -> Duration:
        """Length of a window."""
        return as_duration(self.window.length)

    @cached_property
    def rule(self) -> Rule:
        """When windows begin and are closed."""
        return Rule(*map(as_duration, (self.window.length, self.window.disorder, self.window.ahead)))

    @property
    def is_rebuilt(self) -> bool:
        """Whether windows of groups are rebuilt from records after a restart."""
        return self.window.length <= REBUILT

    @property
    def one_group(self) -> bool:
        """Whether all records belong to one group."""
        return self.window.group is None

    @property
    def noun(self) -> str:
        """Noun for a group."""
        return self.window.groups or "group"

    def place(self, group: Group) -> str:
        """Return the source of alerts about a group, such as ``ingest/0007``."""
        return f"{self.topic.partition('.')[0]}/{group:04d}" if isinstance(group, int) else f"{self.topic}/{group}"

    def group(self, text: str | int) -> Group:
        """Return a group from its form in a message or in a snapshot; a ValueError if it should be a number."""
        return str(text) if self.names or self.one_group else int(text)

    def watermark_key(self, partition: int) -> str:
        """Return the key of the watermark of a partition."""
        return f"watermark/{self.topic}/{partition}"

    def key(self, group: Group) -> str:
        """Return the key of the summaries of a group."""
        return f"{self.topic}/{group}" if self.is_shared else str(group)

    def rack_key(self, first: int, last: int) -> str:
        """Return the key of the summaries of the rack with these nodes, such as ``0-49``."""
        return self.key(f"{first}-{last}")

    def summary(
        self, worker: str, partition: int, group: Group, partial: Partial, offsets: OffsetRange, part: int = 0
    ) -> Summary:
        """Return the summary of a partial; `part` numbers the summaries of one transaction, partition and group."""
        own: dict[str, Any] = {"stream": self.topic, "group": str(group)} if self.is_shared else {"group": group}
        return self.form(
            worker=worker,
            partition=partition,
            partials=[partial],
            log=offsets.log,
            offset_from=offsets.begin,
            offset_to=offsets.end,
            part=part,
            **own,
        )

    def rack_summary(
        self, worker: str, partition: int, nodes: range, columns: Mapping[str, Any], offsets: OffsetRange, part: int
    ) -> RackSummary:
        """Return the summary of the nodes of a rack; for `columns` see `facade.flows.telemetry.rack`."""
        return RackSummary(
            worker=worker,
            stream=self.topic,
            partition=partition,
            first=nodes[0],
            last=nodes[-1],
            log=offsets.log,
            offset_from=offsets.begin,
            offset_to=offsets.end,
            part=part,
            contiguous=self.is_contiguous,
            **columns,
        )

    @property
    def is_shared(self) -> bool:
        """Whether the summary topic is for several streams."""
        return issubclass(self.form, StreamSummary)

    @property
    def is_contiguous(self) -> bool:
        """Whether a worker also writes summaries of racks without records, so that a lost summary shows."""
        return self.racks and not self.is_shared

    def groups(self, settings: Settings) -> range | tuple[str, ...]:
        """Return the groups of a deployment; none: their names are not known beforehand."""
        rule = self.window
        if rule.groups is not None:
            return FAMILIES[rule.groups].numbers(settings)
        return ("",) if self.one_group else self.choices if self.names else range(rule.most_groups)


def plan(icd: Icd, topic: str) -> Plan:
    """Collect the needs of all attributes of all device classes; an IcdError says that the topic lacks an entry."""
    entry = icd.topics[topic]
    to = icd.topics[entry.window.summary] if entry.window is not None else None
    if entry.message is None or entry.window is None or to is None or to.message is None:
        raise IcdError(f"topics.toml: topics.{topic}: a windowed topic needs `message`, [window] and its summary topic")
    needs: dict[str, set[str]] = {}
    for device_class in icd.classes.values():
        for attribute in device_class.attributes:
            source = attribute.source
            if source is None or source.topic != topic or source.field is None:
                continue
            for field in {source.field, *source.of}:
                needs.setdefault(field, set()).update(_STATISTICS[source.rule])
    schema = icd.messages[entry.message]
    known = properties(schema)
    fields = tuple(
        FieldPlan(name, first_name(name, known[name]), kind(known[name]) == "integer", frozenset(statistics))
        for name, statistics in sorted(needs.items())
    )
    group = known.get(entry.window.group or "", {})
    return Plan(
        topic=topic,
        message=entry.message,
        title=str(schema.get("title", entry.message)),
        window=entry.window,
        fields=fields,
        form=summary_form(icd.messages[to.message], entry.window.group),
        names=kind(group) == "string",
        racks=entry.window.groups == "node" and _RACKS in to.also,
        choices=tuple(group.get("enum", ())),
    )


def plans(icd: Icd, topics: Iterable[str] | None = None) -> dict[str, Plan]:
    """Return the plans of all windowed topics, or of some."""
    return {name: plan(icd, name) for name in topics or windowed(icd)}


def windowed(icd: Icd) -> list[str]:
    """Return the topics that have a window."""
    return [name for name, topic in icd.topics.items() if topic.window is not None]
