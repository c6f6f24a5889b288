"""Checks of the topics: what Kafka would refuse, roles, and what the aggregate worker could not do with a window."""

import re
from collections.abc import Iterator
from typing import Any

from facade.icd.fields import bound, is_numeric, kind, message_of, properties, why_no_column
from facade.icd.finding import IcdFinding
from facade.icd.model import Icd, instance_role
from facade.icd.topic_model import Topic, Window

_TOPIC_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,150}")
_MODELLED = frozenset({"cleanup.policy", "retention.ms", "message.timestamp.type", "max.message.bytes"})
_DEAD_LETTERS = "dead-letters"
_HEADER_ROOM = 65_536
"""What a dead letter may be larger than its original [bytes]."""


def topic_names_are_legal(icd: Icd) -> Iterator[IcdFinding]:
    """Require Kafka's letters, and leave room for a deployment's prefix below its limit of 249."""
    for name, topic in icd.topics.items():
        if not _TOPIC_NAME.fullmatch(name):
            yield _at(name, "", f"expected letters, digits and ._- (at most 151), got {name!r}")
        if not topic.description.strip().endswith("."):
            what = f"expected text that ends with a full stop, got {topic.description!r}"
            yield _at(name, "description", what)


def topic_messages_exist(icd: Icd) -> Iterator[IcdFinding]:
    """Require schemas for a topic's messages, each of them once."""
    for name, topic in icd.topics.items():
        for index, further in enumerate(topic.also):
            if further not in icd.messages or further in (topic.message, *topic.also[:index]):
                yield _at(name, "also", f"expected others of {sorted(icd.messages)}, got {further!r}")
        if topic.message is not None and topic.message not in icd.messages:
            yield _at(name, "message", f"expected one of {sorted(icd.messages)}, got {topic.message!r}")


def records_are_described(icd: Icd) -> Iterator[IcdFinding]:
    """Require exactly one of message, header and bytes, with a known message in the header."""
    for name, topic in icd.topics.items():
        if sum((topic.message is not None, topic.header is not None, bool(topic.bytes))) != 1:
            yield _at(name, "", "expected exactly one of message, header and bytes")
        if topic.header is not None and topic.header.message not in icd.messages:
            yield _at(name, "header.message", f"expected one of {sorted(icd.messages)}, got {topic.header.message!r}")


def operations_are_of_the_topic(icd: Icd) -> Iterator[IcdFinding]:
    """Require that operations name roles and messages of their topic, and topics for replies."""
    for name, topic in icd.topics.items():
        for index, one in enumerate(topic.operations):
            known = {
                "roles": topic.writers if one.action == "send" else topic.readers,
                "messages": (topic.message, *topic.also),
                "reply": tuple(icd.topics),
            }
            got = {"roles": one.roles, "messages": one.messages, "reply": (one.reply,) if one.reply else ()}
            for key, values in got.items():
                for value in values:
                    if value not in known[key]:
                        what = f"expected one of {', '.join(map(str, known[key]))}, got {value!r}"
                        yield _at(name, f"operations[{index}].{key}", what)


def columnar_messages_are_numbers(icd: Icd) -> Iterator[IcdFinding]:
    """Require JSON among the encodings, as dead letters of rows are JSON; and of columnar messages, numbers."""
    for name, topic in icd.topics.items():
        if "json" not in topic.encodings or len(set(topic.encodings)) < len(topic.encodings):
            yield _at(
                name, "encodings", f"expected json, and arrow at most, got {', '.join(topic.encodings) or 'none'}"
            )
        if "arrow" not in topic.encodings:
            continue
        if topic.window is None or topic.message is None or topic.also:
            yield _at(name, "encodings", "expected json only, as arrow is for a topic with a window and one message")
        for field, part in properties(message_of(icd, name) or {}).items():
            if "const" not in part and not is_numeric(part):
                what = f"expected json only, as field {field!r} of {topic.message!r} is no number"
                yield _at(name, "encodings", what)


