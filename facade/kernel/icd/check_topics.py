"""Rules of topics with their windows and roles, and of the schemas of messages and command arguments."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urldefrag, urljoin

from facade.kernel.clock import as_duration, as_seconds
from facade.kernel.icd.checks import NO_VALUE, SENTENCE, IcdFinding, Row, findings, is_sentence
from facade.kernel.icd.explain import shown
from facade.kernel.icd.fields import (
    ALIASES,
    Schema,
    aliases,
    bound,
    is_numeric,
    kind,
    message_of,
    properties,
    split_version,
    translation,
    walk,
    why_no_column,
)
from facade.kernel.icd.model import Icd, instance_role
from facade.kernel.icd.topic_model import REBUILT, Topic, Window, slot_name
from facade.kernel.icd.units import known_units
from facade.kernel.names import SCHEMAS
from facade.kernel.windows import KEPT_WINDOWS, MOST_WINDOWS

# --- Messages and arguments of commands ---

ADDRESS = SCHEMAS + "{family}/{version}"
"""``interface`` of an argument, and ``$id`` of its schema."""
_BOUNDS = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))
_SUPPORTED = frozenset(
    (
        *("$schema", "$id", "$ref", "$defs", "title", "description", "examples"),
        *("type", "const", "enum", "anyOf", "pattern"),
        *("properties", "required", "additionalProperties", "minProperties"),
        *("items", "prefixItems", "minItems", "maxItems", "minLength"),
        *("minimum", "maximum", "exclusiveMinimum"),
    )
)
"""Keywords for which refusals have a text."""


def check_schemas(icd: Icd) -> Iterator[IcdFinding]:
    """Yield the findings."""
    units = known_units(icd)
    for name, schema in icd.messages.items():
        yield from findings(f"{name}.schema.json", "", (*_of_message(name, schema), *_of_fields(schema, units)))
        if split_version(name)[1]:
            yield from findings(f"{name}.schema.json", "", _of_earlier(icd, name))
    for family, version, schema in _arguments(icd):
        yield from findings(f"{family}-{version}.schema.json", "", _of_argument(icd, family, version, schema))


def check_legality(icd: Icd) -> Iterator[IcdFinding]:
    """Yield the findings of the JSON Schema library, which is slow to import."""
    from jsonschema import Draft202012Validator

    meta = Draft202012Validator(Draft202012Validator.META_SCHEMA)

    def illegal(rule: str, schema: Schema) -> list[Row]:
        return [
            (rule, ".".join(map(str, one.path)), False, f"JSON Schema 2020-12, got: {one.message:.200}", NO_VALUE)
            for one in meta.iter_errors(schema)
        ]

    for name, schema in icd.messages.items():
        rows = illegal("schemas_are_legal", schema)
        for index, example in enumerate(schema.get("examples", ()) if not rows else ()):
            for error in Draft202012Validator(schema).iter_errors(example):
                path = ".".join((f"examples[{index}]", *map(str, error.path)))
                what = f"a message as the schema says, got: {error.message:.200}"
                rows.append(("examples_are_legal", path, False, what, NO_VALUE))
        yield from findings(f"{name}.schema.json", "", rows)
    for family, version, schema in _arguments(icd):
        yield from findings(f"{family}-{version}.schema.json", "", illegal("argument_schemas_are_legal", schema))


def _of_message(name: str, schema: Schema) -> Iterator[Row]:
    rule, found, extra = "messages_are_closed_objects", schema.get("properties"), schema.get("additionalProperties")
    yield rule, "type", schema.get("type") == "object", "'object'", schema.get("type")
    is_right = isinstance(found, dict) and all(isinstance(field, dict) for field in found.values())
    yield rule, "properties", is_right, "an object of objects", shown(found)
    yield rule, "additionalProperties", extra is False, "false", shown(extra)
    rule, version = "messages_name_their_version", properties(schema).get("schema", {}).get("const")
    message, number = split_version(name)
    is_version = isinstance(version, str) and re.fullmatch(rf"{re.escape(message)}/{number or '[1-9][0-9]*'}", version)
    yield rule, "properties.schema.const", is_version, f"'{message}/' and {number or 'a number'}", shown(version)
    if is_version:
        required, id = schema.get("required"), schema.get("$id")
        is_right = isinstance(required, list) and "schema" in required
        yield rule, "required", is_right, "'schema' among them", shown(required)
        yield rule, "$id", str(id).endswith(f"/{version}"), f"an address that ends with '/{version}'", shown(id)
    for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in walk(schema))]:
        required, known = part.get("required", []), properties(part)
        is_right = isinstance(required, list) and all(key in known for key in map(str, required))
        what = f"names of properties ({', '.join(known)})"
        yield "required_properties_exist", f"{path}required", is_right, what, shown(required)
    # A field keeps its first name in summaries for ever: two fields with the same name would overwrite each other.
    rule, fields = "former_names_are_distinct", properties(schema)
    names = Counter([*fields, *(one for part in fields.values() for one in aliases(part))])
    for field, part in fields.items():
        given, twice = part.get(ALIASES, []), [one for one in aliases(part) if names[one] > 1]
        yield rule, f"properties.{field}.{ALIASES}", given == aliases(part), "a list of texts", given
        yield rule, f"properties.{field}.{ALIASES}", not twice, "names that no other field has or had", twice


_TEXTS = frozenset({"title", "description", "default", "examples", ALIASES})


def _of_earlier(icd: Icd, name: str) -> Iterator[Row]:
    """Check an earlier version of a message against the current one, as both are counted together."""
    rule, message = "earlier_versions_are_read", split_version(name)[0]
    topic, window = next(((k, one.window) for k, one in icd.topics.items() if one.message == message), ("", None))
    if window is None:
        yield rule, "", False, "an earlier version of a message of a topic with a window: others have none", NO_VALUE
        return
    now, then = properties(icd.messages[message]), properties(icd.messages[name])
    version, found = now.get("schema", {}).get("const"), translation(icd.messages[message], icd.messages[name])
    for field in now.keys() - found.names.values() - found.defaults.keys():
        yield rule, f"properties.{field}", False, f"the field or an alias of it, or a default in {version}", NO_VALUE
    for field, value in found.defaults.items():
        what = f"a default of {field} in {version} that the field takes"
        yield rule, f"properties.{field}", _takes(now[field], value), what, value
    for former, field in found.names.items():
        both = [{key: value for key, value in one.items() if key not in _TEXTS} for one in (then[former], now[field])]
        is_same = both[0] == both[1] or field == "schema"
        yield rule, f"properties.{former}", is_same, f"type, limits and unit of {field} in {version}", NO_VALUE
    for key in ("time", "group", "sequence", "epoch"):
        field = getattr(window, key)
        is_there = field is None or found.names.get(field) == field
        yield rule, f"properties.{field}", is_there, f"the field, as it is `{key}` of the window of {topic}", NO_VALUE


def _takes(part: Schema, value: object) -> bool:
    """Return whether a field accepts a value; also True if the field itself is wrong."""
    from jsonschema import Draft202012Validator  # slow to import: only servers with earlier versions need it

    meta = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    return not meta.is_valid(part) or Draft202012Validator(part).is_valid(value)


def _of_fields(schema: Schema, units: frozenset[str]) -> Iterator[Row]:
    rule, own, text = "properties_are_described", properties(schema), schema.get("description")
    yield rule, "description", _is_text(text), "text", shown(text)
    for path, field, named in walk(schema):
        text, unit = field.get("description"), field.get("x-unit")
        yield rule, f"{path}.description", not named or _is_text(text), "text", shown(text)
        # Nested numbers are statistics, whose range follows from other fields and their count.
        is_free = kind(field) == "number" and path.removeprefix("properties.") not in own
        for key in ("minimum", "maximum") if is_numeric(field) and not field.keys() & {"const", "enum"} else ():
            value = field.get(key)
            is_right = is_free if value is None else isinstance(value, int | float) and not isinstance(value, bool)
            yield "numbers_are_bounded", f"{path}.{key}", is_right, "number", shown(value)
        for lower, upper in _BOUNDS:
            low, high = field.get(lower), field.get(upper)
            is_right = not (isinstance(low, int | float) and isinstance(high, int | float) and low > high)
            yield "bounds_are_ordered", f"{path}.{upper}", is_right, f"number >= {lower} = {low}", high
        if "x-unit" in field:
            is_right = is_numeric(field) and isinstance(unit, str) and unit in units
            what = f"one of {sorted(units)}" if is_numeric(field) else "none, because it is no number"
            yield "field_units_are_known", f"{path}.x-unit", is_right, what, shown(unit)


def _arguments(icd: Icd) -> Iterator[tuple[str, str, Schema]]:
    for family, versions in icd.arguments.items():
        for version, schema in versions.items():
            yield family, version, schema


def _of_argument(icd: Icd, family: str, version: str, schema: Schema) -> Iterator[Row]:
    rule, address = "argument_schemas_name_themselves", ADDRESS.format(family=family, version=version)
    interface = properties(schema).get("interface", {}).get("const")
    yield rule, "$id", schema.get("$id") == address, repr(address), shown(schema.get("$id"))
    yield rule, "properties.interface.const", interface == address, repr(address), shown(interface)
    rule = "argument_properties_are_described"
    for key in ("title", "description"):
        yield rule, key, _is_text(schema.get(key)), "text", shown(schema.get(key))
    parts = list(_parts(schema))
    for path, part, named in parts:
        is_right = not named or "$ref" in part or _is_text(part.get("description"))
        yield rule, f"{path}.description", is_right, "text", shown(part.get("description"))
    for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in parts)]:
        reference = part.get("$ref")
        is_right = reference is None or _leads(str(schema.get("$id")), reference, icd)
        what = "the address of a part of these schemas"
        yield "argument_references_lead_somewhere", f"{path}$ref", is_right, what, shown(reference)
        for keyword in sorted(part.keys() - _SUPPORTED):
            what = f"one of {sorted(_SUPPORTED)}, got an unsupported keyword"
            yield "argument_keywords_are_supported", f"{path}{keyword}", False, what, NO_VALUE


def _parts(schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
    yield from walk(schema)
    definitions = schema.get("$defs")
    if isinstance(definitions, dict):
        for name, part in definitions.items():
            if isinstance(part, dict):
                yield f"$defs.{name}", part, False
                yield from walk(part, f"$defs.{name}.")


def _leads(base: str, reference: object, icd: Icd) -> bool:
    if not isinstance(reference, str):
        return False
    address, fragment = urldefrag(urljoin(base, reference))
    schemas = (schema for versions in icd.arguments.values() for schema in versions.values())
    part: Any = next((schema for schema in schemas if schema.get("$id") == address), None)
    for step in fragment.split("/")[1:]:
        part = part.get(step) if isinstance(part, dict) else None
    return isinstance(part, dict)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


# --- Topics and their windows ---


_TOPIC_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,150}")
"""Kafka's letters, with room for a deployment's prefix below its limit of 249."""
_ROLE_NAME = re.compile(r"[a-z]+(-[a-z]+)*")
_MODELLED = frozenset({"cleanup.policy", "retention.ms", "message.timestamp.type", "max.message.bytes"})
_DEAD_LETTERS = "dead-letters"
_HEADER_ROOM = 65_536
"""Size by which a dead letter may exceed its original: one too large would block all records after it."""
MOST_GROUPS = 10_000
_LONGEST_NAME = 200
"""Longest name of a group, by the summary messages."""
_WATERMARK = "watermark"
"""Message that closes windows; every summary topic has it."""
_SUMMARY_FIELDS = ("worker", "partition", "partials")


_SNAPSHOT, _BUCKET = "snapshot", 18
"""Message with the state of a device server, and the size of a bucket of a quantile in it [bytes]."""


def check_snapshots(icd: Icd) -> Iterator[IcdFinding]:
    """Yield the streams whose quantiles, if values fill their range, are too large for a snapshot; it needs numpy."""
    from facade.kernel.sketch import filled

    room = min((topic.max_bytes for topic in icd.topics.values() if topic.message == _SNAPSHOT), default=0)
    sources = {one.source for of in icd.classes.values() for one in of.attributes if one.source is not None}
    for name, window in ((name, topic.window) for name, topic in icd.topics.items()):
        if window is None or window.quantile_error is None:
            continue
        known = properties(message_of(icd, name) or {})
        fields = {one.field or "" for one in sources if (one.topic, one.rule) == (name, "quantile")}
        ends = (
            (bound(part, "minimum", 0), bound(part, "maximum", 0)) for part in (known.get(one, {}) for one in fields)
        )
        of_window = sum(filled(least, most, window.quantile_error) for least, most in ends) * _BUCKET
        group = known.get(window.group or "", {})
        groups = len(group.get("enum", ())) or window.most_groups or round(bound(group, "maximum", 0)) + 1
        windows = KEPT_WINDOWS + MOST_WINDOWS + math.ceil(window.ahead / window.length)
        size = of_window * windows * (1 if window.length <= REBUILT else 1 + groups)
        what = f"quantiles for which a snapshot of {room:,} bytes has room: fewer groups, fewer fields, a larger error"
        row = ("window_snapshots_have_room", "quantile_error", size <= room, what, f"up to {size:,} bytes")
        yield from findings("topics.toml", f"topics[{name}].window", [row])


def check_topics(icd: Icd) -> Iterator[IcdFinding]:
    """Yield the findings."""
    users: dict[str, str] = {}
    for name, topic in icd.topics.items():
        yield from findings("topics.toml", f"topics[{name}]", _of_topic(icd, name, topic))
        if topic.window is not None:
            schema = message_of(icd, name) or {}
            columns = [
                (field, why_no_column(part, required=_requires(schema, field)) or "")
                for field, part in properties(schema).items()
            ]
            rows = [
                ("window_messages_are_flat", f"properties.{field}", not why, f"{why}; {name!r} has a window", NO_VALUE)
                for field, why in columns
            ]
            yield from findings(f"{topic.message}.schema.json", "", rows)
            yield from findings("topics.toml", f"topics[{name}].window", _of_window(icd, name, topic.window, schema))
            yield from findings("topics.toml", "", _of_summary(icd, name, topic.window, users))
    busy = {role for topic in icd.topics.values() for role in (*topic.writers, *topic.readers)}
    for name, role in icd.roles.items():
        is_name = _ROLE_NAME.fullmatch(name)
        of_role: list[Row] = [
            ("role_texts_are_complete", "", is_name, "lower-case words with hyphens between", name),
            ("roles_take_part", "", name in busy or role.every_topic, "a topic that it writes or reads", None),
            (
                "workers_have_the_ids_of_their_group",
                "transactional_id",
                role.transactional_id == slot_name(role.group, "*") if role.group else "*" not in role.transactional_id,
                "the group, a hyphen and *" if role.group else "no *, as there is no group",
                role.transactional_id,
            ),
        ]
        yield from findings("topics.toml", f"roles[{name}]", of_role)
    for name, one in icd.classes.items():
        role_, what = instance_role(one.instance), f"an instance whose role is one of {sorted(icd.roles)}"
        row = ("device_servers_are_roles", "instance", role_ in icd.roles, what, role_)
        yield from findings(f"{name}.toml", "", [row])


def _of_topic(icd: Icd, name: str, topic: Topic) -> Iterator[Row]:
    rule, messages = "topic_names_are_legal", sorted(icd.messages)
    yield rule, "", _TOPIC_NAME.fullmatch(name), "letters, digits and ._- (at most 151)", name
    for index, further in enumerate(topic.also):
        is_right = further in icd.messages and further not in (topic.message, *topic.also[:index])
        yield "topic_messages_exist", "also", is_right, f"others of {messages}", further
    is_right = topic.message is None or topic.message in icd.messages
    yield "topic_messages_exist", "message", is_right, f"one of {messages}", topic.message
    forms = (topic.message is not None, topic.header is not None, bool(topic.bytes))
    yield "records_are_described", "", sum(forms) == 1, "exactly one of message, header and bytes", NO_VALUE
    if topic.header is not None:
        known = topic.header.message in icd.messages
        yield "records_are_described", "header.message", known, f"one of {messages}", topic.header.message
    for index, one in enumerate(topic.operations):
        roles = topic.writers if one.action == "send" else topic.readers
        replies = (one.reply,) if one.reply else ()
        for key, values, allowed in (
            ("roles", one.roles, roles),
            ("messages", one.messages, (topic.message, *topic.also)),
            ("reply", replies, tuple(icd.topics)),
        ):
            for value in values:
                what = f"one of {', '.join(map(str, allowed))}"
                yield "operations_are_of_the_topic", f"operations[{index}].{key}", value in allowed, what, value
    is_right = is_sentence(topic.shared) if len(topic.writers) > 1 else not topic.shared
    what = f"{SENTENCE} with the reason if there are several writers, otherwise none"
    yield "writers_share_for_a_reason", "shared", is_right, what, topic.shared
    rule, encodings = "columnar_messages_are_numbers", topic.encodings
    # Dead letters of rows are JSON.
    is_right = "json" in encodings and len(set(encodings)) == len(encodings)
    yield rule, "encodings", is_right, "json, and arrow at most", ", ".join(encodings) or "none"
    if "arrow" in encodings:
        is_right = topic.window is not None and topic.message is not None and not topic.also
        what = "json only, as arrow is for a topic with a window and one message"
        yield rule, "encodings", is_right, what, NO_VALUE
        for field, part in properties(message_of(icd, name) or {}).items():
            what = f"json only, as field {field!r} of {topic.message!r} is no number"
            yield rule, "encodings", "const" in part or is_numeric(part), what, NO_VALUE
    is_compact, kept = topic.cleanup == "compact", topic.retention
    is_right, what = is_compact == (kept is None), "none for a compacted topic" if is_compact else "number > 0"
    yield "retention_fits_cleanup", "retention", is_right, what, kept
    # On a compacted topic the old record of a moved key would stay on its old partition for ever.
    is_right = not topic.partitions_may_grow or not (topic.partitions == 1 or is_compact)
    what = "false for one partition and for a compacted topic"
    yield "growing_topics_have_no_one_order", "partitions_may_grow", is_right, what, True
    if (letters := icd.topics.get(_DEAD_LETTERS)) is not None and name != _DEAD_LETTERS:
        most = letters.max_bytes - _HEADER_ROOM
        what = f"at most {most}, which {_DEAD_LETTERS} can take"
        yield "dead_letters_take_anything", "max_bytes", topic.max_bytes <= most, what, topic.max_bytes
    for key in sorted(topic.config.keys() & _MODELLED):
        what = "the topic's own key for this"
        yield "topic_config_does_not_overrule", f"config[{key}]", False, what, "a second place"
    for key, some in (("writers", topic.writers), ("readers", topic.readers)):
        yield "topics_have_two_ends", key, some, "at least one role", ()
        for index, role in enumerate(some):
            is_right = role in icd.roles and role not in some[:index]
            yield "topic_roles_exist", key, is_right, f"others of {sorted(icd.roles)}", role
    if topic.window is not None:
        is_given, what = topic.message is not None, "a message, because the topic has a window"
        yield "window_messages_are_flat", "message", is_given, what, None
        # Lateness and silence are judged by the broker's timestamps.
        is_right = topic.timestamp == "LogAppendTime"
        yield "window_times_are_the_brokers", "timestamp", is_right, "'LogAppendTime'", topic.timestamp


def _of_window(icd: Icd, name: str, window: Window, schema: dict[str, Any]) -> Iterator[Row]:
    known, is_right = properties(schema), as_seconds(as_duration(window.length)) == window.length
    yield "window_lengths_are_exact", "length", is_right, "whole microseconds", window.length
    for key in ("time", "sequence", "epoch", "group") if schema else ():
        field = getattr(window, key)
        if field is None:
            continue
        part, fits = known.get(field, {}), ("integer", "string") if key == "group" else ("integer",)
        is_right = kind(part) in fits and _requires(schema, field)
        what = f"a required {' or '.join(fits)} field of the message"
        yield "window_fields_have_the_right_type", key, is_right, what, field
        is_right = not is_right or kind(part) != "integer" or bound(part, "minimum", -1) >= 0
        what = "a field with a minimum of at least 0"
        yield "window_fields_have_the_right_type", key, is_right, what, part.get("minimum")
    if (time := known.get(window.time)) is not None:
        is_right, what = time.get("x-unit") == "us", "a field with the unit 'us'"
        yield "window_time_is_in_microseconds", "time", is_right, what, time.get("x-unit")
    yield from _of_groups(window, known.get(window.group or "", {}))


def _of_groups(window: Window, field: dict[str, Any]) -> Iterator[Row]:
    """Require a limit of the groups: the deployment's own, the names listed in the schema, or a number."""
    rule, is_text, most = "window_groups_are_bounded", kind(field) == "string", window.most_groups
    if window.group is None:
        for key, default in (("groups", None), ("most_groups", 0), ("all_expected", False)):
            value = getattr(window, key)
            yield rule, key, value == default, "none without `group`", value
        return
    is_right, what = window.groups is None or not is_text, f"none, because {window.group!r} is a text"
    yield rule, "groups", is_right, what, window.groups
    if "enum" in field or window.groups is not None:
        yield rule, "most_groups", not most, "none, because the groups are known", most
        return
    yield rule, "most_groups", 1 <= most <= MOST_GROUPS, f"1 to {MOST_GROUPS}, or `groups`", most
    if is_text:
        is_right = bound(field, "maxLength", _LONGEST_NAME + 1) <= _LONGEST_NAME
        what = f"a field with a maxLength of at most {_LONGEST_NAME}"
        yield rule, "group", is_right, what, field.get("maxLength")
        what = "false, because it is not known which names come"
        yield rule, "all_expected", not window.all_expected, what, True


