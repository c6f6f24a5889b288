"""The AsyncAPI document of the bus, for those who write and read its topics in any language, and know no Tango.

Schemas stand in it in AsyncAPI's own form, which is JSON Schema draft-07 and what every AsyncAPI tool reads. The
messages are written in draft 2020-12; those keywords that mean the same in both are let through, and no others: see
`facade.exports.asyncapi_messages`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from facade.bus.kafka.topics import broker_settings
from facade.config import Settings
from facade.errors import IcdError
from facade.exports.asyncapi_messages import BINDING, JSON, code_name, message_names, messages, schema_of, traced
from facade.icd.model import Icd
from facade.icd.topic_model import Side, Topic, Window
from facade.icd.words import duration_in_words
from facade.manifest import manifests
from facade.resources import resource

Node = dict[str, Any]

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
    """Return who takes part in a topic, and on which side of it."""
    yield from ((role, "send") for role in topic.writers)
    yield from ((role, "receive") for role in topic.readers)


def operation_id(role: str, action: Side, topic: str) -> str:
    """Return the id of an operation, such as ``controllerReceivesCommandAcks``."""
    return f"{role[0]}{code_name(role)[1:]}{action.capitalize()}s{code_name(topic)}"


def _introduction(icd: Icd) -> str:
    """Return the text that holds for all topics."""
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
    """Say of a topic what a table of settings does not."""
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
    """Return a topic setting as the Kafka binding wants it."""
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
    if action == "receive" and (name_of_group := _group_of(name, topic)):
        group = {"type": "string", "description": f"The deployment's prefix and `{name_of_group}`."}
        found["bindings"] = {"kafka": {"groupId": group, "bindingVersion": BINDING}}
    return found


def _group_of(role: str, topic: str) -> str:
    """Return the consumer group in which a role takes the records of a topic; empty: none."""
    workers = (worker for one in manifests() for worker in one.workers if worker.name == role)
    return next((worker.group for worker in workers if not worker.topics or topic in worker.topics), "")


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
