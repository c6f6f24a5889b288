"""The AsyncAPI document: complete, and true to the ICD. That it is legal, AsyncAPI's own parser says (`make lint`)."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from facade.errors import IcdError
from facade.exports.asyncapi import document, ends, operation_id
from facade.icd.load import load
from facade.icd.model import Icd

ICD = load()
DOCUMENT = document(ICD)
EXAMPLES = {name: example for name, schema in ICD.messages.items() for example in schema.get("examples", ())}


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for part in node.values():
            yield from references(part)
    elif isinstance(node, list):
        for part in node:
            yield from references(part)


def at(reference: str) -> Any:
    assert reference.startswith("#/"), reference
    found: Any = DOCUMENT
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found


def payload(name: str) -> Any:
    return DOCUMENT["components"]["messages"][name]["payload"]


@pytest.mark.parametrize("name", ICD.topics)
def test_a_topic_is_a_channel_with_its_settings(name: str) -> None:
    topic, channel = ICD.topics[name], DOCUMENT["channels"][name]
    kafka = channel["bindings"]["kafka"]
    settings = kafka["topicConfiguration"]
    assert channel["address"] == kafka["topic"] == "{prefix}" + name
    assert channel["parameters"]["prefix"] == {"$ref": "#/components/parameters/prefix"}
    assert kafka["partitions"] == topic.partitions
    assert settings["cleanup.policy"] == [topic.cleanup]
    assert settings["max.message.bytes"] == topic.max_bytes
    assert settings.get("retention.ms") == (None if topic.retention is None else topic.retention * 1000)
    assert topic.key in channel["description"]
    assert channel["tags"][0]["name"] == f"qos:{topic.qos}"
    names = (topic.message, *topic.also) if topic.message else (name,)
    assert tuple(channel["messages"]) == names
    for one in names:
        assert at(channel["messages"][one]["$ref"])["bindings"]["kafka"]["key"]["type"] == "string"


@pytest.mark.parametrize("name", ICD.messages)
def test_a_message_has_its_schema_with_units_and_is_used(name: str) -> None:
    elsewhere = ("$schema", "$id", "examples", "x-example-key")
    schema = {key: part for key, part in ICD.messages[name].items() if key not in elsewhere}
    assert untitled(DOCUMENT["components"]["schemas"][name]) == untitled(schema)
    assert f"#/components/schemas/{name}" in set(references(DOCUMENT["components"]["messages"]))


def untitled(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    return {key: untitled(part) for key, part in schema.items() if key != "title" or not isinstance(part, str)}


def models(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if "object" in node.get("type", ()) or "properties" in node or "enum" in node:
            yield node
        for key, part in node.items():
            if key != "examples":
                yield from models(list(part.values()) if key == "properties" else part)
    elif isinstance(node, list):
        for part in node:
            yield from models(part)


def test_each_model_has_a_title_of_its_own_that_is_a_name_of_code() -> None:
    components = DOCUMENT["components"]
    json_messages = {name: one for name, one in components["messages"].items() if "schemaFormat" not in one["payload"]}
    found = list(models([components["schemas"], json_messages, components["messageTraits"]]))
    titles = [one.get("title") for one in found]
    assert len(titles) > 40
    assert [one for one in found if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", one.get("title", ""))] == []
    assert len(set(titles)) == len(titles)
    names = [one["name"] for one in components["messages"].values()]
    assert [one for one in names if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", one)] == []
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_legal_and_shown(name: str) -> None:
    example = EXAMPLES[name]
    assert len(EXAMPLES) >= 18
    jsonschema.Draft202012Validator(ICD.messages[name]).validate(example)
    shown = [one for message in DOCUMENT["components"]["messages"].values() for one in message.get("examples", ())]
    assert any(example in (one.get("payload"), *one.get("headers", {}).values()) for one in shown)


def test_schemas_mean_the_same_in_draft_07() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft7Validator.check_schema(schema)
    for name, example in EXAMPLES.items():
        jsonschema.Draft7Validator(DOCUMENT["components"]["schemas"][name]).validate(example)


def test_who_takes_part_is_named_once_and_sends_what_is_on_the_topic() -> None:
    all_ends = [(role, action, name) for name, topic in ICD.topics.items() for role, action in ends(topic)]
    ids = [operation_id(*end) for end in all_ends]
    assert len(set(ids)) == len(ids)
    assert ids == list(DOCUMENT["operations"])
    for topic in ICD.topics.values():
        used = {topic.operation(role, action) for role, action in ends(topic)}
        assert used >= set(topic.operations), "an operation that no role has"
        assert topic.window or used == set(topic.operations), "a purpose is missing, and cannot be derived"
    for (role, action, name), operation in zip(all_ends, DOCUMENT["operations"].values(), strict=True):
        assert (operation["action"], operation["channel"]) == (action, {"$ref": f"#/channels/{name}"})
        assert operation["tags"][0] == {"name": ICD.roles[role].side}
        assert operation["tags"][1] == {"name": role, "description": ICD.roles[role].description}
    controller = DOCUMENT["operations"]["controllerReceivesCommands"]
    assert controller["action"] == "receive"
    assert controller["reply"]["channel"] == {"$ref": "#/channels/command-acks"}
    assert DOCUMENT["operations"]["controllerSendsState"]["action"] == "send"


def test_each_command_is_listed_with_the_files_of_its_argument() -> None:
    text = DOCUMENT["components"]["messages"]["command"]["description"]
    for device_class in ICD.classes.values():
        for command in device_class.commands:
            assert f"- {device_class.name} {command.name}: " in text
    assert f"scan-*.schema.json, {ICD.versions('scan')}" in text


def changed(**changes: Any) -> Icd:
    return msgspec.structs.replace(ICD, **changes)


def test_a_topic_that_no_flow_has_is_refused() -> None:
    with pytest.raises(IcdError, match=r"topics\[lost\]: expected a topic of some flow's manifest"):
        document(changed(topics={**ICD.topics, "lost": ICD.topics["state"]}))


def test_a_keyword_that_asyncapi_lacks_is_refused_with_its_place() -> None:
    schema = {"properties": {"list": {"type": "array", "items": {"prefixItems": []}}}}
    with pytest.raises(IcdError, match=r"heap\.schema\.json: \.list\.items: .*prefixItems"):
        document(changed(messages={**ICD.messages, "heap": schema}))
