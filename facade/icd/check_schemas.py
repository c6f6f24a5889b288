"""Rules of the schemas of messages and of command arguments: named, described, bounded, with known units."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urldefrag, urljoin

from facade.icd.checks import NO_VALUE, IcdFinding, Row, findings
from facade.icd.explain import shown
from facade.icd.fields import Schema, is_numeric, kind, properties, walk
from facade.icd.model import Icd
from facade.icd.units import known_units

ADDRESS = "https://schema.skao.int/ska-sdp-{family}/{version}"
"""``interface`` of an argument, and ``$id`` of its schema."""
_BOUNDS = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))
_SUPPORTED = frozenset(
    (
        *("$schema", "$id", "$ref", "$defs", "title", "description"),
        *("type", "const", "enum", "anyOf", "pattern"),
        *("properties", "required", "additionalProperties", "minProperties"),
        *("items", "prefixItems", "minItems", "maxItems", "minLength"),
        *("minimum", "maximum", "exclusiveMinimum"),
    )
)
"""Keywords for which a refusal has words."""


def check_schemas(icd: Icd) -> Iterator[IcdFinding]:
    """Give the findings."""
    units = known_units(icd)
    for name, schema in icd.messages.items():
        yield from findings(f"{name}.schema.json", "", (*_of_message(name, schema), *_of_fields(schema, units)))
    for family, version, schema in _arguments(icd):
        yield from findings(f"{family}-{version}.schema.json", "", _of_argument(icd, family, version, schema))


def check_legality(icd: Icd) -> Iterator[IcdFinding]:
    """Give the findings of the JSON Schema library, which is slow to import."""
    from jsonschema import Draft202012Validator

    meta = Draft202012Validator(Draft202012Validator.META_SCHEMA)

    def illegal(rule: str, schema: Schema) -> list[Row]:
        return [
            (rule, ".".join(map(str, one.path)), False, f"JSON Schema 2020-12, got: {one.message:.200}", NO_VALUE)
            for one in meta.iter_errors(schema)
        ]

    for name, schema in icd.messages.items():
        rows = illegal("schemas_are_legal", schema)
        for index, example in enumerate(schema.get("examples", ()) if not rows else ()):
            for error in Draft202012Validator(schema).iter_errors(example):
                path = ".".join((f"examples[{index}]", *map(str, error.path)))
                what = f"a message as the schema says, got: {error.message:.200}"
                rows.append(("examples_are_legal", path, False, what, NO_VALUE))
        yield from findings(f"{name}.schema.json", "", rows)
    for family, version, schema in _arguments(icd):
        yield from findings(f"{family}-{version}.schema.json", "", illegal("argument_schemas_are_legal", schema))


def _of_message(name: str, schema: Schema) -> Iterator[Row]:
    rule, found, extra = "messages_are_closed_objects", schema.get("properties"), schema.get("additionalProperties")
    yield rule, "type", schema.get("type") == "object", "'object'", schema.get("type")
    is_right = isinstance(found, dict) and all(isinstance(field, dict) for field in found.values())
    yield rule, "properties", is_right, "an object of objects", shown(found)
    yield rule, "additionalProperties", extra is False, "false", shown(extra)
    rule, version = "messages_name_their_version", properties(schema).get("schema", {}).get("const")
    is_version = isinstance(version, str) and re.fullmatch(rf"{re.escape(name)}/[1-9]\d*", version)
    yield rule, "properties.schema.const", is_version, f"'{name}/' and a number", shown(version)
    if is_version:
        required, id = schema.get("required"), schema.get("$id")
        is_right = isinstance(required, list) and "schema" in required
        yield rule, "required", is_right, "'schema' among them", shown(required)
        yield rule, "$id", str(id).endswith(f"/{version}"), f"an address that ends with '/{version}'", shown(id)
    for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in walk(schema))]:
        required, known = part.get("required", []), properties(part)
        is_right = isinstance(required, list) and all(key in known for key in map(str, required))
        what = f"names of properties ({', '.join(known)})"
        yield "required_properties_exist", f"{path}required", is_right, what, shown(required)


def _of_fields(schema: Schema, units: frozenset[str]) -> Iterator[Row]:
    rule, own, text = "properties_are_described", properties(schema), schema.get("description")
    yield rule, "description", _is_text(text), "text", shown(text)
    for path, field, named in walk(schema):
        text, unit = field.get("description"), field.get("x-unit")
        yield rule, f"{path}.description", not named or _is_text(text), "text", shown(text)
        # Numbers further down are statistics, whose range follows from other fields and their count.
        is_free = kind(field) == "number" and path.removeprefix("properties.") not in own
        for key in ("minimum", "maximum") if is_numeric(field) and not field.keys() & {"const", "enum"} else ():
            value = field.get(key)
            is_right = is_free if value is None else isinstance(value, int | float) and not isinstance(value, bool)
            yield "numbers_are_bounded", f"{path}.{key}", is_right, "number", shown(value)
        for lower, upper in _BOUNDS:
            low, high = field.get(lower), field.get(upper)
            is_right = not (isinstance(low, int | float) and isinstance(high, int | float) and low > high)
            yield "bounds_are_ordered", f"{path}.{upper}", is_right, f"number >= {lower} = {low}", high
        if "x-unit" in field:
            is_right = is_numeric(field) and isinstance(unit, str) and unit in units
            what = f"one of {sorted(units)}" if is_numeric(field) else "none, because it is no number"
            yield "field_units_are_known", f"{path}.x-unit", is_right, what, shown(unit)


def _arguments(icd: Icd) -> Iterator[tuple[str, str, Schema]]:
    for family, versions in icd.arguments.items():
        for version, schema in versions.items():
            yield family, version, schema


def _of_argument(icd: Icd, family: str, version: str, schema: Schema) -> Iterator[Row]:
    rule, address = "argument_schemas_name_themselves", ADDRESS.format(family=family, version=version)
    interface = properties(schema).get("interface", {}).get("const")
    yield rule, "$id", schema.get("$id") == address, repr(address), shown(schema.get("$id"))
    yield rule, "properties.interface.const", interface == address, repr(address), shown(interface)
    rule = "argument_properties_are_described"
    for key in ("title", "description"):
        yield rule, key, _is_text(schema.get(key)), "text", shown(schema.get(key))
    parts = list(_parts(schema))
    for path, part, named in parts:
        is_right = not named or "$ref" in part or _is_text(part.get("description"))
        yield rule, f"{path}.description", is_right, "text", shown(part.get("description"))
    for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in parts)]:
        reference = part.get("$ref")
        is_right = reference is None or _leads(str(schema.get("$id")), reference, icd)
        what = "the address of a part of these schemas"
        yield "argument_references_lead_somewhere", f"{path}$ref", is_right, what, shown(reference)
        for keyword in sorted(part.keys() - _SUPPORTED):
            what = f"one of {sorted(_SUPPORTED)}, got an unsupported keyword"
            yield "argument_keywords_are_supported", f"{path}{keyword}", False, what, NO_VALUE


def _parts(schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Visit every schema below one, and below its definitions."""
    yield from walk(schema)
    definitions = schema.get("$defs")
    if isinstance(definitions, dict):
        for name, part in definitions.items():
            if isinstance(part, dict):
                yield f"$defs.{name}", part, False
                yield from walk(part, f"$defs.{name}.")


def _leads(base: str, reference: object, icd: Icd) -> bool:
    if not isinstance(reference, str):
        return False
    address, fragment = urldefrag(urljoin(base, reference))
    schemas = (schema for versions in icd.arguments.values() for schema in versions.values())
    part: Any = next((schema for schema in schemas if schema.get("$id") == address), None)
    for step in fragment.split("/")[1:]:
        part = part.get(step) if isinstance(part, dict) else None
    return isinstance(part, dict)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
