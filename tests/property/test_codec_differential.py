"""The decoders and the reference accept and refuse the same documents, whatever they are.

Documents are made from each shipped schema, then damaged: as trees (wrong types, missing, unknown
and repeated keys, numbers at and past every bound) and as bytes.
"""

import copy
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from facade.kernel.codec.decode import BatchDecoder, Reason
from facade.kernel.codec.json_schema import compile_message
from facade.kernel.icd.load import load
from facade.sdp import messages
from tests.support.examples import examples
from tests.support.reference_codec import as_readers_take_it, parse_reference, reference_validator

Schema = dict[str, Any]

EVERY_KEYWORD: Schema = {
    "type": "object",
    "additionalProperties": False,
    "required": ["schema", "small", "ratio", "perhaps"],
    "properties": {
        "schema": {"const": "every/1"},
        "small": {"type": "integer", "minimum": -3, "maximum": 3},
        "ratio": {"type": "number", "minimum": 0, "maximum": 9007199254740992},
        "open_integer": {"type": "integer"},
        "open_number": {"type": "number"},
        "word": {"type": "string", "minLength": 1, "maxLength": 4, "pattern": "^[a-z]*$"},
        "text": {"type": "string"},
        "colour": {"enum": ["RED", "GREEN"]},
        "ready": {"type": "boolean"},
        "run": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "integer"}},
        "tree": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "boolean"}}},
        "free": {"type": "object"},
        "perhaps": {"type": ["object", "null"]},
        "anything": {"type": ["object", "array", "string", "number", "boolean"]},
        "whole_or_not": {"type": ["integer", "number"]},
        "pair": {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer"}},
        "numbered": {
            "type": "object",
            "propertyNames": {"pattern": "^(0|-0|[1-9][0-9]{0,14})(?![\\s\\S])"},
            "additionalProperties": {"type": "boolean"},
        },
        "usual": {"type": "integer", "default": 7},
        "none_yet": {"type": "array", "default": [], "items": {"type": "integer"}},
    },
}
MESSAGES: dict[str, Schema] = {**load().messages, "every": EVERY_KEYWORD}
STRUCTS: dict[str, list[Any]] = {name: [compile_message(name, schema)] for name, schema in MESSAGES.items()}
for name in load().messages:
    STRUCTS[name].append(getattr(messages, name.title().replace("-", "")))
DECODERS: dict[str, list[BatchDecoder[Any]]] = {
    name: [BatchDecoder(struct) for struct in structs] for name, structs in STRUCTS.items()
}
"""Of the struct that is compiled from a schema, and of the one that was generated from it."""
VALIDATORS = {name: reference_validator(as_readers_take_it(schema)) for name, schema in MESSAGES.items()}


@dataclass
class Leaf:
    """A piece of JSON text, legal or not."""

    text: str


@dataclass
class Node:
    """An object whose keys may repeat, or (with None for keys) an array."""

    kind: str
    entries: list[tuple[str | None, Any]]


def rendered(tree: Leaf | Node) -> str:
    if isinstance(tree, Leaf):
        return tree.text
    if tree.kind == "array":
        return "[" + ",".join(rendered(value) for _, value in tree.entries) + "]"
    return "{" + ", ".join(f"{json.dumps(key)}: {rendered(value)}" for key, value in tree.entries) + "}"


def leaf(value: Any) -> Leaf:
    return Leaf(json.dumps(value, ensure_ascii=isinstance(value, str) and len(value) % 2 == 0))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
).map(leaf)
JUNK = [
    "null", "true", "false", "0", "-0", "-0.0", "1", "1.0", "1e2", "1E+2", "-1", "0.5", "1e-400", "1e400",
    "-1e400", "NaN", "Infinity", "-Infinity", "nan", "01", "1.", ".5", "+1", "0x1", "1_000", "--1", "1e",
    "9007199254740991", "9007199254740992", "9007199254740993", "9007199254740992.0", "2147483648",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "-9223372036854775809",
    "1" + "0" * 30, "1" + "0" * 400, "1" * 5000, "0." + "1" * 400, "1.7976931348623159e308",
    "1.00000000000000000001", '""', '"x"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"',
    '"\x00"', '"\n"', '"\x7f"', '"\\x"', '"', "'x'", '"heap/1"', '"heap/2"', '"every/1"', '"\\u0065very/1"',
    "[]", "{}", "[1,]", "[[[1]]]", '{"a": {"a": 1}}', '{"a": 1, "a": 2}', '{"a": 0, "a": 1}', '{"a": "x", "a": 1}',
    "[", "]", "{", "}", "", "nul", "// x", "\u00a01", "\ufeff1", "[" * 50 + "]" * 50,
]  # fmt: skip


