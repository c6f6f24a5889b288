"""Checks of the topics: what Kafka would refuse, or would do without anybody having meant it."""

import re
from collections.abc import Iterator

from facade.icd.fields import is_numeric, message_of, properties
from facade.icd.finding import Finding
from facade.icd.model import Icd

_TOPIC_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,150}")
_MODELLED = frozenset({"cleanup.policy", "retention.ms", "message.timestamp.type", "max.message.bytes"})
_DEAD_LETTERS = "dead-letters"
_HEADER_ROOM = 65_536
"""What a dead letter may be larger than its original [bytes]."""


def topic_names_are_legal(icd: Icd) -> Iterator[Finding]:
    """Require Kafka's letters, and leave room for a deployment's prefix below its limit of 249."""
    for name, topic in icd.topics.items():
        if not _TOPIC_NAME.fullmatch(name):
            yield _at(name, "", f"expected letters, digits and ._- (at most 151), got {name!r}")
        if not topic.description.strip().endswith("."):
            what = f"expected text that ends with a full stop, got {topic.description!r}"
            yield _at(name, "description", what)


def topic_messages_exist(icd: Icd) -> Iterator[Finding]:
    """Require schemas for a topic's messages, each of them once."""
    for name, topic in icd.topics.items():
        for index, further in enumerate(topic.also):
            if further not in icd.messages or further in (topic.message, *topic.also[:index]):
                yield _at(name, "also", f"expected others of {sorted(icd.messages)}, got {further!r}")
        if topic.message is not None and topic.message not in icd.messages:
            yield _at(name, "message", f"expected one of {sorted(icd.messages)}, got {topic.message!r}")


def records_are_described(icd: Icd) -> Iterator[Finding]:
    """Require exactly one of message, header and bytes, with a known message in the header."""
    for name, topic in icd.topics.items():
        if sum((topic.message is not None, topic.header is not None, bool(topic.bytes))) != 1:
            yield _at(name, "", "expected exactly one of message, header and bytes")
        if topic.header is not None and topic.header.message not in icd.messages:
            yield _at(name, "header.message", f"expected one of {sorted(icd.messages)}, got {topic.header.message!r}")


def operations_are_of_the_topic(icd: Icd) -> Iterator[Finding]:
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


def columnar_messages_are_numbers(icd: Icd) -> Iterator[Finding]:
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


def retention_fits_cleanup(icd: Icd) -> Iterator[Finding]:
    """Refuse a retention for a compacted topic and require one for any other."""
    for name, topic in icd.topics.items():
        if topic.cleanup == "compact" and topic.retention is not None:
            what = f"expected none for a compacted topic, got {topic.retention:g}"
            yield _at(name, "retention", what)
        elif topic.cleanup == "delete" and not (topic.retention is not None and topic.retention > 0):
            yield _at(name, "retention", f"expected number > 0, got {topic.retention}")


def topic_sizes_are_positive(icd: Icd) -> Iterator[Finding]:
    """Require at least one partition, and records of at least one byte."""
    for name, topic in icd.topics.items():
        for key in ("partitions", "max_bytes"):
            value = getattr(topic, key)
            if value < 1:
                yield _at(name, key, f"expected integer >= 1, got {value}")


def growing_topics_have_no_one_order(icd: Icd) -> Iterator[Finding]:
    """Refuse more partitions where one is one order for all, and on compacted topics.

    There, the old record of a key that moves would stay on its old partition for ever.
    """
    for name, topic in icd.topics.items():
        if topic.partitions_may_grow and (topic.partitions == 1 or topic.cleanup == "compact"):
            what = "expected false for one partition and for a compacted topic, got true"
            yield _at(name, "partitions_may_grow", what)


def dead_letters_take_anything(icd: Icd) -> Iterator[Finding]:
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


def topic_config_does_not_overrule(icd: Icd) -> Iterator[Finding]:
    """Refuse to set by Kafka's name what has a key of its own."""
    for name, topic in icd.topics.items():
        for key in sorted(topic.config.keys() & _MODELLED):
            yield _at(name, f"config[{key}]", "expected the topic's own key for this, got a second place")


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
)


def _at(name: str, key: str, what: str) -> Finding:
    return Finding("topics.toml", f"topics[{name}].{key}" if key else f"topics[{name}]", what)
