"""Rules of device classes and executors with their attributes, commands and queries, and of alarm conditions."""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from string import Formatter
from typing import Literal, NamedTuple

from facade.kernel.icd.checks import NO_VALUE, SENTENCE, IcdFinding, Row, entries, findings, is_sentence
from facade.kernel.icd.fields import bound, is_numeric, kind, message_of, properties, window_of
from facade.kernel.icd.model import (
    MOST_PUSHED,
    STREAM,
    Attribute,
    CommandDefinition,
    Condition,
    DeviceClass,
    Executor,
    Icd,
    Location,
    Query,
    Rule,
    Source,
)
from facade.kernel.icd.units import known_units
from facade.kernel.names import FAMILIES

# --- Attributes ---

_LOWER_CAMEL_CASE = re.compile(r"[a-z][A-Za-z0-9]*")
_SKAS_OWN = re.compile(r"pointing_cal_[A-Z]{3}\d{3}|_lrcEvent")
"""Names that are fixed by TM's software, against our rule."""
_INTEGERS = frozenset({"DevLong", "DevLong64", "DevULong64"})
_NUMBERS = _INTEGERS | {"DevDouble"}
_STATE = "state"
"""Topic and message of reports."""
_BITS = {"DevLong": 32, "DevLong64": 64}
_REPORTED = ("DevString", "DevEnum", *_BITS)
"""Types that can be parsed from the text of a report."""
_INT32 = 2**31


class _Traits(NamedTuple):
    field: Literal["none", "optional", "needed"]
    is_additive: bool
    """Whether it may be used over all records since the ledger began."""
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
"""Largest summand: a million of them, the most in one transaction, add up to 2^53, the largest exact sum in JSON."""


def check_attributes(icd: Icd) -> Iterator[IcdFinding]:
    """Yield the findings."""
    units = known_units(icd)
    seen = set[tuple[str, str, str]]()
    for owner in icd.classes.values():
        yield from findings(f"{owner.name}.toml", "", (*_of_timing(owner, owner), *_of_state(icd, owner)))
    for file, place, owner, one in entries(icd, "attributes"):
        # Tango ignores case; equal labels cannot be distinguished on a screen.
        for rule, key in (("names_are_unique", "name"), ("labels_are_unique", "label")):
            entry = (owner.name, key, getattr(one, key).casefold())
            row = (rule, key, entry not in seen, f"a {key} of its own, not one", f"{getattr(one, key)} again")
            yield from findings(file, place, [row])
            seen.add(entry)
        yield from findings(file, place, (*_of_attribute(icd, owner, one, units), *_of_timing(owner, one)))
        if one.source is not None:
            yield from findings(file, place, _of_source(icd, owner, one, one.source))
    for name in sorted({one.topic for _, _, _, one in entries(icd, "attributes") if one.reported}):
        is_right = name in icd.topics and icd.topics[name].message == _STATE
        what = f"a topic with the message {_STATE!r}, because there are reported attributes"
        rows = (("reported_values_have_a_topic", "", is_right, what, NO_VALUE),)
        yield from findings("topics.toml", f"topics[{name}]", rows)


