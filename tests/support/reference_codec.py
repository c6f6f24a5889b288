r"""The reference: plain JSON plus JSON Schema, slow and complete, for commands and for tests.

The compiled decoder must accept and refuse exactly what this accepts and refuses. Where the JSON
and JSON Schema standards leave a choice, both make the same one:

- an integer is written without fraction and exponent (``1.0`` is none);
- NaN, Infinity and, for a ``number``, what no double can hold are refused;
- limits of a ``number`` are compared as doubles;
- text is UTF-8, and ``\ud800`` and its kin come in pairs;
- of a repeated key the last value holds, but each must be legal.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]

# A backslash in JSON is always the start of an escape inside a string.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


class JsonObject(dict[str, Any]):
    """A JSON object that remembers all values of a key that was repeated."""

    repeated: tuple[tuple[str, Any], ...] = ()


def parse_reference(data: bytes) -> Any:
    """Parse one JSON document strictly.

    Raises
    ------
    ValueError
        It is no JSON text in UTF-8, or holds a number or text that we refuse.
    """
    text = data.decode("utf-8")
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_float=_double, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if any(escape["lone"] for escape in _ESCAPE.finditer(text)):
        raise ValueError("half of a surrogate pair")
    return document


def reference_validator(schema: dict[str, Any]) -> Validator:
    """Make a validator for what `parse_reference` gives."""
    validator: Validator = _Reference(schema)
    return validator


def as_readers_take_it(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that allows further fields: a writer has only those of its release, and may be of a later one."""
    found = {
        key: {name: as_readers_take_it(one) for name, one in part.items()}
        if key == "properties"
        else as_readers_take_it(part)
        if key in ("items", "additionalProperties") and isinstance(part, dict)
        else part
        for key, part in schema.items()
    }
    if "properties" in found:
        del found["additionalProperties"]
    return found


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = JsonObject(pairs)
    if len(found) < len(pairs):
        found.repeated = tuple(pairs)
    return found


def _double(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _is_integer(_checker: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _fits_double(value: int | float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _type(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check the type as usual, and that a ``number`` fits a double."""
    yield from _PLAIN["type"](validator, wanted, instance, schema) or ()
    if wanted == "number" and validator.is_type(instance, "number") and not _fits_double(instance):
        yield ValidationError("the number is out of range")


def _as_double(keyword: Keyword) -> Keyword:
    """Compare as the decoder does: a ``number`` as a double, however it is written."""

    def compare(validator: Any, bound: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        if schema.get("type") == "number" and validator.is_type(instance, "number") and _fits_double(instance):
            instance = float(instance)
        yield from keyword(validator, bound, instance, schema) or ()

    return compare


def _each_value(keyword: Keyword) -> Keyword:
    """Apply a keyword of objects also to the values of repeated keys that are not the last."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        yield from keyword(validator, value, instance, schema) or ()
        for name, repeated in getattr(instance, "repeated", ()):
            if instance[name] is not repeated:
                yield from keyword(validator, value, {name: repeated}, schema) or ()

    return check


_PLAIN = Draft202012Validator.VALIDATORS
_extend: Any = extend  # its type hints are incomplete
_Reference = _extend(
    Draft202012Validator,
    validators={
        "type": _type,
        "minimum": _as_double(_PLAIN["minimum"]),
        "maximum": _as_double(_PLAIN["maximum"]),
        "properties": _each_value(_PLAIN["properties"]),
        "additionalProperties": _each_value(_PLAIN["additionalProperties"]),
    },
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)