def retention_fits_cleanup(icd: Icd) -> Iterator[IcdFinding]:
    """Refuse a retention for a compacted topic and require one for any other."""
    for name, topic in icd.topics.items():
        if topic.cleanup == "compact" and topic.retention is not None:
            what = f"expected none for a compacted topic, got {topic.retention:g}"
            yield _at(name, "retention", what)
        elif topic.cleanup == "delete" and not (topic.retention is not None and topic.retention > 0):
            yield _at(name, "retention", f"expected number > 0, got {topic.retention}")


def topic_sizes_are_positive(icd: Icd) -> Iterator[IcdFinding]:
    """Require at least one partition, and records of at least one byte."""
    for name, topic in icd.topics.items():
        for key in ("partitions", "max_bytes"):
            value = getattr(topic, key)
            if value < 1:
                yield _at(name, key, f"expected integer >= 1, got {value}")


def growing_topics_have_no_one_order(icd: Icd) -> Iterator[IcdFinding]:
    """Refuse more partitions where one is one order for all, and on compacted topics.

    There, the old record of a key that moves would stay on its old partition for ever.
    """
    for name, topic in icd.topics.items():
        if topic.partitions_may_grow and (topic.partitions == 1 or topic.cleanup == "compact"):
            what = "expected false for one partition and for a compacted topic, got true"
            yield _at(name, "partitions_may_grow", what)


def dead_letters_take_anything(icd: Icd) -> Iterator[IcdFinding]:
    """Require room on the dead-letter topic for the largest record of any other, with the headers added to it.

    A record too large to be set aside would come again and again, and hold up everything behind it.
    """
    letters = icd.topics.get(_DEAD_LETTERS)
    if letters is None:
        return
    most = letters.max_bytes - _HEADER_ROOM
    for name, topic in icd.topics.items():
        if name != _DEAD_LETTERS and topic.max_bytes > most:
            yield _at(
                name, "max_bytes", f"expected at most {most}, which {_DEAD_LETTERS} can take, got {topic.max_bytes}"
            )


def topic_config_does_not_overrule(icd: Icd) -> Iterator[IcdFinding]:
    """Refuse to set by Kafka's name what has a key of its own."""
    for name, topic in icd.topics.items():
        for key in sorted(topic.config.keys() & _MODELLED):
            yield _at(name, f"config[{key}]", "expected the topic's own key for this, got a second place")


def _at(name: str, key: str, what: str) -> IcdFinding:
    return IcdFinding("topics.toml", f"topics[{name}].{key}" if key else f"topics[{name}]", what)


SHORTEST, LONGEST = 1.0, 86_400.0
"""Lengths of windows [s]: a worker that is behind commits once a second, and no window is longer than a day."""
MOST_GROUPS = 10_000
_LONGEST_NAME = 200
"""Characters of a group's name, as the summary messages have them."""
_WATERMARK = "watermark"
"""Message that summary topics must have beside their own: it closes windows."""
_SUMMARY_FIELDS = ("worker", "partition", "partials")


def window_numbers_are_possible(icd: Icd) -> Iterator[IcdFinding]:
    """Require a length in whole microseconds that a worker can keep up with, and tolerances of at most a day."""
    for name, _, window in _windowed(icd):
        if not SHORTEST <= window.length <= LONGEST or not (window.length * 1e6).is_integer():
            what = f"expected number from {SHORTEST:g} to {LONGEST:g}, in whole microseconds, got {window.length:g}"
            yield _at_window(name, "length", f"{what}; a worker that is behind commits once in {SHORTEST:g} s")
        for key in ("lateness", "ahead", "disorder"):
            value = getattr(window, key)
            if not 0 <= value <= LONGEST:
                yield _at_window(name, key, f"expected number from 0 to {LONGEST:g}, got {value:g}")
        if window.quantile_error is not None and not 0 < window.quantile_error < 1:
            yield _at_window(name, "quantile_error", f"expected number > 0 and < 1, got {window.quantile_error:g}")


