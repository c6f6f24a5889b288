"""The AsyncAPI document of the bus, for programs in any language that know no Tango.

Its words are below, then the messages with their schemas, then the document. Schemas stand in it in AsyncAPI's own
form, which is JSON Schema draft-07 and the form that every AsyncAPI tool reads. The messages are written in draft
2020-12; keywords that mean the same in both are let through, and no others. Generators of code take
names from `title`: each object and each enumeration has one, written as a name of code.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from facade.bus.kafka.topics import broker_settings
from facade.config import Settings
from facade.errors import IcdError
from facade.icd.model import Icd
from facade.icd.topic_model import Topic, Window
from facade.icd.words import duration_in_words
from facade.manifest import Manifest, Part, Side, Words, load, manifests
from facade.tracing import TRACED

_DEFAULT: dict[Side, str] = {"send": "Write records.", "receive": "Read records."}

QUALITY_OF_SERVICE: dict[str, str] = {
    "bulk": "Bulk: many or large records. It may wait while others of its kind pass; it never delays another class.",
    "log": "Log: whatever the nodes write about themselves. Brokers slow down who writes too much of it.",
    "telemetry": "Telemetry: only the newest matters to those who watch, and what is in between may be merged.",
    "state": "State: little, but it must be right and survive any restart.",
    "command": "Command: every record is on all in-sync replicas before anybody relies on it; order holds per key.",
    "alert": "Alert: every record is kept, numbered and shown; none is merged with another one.",
}
"""What the classes mean. Each has its own topics, consumers and processes, so that none can delay another."""

_INTRODUCTION = """\
How the parts of the SDP and the Tango facade talk over Kafka. Nothing here needs Tango: whoever writes these topics
and reads them takes part, in any language.

**What you write, and what you read**

{participants}
- Everything else is the facade's own. You may read it, and should not write it.
- Your records that could not be used are on `dead-letters`, whole, with the reason in headers. Look there first.

The operations say it for each role: their tags name the side (SDP or facade) and the role, and whoever gives rights can
give each role those of its operations. For how to do it well, such as what a controller owes after a crash, see
docs/how-to.

**Rules that hold for all topics**

- The name of a topic is the deployment's prefix followed by its name here: with the prefix `local.`, `local.commands`.
  Consumer groups and transactional ids have the prefix as well. Topics are made by `sdp-facade topics create`, never by
  writing to them.
- A value is one JSON object in UTF-8, without a schema registry and without bytes before it. Its field `schema` is the
  name and the major version of the message, such as `heap/1`. Unknown fields are refused. Exceptions are the bytes on
  {others}: what they are is said of each.
- A header that is described as an object holds the JSON text of it.
- Times are integers: microseconds since the Unix epoch, UTC (Kafka's own timestamps are in milliseconds). Durations are
  in seconds. The unit of a field is in `x-unit`.
- Keys are text in UTF-8. What has the same key is on one partition and keeps its order; on compacted topics the newest
  record of a key is the one that holds. Use the partitioner of Java's client (`murmur2`; in librdkafka
  `partitioner=murmur2_random`).
- Write with `acks=all` and `enable.idempotence=true`, and wait for the answer before you rely on it.
- Read with `isolation.level=read_committed`.
- You may compress. `max.message.bytes` then holds for a batch as it comes, and for the same uncompressed.
- Whatever is not as described becomes a dead letter and harms none of its neighbours.

