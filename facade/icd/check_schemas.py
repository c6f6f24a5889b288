"""Checks of the schemas of messages and of command arguments: named, described, bounded, with units that we know."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urldefrag, urljoin

from facade.icd.checks import Checks, Entries, Mistakes, illegal, is_text
from facade.icd.explain import shown
from facade.icd.fields import Schema, is_numeric, kind, properties, walk
from facade.icd.model import Icd
from facade.icd.units import known_units

_BOUNDS = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))


def _messages(icd: Icd) -> Entries:
    return ((f"{name}.schema.json", "", (name, schema)) for name, schema in icd.messages.items())


of_message, of_message_slowly = Checks(_messages), Checks(_messages)


@of_message.rule
def messages_are_closed_objects(icd: Icd, name: str, schema: Schema) -> Mistakes:
    """Require an object with properties and no others than those."""
    if schema.get("type") != "object":
        yield "type", f"expected 'object', got {shown(schema.get('type'))}"
    found = schema.get("properties")
    if not isinstance(found, dict) or not all(isinstance(field, dict) for field in found.values()):
        yield "properties", f"expected an object of objects, got {shown(found)}"
    if schema.get("additionalProperties") is not False:
        yield "additionalProperties", f"expected false, got {shown(schema.get('additionalProperties'))}"


@of_message.rule
def messages_name_their_version(icd: Icd, name: str, schema: Schema) -> Mistakes:
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
def required_properties_exist(icd: Icd, name: str, schema: Schema) -> Mistakes:
    """Require a property for each required name."""
    for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in walk(schema))]:
        required = part.get("required", [])
        known = properties(part)
        if not isinstance(required, list) or any(key not in known for key in map(str, required)):
            yield f"{path}required", f"expected names of properties ({', '.join(known)}), got {shown(required)}"


@of_message.rule
def properties_are_described(icd: Icd, name: str, schema: Schema) -> Mistakes:
    """Require a description of every property and of the message itself."""
    if not is_text(schema.get("description")):
        yield "description", f"expected text, got {shown(schema.get('description'))}"
    for path, field, named in walk(schema):
        text = field.get("description")
        if named and not is_text(text):
            yield f"{path}.description", f"expected text, got {shown(text)}"


@of_message.rule
def numbers_are_bounded(icd: Icd, name: str, schema: Schema) -> Mistakes:
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
def bounds_are_ordered(icd: Icd, name: str, schema: Schema) -> Mistakes:
    """Refuse a minimum above the maximum: such a field could hold nothing."""
    for path, field, _ in walk(schema):
        for lower, upper in _BOUNDS:
            low, high = field.get(lower), field.get(upper)
            if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
                yield f"{path}.{upper}", f"expected number >= {lower} = {low}, got {high}"


@of_message.rule
def field_units_are_known(icd: Icd, name: str, schema: Schema) -> Mistakes:
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
def schemas_are_legal(icd: Icd, name: str, schema: Schema) -> Mistakes:
    """Require schemas that follow JSON Schema 2020-12."""
    yield from illegal(schema)


@of_message_slowly.rule
def examples_are_legal(icd: Icd, name: str, schema: Schema) -> Mistakes:
    """Require examples that the schema itself allows."""
    from jsonschema import Draft202012Validator

    if any(True for _ in illegal(schema)):
        return
    for index, example in enumerate(schema.get("examples", ())):
        for error in Draft202012Validator(schema).iter_errors(example):
            path = ".".join((f"examples[{index}]", *map(str, error.path)))
            yield path, f"expected a message as the schema says, got: {error.message:.200}"


ADDRESS = "https://schema.skao.int/ska-sdp-{family}/{version}"
"""What an argument's ``interface`` says, and the schema's ``$id``."""
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


def _arguments(icd: Icd) -> Entries:
    for family, versions in icd.arguments.items():
        for version, schema in versions.items():
            yield f"{family}-{version}.schema.json", "", (family, version, schema)


of_argument, of_argument_slowly = Checks(_arguments), Checks(_arguments)


@of_argument.rule
def argument_schemas_name_themselves(icd: Icd, family: str, version: str, schema: Schema) -> Mistakes:
    """Require SKA's address as ``$id``, and the same one as the only value of ``interface``."""
    address = ADDRESS.format(family=family, version=version)
    if schema.get("$id") != address:
        yield "$id", f"expected {address!r}, got {shown(schema.get('$id'))}"
    interface = properties(schema).get("interface", {}).get("const")
    if interface != address:
        yield "properties.interface.const", f"expected {address!r}, got {shown(interface)}"


@of_argument.rule
def argument_properties_are_described(icd: Icd, family: str, version: str, schema: Schema) -> Mistakes:
    """Require a title and a description of each schema, and of every key, unless its `$ref` leads to one."""
    for key in ("title", "description"):
        if not is_text(schema.get(key)):
            yield key, f"expected text, got {shown(schema.get(key))}"
    for path, part, named in _parts(schema):
        if named and "$ref" not in part and not is_text(part.get("description")):
            yield f"{path}.description", f"expected text, got {shown(part.get('description'))}"


@of_argument.rule
def argument_references_lead_somewhere(icd: Icd, family: str, version: str, schema: Schema) -> Mistakes:
    """Require a part of this or another of the schemas for every ``$ref``."""
    for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in _parts(schema))]:
        reference = part.get("$ref")
        if reference is not None and not _leads(str(schema.get("$id")), reference, icd):
            yield f"{path}$ref", f"expected the address of a part of these schemas, got {shown(reference)}"


@of_argument.rule
def argument_keywords_are_supported(icd: Icd, family: str, version: str, schema: Schema) -> Mistakes:
    """Refuse keywords for which a refusal would have no words."""
    for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in _parts(schema))]:
        for keyword in sorted(part.keys() - _SUPPORTED):
            yield f"{path}{keyword}", f"expected one of {sorted(_SUPPORTED)}, got an unsupported keyword"


@of_argument_slowly.rule
def argument_schemas_are_legal(icd: Icd, family: str, version: str, schema: Schema) -> Mistakes:
    """Require schemas that follow JSON Schema 2020-12."""
    yield from illegal(schema)


CHECKS = (*of_message, *of_argument)
THOROUGH_CHECKS = (*of_message_slowly, *of_argument_slowly)


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