def _of_attribute(icd: Icd, owner: DeviceClass, a: Attribute, units: frozenset[str]) -> Iterator[Row]:
    is_name = _LOWER_CAMEL_CASE.fullmatch(a.name) or _SKAS_OWN.fullmatch(a.name)
    is_free = a.name.casefold() not in ("state", "status")
    yield "names_are_lower_camel_case", "name", is_name, "lowerCamelCase", a.name
    yield "names_are_not_tangos", "name", is_free, "a name that Tango does not use itself", a.name
    is_right = a.enum in icd.enums if a.type == "DevEnum" else a.enum is None
    yield "enums_exist", "enum", is_right, f"one of {sorted(icd.enums)}, for the type DevEnum only", a.enum
    is_right = not a.height or (a.length > 0 and a.type in _NUMBERS)
    yield "images_have_rows", "height", is_right, "0, because only numbers with a length make an image", a.height
    yield "spectra_can_be_pushed", "length", a.height or a.is_pushed, f"integer <= {MOST_PUSHED}", a.length
    if a.unit is not None:
        yield "units_are_known", "unit", a.unit in units, f"one of {sorted(units)}", a.unit
    has_source = a.source or a.account
    if a.reported:
        yield "reported_values_have_no_source", "reported", not has_source, "false beside a source or an account", True
        what = f"one of {list(_REPORTED)}, because it is reported"
        yield "reported_types_are_readable", "type", a.type in _REPORTED, what, a.type
        is_right = not a.length or a.type not in _REPORTED or a.type == "DevString"
        what = "0, because only texts are reported as lists"
        yield "reported_types_are_readable", "length", is_right, what, a.length
    if a.initial is not None:
        what = _misfit(icd, a)
        yield "initial_values_fit", "initial", not what, what, a.initial
    is_right = a.name != "obsState" or not (owner.commands and a.reported and a.initial is None)
    yield "obs_states_have_a_beginning", "initial", is_right, "a value, because commands depend on it", a.initial
    yield "one_source_at_most", "account", not (a.source and a.account), "none beside source", NO_VALUE
    is_right = not a.total or (a.type in _INTEGERS and not has_source)
    yield "totals_are_counts", "total", is_right, "false, unless it is an integer without a source", a.total
    is_right = a.access != "READ_WRITE" or not has_source
    yield "only_provided_values_are_written", "access", is_right, "'READ', because it has a source", a.access
    is_right = not a.length or not has_source
    yield "sourced_values_are_scalars", "length", is_right, "0, because a source gives one value", a.length
    topics = (("source.topic", a.source and a.source.topic), ("account.stream", a.account and a.account.stream))
    for key, topic in topics:
        if topic is not None:
            yield "topics_exist", key, topic in icd.topics, f"one of {sorted(icd.topics)}", topic
    types = _types(icd, a)
    yield "types_fit", "type", not types or a.type in types, " or ".join(types), a.type
    limits = {} if a.limits is None else {name: getattr(a.limits, name) for name in a.limits.__struct_fields__}
    given = [(name, float(limit)) for name, limit in limits.items() if limit is not None]
    is_scalar = a.type in _NUMBERS and not a.length
    what = "none, because the attribute is no numeric scalar"
    yield "limits_are_for_numbers", "limits", a.limits is None or is_scalar, what, a.type
    for name, limit in given if is_scalar and a.type in _INTEGERS else ():
        yield "limits_are_for_numbers", f"limits.{name}", limit.is_integer(), "an integer", limit
    for (lower, low), (upper, high) in pairwise(given):
        yield "limits_are_ordered", f"limits.{upper}", low < high, f"number > {lower} = {low:g}", high


def _misfit(icd: Icd, attribute: Attribute) -> str:
    """Return the expectation that an initial value violates; empty if it fits."""
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


def _of_timing(owner: DeviceClass, one: DeviceClass | Attribute) -> Iterator[Row]:
    sampling = one.sampling or owner.sampling
    shortest, longest = sampling.shortest, sampling.longest
    if one.sampling is not None:
        is_right = longest >= shortest and longest > 0
        what = f"number > 0 and >= shortest = {shortest:g}"
        yield "sampling_is_possible", "sampling.longest", is_right, what, longest
    if one.stale_after is not None or one.sampling is not None:
        limit = owner.stale_after if one.stale_after is None else one.stale_after
        is_right = limit == 0 or limit > shortest
        what = f"0 or number > sampling.shortest = {shortest:g}"
        yield "staleness_outlasts_sampling", "stale_after", is_right, what, limit