The schemas are those of schemas/messages, in JSON Schema 2020-12; as they stand here they mean the same in draft-07.
What Tango shows of it all, and the rules for commands and alarms, is in schemas/icd."""


def words_of(icd: Icd) -> tuple[Words, ...]:
    """Return the words of the flows whose topics an interface has."""
    return tuple(load(one.words) for one in _flows(icd) if one.words is not None)


def introduction(icd: Icd) -> str:
    """Return what everybody has to know."""
    participants = (f"- {line}" for words in words_of(icd) for line in words.introduction)
    *others, last = (f"`{name}`" for name, topic in icd.topics.items() if topic.message is None)
    listed = f"{', '.join(others)} and {last}" if others else last
    return _INTRODUCTION.format(participants="\n".join(participants), others=listed)


def part_of(icd: Icd, role: str, action: Side, topic: str) -> Part:
    """Return the words about a role at a topic.

    Raises
    ------
    IcdError
        No flow has the topic.
    """
    found = [one for words in words_of(icd) for one in words.parts if (one.action, one.topic) == (action, topic)]
    for part in [*(one for one in found if role in one.who), *(one for one in found if not one.who)]:
        return part
    if icd.topics[topic].window is None and not any(topic in one.topics for one in _flows(icd)):
        raise IcdError(f"topics[{topic}]: expected a topic of some flow's manifest, got one that no flow has")
    return Part(action, topic, _DEFAULT[action])


def group_of(role: str, topic: str) -> str:
    """Return the consumer group in which a role takes the records of a topic; empty: none."""
    workers = (worker for one in manifests() for worker in one.workers if worker.name == role)
    return next((worker.group for worker in workers if not worker.topics or topic in worker.topics), "")


def _flows(icd: Icd) -> Iterator[Manifest]:
    return (one for one in manifests() if one.topics.keys() <= icd.topics.keys())


Node = dict[str, Any]

BINDING = "0.5.0"
"""Version of AsyncAPI's Kafka bindings."""
JSON = "application/json"
_BYTES = "application/octet-stream"
_BATCH = "batch"
"""Header of a columnar batch, and the message whose schema its JSON has."""
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
        found = _json_message(icd, one)
        if "arrow" in topic.encodings and one == topic.message:
            found["headers"] = _batch_headers(one)
            batches = [words.examples[_BATCH] for words in words_of(icd) if _BATCH in words.examples]
            examples = [{"headers": {_BATCH: batch}} for batch in batches if batch["message"].startswith(f"{one}/")]
            found["examples"] = [*found.get("examples", ()), *examples]
        return found
    for words in words_of(icd):
        if name in words.headers:
            return _described_by_header(icd, words, *words.headers[name])
        if name in words.messages:
            return words.messages[name]()
    raise IcdError(f"topics[{name}]: expected a message, or a topic of whose bytes its flow's words say what they are")


def _json_message(icd: Icd, name: str) -> Node:
    schema, said = icd.messages[name], words_of(icd)
    found: Node = {"name": code_name(name), "title": schema["title"], "description": schema["description"]}
    found["contentType"] = JSON
    if any(name == words.commands for words in said):
        found["description"] += f"\n\n{_commands(icd)}"
    found["x-file"] = _source(name)
    if any(name in words.correlated for words in said):
        found["correlationId"] = {"$ref": "#/components/correlationIds/command"}
    if any(name in words.traced for words in said):
        found["traits"] = [{"$ref": "#/components/messageTraits/traced"}]
    found["payload"] = _reference(name)
    if examples := [{"payload": words.examples[name]} for words in said if name in words.examples]:
        found["examples"] = examples
    return found


def _batch_headers(name: str) -> Node:
    """Describe the header of a record that has many such messages as columns."""
    what = "Only of a columnar batch, an Arrow stream with one row for each message; see decision 0022."
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


def _described_by_header(icd: Icd, words: Words, header: str, name: str) -> Node:
    schema = icd.messages[name]
    found: Node = {"name": code_name(name), "title": schema["title"], "description": schema["description"]}
    found["contentType"], found["x-file"] = _BYTES, _source(name)
    title = f"{code_name(name)}Headers"
    found["headers"] = {
        "title": title,
        "type": "object",
        "required": [header],
        "properties": {header: _reference(name)},
    }
    found["payload"] = {"type": "string", "format": "binary", "description": f"Bytes, as the header `{header}` says."}
    if name in words.examples:
        found["examples"] = [{"headers": {header: words.examples[name]}}]
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
    found = {key: part for key, part in schema.items() if key not in ("$schema", "$id", "title")}
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


