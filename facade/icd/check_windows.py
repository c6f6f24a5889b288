"""Checks of windowed topics: what the aggregate worker and the devices could not do with them."""

from collections.abc import Iterator
from typing import Any

from facade.icd.fields import bound, kind, message_of, properties, why_no_column
from facade.icd.finding import Finding
from facade.icd.model import Icd
from facade.icd.topic_model import Topic, Window

SHORTEST, LONGEST = 1.0, 86_400.0
"""Lengths of windows [s]: a worker that is behind commits once a second, and no window is longer than a day."""
MOST_GROUPS = 10_000
_LONGEST_NAME = 200
"""Characters of a group's name, as the summary messages have them."""
_WATERMARK = "watermark"
"""Message that summary topics must have beside their own: it closes windows."""
_SUMMARY_FIELDS = ("worker", "partition", "partials")


def window_numbers_are_possible(icd: Icd) -> Iterator[Finding]:
    """Require a length in whole microseconds that a worker can keep up with, and tolerances of at most a day."""
    for name, _, window in _windowed(icd):
        if not SHORTEST <= window.length <= LONGEST or not (window.length * 1e6).is_integer():
            what = f"expected number from {SHORTEST:g} to {LONGEST:g}, in whole microseconds, got {window.length:g}"
            yield _at(name, "length", f"{what}; a worker that is behind commits once in {SHORTEST:g} s")
        for key in ("lateness", "ahead", "disorder"):
            value = getattr(window, key)
            if not 0 <= value <= LONGEST:
                yield _at(name, key, f"expected number from 0 to {LONGEST:g}, got {value:g}")
        if window.quantile_error is not None and not 0 < window.quantile_error < 1:
            yield _at(name, "quantile_error", f"expected number > 0 and < 1, got {window.quantile_error:g}")


def window_messages_are_flat(icd: Icd) -> Iterator[Finding]:
    """Require a message of scalars that every record has: the worker decodes it into columns."""
    for name, topic, _ in _windowed(icd):
        if topic.message is None:
            yield _at_topic(name, "message", "expected a message, because the topic has a window, got none")
        schema = message_of(icd, name) or {}
        for field, part in properties(schema).items():
            if why := why_no_column(part, required=_requires(schema, field)):
                yield Finding(f"{topic.message}.schema.json", f"properties.{field}", f"{why}; {name!r} has a window")


def window_fields_have_the_right_type(icd: Icd) -> Iterator[Finding]:
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
                yield _at(name, key, what)
            elif field is not None and kind(known[field]) == "integer" and bound(known[field], "minimum", -1) < 0:
                yield _at(
                    name, key, f"expected a field with a minimum of at least 0, got {known[field].get('minimum')}"
                )


def window_time_is_in_microseconds(icd: Icd) -> Iterator[Finding]:
    """Require microseconds since the Unix epoch for the data time."""
    for name, _, window in _windowed(icd):
        field = properties(message_of(icd, name) or {}).get(window.time)
        if field is not None and field.get("x-unit") != "us":
            yield _at(name, "time", f"expected a field with the unit 'us', got {field.get('x-unit')!r}")


def window_groups_are_bounded(icd: Icd) -> Iterator[Finding]:
    """Require a bound of the groups: those of the deployment, the names that the schema lists, or a number."""
    for name, _, window in _windowed(icd):
        field = properties(message_of(icd, name) or {}).get(window.group or "", {})
        if window.group is None:
            for key, default in (("groups", None), ("most_groups", 0), ("all_expected", False)):
                if getattr(window, key) != default:
                    yield _at(name, key, f"expected none without `group`, got {getattr(window, key)!r}")
            continue
        if window.groups is not None and kind(field) == "string":
            yield _at(name, "groups", f"expected none, because {window.group!r} is a text, got {window.groups!r}")
        if "enum" in field or window.groups is not None:
            if window.most_groups:
                yield _at(name, "most_groups", f"expected none, because the groups are known, got {window.most_groups}")
            continue
        if not 1 <= window.most_groups <= MOST_GROUPS:
            what = f"expected 1 to {MOST_GROUPS}, or `groups`, got {window.most_groups}"
            yield _at(name, "most_groups", what)
        if kind(field) == "string":
            if bound(field, "maxLength", _LONGEST_NAME + 1) > _LONGEST_NAME:
                what = f"expected a field with a maxLength of at most {_LONGEST_NAME}, got {field.get('maxLength')}"
                yield _at(name, "group", what)
            if window.all_expected:
                yield _at(name, "all_expected", "expected false, because it is not known which names come, got true")


def window_times_are_the_brokers(icd: Icd) -> Iterator[Finding]:
    """Require the broker's time stamps: by them is judged what is late, and what is silent."""
    for name, topic, window in _windowed(icd):
        if topic.timestamp != "LogAppendTime":
            yield _at_topic(name, "timestamp", f"expected 'LogAppendTime', got {topic.timestamp!r}")
        summary = icd.topics.get(window.summary)
        if summary is not None and summary.timestamp != "LogAppendTime":
            what = f"expected 'LogAppendTime' for summaries, got {summary.timestamp!r}"
            yield _at_topic(window.summary, "timestamp", what)


def window_summaries_have_a_topic(icd: Icd) -> Iterator[Finding]:
    """Require a topic whose message can say what the worker has to say."""
    users: dict[str, str] = {}
    for name, _, window in _windowed(icd):
        known = properties(message_of(icd, window.summary) or {})
        needed = {*_SUMMARY_FIELDS, window.group if window.group in known else "group"}
        if window.summary not in icd.topics or not needed <= known.keys():
            what = f"expected a topic with {', '.join(sorted(map(str, needed)))} in its message, got {window.summary!r}"
            yield _at(name, "summary", what)
            continue
        if _WATERMARK not in icd.topics[window.summary].also:
            yield _at_topic(window.summary, "also", f"expected {_WATERMARK!r} among them, as windows are closed by it")
        other = users.setdefault(window.summary, name)
        if other != name and "stream" not in known:
            what = f"expected a topic of its own, because its message has no `stream`, got that of {other!r}"
            yield _at(name, "summary", what)


CHECKS = (
    window_numbers_are_possible,
    window_messages_are_flat,
    window_fields_have_the_right_type,
    window_time_is_in_microseconds,
    window_groups_are_bounded,
    window_times_are_the_brokers,
    window_summaries_have_a_topic,
)


def _windowed(icd: Icd) -> Iterator[tuple[str, Topic, Window]]:
    for name, topic in icd.topics.items():
        if topic.window is not None:
            yield name, topic, topic.window


def _requires(schema: dict[str, Any], field: str) -> bool:
    required = schema.get("required")
    return isinstance(required, list) and field in required


def _at_topic(name: str, key: str, what: str) -> Finding:
    return Finding("topics.toml", f"topics[{name}].{key}", what)


def _at(name: str, key: str, what: str) -> Finding:
    return _at_topic(name, f"window.{key}", what)