def _of_source(icd: Icd, owner: DeviceClass, a: Attribute, source: Source) -> Iterator[Row]:
    rule, traits, window = source.rule, _RULES[source.rule], window_of(icd, source.topic)
    needs_window = source.over == "window" or rule in _NEED_WINDOW_ALWAYS
    is_right = source.topic not in icd.topics or window is not None or not needs_window
    yield "windows_exist", "source.topic", is_right, f"a topic with a window for {rule!r}", source.topic
    given = source.field is not None
    name = "fields_are_given_where_needed"
    yield name, "source.field", given or traits.field != "needed", f"a field for {rule!r}", source.field
    what = f"none, because {rule!r} is about whole records"
    yield name, "source.field", not given or traits.field != "none", what, source.field
    is_right = (source.q is None) == (rule != "quantile")
    what = f"none for {rule!r}" if rule != "quantile" else "number > 0 and < 1"
    yield "quantiles_have_a_probability", "source.q", is_right, what, source.q
    is_right = source.over != "total" or traits.is_additive
    yield "totals_add_up", "source.over", is_right, f"'window' for {rule!r}", source.over
    what = f"none, because it follows from {source.field!r}"
    yield "units_follow_from_fields", "unit", not given or a.unit is None, what, a.unit
    known = properties(message_of(icd, source.topic) or {})
    named = [("source.field", source.field), *(("source.of", one) for one in source.of)]
    for key, field in named if source.topic in icd.topics else ():
        if field is None:
            continue
        part, what = known.get(field, {}), f"a field of the message ({', '.join(known) or 'none'})"
        yield "fields_exist", key, field in known, what, field
        what = f"a numeric field for {rule!r}"
        yield "fields_are_numeric", key, field not in known or is_numeric(part), what, f"{field} ({kind(part)})"
        largest = max(abs(bound(part, "minimum", 0)), abs(bound(part, "maximum", 0)))
        is_exact = rule not in _ADDS_UP or kind(part) != "integer" or largest <= _LARGEST_SUMMAND
        what = f"a field of at most {_LARGEST_SUMMAND} for {rule!r}, or a number"
        yield "sums_stay_exact", "source.field", is_exact, what, largest
    if rule == "fraction":
        is_right = source.field in source.of and len(set(source.of)) == len(source.of)
        what = f"different fields with {source.field!r} among them"
        yield "fractions_have_a_whole", "source.of", is_right, what, source.of
        units = {str(known[one].get("x-unit", "")) for one in source.of if one in known}
        yield "fractions_have_a_whole", "source.of", len(units) <= 1, "fields of one unit", sorted(units)
    else:
        yield "fractions_have_a_whole", "source.of", not source.of, f"none for {rule!r}", source.of
    if window is None:
        return
    needs = "windows_keep_what_rules_need"
    is_right = rule not in _NEED_SEQUENCE or window.sequence is not None
    yield needs, "source.rule", is_right, f"a topic whose window has a `sequence` for {rule!r}", source.topic
    if rule == "quantile":
        what = "a topic whose window has a `quantile_error` for 'quantile'"
        yield needs, "source.rule", window.quantile_error is not None, what, source.topic
        field_ = known.get(source.field or "", {})
        is_right = not is_numeric(field_) or bound(field_, "minimum", -1) >= 0
        what = "a field with a minimum of at least 0 for 'quantile'"
        yield needs, "source.field", is_right, what, field_.get("minimum")
    is_right = owner.family in ("", window.groups)
    what = f"a topic whose window has groups = {owner.family!r}, because the device stands for one"
    yield "devices_have_the_groups", "source.topic", is_right, what, f"{source.topic} with {window.groups}"
    limit = owner.stale_after if a.stale_after is None else a.stale_after
    least = window.length + window.disorder
    is_right = source.over != "window" or not 0 < limit < least
    what = f"0 or number >= window.length + disorder = {least:g}"
    yield "windows_close_before_they_are_stale", "stale_after", is_right, what, limit


def _of_state(icd: Icd, owner: DeviceClass) -> Iterator[Row]:
    if owner.state_source is not None:
        window = window_of(icd, owner.state_source)
        is_shown = any(one.source is not None and one.source.topic == owner.state_source for one in owner.attributes)
        is_right = window is not None and is_shown and owner.family == (window.groups or "")
        what = "a windowed topic that an attribute names, of which each device is a group"
        yield "states_have_a_source", "state_source", is_right, what, owner.state_source


def _types(icd: Icd, attribute: Attribute) -> tuple[str, ...]:
    """Return the Tango types that can represent every value of the rule; none when another rule decides."""
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


# --- Classes, executors, conditions and commands ---


TANGO_STATES = tuple("ON OFF CLOSE OPEN INSERT EXTRACT MOVING STANDBY FAULT INIT RUNNING ALARM DISABLE UNKNOWN".split())
"""Values of Tango's State."""
MOST_ENCODED = 100_000_000
"""Largest result of a call: Tango carries 256 MB in one message, and the server keeps a copy for each caller."""
_UPPER_CAMEL_CASE = re.compile(r"[A-Z][A-Za-z0-9]*")
_CONDITION_NAME = re.compile(r"[a-z][A-Za-z0-9]{0,99}")
_NAME_PART = re.compile(r"[A-Za-z0-9_.-]+")
_TANGOS_OWN = ("state", "status", "init")
_OBS_STATE, _COMMANDED = "obsState", "commandedObsState"
_COMMAND_TOPICS = {"commands": "command", "command-acks": "command-ack", "heartbeats": "heartbeat"}
"""Topics of the command path, and their messages."""