_FILE = "schemas/asyncapi.yaml"
_WIDTH = 120


def export(icd: Icd) -> Mapping[str, str]:
    """Return the document; see `facade.exports.files`.

    Raises
    ------
    IcdError
        A topic that no flow has, or a schema that AsyncAPI cannot express.
    """
    head = "# Derived from schemas/icd and schemas/messages by `sdp-facade icd export`. Do not edit.\n"
    return {_FILE: head + _as_yaml(document(icd))}


def document(icd: Icd) -> Node:
    """Return the document as AsyncAPI 3.0 has it, before it is written as YAML."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Kafka bus of the SDP Tango facade",
            "version": icd.version,
            "description": introduction(icd),
            "license": {"name": "BSD-3-Clause", "url": "https://opensource.org/license/bsd-3-clause"},
            "contact": {"name": "The developers of sdp-tango-facade"},
            "tags": [{"name": "kafka"}, {"name": "ska"}, {"name": "sdp"}],
        },
        "defaultContentType": JSON,
        "servers": {"kafka": _server()},
        "channels": {name: _channel(name, topic) for name, topic in icd.topics.items()},
        "operations": {
            operation_id(role, action, name): _operation(icd, role, part_of(icd, role, action, name))
            for name, topic in icd.topics.items()
            for role, action in ends(topic)
        },
        "components": {
            "schemas": {name: schema_of(name, schema) for name, schema in icd.messages.items()},
            "messages": dict(messages(icd)),
            "messageTraits": {"traced": traced()},
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


def _channel(name: str, topic: Topic) -> Node:
    return {
        "address": "{prefix}" + name,
        "title": name,
        "description": "\n\n".join(_about(topic)),
        "messages": {one: {"$ref": f"#/components/messages/{one}"} for one in message_names(name, topic)},
        "parameters": {"prefix": {"$ref": "#/components/parameters/prefix"}},
        "tags": [{"name": f"qos:{topic.qos}", "description": QUALITY_OF_SERVICE[topic.qos]}],
        "bindings": {
            "kafka": {
                "topic": "{prefix}" + name,
                "partitions": topic.partitions,
                "topicConfiguration": {key: _setting(key, text) for key, text in broker_settings(topic).items()},
                "bindingVersion": BINDING,
            }
        },
    }


def _about(topic: Topic) -> Iterator[str]:
    """Say of a topic what a table of settings does not."""
    yield topic.description
    yield f"Key: {topic.key}."
    yield QUALITY_OF_SERVICE[topic.qos]
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
    """Return a topic setting as the Kafka binding wants it."""
    if key == "cleanup.policy":
        return text.split(",")
    return int(text) if text.lstrip("-").isdigit() else text


def _operation(icd: Icd, name: str, part: Part) -> Node:
    role = icd.roles[name]
    names = part.messages or message_names(part.topic, icd.topics[part.topic])
    found: Node = {
        "action": part.action,
        "channel": {"$ref": f"#/channels/{part.topic}"},
        "summary": part.what,
        "tags": [{"name": role.side}, {"name": name, "description": role.description}],
        "messages": [{"$ref": f"#/channels/{part.topic}/messages/{name}"} for name in names],
    }
    if part.reply:
        found["reply"] = {"channel": {"$ref": f"#/channels/{part.reply}"}}
    if part.action == "receive" and (name_of_group := group_of(name, part.topic)):
        group = {"type": "string", "description": f"The deployment's prefix and `{name_of_group}`."}
        found["bindings"] = {"kafka": {"groupId": group, "bindingVersion": BINDING}}
    return found


class _Dumper(yaml.SafeDumper):
    """Writes for people: texts of several lines as they are, lists set in, nothing by reference."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _as_yaml(content: Node) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