def window_messages_are_flat(icd: Icd) -> Iterator[IcdFinding]:
    """Require a message of scalars that every record has: the worker decodes it into columns."""
    for name, topic, _ in _windowed(icd):
        if topic.message is None:
            yield _at(name, "message", "expected a message, because the topic has a window, got none")
        schema = message_of(icd, name) or {}
        for field, part in properties(schema).items():
            if why := why_no_column(part, required=_requires(schema, field)):
                yield IcdFinding(f"{topic.message}.schema.json", f"properties.{field}", f"{why}; {name!r} has a window")


def window_fields_have_the_right_type(icd: Icd) -> Iterator[IcdFinding]:
    """Require integers for time, sequence and epoch, and an integer or a text for the group."""
    for name, topic, window in _windowed(icd):
        if (schema := message_of(icd, name)) is None:
            continue
        known = properties(schema)
        for key in ("time", "sequence", "epoch", "group"):
            field = getattr(window, key)
            fits = ("integer", "string") if key == "group" else ("integer",)
            if field is not None and (kind(known.get(field, {})) not in fits or not _requires(schema, field)):
                what = f"expected a required {' or '.join(fits)} field of {topic.message!r}, got {field!r}"
                yield _at_window(name, key, what)
            elif field is not None and kind(known[field]) == "integer" and bound(known[field], "minimum", -1) < 0:
                yield _at_window(
                    name, key, f"expected a field with a minimum of at least 0, got {known[field].get('minimum')}"
                )


def window_time_is_in_microseconds(icd: Icd) -> Iterator[IcdFinding]:
    """Require microseconds since the Unix epoch for the data time."""
    for name, _, window in _windowed(icd):
        field = properties(message_of(icd, name) or {}).get(window.time)
        if field is not None and field.get("x-unit") != "us":
            yield _at_window(name, "time", f"expected a field with the unit 'us', got {field.get('x-unit')!r}")


def window_groups_are_bounded(icd: Icd) -> Iterator[IcdFinding]:
    """Require a bound of the groups: those of the deployment, the names that the schema lists, or a number."""
    for name, _, window in _windowed(icd):
        field = properties(message_of(icd, name) or {}).get(window.group or "", {})
        if window.group is None:
            for key, default in (("groups", None), ("most_groups", 0), ("all_expected", False)):
                if getattr(window, key) != default:
                    yield _at_window(name, key, f"expected none without `group`, got {getattr(window, key)!r}")
            continue
        if window.groups is not None and kind(field) == "string":
            yield _at_window(
                name, "groups", f"expected none, because {window.group!r} is a text, got {window.groups!r}"
            )
        if "enum" in field or window.groups is not None:
            if window.most_groups:
                yield _at_window(
                    name, "most_groups", f"expected none, because the groups are known, got {window.most_groups}"
                )
            continue
        if not 1 <= window.most_groups <= MOST_GROUPS:
            what = f"expected 1 to {MOST_GROUPS}, or `groups`, got {window.most_groups}"
            yield _at_window(name, "most_groups", what)
        if kind(field) == "string":
            if bound(field, "maxLength", _LONGEST_NAME + 1) > _LONGEST_NAME:
                what = f"expected a field with a maxLength of at most {_LONGEST_NAME}, got {field.get('maxLength')}"
                yield _at_window(name, "group", what)
            if window.all_expected:
                yield _at_window(
                    name, "all_expected", "expected false, because it is not known which names come, got true"
                )


def window_times_are_the_brokers(icd: Icd) -> Iterator[IcdFinding]:
    """Require the broker's time stamps: lateness and silence are judged by them."""
    for name, topic, window in _windowed(icd):
        if topic.timestamp != "LogAppendTime":
            yield _at(name, "timestamp", f"expected 'LogAppendTime', got {topic.timestamp!r}")
        summary = icd.topics.get(window.summary)
        if summary is not None and summary.timestamp != "LogAppendTime":
            what = f"expected 'LogAppendTime' for summaries, got {summary.timestamp!r}"
            yield _at(window.summary, "timestamp", what)