def check_classes(icd: Icd) -> Iterator[IcdFinding]:
    """Yield the findings."""
    version = re.fullmatch(r"\d+\.\d+\.\d+", icd.version)
    yield from findings("icd.toml", "", [("version_is_semantic", "version", version, "MAJOR.MINOR.PATCH", icd.version)])
    for name, labels in icd.enums.items():
        is_right = labels and all(labels) and len(set(labels)) == len(labels)
        row = ("enums_have_labels", "", is_right, "different labels that are not empty", labels)
        yield from findings("enums.toml", f"enums[{name}]", [row])
    seen: dict[str, str] = {}
    for name, one in icd.commanded.items():
        owner = seen.setdefault(one.device.casefold(), one.name if isinstance(one, DeviceClass) else name)
        if isinstance(one, DeviceClass):
            yield from findings(f"{one.name}.toml", "", _of_class(one, owner))
        else:
            yield from findings("executors.toml", f"executors[{name}]", _of_executor(icd, name, one, owner))
    for name, condition in icd.conditions.items():
        yield from findings("conditions.toml", f"conditions[{name}]", _of_condition(icd, name, condition))
    for name, location in icd.locations.items():
        yield from findings("conditions.toml", f"locations[{name}]", _of_location(icd, location))
    yield from _check_commands(icd)


def _of_class(one: DeviceClass, owner: str) -> Iterator[Row]:
    yield "device_patterns_are_names", "device", *_pattern(one.device, _number(one.device), 3)
    yield "instance_patterns_are_names", "instance", *_pattern(one.instance, "rack", 1)
    what = f"a name of its own, not the one of {owner}"
    yield "device_patterns_are_unique", "device", owner == one.name, what, one.device


def _of_executor(icd: Icd, name: str, one: Executor, owner: str) -> Iterator[Row]:
    rule = "executors_are_complete"
    is_new = _UPPER_CAMEL_CASE.fullmatch(name) and name not in icd.classes
    yield rule, "", is_new, "UpperCamelCase that no class has", name
    yield rule, "device", owner == name, f"a name of its own, not the one of {owner}", one.device
    yield "executor_patterns_are_names", "device", *_pattern(one.device, _number(one.device), 3)
    names: set[str] = set()
    for command in one.commands:
        place = f"commands[{command.name}]"
        yield rule, f"{place}.name", command.name not in names, "each name once", command.name
        names.add(command.name)
        for key in ("state", "obs_state", "targets", "transitional", "commanded"):
            given = getattr(command, key)
            yield rule, f"{place}.{key}", not given, "none, because an executor has no states", given


def _of_condition(icd: Icd, name: str, one: Condition) -> Iterator[Row]:
    rule = "condition_texts_are_complete"
    yield rule, "", _CONDITION_NAME.fullmatch(name), "lowerCamelCase, at most 100 letters", name
    yield rule, "causes", one.causes, "at least one cause", one.causes
    for key, text in {"check": one.check, "ends": one.ends}.items():
        yield rule, key, text, SENTENCE, text
    growth = one.re_alarm_growth
    is_growth = growth > 1 or not (growth or one.gathers)
    what = "a factor above 1" + (": more alarms than acknowledged are news" if one.gathers else ", or 0 for none")
    yield "condition_growths_are_more_than_once", "re_alarm_growth", is_growth, what, growth
    for other, location in one.suppressors:
        known = f"one of {sorted(icd.conditions)}"
        yield "suppressors_exist", "suppressed_by", other in icd.conditions, known, other
        is_free = name not in _suppressors(icd, other)
        yield "suppressors_exist", "suppressed_by", is_free, "one that does not depend on this one", other
        places = {STREAM, *icd.locations}
        is_place, known = not location or location in places, f"one of {sorted(places)}"
        yield "suppressor_locations_exist", "suppressed_by", is_place, known, location
        cause = icd.conditions.get(other, one)
        is_told_last = cause is one or one.on_delay > cause.on_delay
        what = f"more than {cause.on_delay:g}, the delay of {other}: it has to be told before"
        yield "causes_are_told_first", "on_delay", is_told_last, what, one.on_delay
        stays = not cause.gathers or cause.off_delay > one.off_delay
        what = f"less than {cause.off_delay:g}, the delay of {other}: it has to outlast what it explains"
        yield "causes_are_told_first", "off_delay", stays, what, one.off_delay
    places = {at for other in icd.conditions.values() for cause, at in other.suppressors if cause == name}
    can_gather = not one.gathers or len(places) == 1
    what = "conditions that name it in `suppressed_by`, all with the same location"
    yield "gathering_is_possible", "gathers", can_gather, what, sorted(places)


