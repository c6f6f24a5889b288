"""Checks of where an attribute's value comes from: topic, field, rule, and the type that follows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from facade.icd.check_attributes import at, each
from facade.icd.fields import Schema, is_numeric, kind, message_of, properties
from facade.icd.finding import Finding
from facade.icd.model import Attribute, DeviceClass, Icd, Rule, Source


@dataclass(frozen=True, slots=True)
class _Traits:
    """What a rule needs and gives."""

    field: Literal["none", "optional", "needed"]
    additive: bool
    """Whether it may run over everything since the ledger began."""
    type: Literal["integer", "double", "field"]
    """What it gives; ``field``: the type of its field."""


_RULES: dict[Rule, _Traits] = {
    "count": _Traits("none", additive=True, type="integer"),
    "gaps": _Traits("none", additive=True, type="integer"),
    "duplicates": _Traits("none", additive=True, type="integer"),
    "late": _Traits("none", additive=True, type="integer"),
    "rate": _Traits("optional", additive=False, type="double"),
    "sum": _Traits("needed", additive=True, type="field"),
    "mean": _Traits("needed", additive=False, type="double"),
    "std": _Traits("needed", additive=False, type="double"),
    "quantile": _Traits("needed", additive=False, type="double"),
    "fraction": _Traits("needed", additive=False, type="double"),
    "min": _Traits("needed", additive=False, type="field"),
    "max": _Traits("needed", additive=False, type="field"),
    "last": _Traits("needed", additive=False, type="field"),
}
_NEED_WINDOW_ALWAYS = frozenset({"gaps", "duplicates", "late"})
_INT32 = 2**31


def one_source_at_most(icd: Icd) -> Iterator[Finding]:
    """Refuse a value that is made of records and of an account."""
    for owner, attribute in each(icd):
        if attribute.source is not None and attribute.account is not None:
            yield at(owner, attribute, "account", "expected none beside source, got both")


def only_provided_values_are_written(icd: Icd) -> Iterator[Finding]:
    """Refuse that a client writes what the bus says."""
    for owner, attribute in each(icd):
        if attribute.access == "READ_WRITE" and (attribute.source or attribute.account):
            yield at(owner, attribute, "access", "expected 'READ', because it has a source, got 'READ_WRITE'")


def sourced_values_are_scalars(icd: Icd) -> Iterator[Finding]:
    """Require a scalar for a rule or a figure: each gives one value."""
    for owner, attribute in each(icd):
        if attribute.length > 0 and (attribute.source or attribute.account):
            what = f"expected 0, because a source gives one value, got {attribute.length}"
            yield at(owner, attribute, "length", what)


def topics_exist(icd: Icd) -> Iterator[Finding]:
    """Require a topic of topics.toml for every source and account."""
    for owner, attribute in each(icd):
        if attribute.source is not None and attribute.source.topic not in icd.topics:
            what = f"expected one of {sorted(icd.topics)}, got {attribute.source.topic!r}"
            yield at(owner, attribute, "source.topic", what)
        if attribute.account is not None and attribute.account.stream not in icd.topics:
            what = f"expected one of {sorted(icd.topics)}, got {attribute.account.stream!r}"
            yield at(owner, attribute, "account.stream", what)


def windows_exist(icd: Icd) -> Iterator[Finding]:
    """Require the topic's window table for a rule over a window or over sequence numbers."""
    for owner, attribute, source in _sourced(icd):
        topic = icd.topics.get(source.topic)
        needed = source.over == "window" or source.rule in _NEED_WINDOW_ALWAYS
        if needed and topic is not None and topic.window is None:
            what = f"expected a topic with a window for {source.rule!r}, got {source.topic!r} without"
            yield at(owner, attribute, "source.topic", what)


def fields_are_given_where_needed(icd: Icd) -> Iterator[Finding]:
    """Require a field for some rules; refuse one for those about whole records."""
    for owner, attribute, source in _sourced(icd):
        wanted = _RULES[source.rule].field
        if wanted == "needed" and source.field is None:
            yield at(owner, attribute, "source.field", f"expected a field for {source.rule!r}, got none")
        elif wanted == "none" and source.field is not None:
            what = f"expected none, because {source.rule!r} is about whole records, got {source.field!r}"
            yield at(owner, attribute, "source.field", what)


def fields_exist(icd: Icd) -> Iterator[Finding]:
    """Require fields of the topic's message."""
    for owner, attribute, source in _sourced(icd):
        schema = message_of(icd, source.topic)
        known = properties(schema or {})
        named = [("field", source.field)] if source.field is not None else []
        for key, name in [*named, *(("of", name) for name in source.of)]:
            if source.topic in icd.topics and name not in known:
                what = f"expected a field of the message ({', '.join(known) or 'none'}), got {name!r}"
                yield at(owner, attribute, f"source.{key}", what)