def window_summaries_have_a_topic(icd: Icd) -> Iterator[IcdFinding]:
    """Require a topic whose message can say what the worker has to say."""
    users: dict[str, str] = {}
    for name, _, window in _windowed(icd):
        known = properties(message_of(icd, window.summary) or {})
        needed = {*_SUMMARY_FIELDS, window.group if window.group in known else "group"}
        if window.summary not in icd.topics or not needed <= known.keys():
            what = f"expected a topic with {', '.join(sorted(map(str, needed)))} in its message, got {window.summary!r}"
            yield _at_window(name, "summary", what)
            continue
        if _WATERMARK not in icd.topics[window.summary].also:
            yield _at(window.summary, "also", f"expected {_WATERMARK!r} among them, as windows are closed by it")
        other = users.setdefault(window.summary, name)
        if other != name and "stream" not in known:
            what = f"expected a topic of its own, because its message has no `stream`, got that of {other!r}"
            yield _at_window(name, "summary", what)


def _windowed(icd: Icd) -> Iterator[tuple[str, Topic, Window]]:
    for name, topic in icd.topics.items():
        if topic.window is not None:
            yield name, topic, topic.window


def _requires(schema: dict[str, Any], field: str) -> bool:
    required = schema.get("required")
    return isinstance(required, list) and field in required


def _at_window(name: str, key: str, what: str) -> IcdFinding:
    return _at(name, f"window.{key}", what)


_ROLE_NAME = re.compile(r"[a-z]+(-[a-z]+)*")


def role_texts_are_complete(icd: Icd) -> Iterator[IcdFinding]:
    """Require names in lower case, and a description."""
    for name, role in icd.roles.items():
        if not _ROLE_NAME.fullmatch(name):
            yield IcdFinding(
                "topics.toml", f"roles[{name}]", f"expected lower-case words with hyphens between, got {name!r}"
            )
        if not role.description.strip().endswith("."):
            what = f"expected text that ends with a full stop, got {role.description!r}"
            yield IcdFinding("topics.toml", f"roles[{name}].description", what)


def topic_roles_exist(icd: Icd) -> Iterator[IcdFinding]:
    """Require known roles, each of them once."""
    for topic, key, roles in _lists(icd):
        for index, role in enumerate(roles):
            if role not in icd.roles or role in roles[:index]:
                yield IcdFinding(
                    "topics.toml", f"topics[{topic}].{key}", f"expected others of {sorted(icd.roles)}, got {role!r}"
                )


def topics_have_two_ends(icd: Icd) -> Iterator[IcdFinding]:
    """Require a writer and a reader of each topic."""
    for topic, key, roles in _lists(icd):
        if not roles:
            yield _at(topic, key, "expected at least one role, got none")


def roles_take_part(icd: Icd) -> Iterator[IcdFinding]:
    """Require at least one topic for each role."""
    busy = {role for _, _, roles in _lists(icd) for role in roles}
    for name in icd.roles:
        if name not in busy:
            yield IcdFinding("topics.toml", f"roles[{name}]", "expected a topic that it writes or reads, got none")


def device_servers_are_roles(icd: Icd) -> Iterator[IcdFinding]:
    """Require a role of its name for each device-server instance; those of racks are one role."""
    for name, one in icd.classes.items():
        if (role := instance_role(one.instance)) not in icd.roles:
            what = f"expected an instance whose role is one of {sorted(icd.roles)}, got {role!r}"
            yield IcdFinding(f"{name}.toml", "instance", what)


def _lists(icd: Icd) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for name, topic in icd.topics.items():
        yield name, "writers", topic.writers
        yield name, "readers", topic.readers


CHECKS = (
    topic_names_are_legal,
    topic_messages_exist,
    records_are_described,
    operations_are_of_the_topic,
    columnar_messages_are_numbers,
    retention_fits_cleanup,
    topic_sizes_are_positive,
    growing_topics_have_no_one_order,
    dead_letters_take_anything,
    topic_config_does_not_overrule,
    window_numbers_are_possible,
    window_messages_are_flat,
    window_fields_have_the_right_type,
    window_time_is_in_microseconds,
    window_groups_are_bounded,
    window_times_are_the_brokers,
    window_summaries_have_a_topic,
    role_texts_are_complete,
    topic_roles_exist,
    topics_have_two_ends,
    roles_take_part,
    device_servers_are_roles,
)
