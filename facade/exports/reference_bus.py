"""The reference pages of the bus: topics, and the messages on them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from facade.exports.asyncapi import ends
from facade.exports.asyncapi_messages import EXAMPLE_KEY, message_names
from facade.exports.markdown import code, code_block, escaped, items, link, page, paragraph
from facade.icd.fields import Schema, properties
from facade.icd.model import Icd
from facade.icd.topic_model import Topic, Window
from facade.icd.words import duration_in_words

_TOPICS = (
    "Names are without the prefix of the deployment (`SDP_TOPIC_PREFIX`). Topics are created explicitly, never by use. "
    "The cleanup policy of a topic that keeps the newest record of each key is `compact`, of any other `delete`. Time "
    "stamps are `LogAppendTime` (the broker's) or `CreateTime` (the sender's). The class is the quality of service."
)
_ROLES = (
    "Each topic names the roles that write and read it. [Secure the bus](../how-to/secure-the-bus.md) shows how to "
    "give each role its rights, and no others."
)
_MESSAGES = (
    "Each message is a JSON object with the name and major version of its schema in the field `schema`. The schemas "
    "themselves (JSON Schema 2020-12) are `schemas/messages/*.schema.json`. Fields that are not listed are refused. "
    "Unless a field says otherwise, an integer is 0 to 2^53 - 1, and a string has at most 200 characters."
)
_PARTS = {
    "send": (
        "Messages that you write",
        "Programs of SDP write these messages. Ids and times in the examples are made up.",
    ),
    "receive": ("Messages that you read", "The facade writes these messages for programs of SDP."),
    "": (
        "Internal messages",
        "Only the facade writes and reads these messages. They may change with any release. Their schemas describe the "
        "fields.",
    ),
}
"""Heading and introduction of each part of the page of messages, by what programs of SDP do with its messages."""
_OWN_TOOL = "operator-tool"
"""Role of the commands of `sdp-facade`: it is no program that a team writes."""
_ENCODINGS = {
    "json": "JSON, a message in a record",
    "arrow": "Arrow, many messages as columns in a record, with a header [`batch`](messages.md#batch)",
}
_WIDTH = 118
_EXACT = 2**53 - 1
"""Greatest integer of a message: each JSON reader keeps it exactly."""
_LONGEST = 200
"""Characters of most texts; the page says it once."""
_BYTES = ((1_048_576, "MiB"), (1024, "KiB"))


def topics_page(icd: Icd) -> str:
    """Return the page of all topics."""
    blocks = ["## Roles", paragraph(_ROLES), items(_roles(icd))]
    for name, topic in icd.topics.items():
        blocks += [f"## {code(name)}", paragraph(escaped(topic.description)), items(_topic_facts(topic))]
    return page("Topics", paragraph(_TOPICS), *blocks)


def messages_page(icd: Icd) -> str:
    """Return the page of all messages, field by field: first those that programs of SDP write, with an example each."""
    sides = dict(_sides(icd))
    blocks = []
    for side, (heading, introduction) in _PARTS.items():
        names = [name for name in icd.messages if sides.get(name, "") == side]
        blocks += [f"## {heading}", paragraph(introduction)] if names else []
        for name in names:
            schema = icd.messages[name]
            blocks += [f"### {code(name)}", paragraph(escaped(str(schema.get("description", ""))))]
            where = [link(code(topic), "topics.md", topic) for topic, one in icd.topics.items() if name in _of(one)]
            on = f"On {', '.join(where)}." if where else "In a record's header, or as part of other records."
            if side:
                blocks += [on if len(where) != 1 else "", *_example(icd, name), "\n".join(_fields(schema, 0))]
            else:
                blocks.append(on)
    return page("Messages", paragraph(_MESSAGES), *blocks)


def _sides(icd: Icd) -> Iterator[tuple[str, str]]:
    """Return what programs of SDP do with each message; those that they write last, as these are often read too."""
    found: dict[str, set[str]] = {"receive": set(), "send": set()}
    examples = {name for name, schema in icd.messages.items() if "examples" in schema}
    for topic, one in icd.topics.items():
        headers = [name for _, name in _headers(icd, topic)]
        for role, side in ends(one):
            if icd.roles[role].side == "SDP":
                names = [*(one.operation(role, side).messages or message_names(topic, one)), *headers]
                found[side].update(name for name in names if role != _OWN_TOOL or name in examples)
    for what, its in found.items():
        yield from ((name, what) for name in its)


def _headers(icd: Icd, topic: str) -> Iterator[tuple[str, str]]:
    """Return the headers that describe the bytes of a topic's records, with the message whose schema each has."""
    if (header := icd.topics[topic].header) is not None:
        yield header.name, header.message
    if "arrow" in icd.topics[topic].encodings:
        yield "batch", "batch"


def _example(icd: Icd, name: str) -> Iterator[str]:
    """Return the examples of a message, each as a record that can be copied, with the topic of the record."""
    for example in icd.messages[name].get("examples", ()):
        yield _where(icd, name, icd.messages[name].get(EXAMPLE_KEY))
        yield code_block("json", "\n".join(_json_lines(example)))