def fields_are_numeric(icd: Icd) -> Iterator[Finding]:
    """Require numbers for every rule but ``last``."""
    for owner, attribute, source in _sourced(icd):
        known = properties(message_of(icd, source.topic) or {})
        if source.rule == "last":
            continue
        for key, name in (("field", source.field), *(("of", name) for name in source.of)):
            if name in known and not is_numeric(known[name]):
                what = f"expected a numeric field for {source.rule!r}, got {name!r} ({kind(known[name])})"
                yield at(owner, attribute, f"source.{key}", what)


def quantiles_have_a_probability(icd: Icd) -> Iterator[Finding]:
    """Require 0 < q < 1 for quantiles, and no q for others."""
    for owner, attribute, source in _sourced(icd):
        if source.rule != "quantile" and source.q is not None:
            yield at(owner, attribute, "source.q", f"expected none for {source.rule!r}, got {source.q:g}")
        elif source.rule == "quantile" and not (source.q is not None and 0 < source.q < 1):
            yield at(owner, attribute, "source.q", f"expected number > 0 and < 1, got {source.q}")


def fractions_have_a_whole(icd: Icd) -> Iterator[Finding]:
    """Require a whole that contains the part and adds up like with like."""
    for owner, attribute, source in _sourced(icd):
        if source.rule != "fraction":
            if source.of:
                what = f"expected none for {source.rule!r}, got {list(source.of)}"
                yield at(owner, attribute, "source.of", what)
            continue
        if source.field not in source.of or len(set(source.of)) < len(source.of):
            what = f"expected different fields with {source.field!r} among them, got {list(source.of)}"
            yield at(owner, attribute, "source.of", what)
        known = properties(message_of(icd, source.topic) or {})
        units = {str(known[name].get("x-unit", "")) for name in source.of if name in known}
        if len(units) > 1:
            yield at(owner, attribute, "source.of", f"expected fields of one unit, got {sorted(units)}")


def totals_add_up(icd: Icd) -> Iterator[Finding]:
    """Refuse totals of what does not add up."""
    for owner, attribute, source in _sourced(icd):
        if source.over == "total" and not _RULES[source.rule].additive:
            yield at(owner, attribute, "source.over", f"expected 'window' for {source.rule!r}, got 'total'")


def units_follow_from_fields(icd: Icd) -> Iterator[Finding]:
    """Refuse a unit beside a field: it is stated once, at the field."""
    for owner, attribute, source in _sourced(icd):
        if source.field is not None and attribute.unit is not None:
            what = f"expected none, because it follows from {source.field!r}, got {attribute.unit!r}"
            yield at(owner, attribute, "unit", what)


def types_fit(icd: Icd) -> Iterator[Finding]:
    """Require a Tango type that holds every value which the rule can give."""
    for owner, attribute in each(icd):
        wanted: tuple[str, ...] = ()
        if attribute.source is not None:
            wanted = _types_of_source(icd, attribute, attribute.source)
        elif attribute.account is not None:
            wanted = ("DevDouble",) if attribute.account.figure == "rate" else ("DevLong64",)
        if wanted and attribute.type not in wanted:
            yield at(owner, attribute, "type", f"expected {' or '.join(wanted)}, got {attribute.type}")


CHECKS = (
    one_source_at_most,
    only_provided_values_are_written,
    sourced_values_are_scalars,
    topics_exist,
    windows_exist,
    fields_are_given_where_needed,
    fields_exist,
    fields_are_numeric,
    quantiles_have_a_probability,
    fractions_have_a_whole,
    totals_add_up,
    units_follow_from_fields,
    types_fit,
)


def _sourced(icd: Icd) -> Iterator[tuple[DeviceClass, Attribute, Source]]:
    for owner, attribute in each(icd):
        if attribute.source is not None:
            yield owner, attribute, attribute.source


def _types_of_source(icd: Icd, attribute: Attribute, source: Source) -> tuple[str, ...]:
    """Return the fitting Tango types; none when another check has the say."""
    given = _RULES[source.rule].type
    if given == "double":
        return ("DevDouble",)
    if given == "integer":
        return ("DevLong64",)
    field = properties(message_of(icd, source.topic) or {}).get(source.field or "")
    if field is None:
        return ()
    if source.rule == "sum" and kind(field) == "integer":
        return ("DevLong64",)
    return _types_of_field(icd, attribute, field)


def _types_of_field(icd: Icd, attribute: Attribute, field: Schema) -> tuple[str, ...]:
    match kind(field):
        case "number":
            return ("DevDouble",)
        case "boolean":
            return ("DevBoolean",)
        case "string":
            labels = icd.enums.get(attribute.enum or "")
            same = labels is not None and list(labels) == field.get("enum")
            return ("DevString", "DevEnum") if same else ("DevString",)
        case "integer":
            low, high = field.get("minimum"), field.get("maximum")
            small = isinstance(low, int) and isinstance(high, int) and -_INT32 <= low and high < _INT32
            positive = isinstance(low, int) and low >= 0
            return ("DevLong64", *(["DevLong"] if small else []), *(["DevULong64"] if positive else []))
    return ()
