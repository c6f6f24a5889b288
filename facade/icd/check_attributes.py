"""Checks of attributes: names and texts, shapes, limits, events, reports, and the source of the value."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from facade.icd.checks import FULL_STOP, Checks, Entries, Mistakes, entries, is_sentence
from facade.icd.fields import Schema, bound, is_numeric, kind, message_of, properties, window_of
from facade.icd.finding import IcdFinding
from facade.icd.model import MOST_PUSHED, Attribute, DeviceClass, Icd, Rule, Source
from facade.icd.units import known_units

_LOWER_CAMEL_CASE = re.compile(r"[a-z][A-Za-z0-9]*")
_SKAS_OWN = re.compile(r"pointing_cal_[A-Z]{3}\d{3}|_lrcEvent")
"""Names that TM's software reads, whatever the rule."""
_INTEGERS = frozenset({"DevLong", "DevLong64", "DevULong64"})
_NUMBERS = _INTEGERS | {"DevDouble"}
_LIMITS = ("min_alarm", "min_warning", "max_warning", "max_alarm")
_STATE = "state"
"""Topic and message of reports."""
_BITS = {"DevLong": 32, "DevLong64": 64}
_REPORTED = ("DevString", "DevEnum", *_BITS)
"""Types that the text of a report can be read as."""


def _timed(icd: Icd) -> Entries:
    """Give the entries that have a sampling: each class, and each attribute."""
    yield from ((f"{owner.name}.toml", "", (owner, owner)) for owner in icd.classes.values())
    yield from entries("attributes")(icd)


of_attribute, of_timing = Checks(entries("attributes")), Checks(_timed)
of_attribute.rows(
    (
        (
            "names_are_lower_camel_case",
            "name",
            lambda _, __, a: _LOWER_CAMEL_CASE.fullmatch(a.name) or _SKAS_OWN.fullmatch(a.name),
            "lowerCamelCase",
        ),
        (
            "names_are_not_tangos",
            "name",
            lambda _, __, a: a.name.casefold() not in ("state", "status"),
            "a name that Tango does not use itself",
        ),
        ("texts_are_complete", "label", lambda _, __, a: a.label.strip(), "text"),
        ("texts_are_complete", "description", lambda _, __, a: is_sentence(a.description), FULL_STOP),
        (
            "enums_exist",
            "enum",
            lambda icd, _, a: a.enum in icd.enums if a.type == "DevEnum" else a.enum is None,
            lambda icd, _, a: f"one of {sorted(icd.enums)}, for the type DevEnum only",
        ),
        ("lengths_are_positive", "length", lambda _, __, a: a.length >= 0, "integer >= 0"),
        ("images_have_rows", "height", lambda _, __, a: a.height >= 0, "integer >= 0"),
        (
            "images_have_rows",
            "height",
            lambda _, __, a: a.height <= 0 or (a.length > 0 and a.type in _NUMBERS),
            "0, because only numbers with a length make an image",
        ),
        ("spectra_can_be_pushed", "length", lambda _, __, a: a.height or a.is_pushed, f"integer <= {MOST_PUSHED}"),
        (
            "units_are_known",
            "unit",
            lambda icd, _, a: a.unit is None or a.unit in known_units(icd),
            lambda icd, _, __: f"one of {sorted(known_units(icd))}",
        ),
        (
            "reported_values_have_no_source",
            "reported",
            lambda _, __, a: not (a.reported and (a.source or a.account)),
            "false beside a source or an account",
        ),
        (
            "reported_types_are_readable",
            "type",
            lambda _, __, a: not a.reported or a.type in _REPORTED,
            f"one of {list(_REPORTED)}, because it is reported",
        ),
        (
            "reported_types_are_readable",
            "length",
            lambda _, __, a: not (a.reported and a.length) or a.type not in _REPORTED or a.type == "DevString",
            "0, because only texts are reported as lists",
        ),
        (
            "initial_values_fit",
            "initial",
            lambda icd, _, a: a.initial is None or not _misfit(icd, a),
            lambda icd, _, a: _misfit(icd, a),
        ),
        (
            "obs_states_have_a_beginning",
            "initial",
            lambda _, owner, a: a.name != "obsState" or not (owner.commands and a.reported and a.initial is None),
            "a value, because commands depend on it",
        ),
    )
)