def _where(icd: Icd, name: str, key: str | None) -> str:
    keyed = "without a key" if key is None else f"with the key {code(key)}"
    for topic, one in icd.topics.items():
        on = link(code(topic), "topics.md", topic)
        if name in _of(one):
            return paragraph(f"A record on {on} {keyed}:")
        for header, message in _headers(icd, topic):
            if name == message:
                return paragraph(f"The header {code(header)} of a record on {on} {keyed}:")
    return paragraph("An example:")


def _json_lines(example: Mapping[str, Any]) -> Iterator[str]:
    """Return an object as JSON, with as many fields on a line as there is room for."""
    line = "{"
    for name, value in example.items():
        field = f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}, "
        if len(line) + len(field) > _WIDTH and line.strip("{ "):
            yield line.rstrip()
            line = " "
        line += field
    yield line.removesuffix(", ") + "}"


def _of(topic: Topic) -> tuple[str, ...]:
    return ((topic.message,) if topic.message else ()) + topic.also


def _roles(icd: Icd) -> Iterator[str]:
    for name, role in icd.roles.items():
        whose = "of the facade" if role.side == "facade" else "of SDP"
        yield f"{code(name)} ({whose}): {escaped(role.description)}"


def _names(roles: tuple[str, ...]) -> str:
    return ", ".join(map(code, roles))


def _topic_facts(topic: Topic) -> Iterator[str]:
    messages = ", ".join(link(code(name), "messages.md", name) for name in _of(topic))
    yield f"Messages: {messages}" if messages else "Messages: bytes as they came"
    if len(topic.encodings) > 1:
        yield f"Encodings: {', '.join(_ENCODINGS[one] for one in topic.encodings)}"
    yield f"Key: {escaped(topic.key)}"
    yield f"Written by: {_names(topic.writers)}; read by: {_names(topic.readers)}"
    kept = "the newest record of each key" if topic.cleanup == "compact" else "all records"
    kept += f" for {duration_in_words(topic.retention)}" if topic.retention is not None else ""
    yield f"Keeps: {kept}"
    partitions = f"{topic.partitions}, or more" if topic.partitions_may_grow else str(topic.partitions)
    yield f"Partitions: {partitions}; largest record batch: {_size(topic.max_bytes)}"
    yield f"Times: {'the broker' if topic.timestamp == 'LogAppendTime' else 'the sender'}'s; class: {topic.qos}"
    if topic.window is not None:
        yield from _window(topic.window)
    if topic.config:
        yield f"Further settings: {', '.join(code(f'{key}={value}') for key, value in topic.config.items())}"


def _window(window: Window) -> Iterator[str]:
    each = "" if window.group is None else f", for each {code(window.group)}"
    yield (
        f"Windows of {duration_in_words(window.length)} by {code(window.time)}{each}, aggregated on "
        f"{link(code(window.summary), 'topics.md', window.summary)}; closed when partitions are read up to "
        f"{duration_in_words(window.disorder)} after the end of a window"
    )
    yield (
        f"Late: data time more than {duration_in_words(window.lateness)} behind the broker's; refused: more than "
        f"{duration_in_words(window.ahead)} ahead of it"
    )
    if window.sequence is not None:
        restart = "" if window.epoch is None else f", restarts with each {code(window.epoch)}"
        yield f"Sequence: {code(window.sequence)}{restart}"


def _size(size: int) -> str:
    for length, unit in _BYTES:
        if size % length == 0:
            return f"{size // length} {unit}"
    return f"{size:,} B"


def _fields(schema: Schema, depth: int) -> Iterator[str]:
    required = schema.get("required", [])
    for name, field in properties(schema).items():
        if "const" in field:
            continue  # the introduction of the page tells of it
        yield from _field(code(name), field, depth, name in required)


def _field(name: str, field: Schema, depth: int, required: bool) -> Iterator[str]:
    facts = ", ".join(filter(None, (_kind(field), "" if required else "optional", _range(field))))
    description = escaped(str(field.get("description", "")))
    yield items([f"{name} ({facts}): {description}" if description else f"{name} ({facts})"], depth)
    yield from _fields(field, depth + 1)
    for keyword, what in (("items", "each entry"), ("additionalProperties", "each value")):
        if isinstance(field.get(keyword), dict):
            yield from _field(what, field[keyword], depth + 1, True)


def _kind(field: Schema) -> str:
    if "enum" in field:
        return "one of " + " ".join(code(str(one)) if one != "" else "(empty)" for one in field["enum"])
    kind = field.get("type", "any")
    words = " or ".join(kind) if isinstance(kind, list) else str(kind)
    return f"{words} [{field['x-unit']}]".replace("[", "\\[").replace("]", "\\]") if field.get("x-unit") else words


def _range(field: Schema) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if (low, high) == (0, _EXACT):
        return ""
    if low is not None and high is not None and high != _EXACT:
        return f"{_number(low)} to {_number(high)}"
    if low is not None:
        return f"at least {_number(low)}"
    if high is not None:
        return f"at most {_number(high)}"
    if "exclusiveMinimum" in field:
        return f"more than {_number(field['exclusiveMinimum'])}"
    if "maxItems" in field and field.get("minItems") == field["maxItems"]:
        return f"exactly {field['maxItems']:,} entries"
    for most, what in (("maxLength", "characters"), ("maxItems", "entries")):
        if most in field and (most, field[most]) != ("maxLength", _LONGEST):
            return f"at most {field[most]:,} {what}"
    return ""


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
