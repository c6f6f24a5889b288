"""What the ICD asks of a notification topic: which columns to read and which statistics to keep."""

from dataclasses import dataclass

from facade.errors import IcdError
from facade.icd.model import Icd, Rule, Window

MICRO = 1_000_000

_STATISTICS: dict[Rule, frozenset[str]] = {
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
"""Statistics of a field that a rule needs; rules over whole records need none."""


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """One field of the message and the statistics to keep of it."""

    name: str
    integer: bool
    statistics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """How the records of one notification topic are reduced."""

    topic: str
    message: str
    window: Window
    fields: tuple[FieldPlan, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields that have to be read."""
        rule = self.window
        needed = (rule.time, rule.group, rule.sequence, rule.epoch, *(field.name for field in self.fields))
        return tuple(dict.fromkeys(needed))

    @property
    def length_us(self) -> int:
        """Length of a window [us]."""
        return round(self.window.length * MICRO)


def plan(icd: Icd, topic: str) -> Plan:
    """Collect what all attributes of all device classes need of `topic`.

    Raises
    ------
    IcdError
        The topic has no message or no window.
    """
    entry = icd.topics[topic]
    if entry.message is None or entry.window is None:
        raise IcdError(f"topics.toml: topics.{topic}: a notification topic needs `message` and [window]")
    needs: dict[str, set[str]] = {}
    for device_class in icd.classes.values():
        for attribute in device_class.attributes:
            source = attribute.source
            if source is None or source.topic != topic or source.field is None:
                continue
            for field in {source.field, *source.of}:
                needs.setdefault(field, set()).update(_STATISTICS[source.rule])
    properties = icd.messages[entry.message]["properties"]
    fields = tuple(
        FieldPlan(name, properties[name]["type"] == "integer", frozenset(statistics))
        for name, statistics in sorted(needs.items())
    )
    return Plan(topic, entry.message, entry.window, fields)