def valid(schema: Schema) -> st.SearchStrategy[Leaf | Node]:
    """Return what makes documents that the schema allows; made once, as making it takes longer than drawing from it."""
    return _valid(json.dumps(schema))


@cache
def _valid(text: str) -> st.SearchStrategy[Leaf | Node]:
    schema = json.loads(text)
    if "const" in schema:
        return st.just(leaf(schema["const"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"]).map(leaf)
    match schema["type"]:
        case ["object", "null"]:
            return st.just(Leaf("null")) | valid({**schema, "type": "object"})
        case ["integer", "number"]:
            return (st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)).map(leaf)
        case list():
            return ANYTHING.filter(lambda one: one.text != "null")
        case "object" if "properties" in schema:
            return documents(schema)
        case "object":
            values = valid(schema["additionalProperties"]) if "additionalProperties" in schema else ANYTHING
            names = st.integers(0, 10**15 - 1).map(str) if "propertyNames" in schema else TEXT
            entries = st.dictionaries(names, values, max_size=3)
            return entries.map(lambda found: Node("object", list(found.items())))
        case "array":
            low, high = schema.get("minItems", 0), schema.get("maxItems", 3)
            items = st.lists(valid(schema["items"]), min_size=low, max_size=min(high, low + 2))
            return items.map(lambda found: Node("array", [(None, item) for item in found]))
        case "string" if "pattern" in schema:
            low, begin = shortest(schema), prefix(schema)
            return st.text("abc", min_size=low, max_size=max(low, 4)).map(lambda text: leaf(begin + text))
        case "string":
            low = schema.get("minLength", 0)
            letters = st.characters(exclude_categories=["Cs"])
            return st.text(letters, min_size=low, max_size=max(low, 6)).map(leaf)
        case "boolean":
            return st.booleans().map(leaf)
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum")).map(leaf)
    bounds = {"min_value": schema.get("minimum"), "max_value": schema.get("maximum")}
    return (st.floats(**bounds, allow_nan=False, allow_infinity=False) | st.integers(**bounds)).map(leaf)


def documents(schema: Schema) -> st.SearchStrategy[Node]:
    """Return what makes objects with all that is required and some of the rest, in either order."""
    parts = {name: valid(part) for name, part in schema["properties"].items()}
    required = schema.get("required", [])

    @st.composite
    def document(draw: st.DrawFn) -> Node:
        names = [name for name in parts if name in required or draw(st.booleans())]
        if draw(st.booleans()):
            names.reverse()
        return Node("object", [(name, draw(parts[name])) for name in names])

    return document()


def prefix(schema: Schema) -> str:
    """Return the letters that a pattern begins with."""
    found = re.match(r"\^([a-z]+-)", schema.get("pattern", ""))
    return found[1] if found else ""


def shortest(schema: Schema) -> int:
    """Return a length that a text may surely have."""
    exact = re.search(r"\{(\d+)\}", schema.get("pattern", ""))
    return int(exact[1]) if exact else max(1, schema.get("minLength", 1))


def edges(schema: Schema) -> list[Leaf]:
    """Return the values at and just past each bound that any part of a schema states."""
    found = []
    for keyword, value in schema.items():
        if keyword in ("minimum", "maximum"):
            found += [leaf(value + step) for step in (-1, 0, 1, -1e-9, 1e-9, 0.5)]
        elif keyword in ("minLength", "maxLength"):
            found += [leaf(letter * (value + step)) for letter in "a\U0001f600" for step in (0, 1)]
        elif keyword in ("properties", "items", "additionalProperties") and isinstance(value, dict):
            for part in value.values() if keyword == "properties" else [value]:
                found += edges(part)
    return found


def full(schema: Schema) -> Leaf | Node:
    """Make the legal document that has every optional property, and one entry in each list and map."""
    if "const" in schema or "enum" in schema:
        return leaf(schema.get("const") or schema["enum"][0])
    match schema["type"]:
        case ["integer", "number"]:
            return leaf(1)
        case list():
            return full({"type": "object"})
        case "object" if "properties" in schema:
            return Node("object", [(name, full(part)) for name, part in schema["properties"].items()])
        case "object":
            return Node("object", [("1", full(schema.get("additionalProperties", {"type": "boolean"})))])
        case "array":
            return Node("array", [(None, full(schema["items"])) for _ in range(schema.get("minItems", 1))])
        case "string":
            return leaf(prefix(schema) + "a" * shortest(schema))
        case "boolean":
            return leaf(True)
    return leaf(schema.get("minimum", 1))


def positions(tree: Leaf | Node) -> list[tuple[Node, int]]:
    """Return every entry of every object and array of a tree."""
    if isinstance(tree, Leaf):
        return []
    found = [(tree, index) for index in range(len(tree.entries))]
    return found + [position for _, value in tree.entries for position in positions(value)]


@cache
def odd_values(text: str) -> st.SearchStrategy[Leaf]:
    """Return what makes values that are mostly wrong somewhere in a schema, and sometimes right."""
    return st.one_of(st.sampled_from(JUNK).map(Leaf), st.sampled_from(edges(json.loads(text)) or [Leaf("0")]), ANYTHING)


@st.composite
def damaged(draw: st.DrawFn, schema: Schema) -> str:
    """Make a document that is legal but for a few wrong places."""
    tree = copy.deepcopy(draw(valid(schema)))
    values = odd_values(json.dumps(schema))
    for _ in range(draw(st.integers(0, 2))):
        places = positions(tree)
        if not places:
            break
        node, index = draw(st.sampled_from(places))
        key, value = node.entries[index]
        match draw(st.sampled_from(["replace", "replace", "remove", "repeat", "unknown", "rename", "copy"])):
            case "replace":
                node.entries[index] = (key, draw(values))
            case "remove":
                del node.entries[index]
            case "repeat":
                node.entries.insert(draw(st.integers(0, len(node.entries))), (key, draw(values)))
            case "unknown":
                node.entries.insert(index, (None if key is None else draw(TEXT), draw(values)))
            case "rename":
                node.entries[index] = (None if key is None else draw(TEXT), value)
            case "copy":
                node.entries.append((key, copy.deepcopy(draw(st.sampled_from(places))[0].entries[0][1])))
    return rendered(tree)


def as_decoded(schema: Schema, value: Any) -> Any:
    """Return a parsed document as the decoder must give it: a ``number`` is a double; defaults are left out, and so is
    what the schema does not know.

    msgspec leaves a default out if it is the same object: a double that was read is another one.
    """
    if schema.get("type") == "number":
        return float(value)
    if isinstance(value, list):
        found = [as_decoded(schema.get("items", {}), item) for item in value]
        return tuple(found) if schema.get("minItems") == schema.get("maxItems") == len(found) > 0 else found
    if isinstance(value, dict):
        below, rest = schema.get("properties", {}), schema.get("additionalProperties") or {}
        names = int if "propertyNames" in schema else str
        return {
            names(key): as_decoded(below.get(key, rest), item)
            for key, item in value.items()
            if (key in below or "properties" not in schema)
            and (
                below.get(key, {}).get("type") == "number"
                or key not in below
                or item != below[key].get("default")
                or key in schema.get("required", ())
            )
        }
    return value


def known_part(schema: Schema, data: bytes) -> bytes:
    """Return a document without what its schema does not know."""

    def known(value: Any, of: Schema) -> Any:
        if isinstance(value, list):
            return [known(one, of.get("items", {})) for one in value]
        if not isinstance(value, dict):
            return value
        below, rest = of.get("properties"), of.get("additionalProperties") or {}
        return {
            key: known(one, rest if below is None else below[key])
            for key, one in value.items()
            if below is None or key in below
        }

    return json.dumps(known(json.loads(data.decode(errors="surrogateescape")), schema)).encode()


def agree(name: str, data: bytes) -> bool:
    """Assert that all say the same about a record, and give what they say."""
    try:
        document, is_json = parse_reference(data), True
    except ValueError:
        # A decoder skips what the schema does not know, with numbers and bytes that no value may have.
        is_json = all(decoder.decode([data]).items for decoder in DECODERS[name])
        document = parse_reference(known_part(MESSAGES[name], data)) if is_json else None
    accepted = is_json and VALIDATORS[name].is_valid(document)
    wanted = as_decoded(MESSAGES[name], document) if accepted else None
    for decoder in DECODERS[name]:
        decoded = decoder.decode([data])
        assert len(decoded.items) + len(decoded.unused) == 1
        assert bool(decoded.items) is accepted, (accepted, decoded)
        if accepted:
            item = decoded.items[0]
            assert msgspec.to_builtins(item) == wanted
            assert decoder.decode([msgspec.json.encode(item)]).items == [item]
        elif is_json:
            assert decoded.unused[0].reason in (Reason.SCHEMA, Reason.VERSION)
    return accepted


FEW = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
MANY = settings(FEW, max_examples=examples(100))
per_message = pytest.mark.parametrize("name", MESSAGES)


@per_message
@FEW
@given(data=st.data())
def test_legal_documents_are_accepted_and_keep_their_values(name: str, data: st.DataObject) -> None:
    """By both, and encoding them again changes nothing."""
    assert agree(name, rendered(data.draw(valid(MESSAGES[name]))).encode())


@per_message
@MANY
@given(data=st.data())
def test_both_agree_about_damaged_documents(name: str, data: st.DataObject) -> None:
    """Whatever is wrong, and wherever."""
    agree(name, data.draw(damaged(MESSAGES[name])).encode())


@per_message
def test_both_agree_about_every_odd_value_in_every_place(name: str) -> None:
    """Not by chance: each piece of junk, and each value next to a bound, instead of each part."""
    schema = MESSAGES[name]
    texts = [*JUNK, '"A"', '"a\\n"', '"BLUE"', *(value.text for value in edges(schema))]
    for place in range(len(positions(full(schema)))):
        tree = full(schema)
        node, index = positions(tree)[place]
        key, _ = node.entries[index]
        for text in dict.fromkeys(texts):
            node.entries[index] = (key, Leaf(text))
            agree(name, rendered(tree).encode())


@per_message
@FEW
@given(data=st.data())
def test_both_agree_about_damaged_bytes(name: str, data: st.DataObject) -> None:
    """Cut, changed and inserted bytes of a legal document."""
    record = bytearray(rendered(data.draw(valid(MESSAGES[name]))).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(record)))
        length = data.draw(st.integers(0, 4))
        record[at : at + length] = data.draw(st.binary(max_size=4))
    agree(name, bytes(record))


@pytest.mark.parametrize(
    "value", [b"1e400", b'"\xff"', b"[[1, null]]", b'{"a": {"a": 1}}', b"NaN", b"01", b'"', b"[1,"]
)
@per_message
def test_what_a_later_release_adds_is_skipped_if_it_is_json(name: str, value: bytes) -> None:
    legal = rendered(full(MESSAGES[name])).encode()
    after, before = legal[:-1] + b', "further": ' + value + b"}", b'{"further": ' + value + b"," + legal[1:]
    assert (
        agree(name, after) == agree(name, before) == (agree(name, legal) and value not in (b"NaN", b"01", b'"', b"[1,"))
    )


@FEW
@given(data=st.data())
def test_a_batch_is_decoded_as_its_records_are(data: st.DataObject) -> None:
    """Any mixture of good and bad ones, in any order."""
    one = st.one_of(
        st.none(), st.just(b""), st.binary(max_size=20), damaged(MESSAGES["state"]).map(str.encode),
        valid(MESSAGES["state"]).map(rendered).map(str.encode),
    )  # fmt: skip
    values = data.draw(st.lists(one, max_size=12))
    decoder = data.draw(st.sampled_from(DECODERS["state"]))
    decoded = decoder.decode(values)
    singles = [decoder.decode([value]) for value in values]
    assert decoded.items == [item for single in singles for item in single.items]
    assert decoded.unused == {i: single.unused[0] for i, single in enumerate(singles) if single.unused}
