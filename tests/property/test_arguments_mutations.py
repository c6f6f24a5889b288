"""Whatever is done to a valid argument: it is accepted or refused, never anything else, and as JSON Schema says."""

import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012
from support.arguments import example

from facade.flows.commands.arguments import Arguments, CheckedArgument, violations
from facade.kernel.errors import ArgumentError
from facade.kernel.icd.load import load
from tests.support.examples import examples

ICD = load()
ARGUMENTS = Arguments(ICD)
SCHEMAS = [(family, version) for family, versions in ICD.arguments.items() for version in versions]
REGISTRY: Registry[Any] = Registry().with_resources(
    (schema["$id"], DRAFT202012.create_resource(schema)) for one in ICD.arguments.values() for schema in one.values()
)
# The bus's integers are written without a fraction; all else is the library's own.
PLAIN = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=8)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.sampled_from(["vis0", "target:a", ".default", "pb-test-20261121-00001", "realtime", "SKA001"])
)
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return every container with every key or index in it."""
    if isinstance(tree, dict):
        own = [(tree, key) for key in tree]
        return own + [place for value in tree.values() for place in places(value)]
    if isinstance(tree, list):
        own = [(tree, index) for index in range(len(tree))]
        return own + [place for value in tree for place in places(value)]
    return []


@st.composite
def mutated(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """Damage a document in a few places; some of the results are valid still."""
    tree = copy.deepcopy(document)
    for _ in range(draw(st.integers(0, 3))):
        found = places(tree)
        if not found:
            break
        part, key = draw(st.sampled_from(found))
        match draw(st.sampled_from(["replace", "remove", "add", "repeat", "move"])):
            case "replace":
                part[key] = draw(VALUE)
            case "remove":
                del part[key]
            case "add" if isinstance(part, dict):
                part[draw(TEXT)] = draw(VALUE)
            case "repeat" if isinstance(part, list):
                part.insert(key, copy.deepcopy(part[key]))
            case "move":
                other, where = draw(st.sampled_from(found))
                if where in other if isinstance(other, dict) else where < len(other):
                    other[where] = copy.deepcopy(part[key])
            case _:
                pass
    return tree


@pytest.mark.parametrize(("family", "version"), SCHEMAS)
@settings(max_examples=examples(100))
@given(data=st.data())
def test_a_mutation_is_accepted_exactly_if_schema_and_rules_allow_it(
    family: str, version: str, data: st.DataObject
) -> None:
    document = data.draw(mutated(example(family, version)))
    wanted = {**document, "interface": document.get("interface", next(iter(ICD.arguments[family].values()))["$id"])}
    schema = schema_of(family, wanted["interface"])
    checked = result(family, json.dumps(document))
    if schema is None or not valid(schema, wanted) or any(True for _ in violations(family, wanted)):
        assert isinstance(checked, str)
        return
    assert isinstance(checked, CheckedArgument), checked
    assert checked.document == wanted
    assert msgspec.json.decode(msgspec.json.encode(checked.document)) == wanted


@given(text=st.text(max_size=60))
def test_any_text_is_accepted_or_refused(text: str) -> None:
    """Most of it is no JSON at all."""
    with pytest.raises(ArgumentError):
        ARGUMENTS.check("assignres", text)


@given(data=st.data())
def test_damaged_bytes_are_accepted_or_refused(data: st.DataObject) -> None:
    """A few characters of a valid text are changed, lost or doubled."""
    text = json.dumps(example("assignres", "0.4"))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = at + data.draw(st.integers(0, 3))
        text = text[:at] + data.draw(st.text('{}[]",:\\ue019', max_size=3)) + text[end:]
    checked = result("assignres", text)
    if isinstance(checked, CheckedArgument):
        assert msgspec.json.decode(msgspec.json.encode(checked.document)) == checked.document


def result(family: str, text: str) -> CheckedArgument | str:
    """Check an argument; give the refusal as it is written."""
    try:
        return ARGUMENTS.check(family, text)
    except ArgumentError as error:
        refusal = str(error)
    assert refusal.startswith("$")
    assert ": expected " in refusal
    return refusal


def schema_of(family: str, interface: Any) -> dict[str, Any] | None:
    return next((schema for schema in ICD.arguments[family].values() if schema["$id"] == interface), None)


def valid(schema: dict[str, Any], document: dict[str, Any]) -> bool:
    return bool(PLAIN(schema, registry=REGISTRY).is_valid(document))
