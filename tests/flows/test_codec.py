"""The compiler refuses what it does not understand; the decoder never loses a record, nor its neighbours."""

import json
from typing import Any, get_args

import pytest

from facade.kernel.codec.decode import BatchDecoder, Reason
from facade.kernel.codec.json_schema import compile_message
from facade.kernel.errors import IcdError
from facade.kernel.icd.load import load
from facade.sdp import messages
from facade.sdp.columns import ColumnDecoder
from tests.support import heaps

SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["schema", "node", "level"],
    "properties": {
        "schema": {"const": "thing/1"},
        "node": {"type": "integer", "minimum": 0, "maximum": 9},
        "level": {"type": "number", "minimum": -1, "maximum": 1.5},
        "name": {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^[a-z]+$"},
        "colour": {"enum": ["RED", "GREEN"]},
        "ready": {"type": "boolean"},
        "run": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "integer"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
        "free": {"type": "object"},
        "parts": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"sum": {"type": "number"}},
            },
        },
    },
}
GOOD = {"schema": "thing/1", "node": 3, "level": 0.5}


def encoded(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


@pytest.fixture(scope="module")
def decoder() -> BatchDecoder[Any]:
    return BatchDecoder(compile_message("thing", SCHEMA))


def only(decoder: BatchDecoder[Any], value: bytes | None) -> Any:
    """Decode one record and give the struct or the rejection."""
    decoded = decoder.decode([value])
    (result,) = [*decoded.items, *decoded.unused.values()]
    one = decoder.decode_one(value)
    assert one == result
    return result


def test_a_message_becomes_a_struct(decoder: BatchDecoder[Any]) -> None:
    """Absent optional properties are None, an integer is a legal number."""
    item = only(decoder, encoded(level=1, parts=[{"sum": 2}, {}], counts={"a": 1}, free={"x": [1]}))
    assert (item.schema, item.node, item.level, item.name) == ("thing/1", 3, 1.0, None)
    assert isinstance(item.level, float)
    assert [part.sum for part in item.parts] == [2.0, None]
    assert item.counts == {"a": 1}
    assert item.free == {"x": [1]}
    assert type(item).__name__ == "Thing"


def test_a_field_of_a_later_release_is_left_out(decoder: BatchDecoder[Any]) -> None:
    """Of a part of the message too; what the reader knows is judged as ever."""
    found = only(decoder, encoded(extra={"a": [1]}, parts=[{"sum": 2, "extra": 1}]))
    assert found == only(decoder, encoded(parts=[{"sum": 2}]))
    assert only(decoder, encoded(extra=1, node=10)).path == "$.node"


@pytest.mark.parametrize(
    ("value", "reason", "path", "detail"),
    [
        (b"", Reason.EMPTY, "$", "no bytes"),
        (b"{", Reason.NOT_JSON, "$", "truncated"),
        (encoded() + b"x", Reason.NOT_JSON, "$", "trailing"),
        (encoded(name="a").replace(b'"a"', b'"\xff"'), Reason.NOT_JSON, "$", "UTF-8"),
        (encoded(name="a").replace(b'"a"', b'"\\ud800"'), Reason.NOT_JSON, "$", ""),
        (encoded(node="x") + b"}", Reason.NOT_JSON, "$", "trailing"),
        (encoded(level=float("nan")), Reason.NOT_JSON, "$", "malformed"),
        (encoded().replace(b"0.5", b"1e400"), Reason.SCHEMA, "$.level", "out of range"),
        (b"[]", Reason.SCHEMA, "$", "Expected `object`"),
        (b"{}", Reason.VERSION, "$.schema", "expected 'thing/1', got None"),
        (encoded(schema="thing/2"), Reason.VERSION, "$.schema", "got 'thing/2'"),
        (encoded(schema=["thing/1"]), Reason.VERSION, "$.schema", "got ['thing/1']"),
        (b'{"extra": 1, "schema": "thing/2"}', Reason.VERSION, "$.schema", "got 'thing/2'"),
        (b'{"schema": "thing/1"}', Reason.SCHEMA, "$", "missing required field `node`"),
        (encoded(node=10), Reason.SCHEMA, "$.node", "<= 9"),
        (encoded(node=1.0), Reason.SCHEMA, "$.node", "Expected `int`, got `float`"),
        (encoded(node=10**30), Reason.SCHEMA, "$.node", "<= 9"),
        (encoded(level="0.5"), Reason.SCHEMA, "$.level", "got `str`"),
        (encoded(level=1.6), Reason.SCHEMA, "$.level", "<= 1.5"),
        (encoded(name=None), Reason.SCHEMA, "$.name", "got `null`"),
        (encoded(name="abcd"), Reason.SCHEMA, "$.name", "length <= 3"),
        (encoded(colour="BLUE"), Reason.SCHEMA, "$.colour", "Invalid enum value 'BLUE'"),
        (encoded(ready=1), Reason.SCHEMA, "$.ready", "Expected `bool`"),
        (encoded(run=[1, "x"]), Reason.SCHEMA, "$.run[1]", "got `str`"),
        (encoded(counts={"a": 0}), Reason.SCHEMA, "$.counts[...]", ">= 1"),
        (encoded(parts=[{}, {"sum": "x"}]), Reason.SCHEMA, "$.parts[1].sum", "got `str`"),
    ],
)
def test_a_bad_record_is_a_result(
    decoder: BatchDecoder[Any], value: bytes | None, reason: Reason, path: str, detail: str
) -> None:
    """With reason, path and the validator's words."""
    found = only(decoder, value)
    assert (found.reason, found.path) == (reason, path)
    assert detail.lower() in found.detail.lower()


def test_the_detail_is_short_and_printable(decoder: BatchDecoder[Any]) -> None:
    """A record of 16 MB does not come back as a header, nor a line break in a log."""
    found = only(decoder, encoded(colour="x" * 100_000))
    assert len(found.detail) <= 500
    found = only(decoder, encoded(colour="a\n\x1b[31m` - at `$\n" + "y" * 1000))
    assert found.detail.isprintable()
    assert found.path.isprintable()
    assert len(found.path) <= 500
    found = only(decoder, encoded(schema="\n" * 100_000))
    assert len(found.detail) <= 500
    assert found.detail.isprintable()


def part(**schema: Any) -> dict[str, Any]:
    """Make a message with one property ``a``."""
    return {"type": "object", "additionalProperties": False, "properties": {"a": schema}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (part(type="integer", multipleOf=2), "x.schema.json: properties.a: multipleOf"),
        (part(type="integer", exclusiveMinimum=2), "properties.a: exclusiveMinimum"),
        (part(type="integer", minimum=0.5), "properties.a: minimum: expected int"),
        (part(type="integer", maximum=2**63), "properties.a: maximum: expected int"),
        (part(type="number", maximum="1"), "properties.a: maximum: expected float"),
        (part(type="string", format="date"), "properties.a: format"),
        (part(type="string", pattern="("), "properties.a: pattern: expected a regular expression"),
        (part(type="string", maxLength=-1), "properties.a: maxLength: expected integer >= 0"),
        (part(type=["string", "null"]), "properties.a: type: expected one of"),
        (part(type=["object", "null"]), "properties.a.type: expected no null"),
        (part(type=["object", "array", "string", "number", "boolean"], maximum=1), "properties.a: maximum"),
        (part(const=3), "properties.a: const: expected different strings"),
        (part(enum=["a", "a"]), "properties.a: enum: expected different strings"),
        (part(enum=["a"], const="a"), "properties.a: "),
        (part(type="array"), "properties.a.items: expected a schema"),
        (part(type="array", items={"type": "integer", "not": {}}), "properties.a.items: not"),
        (part(type="object", patternProperties={}), "properties.a: patternProperties"),
        (part(type="object", additionalProperties=False), "properties.a.additionalProperties"),
        (part(type="object", required=["b"]), "properties.a: required"),
        (part(type="object", properties={}), "properties.a: additionalProperties: expected false"),
        ({**part(type="integer"), "required": ["b"]}, "x.schema.json: required: expected names"),
        ({**part(type="integer"), "$defs": {}}, "x.schema.json: $defs"),
        ({**part(type="integer"), "additionalProperties": True}, "additionalProperties: expected false"),
        ({"type": "object", "additionalProperties": False, "properties": {"class": {}}}, "properties.class: "),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "expected an object with properties"),
        (True, "x.schema.json: expected a schema"),
    ],
)
def test_a_schema_outside_the_subset_is_refused(schema: Any, expected: str) -> None:
    """With file and path; no keyword is ever ignored."""
    with pytest.raises(IcdError) as caught:
        compile_message("x", schema)
    assert str(caught.value).startswith("x.schema.json: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("record", "detail"),
    [
        ({"node": "three"}, "Expected `int`, got `str`"),
        ({"latency": "fast"}, "Expected `float`, got `str`"),
        ({"time": 2**54}, "Expected `int` <= 9007199254740991, got 18014398509481984"),
    ],
)
def test_a_column_says_what_the_schema_asks_for(record, detail):
    """An integer was asked for as a float, and a limit as 9.0072e+15."""
    decoder = ColumnDecoder("heap", load().messages["heap"])
    (rejected,) = decoder.decode(heaps.encoded(heaps.heap() | record)).unused.values()
    assert rejected.detail == detail


@pytest.mark.parametrize(("changed", "path"), [({"severity": "MAJOR"}, "$.severity"), ({"state": "GONE"}, "$.state")])
def test_a_choice_says_what_there_is_to_choose(changed, path):
    alert = {"schema": "alert/1", "condition": "c", "source": "s", "severity": "ALARM", "state": "ACTIVE", "text": "",
             "raised_at": 1, "sequence": 1}  # fmt: skip
    rejected = BatchDecoder(messages.Alert).decode_one(json.dumps(alert | changed).encode())
    assert rejected.path == path
    name = path[2:]
    labels = sorted(get_args(messages.AlertSeverity)) if name == "severity" else ("ACTIVE", "CLEARED")
    assert rejected.detail == f"Invalid enum value '{changed[name]}', expected one of {', '.join(labels)}"