_PLACE = re.compile(rf"[^{{}}]*(?:\{{({'|'.join(('rack', *FAMILIES))})(?::0\d+d)?\}}[^{{}}]*)?")
"""The sources of a location."""


def _of_location(icd: Icd, one: Location) -> Iterator[Row]:
    rule = "locations_are_complete"
    outer = icd.locations.get(one.within, one)
    for source, other in (
        *((source, one.sources[0]) for source in one.sources),
        *zip(one.sources[:1], outer.sources, strict=False),
    ):
        inner, number = _PLACE.fullmatch(source), _PLACE.fullmatch(other)
        fits = inner and number and (not number[1] or (inner[1], number[1]) in {(number[1],) * 2, ("node", "rack")})
        yield rule, "sources", fits, f"at most one placeholder, from which the number in {other} follows", source
    around, name = set[str](), one.within
    while name in icd.locations and name not in around:
        around.add(name)
        name = icd.locations[name].within
    yield rule, "within", not name, f"one of {sorted(icd.locations)} that is not within this one", name


def _suppressors(icd: Icd, name: str) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in found and one in icd.conditions:
            found.add(one)
            waiting += (other for other, _ in icd.conditions[one].suppressors)
    return found


def _number(pattern: str) -> str:
    return next((name for name in FAMILIES if f"{{{name}" in pattern), next(iter(FAMILIES), ""))


