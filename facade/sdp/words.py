"""The ICD in words, for terminals, pages and other programs' files."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from facade.kernel.icd.model import Attribute, CommandDefinition, DeviceClass, Query, Sampling, Source
from facade.kernel.icd.topic_model import Limits

_RULES = {
    "count": "number of records",
    "rate": "records per second",
    "gaps": "holes in the sequence numbers",
    "duplicates": "repeated sequence numbers",
    "late": "records too late for their window",
    "sum": "sum of {field}",
    "mean": "mean of {field}",
    "std": "standard deviation of {field}",
    "min": "smallest {field}",
    "max": "largest {field}",
    "last": "newest {field}",
    "quantile": "{q:g} quantile of {field}",
    "fraction": "{field} / ({of})",
}
_LIMIT_WORDS = {
    "min_alarm": "alarm <= {:g}",
    "min_warning": "warning <= {:g}",
    "max_warning": "warning >= {:g}",
    "max_alarm": "alarm >= {:g}",
}
_LAST_DIGITS = re.compile(r"\d+$")
_UNITS_OF_TIME = ((86400, "d"), (3600, "h"), (60, "min"))


def runbook(condition: str) -> str:
    """Return the entry of a condition in docs/reference, in the form for terminals."""
    return f"alerts.md#{condition.lower()}"


@dataclass(frozen=True, slots=True)
class AttributeFamily:
    """Attributes that differ only in a part of their name, or one attribute."""

    name: str
    """With ``{}`` instead of that part; for one attribute, its name."""
    label: str
    description: str
    first: Attribute
    parts: tuple[str, ...]
    """The values for ``{}``, in order; empty for one attribute."""


def source_in_words(attribute: Attribute) -> str:
    """Return the source of an attribute's value in words."""
    if attribute.source is not None:
        return _records_in_words(attribute.source)
    if attribute.account is not None:
        return f"{attribute.account.figure.replace('_', ' ')} of the account of {attribute.account.stream}"
    if attribute.access == "READ_WRITE":
        return "set by clients"
    if attribute.reported:
        return "reported by controllers" if attribute.topic == "state" else f"reported on {attribute.topic}"
    return "provided by the device class"


def _records_in_words(source: Source) -> str:
    pattern = _RULES[source.rule]
    if source.rule == "rate" and source.field is not None:
        pattern = "{field} per second"
    words = pattern.format(field=source.field, q=source.q, of=" + ".join(source.of))
    return f"{words}, {source.over}, {source.topic}"


def sampling_in_words(sampling: Sampling) -> str:
    """Return the sampling of an attribute in words: shortest to longest gap, then the deadbands."""
    words = f"{sampling.shortest:g}-{sampling.longest:g} s"
    deadbands = [f"±{sampling.absolute:g}"] if sampling.absolute else []
    deadbands += [f"±{100 * sampling.relative:g} %"] if sampling.relative else []
    return ", ".join([words, *deadbands])


def limits_in_words(limits: Limits | None) -> str:
    """Return the limits in words, the lowest first; as in Tango, reaching one counts."""
    given = [(words, getattr(limits, name, None)) for name, words in _LIMIT_WORDS.items()]
    return ", ".join(words.format(limit) for words, limit in given if limit is not None)


def staleness_in_words(device_class: DeviceClass, attribute: Attribute) -> str:
    """Return the time of silence after which a value is invalid, in words."""
    stale_after = device_class.stale_after if attribute.stale_after is None else attribute.stale_after
    return f"{stale_after:g} s" if stale_after else "never"


def type_in_words(attribute: Attribute) -> str:
    """Return the Tango type with the largest dimensions, rows first."""
    rows = f"[{attribute.height}]" if attribute.height else ""
    return f"{attribute.type}{rows}[{attribute.length}]" if attribute.length else attribute.type


def effect_in_words(command: CommandDefinition) -> str:
    """Return the effect of a command in words: the attribute that shows it, and its values on the way."""
    ways = filter(None, (command.transitional, " or ".join(command.targets)))
    return f"{command.reports} {' -> '.join(ways)}"


def result_in_words(query: Query) -> str:
    """Return the Tango type of a command's result, with its largest size if it has one."""
    return f"{query.result}, at most {query.max_bytes:,} B" if query.max_bytes else query.result


def duration_in_words(seconds: float) -> str:
    """Return a duration as a whole number of the largest unit."""
    for length, unit in _UNITS_OF_TIME:
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def families(attributes: Sequence[Attribute]) -> Iterator[AttributeFamily]:
    """Group neighbours that come from one entry of the ICD (`Attribute.each`)."""
    at = 0
    while at < len(attributes):
        first, end, parts = attributes[at], at + 1, list[str]()
        while end < len(attributes) and (pair := _differing(first, attributes[end])) is not None:
            parts = [*(parts or pair[:1]), pair[1]]
            end += 1
        name, label, description = _without(first, parts[0]) if parts else (first.name, first.label, first.description)
        yield AttributeFamily(name, label, description, first, tuple(parts))
        at = end


def ranges(parts: Sequence[str]) -> str:
    """Return names that count up as ranges: ``SKA001..SKA133, MKT000..MKT063``."""
    runs: list[list[str]] = []
    for part in parts:
        if runs and _next(runs[-1][-1]) == part:
            runs[-1].append(part)
        else:
            runs.append([part])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)


def _differing(one: Attribute, other: Attribute) -> tuple[str, str] | None:
    """Return the parts by which the names of two attributes differ; None: they are not of one family."""
    words = [pair for pair in zip(one.label.split(), other.label.split(), strict=False) if pair[0] != pair[1]]
    if len(words) != 1 or words[0][0] not in one.name:
        return None
    pair = words[0]
    alike = _without(one, pair[0]) == _without(other, pair[1]) and _rest(one) == _rest(other)
    return pair if alike else None


def _without(attribute: Attribute, part: str) -> tuple[str, str, str]:
    name, label, description = (
        text.replace(part, "{}") for text in (attribute.name, attribute.label, attribute.description)
    )
    return name, label, description


def _rest(attribute: Attribute) -> Attribute:
    return msgspec.structs.replace(attribute, name="", label="", description="")


def _next(name: str) -> str | None:
    digits = _LAST_DIGITS.search(name)
    if digits is None:
        return None
    return f"{name[: digits.start()]}{int(digits[0]) + 1:0{len(digits[0])}d}"
