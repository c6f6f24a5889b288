"""Checks of where an attribute's value comes from: topic, field, rule, and the type that follows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from facade.icd.check_attributes import at, each
from facade.icd.fields import Schema, bound, is_numeric, kind, message_of, properties, window_of
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
_NEED_SEQUENCE = frozenset({"gaps", "duplicates"})
_ADDS_UP = frozenset({"sum", "rate", "mean", "std", "fraction"})
_LARGEST_SUMMAND = 2**33
"""A million of them, the most in one transaction, add up to 2^53: what JSON numbers hold exactly."""
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


def windows_keep_what_rules_need(icd: Icd) -> Iterator[Finding]:
    """Require a sequence for rules over sequence numbers, and an error bound for quantiles of what is not negative."""
    for owner, attribute, source in _sourced(icd):
        if (window := window_of(icd, source.topic)) is None:
            continue
        if source.rule in _NEED_SEQUENCE and window.sequence is None:
            what = f"expected a topic whose window has a `sequence` for {source.rule!r}, got {source.topic!r}"
            yield at(owner, attribute, "source.rule", what)
        if source.rule == "quantile":
            field = properties(message_of(icd, source.topic) or {}).get(source.field or "", {})
            if window.quantile_error is None:
                what = f"expected a topic whose window has a `quantile_error` for 'quantile', got {source.topic!r}"
                yield at(owner, attribute, "source.rule", what)
            if is_numeric(field) and bound(field, "minimum", -1) < 0:
                what = f"expected a field with a minimum of at least 0 for 'quantile', got {field.get('minimum')}"
                yield at(owner, attribute, "source.field", what)


def sums_stay_exact(icd: Icd) -> Iterator[Finding]:
    """Refuse to add up integers that could pass 2^53 within a transaction."""
    for owner, attribute, source in _sourced(icd):
        known = properties(message_of(icd, source.topic) or {})
        for name in (source.field, *source.of) if source.rule in _ADDS_UP else ():
            field = known.get(name or "", {})
            largest = max(abs(bound(field, "minimum", 0)), abs(bound(field, "maximum", 0)))
            if kind(field) == "integer" and largest > _LARGEST_SUMMAND:
                what = f"expected a field of at most {_LARGEST_SUMMAND} for {source.rule!r}, or a number, got {largest}"
                yield at(owner, attribute, "source.field", what)


def devices_have_the_groups(icd: Icd) -> Iterator[Finding]:
    """Require that a device that stands for a node or a subarray is made of a topic with such groups."""
    for owner, attribute, source in _sourced(icd):
        window = window_of(icd, source.topic)
        if window is not None and owner.family not in ("", window.groups):
            what = f"expected a topic whose window has groups = {owner.family!r}, because the device stands for one"
            yield at(owner, attribute, "source.topic", f"{what}, got {source.topic!r} with {window.groups!r}")


def windows_close_before_they_are_stale(icd: Icd) -> Iterator[Finding]:
    """Refuse a staleness limit that passes before a window can be shown."""
    for owner, attribute, source in _sourced(icd):
        window = window_of(icd, source.topic)
        limit = owner.stale_after if attribute.stale_after is None else attribute.stale_after
        if window is not None and source.over == "window" and 0 < limit < window.length + window.disorder:
            least = window.length + window.disorder
            what = f"expected 0 or number >= window.length + disorder = {least:g}, got {limit:g}"
            yield at(owner, attribute, "stale_after", what)


def states_have_a_source(icd: Icd) -> Iterator[Finding]:
    """Require for a class's State a windowed topic that its devices show, each its own group."""
    for owner in icd.classes.values():
        if owner.state_source is None:
            continue
        window = window_of(icd, owner.state_source)
        shown = any(one.source is not None and one.source.topic == owner.state_source for one in owner.attributes)
        if window is None or not shown or owner.family != (window.groups or ""):
            what = "expected a windowed topic that an attribute names, of which each device is a group"
            yield Finding(f"{owner.name}.toml", "state_source", f"{what}, got {owner.state_source!r}")


def fields_are_numeric(icd: Icd) -> Iterator[Finding]:
    """Require numbers: they are what a window keeps."""
    for owner, attribute, source in _sourced(icd):
        known = properties(message_of(icd, source.topic) or {})
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
            wanted = ("DevDouble",) if attribute.account.figure in ("rate", "lag_time") else ("DevLong64",)
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
    windows_keep_what_rules_need,
    sums_stay_exact,
    devices_have_the_groups,
    windows_close_before_they_are_stale,
    states_have_a_source,
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
