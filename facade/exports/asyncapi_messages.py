"""The messages of the AsyncAPI document, and their schemas."""

import json
from collections.abc import Iterator
from typing import Any

from facade.errors import IcdError
from facade.exports.asyncapi_parts import DEAD_LETTER_HEADERS, EXAMPLES, HEADER_EXAMPLES
from facade.icd.model import Icd, Topic
from facade.resources import resource
from facade.tracing import TRACED

Node = dict[str, Any]

BINDING = "0.5.0"
"""Version of AsyncAPI's Kafka bindings."""
JSON = "application/json"
_BYTES, _AVRO_CONTENT = "application/octet-stream", "application/vnd.apache.avro"
_AVRO = "application/vnd.apache.avro+json;version=1.9.0"
_KEYWORDS = frozenset(
    (
        *("type", "const", "enum", "title", "description", "default", "x-unit"),
        *("properties", "required", "additionalProperties", "propertyNames"),
        *("items", "maxItems", "minItems", "uniqueItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "maxProperties", "minProperties"),
    )
)
"""Keywords that mean the same in JSON Schema 2020-12, in draft-07 and in AsyncAPI's form."""

_HEADERS: dict[str, tuple[str, str]] = {"calibration": ("segment", "table-segment"), "quality": ("metric", "metric")}
"""Topics whose records are bytes that a header describes: its name, and the schema of the JSON in it."""
_PACKETS, _DEAD_LETTERS = "alert-packets", "dead-letters"
_CORRELATED = ("command", "command-ack")
_TRACED_MESSAGES = ("command", "command-ack", "state")


def message_names(name: str, topic: Topic) -> tuple[str, ...]:
    """Return the names of the messages of a topic; bytes have its own name."""
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
        return _json_message(icd, one)
    if name in _HEADERS:
        return _described_by_header(icd, *_HEADERS[name])
    if name == _PACKETS:
        return _avro_message()
    if name == _DEAD_LETTERS:
        return _dead_letter()
    raise IcdError(f"topics[{name}]: expected a message, or a topic of which facade.exports.asyncapi knows the bytes")


def _json_message(icd: Icd, name: str) -> Node:
    schema = icd.messages[name]
    found: Node = {"name": name, "title": schema["title"], "description": schema["description"], "contentType": JSON}
    if name == "command":
        found["description"] += f"\n\n{_commands(icd)}"
    found["x-file"] = _source(name)
    if name in _CORRELATED:
        found["correlationId"] = {"$ref": "#/components/correlationIds/command"}
    if name in _TRACED_MESSAGES:
        found["traits"] = [{"$ref": "#/components/messageTraits/traced"}]
    found["payload"] = _reference(name)
    if name in EXAMPLES:
        found["examples"] = [{"payload": EXAMPLES[name]}]
    return found


def _commands(icd: Icd) -> str:
    """Say which commands there are and where the schemas of their arguments are."""
    lines = ["Commands, and the files in schemas/commands that their arguments are checked against:", ""]
    for device_class in icd.classes.values():
        for one in device_class.commands:
            versions = icd.arguments[one.argument] if one.argument else {}
            takes = f"{one.argument}-{{{','.join(versions)}}}.schema.json" if versions else "no argument"
            lines.append(f"- {device_class.name} {one.name}: {takes}")
    return "\n".join(lines)


def _described_by_header(icd: Icd, header: str, name: str) -> Node:
    schema = icd.messages[name]
    found: Node = {"name": name, "title": schema["title"], "description": schema["description"], "contentType": _BYTES}
    found["x-file"] = _source(name)
    found["headers"] = {"type": "object", "required": [header], "properties": {header: _reference(name)}}
    found["payload"] = {"type": "string", "format": "binary", "description": f"Bytes, as the header `{header}` says."}
    if name in HEADER_EXAMPLES:
        found["examples"] = [{"headers": {header: HEADER_EXAMPLES[name]}}]
    return found


def _avro_message() -> Node:
    schema = json.loads(resource("schemas", "messages", "alert-packet.avsc").read_text(encoding="utf-8"))
    return {
        "name": "alert-packet",
        "title": "Alert packet",
        "summary": "In Avro's single-object encoding: C3 01, the CRC-64-AVRO fingerprint of the schema, one datum.",
        "description": schema["doc"],
        "contentType": _AVRO_CONTENT,
        "x-file": "messages/alert-packet.avsc",
        "payload": {"schemaFormat": _AVRO, "schema": schema},
    }


def _dead_letter() -> Node:
    properties = {name: {"type": "string", "description": text} for name, text in DEAD_LETTER_HEADERS.items()}
    return {
        "name": "dead-letter",
        "title": "Dead letter",
        "description": "A record that could not be used: its key, its bytes and its own headers as they were, and why.",
        "contentType": _BYTES,
        "headers": {"type": "object", "required": list(properties), "properties": properties},
        "payload": {"type": "string", "format": "binary", "description": "The bytes of the original record."},
    }


def traced() -> Node:
    """Return the trait of messages whose headers may carry a trace."""
    texts = {name: f"Trace context in the form of W3C: {name}." for name in TRACED}
    properties = {name: {"type": "string", "description": text} for name, text in texts.items()}
    what = "Copied from a command to all that it brings about, where a trace is running."
    return {"headers": {"type": "object", "description": what, "properties": properties}}


def schema_of(name: str, schema: Node) -> Node:
    """Return a message's schema in AsyncAPI's form: the same, without what only names its dialect and itself."""
    found = {key: part for key, part in schema.items() if key not in ("$schema", "$id")}
    for path, part in _parts(found, ""):
        if foreign := sorted(set(part) - _KEYWORDS):
            raise IcdError(
                f"{_source(name)}: {path or 'top'}: expected keywords that AsyncAPI's schemas have too, got {foreign}; "
                "write it otherwise, or add them to _KEYWORDS if they mean the same there"
            )
    return found


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
