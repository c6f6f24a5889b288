"""The messages of the AsyncAPI document, and their schemas.

Generators of code name what they make by `title`, so that each object and each enumeration has one, written as a name
of code is. What is nested has that of what holds it, and its field's name.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from facade.errors import IcdError
from facade.icd.model import Icd
from facade.icd.topic_model import Header, Topic
from facade.resources import resource
from facade.tracing import TRACED

Node = dict[str, Any]

BINDING = "0.5.0"
"""Version of AsyncAPI's Kafka bindings."""
JSON = "application/json"
_BYTES = "application/octet-stream"
EXAMPLE_KEY = "x-example-key"
"""Keyword of a message: the key of the record that its example is, or belongs to."""
_BATCH = "batch"
"""Header of a columnar batch, and the message whose schema its JSON has."""
_ORDER = ("name", "title", "summary", "description", "contentType", "x-file", "headers", "payload")
"""Order of what is said of a message."""
_NOT_OF_SCHEMAS = ("$schema", "$id", "title", "examples", EXAMPLE_KEY)
"""Keywords of a whole message that stand elsewhere in the document, or nowhere."""
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
    if "traced" in topic.traits:
        found["traits"] = [{"$ref": "#/components/messageTraits/traced"}]
    found["payload"] = _reference(name)
    examples: list[Node] = [{"payload": one} for one in schema.get("examples", ())]
    if examples:
        found["examples"] = examples
    if "arrow" in topic.encodings and name == topic.message:
        batches = icd.messages[_BATCH].get("examples", ())
        examples += [{"headers": {_BATCH: batch}} for batch in batches if batch["message"].startswith(f"{name}/")]
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
    """Describe the header of a record that has many such messages as columns."""
    what = "Only of a columnar batch, an Arrow stream with one row for each message; see docs/how-to/send-heaps.md."
    properties = {_BATCH: _reference(_BATCH)}
    return {"title": f"{code_name(name)}Headers", "type": "object", "description": what, "properties": properties}


def _commands(icd: Icd) -> str:
    """Say which commands there are and where the schemas of their arguments are."""
    lines = ["Commands, and the files in schemas/commands that their arguments are checked against:", ""]
    for name, owner in icd.commanded.items():
        for one in owner.commands:
            takes = f"{one.argument}-*.schema.json, {icd.versions(one.argument)}" if one.argument else "no argument"
            lines.append(f"- {name} {one.name}: {takes}")
    return "\n".join(lines)


def _described_by_header(icd: Icd, header: Header) -> Node:
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


def code_name(name: str) -> str:
    """Return a name as classes have it: ``IngestSummary`` for ``ingest-summary``."""
    return "".join(word[0].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", name) if word)


def schema_of(name: str, schema: Node) -> Node:
    """Return a message's schema in AsyncAPI's form: the same with titles, without what names its dialect and itself."""
    found = {key: part for key, part in schema.items() if key not in _NOT_OF_SCHEMAS}
    for path, part in _parts(found, ""):
        if foreign := sorted(set(part) - _KEYWORDS):
            raise IcdError(
                f"{_source(name)}: {path or 'top'}: expected keywords that AsyncAPI's schemas have too, got {foreign}; "
                "write it otherwise, or add them to _KEYWORDS if they mean the same there"
            )
    return _titled(found, code_name(name), code_name(name))


def _titled(schema: Node, message: str, name: str) -> Node:
    """Return a copy in which each object and each enumeration has a title, which no other message has."""
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
