"""The AsyncAPI document of the bus, for programs without Tango in any language.

First the messages with their schemas, then the document. Its schemas have AsyncAPI's own form, which is JSON Schema
draft-07 and which every AsyncAPI tool reads. The messages are written in draft 2020-12; only keywords with the same
meaning in both are copied. Code generators take names from `title`: each object and each enumeration has one, in the
form of a class name.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from facade.admin.topics import broker_settings
from facade.kernel.bus.signatures import HEADER, PARENT_HEADER, signed_topics
from facade.kernel.codec.json_schema import PART
from facade.kernel.config import Settings
from facade.kernel.errors import IcdError
from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import RecordHeader, Side, Topic, Window
from facade.kernel.manifest import manifests
from facade.kernel.resources import resource
from facade.kernel.tracing import TRACED
from facade.sdp.batches import FRAME
from facade.sdp.words import duration_in_words

Node = dict[str, Any]

BINDING = "0.5.0"
"""Version of AsyncAPI's Kafka bindings."""
JSON = "application/json"
_BYTES = "application/octet-stream"
EXAMPLE_KEY = "x-example-key"
"""Keyword of a message: the key of its example's record."""
_BATCH, _FRAME = "batch", "batch-frame"
"""Messages in the headers of a columnar batch; the first is also the name of its header."""
_ORDER = ("name", "title", "summary", "description", "contentType", "x-file", "headers", "payload")
"""Order of the fields of a message."""
_NOT_OF_SCHEMAS = ("$schema", "$id", "title", "examples", EXAMPLE_KEY, PART)
"""Keywords of a whole message that are elsewhere in the document, or left out."""
_KEYWORDS = frozenset(
    (
        *("type", "const", "enum", "title", "description", "default", "x-unit"),
        *("properties", "required", "additionalProperties", "propertyNames"),
        *("items", "maxItems", "minItems", "uniqueItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "maxProperties", "minProperties"),
    )
)
"""Keywords with the same meaning in JSON Schema 2020-12, in draft-07 and in AsyncAPI's form."""


def message_names(name: str, topic: Topic) -> tuple[str, ...]:
    """Return the names of the messages of a topic; bytes have the topic's own name."""
    return (topic.message, *topic.also) if topic.message else (name,)


def messages(icd: Icd) -> Iterator[tuple[str, Node]]:
    """Return each message of each topic, with the key of its records."""
    for name, topic in icd.topics.items():
        key = {"type": "string", "description": topic.key}
        bindings = {"bindings": {"kafka": {"key": key, "bindingVersion": BINDING}}}
        for one in message_names(name, topic):
            yield one, {**_message(icd, name, topic, one), **bindings}


def _message(icd: Icd, name: str, topic: Topic, one: str) -> Node:
    if topic.message is not None:
        return _json_message(icd, topic, one)
    if topic.header is not None:
        return _described_by_header(icd, topic.header)
    if topic.bytes:
        return _bytes_message(topic.bytes)
    raise IcdError(f"topics[{name}]: expected a message, a header or bytes, got none of them")


def _json_message(icd: Icd, topic: Topic, name: str) -> Node:
    schema = icd.messages[name]
    found: Node = {"name": code_name(name), "title": schema["title"], "description": schema["description"]}
    found["contentType"] = JSON
    if "commands" in topic.traits:
        found["description"] += f"\n\n{_commands(icd)}"
    found["x-file"] = _source(name)
    if "correlated" in topic.traits:
        found["correlationId"] = {"$ref": "#/components/correlationIds/command"}
    # A message has one entry for all its topics.
    of_message = {
        trait for one, other in icd.topics.items() if name in message_names(one, other) for trait in other.traits
    }
    if traits := [{"$ref": f"#/components/messageTraits/{one}"} for one in ("traced", "signed") if one in of_message]:
        found["traits"] = traits
    found["payload"] = _reference(name)
    examples: list[Node] = [{"payload": one} for one in schema.get("examples", ())]
    if examples:
        found["examples"] = examples
    if "arrow" in topic.encodings and name == topic.message:
        batches, frames = (icd.messages[one].get("examples", ()) for one in (_BATCH, _FRAME))
        batches = [batch for batch in batches if batch["message"].startswith(f"{name}/")]
        examples += [{"headers": {_BATCH: batch}} for batch in batches]
        examples += [{"headers": {_BATCH: one, FRAME: frame}} for one, frame in zip(batches, frames, strict=False)]
        found["headers"] = _batch_headers(name)
    return found


def _bytes_message(given: Node) -> Node:
    found = dict(given)
    if "x-file" in found:
        avro = json.loads((resource("schemas") / found["x-file"]).read_text(encoding="utf-8"))
        found["description"] = avro["doc"]
        found["payload"] = {"schemaFormat": f"{found['contentType']}+json;version=1.9.0", "schema": avro}
    return {key: found[key] for key in _ORDER if key in found}


def _batch_headers(name: str) -> Node:
    """Describe the headers of a record with many such messages as columns."""
    what = "Only of a columnar batch, an Arrow stream with one row for each message; see docs/how-to/send-heaps.md."
    properties = {_BATCH: _reference(_BATCH), FRAME: _reference(_FRAME)}
    return {"title": f"{code_name(name)}Headers", "type": "object", "description": what, "properties": properties}


def _commands(icd: Icd) -> str:
    """Describe the commands and the schemas of their arguments."""
    lines = ["Commands, and the files in schemas/commands that their arguments are checked against:", ""]
    for name, owner in icd.commanded.items():
        for one in owner.commands:
            takes = f"{one.argument}-*.schema.json, {icd.versions(one.argument)}" if one.argument else "no argument"
            lines.append(f"- {name} {one.name}: {takes}")
    return "\n".join(lines)


def _described_by_header(icd: Icd, header: RecordHeader) -> Node:
    name, schema = header.message, icd.messages[header.message]
    found: Node = {"name": code_name(name), "title": schema["title"], "description": schema["description"]}
    found["contentType"], found["x-file"] = _BYTES, _source(name)
    title = f"{code_name(name)}Headers"
    found["headers"] = {
        "title": title,
        "type": "object",
        "required": [header.name],
        "properties": {header.name: _reference(name)},
    }
    text = f"Bytes, as the header `{header.name}` says."
    found["payload"] = {"type": "string", "format": "binary", "description": text}
    if examples := [{"headers": {header.name: one}} for one in schema.get("examples", ())]:
        found["examples"] = examples
    return found


def traced() -> Node:
    """Return the trait of messages whose headers may carry a trace."""
    texts = {name: f"Trace context in the form of W3C: {name}." for name in TRACED}
    properties = {name: {"type": "string", "description": text} for name, text in texts.items()}
    what = "Copied from a command to all that it brings about, where a trace is running."
    return {"headers": {"title": "TraceHeaders", "type": "object", "description": what, "properties": properties}}


def signed(icd: Icd) -> Node:
    """Return the trait of messages whose records may be signed."""
    what = (
        f"Only on {', '.join(signed_topics(icd))}, if the deployment has a key for the device: the HMAC-SHA256 of the"
        " topic without its prefix, a line feed, the key of the record, a line feed, and its value, in lower-case"
        " hexadecimal digits; see docs/how-to/controller-in-another-language.md."
    )
    of_parent = f"Of an order: the same as `{HEADER}`, with the key of the device that executes the order's parent."
    properties = {
        name: {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": text}
        for name, text in {HEADER: what, PARENT_HEADER: of_parent}.items()
    }
    return {"headers": {"title": "SignatureHeaders", "type": "object", "properties": properties}}


def code_name(name: str) -> str:
    """Return a name in the form of class names: ``IngestSummary`` for ``ingest-summary``."""
    return "".join(word[0].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", name) if word)


def schema_of(name: str, schema: Node) -> Node:
    """Return a message's schema in AsyncAPI's form: with titles, without its dialect and id."""
    found = {key: part for key, part in schema.items() if key not in _NOT_OF_SCHEMAS}
    for path, part in _parts(found, ""):
        if foreign := sorted(set(part) - _KEYWORDS):
            raise IcdError(
                f"{_source(name)}: {path or 'top'}: expected keywords that AsyncAPI's schemas have too, got {foreign}; "
                "write it otherwise, or add them to _KEYWORDS if they mean the same there"
            )
    return _titled(found, code_name(name), code_name(name))


def _titled(schema: Node, message: str, name: str) -> Node:
    """Return a copy in which each object and each enumeration has a unique title."""
    title = message + code_name(schema["title"]) if "title" in schema else name
    found = dict(schema)
    if "properties" in found:
        fields = found["properties"].items()
        found["properties"] = {field: _titled(part, message, title + code_name(field)) for field, part in fields}
    for keyword, suffix in (("items", "Item"), ("additionalProperties", "Value")):
        if isinstance(part := found.get(keyword), dict):
            found[keyword] = _titled(part, message, title + suffix)
    if "enum" in found:
        return {**found, "title": f"{title}Enum"}  # `state` of an alert is not the message alert-state
    return {**found, "title": title} if "object" in found.get("type", ()) else found


def _parts(schema: Node, path: str) -> Iterator[tuple[str, Node]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from _parts(field, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(part := schema.get(keyword), dict):
            yield from _parts(part, f"{path}.{keyword}")


def _reference(name: str) -> Node:
    return {"$ref": f"#/components/schemas/{name}"}


def _source(name: str) -> str:
    return f"messages/{name}.schema.json"


_FILE = "schemas/asyncapi.yaml"
_WIDTH = 120


def export(icd: Icd) -> Mapping[str, str]:
    """Return the document; see `facade.tools.exports.files`.

    Raises
    ------
    IcdError
        A topic belongs to no flow, or AsyncAPI cannot express a schema.
    """
    head = "# Derived from schemas/icd and schemas/messages by `sdp-facade icd export`. Do not edit.\n"
    text = yaml.dump(document(icd), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return {_FILE: head + text}


def document(icd: Icd) -> Node:
    """Return the document by AsyncAPI 3.0, before it is written as YAML."""
    known = {name for one in manifests() for name in one.topics}
    for name, topic in icd.topics.items():
        if topic.window is None and name not in known:
            raise IcdError(f"topics[{name}]: expected a topic of some flow's manifest, got one that no flow has")
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Kafka bus of the SDP Tango facade",
            "version": icd.version,
            "description": _introduction(icd),
            "license": {"name": "BSD-3-Clause", "url": "https://opensource.org/license/bsd-3-clause"},
            "contact": {"name": "The developers of sdp-tango-facade"},
            "tags": [{"name": "kafka"}, {"name": "ska"}, {"name": "sdp"}],
        },
        "defaultContentType": JSON,
        "servers": {"kafka": _server()},
        "channels": {name: _channel(icd, name, topic) for name, topic in icd.topics.items()},
        "operations": {
            operation_id(role, action, name): _operation(icd, role, action, name)
            for name, topic in icd.topics.items()
            for role, action in ends(topic)
        },
        "components": {
            "schemas": {name: schema_of(name, schema) for name, schema in icd.messages.items()},
            "messages": dict(messages(icd)),
            "messageTraits": {"traced": traced(), "signed": signed(icd)},
            "parameters": {
                "prefix": {
                    "description": "Prefix of the deployment (SDP_TOPIC_PREFIX). Gives each deployment on a shared "
                    "cluster its own names.",
                    "default": Settings().prefix,
                }
            },
            "correlationIds": {
                "command": {
                    "description": "Id of the command, which its acknowledgements repeat.",
                    "location": "$message.payload#/id",
                }
            },
        },
    }


def ends(topic: Topic) -> Iterator[tuple[str, Side]]:
    """Return the roles of a topic, each with its side."""
    yield from ((role, "send") for role in topic.writers)
    yield from ((role, "receive") for role in topic.readers)


def operation_id(role: str, action: Side, topic: str) -> str:
    """Return the id of an operation, such as ``controllerReceivesCommandAcks``."""
    return f"{role[0]}{code_name(role)[1:]}{action.capitalize()}s{code_name(topic)}"


def _introduction(icd: Icd) -> str:
    *others, last = (f"`{name}`" for name, topic in icd.topics.items() if topic.message is None)
    listed = f"{', '.join(others)} and {last}" if others else last
    text = resource("schemas", "icd", "introduction.md").read_text(encoding="utf-8").rstrip("\n")
    return text.format(participants="\n".join(f"- {line}" for line in icd.participants), others=listed)


def _server() -> Node:
    return {
        "host": "{bootstrap}",
        "protocol": "kafka",
        "description": "Apache Kafka of the deployment. Where it asks for TLS or SASL, set them in your client.",
        "variables": {
            "bootstrap": {
                "description": "Brokers, host:port with commas between (KAFKA_BOOTSTRAP).",
                "default": Settings().bootstrap,
            }
        },
    }


def _channel(icd: Icd, name: str, topic: Topic) -> Node:
    return {
        "address": "{prefix}" + name,
        "title": name,
        "description": "\n\n".join(_about(icd, topic)),
        "messages": {one: {"$ref": f"#/components/messages/{one}"} for one in message_names(name, topic)},
        "parameters": {"prefix": {"$ref": "#/components/parameters/prefix"}},
        "tags": [{"name": f"qos:{topic.qos}", "description": icd.qos[topic.qos]}],
        "bindings": {
            "kafka": {
                "topic": "{prefix}" + name,
                "partitions": topic.partitions,
                "topicConfiguration": {key: _setting(key, text) for key, text in broker_settings(topic).items()},
                "bindingVersion": BINDING,
            }
        },
    }


def _about(icd: Icd, topic: Topic) -> Iterator[str]:
    """Describe the properties of a topic that are missing in the table of settings."""
    yield topic.description
    yield f"Key: {topic.key}."
    yield icd.qos[topic.qos]
    if topic.partitions_may_grow:
        yield "A deployment may have more partitions than are given here."
    if topic.cleanup == "compact":
        yield "Compacted: the newest record of each key is kept for ever, so whoever starts late has it."
    elif topic.retention is not None:
        yield f"Records are kept for {duration_in_words(topic.retention)}."
    if topic.timestamp == "LogAppendTime":
        yield "The Kafka timestamp of a record is the time at which the broker appended it."
    if topic.window is not None:
        yield _windows(topic.window)


def _windows(window: Window) -> str:
    text = (
        f"`{window.time}` puts a record into a window of {window.length:g} s. One that is more than "
        f"{window.lateness:g} s older than the broker's time is counted as late; one that is more than "
        f"{window.ahead:g} s ahead of it is refused."
    )
    if window.sequence is None:
        return text
    each = " and ".join(f"`{name}`" for name in (window.group, window.epoch) if name is not None)
    counts = f"counts by one for each {each}" if each else "counts by one"
    return f"{text} `{window.sequence}` {counts}, so that what is missing or comes twice shows."


def _setting(key: str, text: str) -> Any:
    """Return a topic setting in the form of the Kafka binding."""
    if key == "cleanup.policy":
        return text.split(",")
    return int(text) if text.lstrip("-").isdigit() else text


def _operation(icd: Icd, name: str, action: Side, topic: str) -> Node:
    role, said = icd.roles[name], icd.topics[topic].operation(name, action)
    names = said.messages or message_names(topic, icd.topics[topic])
    found: Node = {
        "action": action,
        "channel": {"$ref": f"#/channels/{topic}"},
        "summary": said.summary,
        "tags": [{"name": role.side}, {"name": name, "description": role.description}],
        "messages": [{"$ref": f"#/channels/{topic}/messages/{name}"} for name in names],
    }
    if said.reply:
        found["reply"] = {"channel": {"$ref": f"#/channels/{said.reply}"}}
    if action == "receive" and (name_of_group := role.group if _is_taken_by(name, topic) else ""):
        group = {"type": "string", "description": f"The deployment's prefix and `{name_of_group}`."}
        found["bindings"] = {"kafka": {"groupId": group, "bindingVersion": BINDING}}
    return found


def _is_taken_by(role: str, topic: str) -> bool:
    """Return whether the workers of a role read the topic as members of a group."""
    workers = (worker for one in manifests() for worker in one.workers if worker.name == role)
    return any(not worker.topics or topic in worker.topics for worker in workers)


class _Dumper(yaml.SafeDumper):
    """Writes for people: texts of several lines as they are, lists indented, without references."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
