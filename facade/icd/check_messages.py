"""Checks of the message schemas: named, described, bounded, with units that we know."""

import re
from collections.abc import Iterator

from facade.icd.explain import shown
from facade.icd.fields import is_numeric, kind, properties, walk
from facade.icd.finding import Finding
from facade.icd.model import Icd
from facade.icd.units import known_units

_BOUNDS = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))


def messages_are_closed_objects(icd: Icd) -> Iterator[Finding]:
    """Require an object with properties and no others than those."""
    for name, schema in icd.messages.items():
        if schema.get("type") != "object":
            yield _at(name, "type", f"expected 'object', got {shown(schema.get('type'))}")
        found = schema.get("properties")
        if not isinstance(found, dict) or not all(isinstance(field, dict) for field in found.values()):
            yield _at(name, "properties", f"expected an object of objects, got {shown(found)}")
        if schema.get("additionalProperties") is not False:
            what = f"expected false, got {shown(schema.get('additionalProperties'))}"
            yield _at(name, "additionalProperties", what)


def messages_name_their_version(icd: Icd) -> Iterator[Finding]:
    """Require the field ``schema``: the message's name and major version, as at the end of ``$id``."""
    for name, schema in icd.messages.items():
        version = properties(schema).get("schema", {}).get("const")
        if not isinstance(version, str) or not re.fullmatch(rf"{re.escape(name)}/[1-9]\d*", version):
            what = f"expected '{name}/' and a number, got {shown(version)}"
            yield _at(name, "properties.schema.const", what)
            continue
        required = schema.get("required")
        if not isinstance(required, list) or "schema" not in required:
            yield _at(name, "required", f"expected 'schema' among them, got {shown(required)}")
        if not str(schema.get("$id")).endswith(f"/{version}"):
            what = f"expected an address that ends with '/{version}', got {shown(schema.get('$id'))}"
            yield _at(name, "$id", what)


def required_properties_exist(icd: Icd) -> Iterator[Finding]:
    """Require that what is required is a property."""
    for name, schema in icd.messages.items():
        for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in walk(schema))]:
            required = part.get("required", [])
            known = properties(part)
            if not isinstance(required, list) or any(key not in known for key in map(str, required)):
                what = f"expected names of properties ({', '.join(known)}), got {shown(required)}"
                yield _at(name, f"{path}required", what)


def properties_are_described(icd: Icd) -> Iterator[Finding]:
    """Require a description of every property and of the message itself."""
    for name, schema in icd.messages.items():
        if not _is_text(schema.get("description")):
            yield _at(name, "description", f"expected text, got {shown(schema.get('description'))}")
        for path, field, named in walk(schema):
            text = field.get("description")
            if named and not _is_text(text):
                yield _at(name, f"{path}.description", f"expected text, got {shown(text)}")


def numbers_are_bounded(icd: Icd) -> Iterator[Finding]:
    """Require a range of every integer, and of every number that the message itself has.

    Numbers further down are statistics, whose range follows from other fields and their count.
    """
    for name, schema in icd.messages.items():
        own = properties(schema)
        for path, field, _ in walk(schema):
            top = path.removeprefix("properties.") in own
            if "const" in field or "enum" in field or not is_numeric(field):
                continue
            for key in ("minimum", "maximum"):
                bound = field.get(key)
                if bound is None and kind(field) == "number" and not top:
                    continue
                if isinstance(bound, bool) or not isinstance(bound, int | float):
                    yield _at(name, f"{path}.{key}", f"expected number, got {shown(bound)}")


def bounds_are_ordered(icd: Icd) -> Iterator[Finding]:
    """Refuse a minimum above the maximum: such a field could hold nothing."""
    for name, schema in icd.messages.items():
        for path, field, _ in walk(schema):
            for lower, upper in _BOUNDS:
                low, high = field.get(lower), field.get(upper)
                if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
                    yield _at(name, f"{path}.{upper}", f"expected number >= {lower} = {low}, got {high}")


def field_units_are_known(icd: Icd) -> Iterator[Finding]:
    """Require units of the list, and only for numbers."""
    for name, schema in icd.messages.items():
        for path, field, _ in walk(schema):
            if "x-unit" not in field:
                continue
            unit = field["x-unit"]
            if not is_numeric(field):
                what = f"expected none, because it is no number, got {shown(unit)}"
                yield _at(name, f"{path}.x-unit", what)
            elif not isinstance(unit, str) or unit not in known_units(icd):
                yield _at(name, f"{path}.x-unit", f"expected one of {sorted(known_units(icd))}, got {shown(unit)}")


def schemas_are_legal(icd: Icd) -> Iterator[Finding]:
    """Require schemas that follow JSON Schema 2020-12."""
    # Importing it takes longer than everything else that a server does with the interface.
    from jsonschema import Draft202012Validator

    meta = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    for name, schema in icd.messages.items():
        for error in meta.iter_errors(schema):
            what = f"expected JSON Schema 2020-12, got: {error.message:.200}"
            yield _at(name, ".".join(map(str, error.path)), what)


CHECKS = (
    messages_are_closed_objects,
    messages_name_their_version,
    required_properties_exist,
    properties_are_described,
    numbers_are_bounded,
    bounds_are_ordered,
    field_units_are_known,
)
THOROUGH_CHECKS = (schemas_are_legal,)


def _at(name: str, key: str, what: str) -> Finding:
    return Finding(f"{name}.schema.json", key, what)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