def _pattern(pattern: str, placeholder: str, parts: int) -> tuple[bool, str, str]:
    """Check a pattern of names; its parts are separated by ``/``."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(pattern) if name is not None]
        example = pattern.format(**{placeholder: 1})
    except (ValueError, KeyError, IndexError, AttributeError):
        names, example = ["?"], ""
    found = example.split("/")
    is_right = set(names) <= {placeholder} and len(found) == parts and all(map(_NAME_PART.fullmatch, found))
    what = f"{parts} part(s) of letters, digits and _.- with / between, and no placeholder but {{{placeholder}}}"
    return is_right, f"{what} with an integer format", pattern


# --- Commands and queries ---


def _check_commands(icd: Icd) -> Iterator[IcdFinding]:
    taken = {(name, own): "Tango" for name in icd.classes for own in _TANGOS_OWN}
    taken |= {(owner.name, one.name.casefold()): "an attribute" for _, _, owner, one in entries(icd, "attributes")}
    for file, place, owner, entry in entries(icd, "commands", "queries"):
        by = taken.setdefault((owner.name, entry.name.casefold()), "")
        row = ("command_names_are_free", "name", not by, f"a name of its own, as {by} has this one", entry.name)
        yield from findings(file, place, [row])
        taken[owner.name, entry.name.casefold()] = by or "another command"
        rows = _of_query(entry) if isinstance(entry, Query) else _of_command(icd, owner, entry)
        yield from findings(file, place, rows)
        if isinstance(entry, CommandDefinition):
            yield from findings(file, place, _of_any_command(icd, entry))
    for name, executor in icd.executors.items():
        for command in executor.commands:
            place = f"executors[{name}].commands[{command.name}]"
            yield from findings("executors.toml", place, _of_any_command(icd, command))
    if any(owner.commands for owner in icd.commanded.values()):
        yield from findings("topics.toml", "", _of_command_topics(icd))


def _of_query(query: Query) -> Iterator[Row]:
    text, size, is_encoded = query.argument_description, query.max_bytes, query.result == "DevEncoded"
    is_right, what = (
        (not text, "none without an argument") if query.argument == "DevVoid" else (is_sentence(text), SENTENCE)
    )
    yield "queries_describe_arguments", "argument_description", is_right, what, text
    is_right = 1 <= size <= MOST_ENCODED if is_encoded else not size
    what = f"1 to {MOST_ENCODED}" if is_encoded else f"none, because the result is {query.result}"
    yield "encoded_results_are_bounded", "max_bytes", is_right, what, size


def _of_any_command(icd: Icd, command: CommandDefinition) -> Iterator[Row]:
    is_known = command.argument is None or command.argument in icd.arguments
    yield "command_arguments_exist", "argument", is_known, f"one of {sorted(icd.arguments)}", command.argument
    lower, least = "0", 0.0
    for key in ("start_within", "deadline", "ceiling"):
        value: float = getattr(command, key)
        yield "command_times_are_ordered", key, value >= least, f"number >= {lower}", value
        lower, least = f"{key} = {value:g}", value
    # After a crash the effect of an overtaking command is unknown.
    is_right = command.repeatable or not command.overtakes
    yield "overtaking_commands_are_repeatable", "repeatable", is_right, "true, because the command overtakes", False
    # An emergency needs no approval.
    is_right, what = not (command.approval_within and command.overtakes), "0, because the command overtakes"
    yield "overtaking_commands_never_wait", "approval_within", is_right, what, command.approval_within
    known = {f"{name}.{one.name}" for name, owner in icd.commanded.items() for one in owner.commands}
    for order in command.orders:
        yield "orders_exist", "orders", order in known, f"one of {sorted(known)}", order


def _of_command(icd: Icd, owner: DeviceClass, command: CommandDefinition) -> Iterator[Row]:
    attributes: dict[str, Attribute] = {one.name: one for one in owner.attributes}
    obs_state = attributes.get(_OBS_STATE)
    obs_states = () if obs_state is None else icd.enums.get(obs_state.enum or "", ())
    yield "command_states_exist", "state", command.state, "at least one state", ()
    yield from _labels("command_states_exist", "state", command.state, TANGO_STATES)
    yield from _labels("command_states_exist", "obs_state", command.obs_state, obs_states)
    is_right = command.reports != _OBS_STATE or (obs_state is not None and obs_state.reported)
    what = f"'State', because controllers do not report {_OBS_STATE}"
    yield "command_reports_exist", "reports", is_right, what, command.reports
    rule, labels = "command_targets_exist", obs_states if command.reports == _OBS_STATE else TANGO_STATES
    yield rule, "targets", command.targets, "at least one value", ()
    yield from _labels(rule, "targets", command.targets, labels)
    if (label := command.transitional) is not None:
        yield from _labels(rule, "transitional", (label,), labels)
        yield rule, "transitional", label not in command.targets, "a value that is not one of the targets", label
    if command.commanded is not None:
        yield from _labels("commanded_states_exist", "commanded", (command.commanded,), obs_states)
        what = f"none, because the class has no {_COMMANDED}"
        yield "commanded_states_exist", "commanded", _COMMANDED in attributes, what, command.commanded
    # A hanging controller must not block a device.
    ways_out = [other for other in owner.commands if other.overtakes and set(other.state) & set(command.state)]
    can_be_left = any(not other.obs_state or label in other.obs_state for other in ways_out)
    is_right = label is None or command.overtakes or can_be_left
    what = "a state in which some command that overtakes is allowed"
    yield "transitions_can_be_left", "transitional", is_right, what, label


def _labels(rule: str, key: str, given: Sequence[str], known: Sequence[str]) -> Iterator[Row]:
    for label in given:
        yield rule, key, label in known, f"one of {list(known)}", label
    yield rule, key, len(set(given)) == len(given), "each value once", given


def _of_command_topics(icd: Icd) -> Iterator[Row]:
    gives_orders = any(command.orders for owner in icd.commanded.values() for command in owner.commands)
    for name, message in {**_COMMAND_TOPICS, **({"orders": "command"} if gives_orders else {})}.items():
        rule, place, topic = "command_topics_exist", f"topics[{name}]", icd.topics.get(name)
        yield rule, place, topic, "such a topic, because there are commands", None
        if topic is not None:
            yield rule, f"{place}.message", topic.message == message, repr(message), topic.message
            is_right = topic.message != message or topic.timestamp == "LogAppendTime"
            yield rule, f"{place}.timestamp", is_right, "'LogAppendTime'", topic.timestamp
    commands, acks = (icd.topics.get(name) for name in ("commands", "command-acks"))
    if commands is not None and acks is not None and None not in (commands.retention, acks.retention):
        # A command without its outcome would be executed again.
        is_right = (acks.retention or 0) >= (commands.retention or 0)
        what = f"number >= that of commands = {commands.retention:g}"
        yield "acks_outlive_commands", "topics[command-acks].retention", is_right, what, acks.retention
