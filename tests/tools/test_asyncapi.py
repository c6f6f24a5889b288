"""The AsyncAPI document: complete, and true to the ICD. That it is legal, AsyncAPI's own parser says (`make lint`)."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from facade.kernel.errors import IcdError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.tools.exports.asyncapi import document

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


def changed(**changes: Any) -> Icd:
    return msgspec.structs.replace(ICD, **changes)


def test_a_topic_that_no_flow_has_is_refused() -> None:
    with pytest.raises(IcdError, match=r"topics\[lost\]: expected a topic of some flow's manifest"):
        document(changed(topics={**ICD.topics, "lost": ICD.topics["state"]}))