def _misfit(icd: Icd, attribute: Attribute) -> str:
    """Return the expectation that an initial value misses; empty if it fits."""
    text = str(attribute.initial)
    if not attribute.reported:
        return "none, because the attribute is not reported"
    if attribute.type == "DevEnum":
        labels = icd.enums.get(attribute.enum or "", ())
        return "" if text in labels else f"one of {list(labels)}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if attribute.length:
        fits = isinstance(found, list) and len(found) <= attribute.length and all(isinstance(one, str) for one in found)
        return "" if fits else f"a JSON list of at most {attribute.length} texts"
    bits = _BITS.get(attribute.type, 0)
    limit = 2 ** (bits - 1)
    fits = isinstance(found, int) and not isinstance(found, bool) and -limit <= found < limit
    return "" if fits or not bits else f"an integer of {bits} bits"


@of_attribute.rule
def limits_are_for_numbers(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Mistakes:
    """Refuse limits but on numeric scalars; those of an integer are integers."""
    if attribute.limits is not None and (attribute.type not in _NUMBERS or attribute.length):
        yield "limits", f"expected none, because the attribute is no numeric scalar, got {attribute.type}"
    elif attribute.type in _INTEGERS:
        for name, limit in _limits(attribute):
            if not limit.is_integer():
                yield f"limits.{name}", f"expected an integer, got {limit:g}"


@of_attribute.rule
def limits_are_ordered(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Mistakes:
    """Require min_alarm < min_warning < max_warning < max_alarm, of those that are given."""
    for (lower, low), (upper, high) in pairwise(_limits(attribute)):
        if not low < high:
            yield f"limits.{upper}", f"expected number > {lower} = {low:g}, got {high:g}"


def _limits(attribute: Attribute) -> Iterator[tuple[str, float]]:
    for name in _LIMITS:
        limit = getattr(attribute.limits, name, None)
        if limit is not None:
            yield name, float(limit)


@of_timing.rule
def sampling_is_possible(icd: Icd, owner: DeviceClass, one: DeviceClass | Attribute) -> Mistakes:
    """Require 0 <= shortest <= longest and 0 < longest, and deadbands that are not negative."""
    sampling = one.sampling
    if sampling is None:
        return
    for name in ("shortest", "absolute", "relative"):
        if not getattr(sampling, name) >= 0:
            yield f"sampling.{name}", f"expected number >= 0, got {getattr(sampling, name):g}"
    if sampling.shortest >= 0 and not (sampling.longest >= sampling.shortest and sampling.longest > 0):
        what = f"expected number > 0 and >= shortest = {sampling.shortest:g}, got {sampling.longest:g}"
        yield "sampling.longest", what


@of_timing.rule
def staleness_outlasts_sampling(icd: Icd, owner: DeviceClass, one: DeviceClass | Attribute) -> Mistakes:
    """Refuse that an attribute is stale before it may speak again."""
    limit = owner.stale_after if one.stale_after is None else one.stale_after
    shortest = (one.sampling or owner.sampling).shortest
    is_own = one.stale_after is not None or one.sampling is not None
    if is_own and limit != 0 and not limit > max(shortest, 0):
        yield "stale_after", f"expected 0 or number > sampling.shortest = {shortest:g}, got {limit:g}"


def names_are_unique(icd: Icd) -> Iterator[IcdFinding]:
    """Require different names; Tango does not tell upper from lower case in them."""
    return _repeated(icd, "name")


def labels_are_unique(icd: Icd) -> Iterator[IcdFinding]:
    """Require different labels: the same ones cannot be told apart on a screen."""
    return _repeated(icd, "label")


def _repeated(icd: Icd, key: str) -> Iterator[IcdFinding]:
    seen: set[tuple[str, str]] = set()
    for file, place, (owner, attribute) in entries("attributes")(icd):
        value: str = getattr(attribute, key)
        if (owner.name, value.casefold()) in seen:
            yield IcdFinding(file, f"{place}.{key}", f"expected a {key} of its own, got {value!r} again")
        seen.add((owner.name, value.casefold()))


def reported_values_have_a_topic(icd: Icd) -> Iterator[IcdFinding]:
    """Require the topic that they are reported on."""
    topic = icd.topics.get(_STATE)
    reported = any(attribute.reported for owner in icd.classes.values() for attribute in owner.attributes)
    if reported and (topic is None or topic.message != _STATE):
        what = f"expected a topic with the message {_STATE!r}, because there are reported attributes, got none"
        yield IcdFinding("topics.toml", f"topics[{_STATE}]", what)


class _Traits(NamedTuple):
    """Properties of a rule."""

    field: Literal["none", "optional", "needed"]
    is_additive: bool
    """Whether it may run over everything since the ledger began."""
    type: Literal["integer", "double", "field"]
    """Type of its result; ``field``: the type of its field."""


_RULES: dict[Rule, _Traits] = {
    "count": _Traits("none", True, "integer"),
    "gaps": _Traits("none", True, "integer"),
    "duplicates": _Traits("none", True, "integer"),
    "late": _Traits("none", True, "integer"),
    "rate": _Traits("optional", False, "double"),
    "sum": _Traits("needed", True, "field"),
    "mean": _Traits("needed", False, "double"),
    "std": _Traits("needed", False, "double"),
    "quantile": _Traits("needed", False, "double"),
    "fraction": _Traits("needed", False, "double"),
    "min": _Traits("needed", False, "field"),
    "max": _Traits("needed", False, "field"),
    "last": _Traits("needed", False, "field"),
}
_NEED_WINDOW_ALWAYS = frozenset({"gaps", "duplicates", "late"})
_NEED_SEQUENCE = frozenset({"gaps", "duplicates"})
_ADDS_UP = frozenset({"sum", "rate", "mean", "std", "fraction"})
_LARGEST_SUMMAND = 2**33
"""A million of them, the most in one transaction, add up to 2^53: what JSON numbers hold exactly."""
_INT32 = 2**31


def _sourced(icd: Icd) -> Entries:
    return (one for one in entries("attributes")(icd) if one[2][1].source is not None)


of_sourced = Checks(_sourced)
of_attribute.rows(
    (
        ("one_source_at_most", "account", lambda _, __, a: not (a.source and a.account), "none beside source"),
        (
            "only_provided_values_are_written",
            "access",
            lambda _, __, a: a.access != "READ_WRITE" or not (a.source or a.account),
            "'READ', because it has a source",
        ),
        (
            "sourced_values_are_scalars",
            "length",
            lambda _, __, a: a.length <= 0 or not (a.source or a.account),
            "0, because a source gives one value",
        ),
        (
            "topics_exist",
            "source.topic",
            lambda icd, _, a: a.source is None or a.source.topic in icd.topics,
            lambda icd, _, __: f"one of {sorted(icd.topics)}",
        ),
        (
            "topics_exist",
            "account.stream",
            lambda icd, _, a: a.account is None or a.account.stream in icd.topics,
            lambda icd, _, __: f"one of {sorted(icd.topics)}",
        ),
        (
            "types_fit",
            "type",
            lambda icd, _, a: a.type in (_types(icd, a) or (a.type,)),
            lambda icd, _, a: " or ".join(_types(icd, a)),
        ),
    )
)
of_sourced.rows(
    (
        (
            "windows_exist",
            "source.topic",
            lambda icd, _, a: (
                a.source.topic not in icd.topics
                or window_of(icd, a.source.topic) is not None
                or (a.source.over != "window" and a.source.rule not in _NEED_WINDOW_ALWAYS)
            ),
            lambda _, __, a: f"a topic with a window for {a.source.rule!r}",
        ),
        (
            "fields_are_given_where_needed",
            "source.field",
            lambda _, __, a: _RULES[a.source.rule].field != "needed" or a.source.field is not None,
            lambda _, __, a: f"a field for {a.source.rule!r}",
        ),
        (
            "fields_are_given_where_needed",
            "source.field",
            lambda _, __, a: _RULES[a.source.rule].field != "none" or a.source.field is None,
            lambda _, __, a: f"none, because {a.source.rule!r} is about whole records",
        ),
        (
            "quantiles_have_a_probability",
            "source.q",
            lambda _, __, a: a.source.rule == "quantile" or a.source.q is None,
            lambda _, __, a: f"none for {a.source.rule!r}",
        ),
        (
            "quantiles_have_a_probability",
            "source.q",
            lambda _, __, a: a.source.rule != "quantile" or (a.source.q is not None and 0 < a.source.q < 1),
            "number > 0 and < 1",
        ),
        (
            "totals_add_up",
            "source.over",
            lambda _, __, a: a.source.over != "total" or _RULES[a.source.rule].is_additive,
            lambda _, __, a: f"'window' for {a.source.rule!r}",
        ),
        (
            "units_follow_from_fields",
            "unit",
            lambda _, __, a: a.source.field is None or a.unit is None,
            lambda _, __, a: f"none, because it follows from {a.source.field!r}",
        ),
    )
)


@of_sourced.rule
def fields_exist(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Mistakes:
    """Require fields of the topic's message."""
    for key, source, name, known in _fields(icd, attribute):
        if source.topic in icd.topics and name not in known:
            yield f"source.{key}", f"expected a field of the message ({', '.join(known) or 'none'}), got {name!r}"


@of_sourced.rule
def fields_are_numeric(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Mistakes:
    """Require numbers: they are what a window keeps."""
    for key, source, name, known in _fields(icd, attribute):
        if name in known and not is_numeric(known[name]):
            what = f"expected a numeric field for {source.rule!r}, got {name!r} ({kind(known[name])})"
            yield f"source.{key}", what


@of_sourced.rule
def sums_stay_exact(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Mistakes:
    """Refuse to add up integers that could pass 2^53 within a transaction."""
    for _, source, name, known in _fields(icd, attribute):
        field = known.get(name, {})
        largest = max(abs(bound(field, "minimum", 0)), abs(bound(field, "maximum", 0)))
        if source.rule in _ADDS_UP and kind(field) == "integer" and largest > _LARGEST_SUMMAND:
            what = f"expected a field of at most {_LARGEST_SUMMAND} for {source.rule!r}, or a number, got {largest}"
            yield "source.field", what


@of_sourced.rule
def fractions_have_a_whole(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Mistakes:
    """Require a whole that contains the part and adds up like with like."""
    source = _source(attribute)
    if source.rule != "fraction":
        if source.of:
            yield "source.of", f"expected none for {source.rule!r}, got {list(source.of)}"
        return
    if source.field not in source.of or len(set(source.of)) < len(source.of):
        what = f"expected different fields with {source.field!r} among them, got {list(source.of)}"
        yield "source.of", what
    known = properties(message_of(icd, source.topic) or {})
    units = {str(known[name].get("x-unit", "")) for name in source.of if name in known}
    if len(units) > 1:
        yield "source.of", f"expected fields of one unit, got {sorted(units)}"


@of_sourced.rule
def windows_keep_what_rules_need(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Mistakes:
    """Require a sequence for rules over sequence numbers; for quantiles an error bound and no negative values."""
    source = _source(attribute)
    if (window := window_of(icd, source.topic)) is None:
        return
    if source.rule in _NEED_SEQUENCE and window.sequence is None:
        what = f"expected a topic whose window has a `sequence` for {source.rule!r}, got {source.topic!r}"
        yield "source.rule", what
    if source.rule == "quantile":
        field = properties(message_of(icd, source.topic) or {}).get(source.field or "", {})
        if window.quantile_error is None:
            what = f"expected a topic whose window has a `quantile_error` for 'quantile', got {source.topic!r}"
            yield "source.rule", what
        if is_numeric(field) and bound(field, "minimum", -1) < 0:
            what = f"expected a field with a minimum of at least 0 for 'quantile', got {field.get('minimum')}"
            yield "source.field", what


@of_sourced.rule
def devices_have_the_groups(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Mistakes:
    """Require that a device that stands for a node or a subarray is made of a topic with such groups."""
    source = _source(attribute)
    window = window_of(icd, source.topic)
    if window is not None and owner.family not in ("", window.groups):
        what = f"expected a topic whose window has groups = {owner.family!r}, because the device stands for one"
        yield "source.topic", f"{what}, got {source.topic!r} with {window.groups!r}"


@of_sourced.rule
def windows_close_before_they_are_stale(icd: Icd, owner: DeviceClass, attribute: Attribute) -> Mistakes:
    """Refuse a staleness limit that passes before a window can be shown."""
    source = _source(attribute)
    window = window_of(icd, source.topic)
    limit = owner.stale_after if attribute.stale_after is None else attribute.stale_after
    if window is not None and source.over == "window" and 0 < limit < (least := window.length + window.disorder):
        yield "stale_after", f"expected 0 or number >= window.length + disorder = {least:g}, got {limit:g}"


def states_have_a_source(icd: Icd) -> Iterator[IcdFinding]:
    """Require for a class's State a windowed topic that its devices show, each its own group."""
    for owner in icd.classes.values():
        if owner.state_source is None:
            continue
        window = window_of(icd, owner.state_source)
        shown = any(one.source is not None and one.source.topic == owner.state_source for one in owner.attributes)
        if window is None or not shown or owner.family != (window.groups or ""):
            what = "expected a windowed topic that an attribute names, of which each device is a group"
            yield IcdFinding(f"{owner.name}.toml", "state_source", f"{what}, got {owner.state_source!r}")


CHECKS = (
    *of_attribute,
    *of_timing,
    *of_sourced,
    names_are_unique,
    labels_are_unique,
    reported_values_have_a_topic,
    states_have_a_source,
)


def _source(attribute: Attribute) -> Source:
    assert attribute.source is not None  # as `_sourced` has it
    return attribute.source


def _fields(icd: Icd, attribute: Attribute) -> Iterator[tuple[str, Source, str, dict[str, Schema]]]:
    """Give each field that a source names: its key, the source, the field, and the fields of the topic's message."""
    source = _source(attribute)
    known = properties(message_of(icd, source.topic) or {})
    for key, name in (("field", source.field), *(("of", name) for name in source.of)):
        if name is not None:
            yield key, source, name, known


def _types(icd: Icd, attribute: Attribute) -> tuple[str, ...]:
    """Return the Tango types that hold every value of the rule; none when another check has the say."""
    source = attribute.source
    if source is None:
        if attribute.account is None:
            return ()
        return ("DevDouble",) if attribute.account.figure in ("rate", "lag_time") else ("DevLong64",)
    given = _RULES[source.rule].type
    if given != "field":
        return ("DevDouble",) if given == "double" else ("DevLong64",)
    field = properties(message_of(icd, source.topic) or {}).get(source.field or "", {})
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
            more = (*(["DevLong"] if small else []), *(["DevULong64"] if positive else []))
            return ("DevLong64", *(more if source.rule != "sum" else ()))
    return ()