def _of_summary(icd: Icd, name: str, window: Window, users: dict[str, str]) -> Iterator[Row]:
    rule, place, summary = "window_summaries_have_a_topic", f"topics[{name}].window.summary", window.summary
    topic, known = icd.topics.get(summary), properties(message_of(icd, summary) or {})
    needed = {*_SUMMARY_FIELDS, window.group if window.group in known else "group"}
    what = f"a topic with {', '.join(sorted(map(str, needed)))} in its message"
    is_right = topic is not None and needed <= known.keys()
    yield rule, place, is_right, what, summary
    if topic is not None:
        is_brokers, what = topic.timestamp == "LogAppendTime", "'LogAppendTime' for summaries"
        yield "window_times_are_the_brokers", f"topics[{summary}].timestamp", is_brokers, what, topic.timestamp
    if topic is not None and is_right:
        what = f"{_WATERMARK!r} among them, as windows are closed by it"
        yield rule, f"topics[{summary}].also", _WATERMARK in topic.also, what, NO_VALUE
        other = users.setdefault(summary, name)
        what = "a topic of its own, because its message has no `stream`"
        yield rule, place, other == name or "stream" in known, what, f"that of {other}"


def _requires(schema: dict[str, Any], field: str) -> bool:
    required = schema.get("required")
    return isinstance(required, list) and field in required
