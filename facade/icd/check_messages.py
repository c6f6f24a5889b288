"""Checks of the message schemas: named, described, bounded, with units that we know."""

import re

from facade.icd.checks import Checks, Entries, Found, illegal, is_text
from facade.icd.explain import shown
from facade.icd.fields import Schema, is_numeric, kind, properties, walk
from facade.icd.model import Icd
from facade.icd.units import known_units

_BOUNDS = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))


def _messages(icd: Icd) -> Entries:
    return ((f"{name}.schema.json", "", (name, schema)) for name, schema in icd.messages.items())


of_message, of_message_slowly = Checks(_messages), Checks(_messages)


@of_message.rule
def messages_are_closed_objects(icd: Icd, name: str, schema: Schema) -> Found:
    """Require an object with properties and no others than those."""
    if schema.get("type") != "object":
        yield "type", f"expected 'object', got {shown(schema.get('type'))}"
    found = schema.get("properties")
    if not isinstance(found, dict) or not all(isinstance(field, dict) for field in found.values()):
        yield "properties", f"expected an object of objects, got {shown(found)}"
    if schema.get("additionalProperties") is not False:
        yield "additionalProperties", f"expected false, got {shown(schema.get('additionalProperties'))}"


@of_message.rule
def messages_name_their_version(icd: Icd, name: str, schema: Schema) -> Found:
    """Require the field ``schema``: the message's name and major version, as at the end of ``$id``."""
    version = properties(schema).get("schema", {}).get("const")
    if not isinstance(version, str) or not re.fullmatch(rf"{re.escape(name)}/[1-9]\d*", version):
        yield "properties.schema.const", f"expected '{name}/' and a number, got {shown(version)}"
        return
    required = schema.get("required")
    if not isinstance(required, list) or "schema" not in required:
        yield "required", f"expected 'schema' among them, got {shown(required)}"
    if not str(schema.get("$id")).endswith(f"/{version}"):
        yield "$id", f"expected an address that ends with '/{version}', got {shown(schema.get('$id'))}"


@of_message.rule
def required_properties_exist(icd: Icd, name: str, schema: Schema) -> Found:
    """Require that what is required is a property."""
    for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in walk(schema))]:
        required = part.get("required", [])
        known = properties(part)
        if not isinstance(required, list) or any(key not in known for key in map(str, required)):
            yield f"{path}required", f"expected names of properties ({', '.join(known)}), got {shown(required)}"


@of_message.rule
def properties_are_described(icd: Icd, name: str, schema: Schema) -> Found:
    """Require a description of every property and of the message itself."""
    if not is_text(schema.get("description")):
        yield "description", f"expected text, got {shown(schema.get('description'))}"
    for path, field, named in walk(schema):
        text = field.get("description")
        if named and not is_text(text):
            yield f"{path}.description", f"expected text, got {shown(text)}"


@of_message.rule
def numbers_are_bounded(icd: Icd, name: str, schema: Schema) -> Found:
    """Require a range of every integer, and of every number that the message itself has.

    Numbers further down are statistics, whose range follows from other fields and their count.
    """
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
                yield f"{path}.{key}", f"expected number, got {shown(bound)}"


@of_message.rule
def bounds_are_ordered(icd: Icd, name: str, schema: Schema) -> Found:
    """Refuse a minimum above the maximum: such a field could hold nothing."""
    for path, field, _ in walk(schema):
        for lower, upper in _BOUNDS:
            low, high = field.get(lower), field.get(upper)
            if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
                yield f"{path}.{upper}", f"expected number >= {lower} = {low}, got {high}"


@of_message.rule
def field_units_are_known(icd: Icd, name: str, schema: Schema) -> Found:
    """Require units of the list, and only for numbers."""
    for path, field, _ in walk(schema):
        if "x-unit" not in field:
            continue
        unit = field["x-unit"]
        if not is_numeric(field):
            yield f"{path}.x-unit", f"expected none, because it is no number, got {shown(unit)}"
        elif not isinstance(unit, str) or unit not in known_units(icd):
            yield f"{path}.x-unit", f"expected one of {sorted(known_units(icd))}, got {shown(unit)}"


@of_message_slowly.rule
def schemas_are_legal(icd: Icd, name: str, schema: Schema) -> Found:
    """Require schemas that follow JSON Schema 2020-12."""
    yield from illegal(schema)


@of_message_slowly.rule
def examples_are_legal(icd: Icd, name: str, schema: Schema) -> Found:
    """Require examples that the schema itself allows."""
    from jsonschema import Draft202012Validator

    if any(True for _ in illegal(schema)):
        return
    for index, example in enumerate(schema.get("examples", ())):
        for error in Draft202012Validator(schema).iter_errors(example):
            path = ".".join((f"examples[{index}]", *map(str, error.path)))
            yield path, f"expected a message as the schema says, got: {error.message:.200}"


CHECKS, THOROUGH_CHECKS = tuple(of_message), tuple(of_message_slowly)
