"""Checks of the schemas of command arguments: each names itself, says what its keys are, and leads nowhere astray."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urldefrag, urljoin

from facade.icd.explain import shown
from facade.icd.fields import Schema, properties, walk
from facade.icd.finding import Finding
from facade.icd.model import Icd

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


def argument_schemas_name_themselves(icd: Icd) -> Iterator[Finding]:
    """Require SKA's address as ``$id``, and the same one as the only value of ``interface``."""
    for family, version, schema in _each(icd):
        address = ADDRESS.format(family=family, version=version)
        if schema.get("$id") != address:
            yield _at(family, version, "$id", f"expected {address!r}, got {shown(schema.get('$id'))}")
        interface = properties(schema).get("interface", {}).get("const")
        if interface != address:
            yield _at(family, version, "properties.interface.const", f"expected {address!r}, got {shown(interface)}")


def argument_properties_are_described(icd: Icd) -> Iterator[Finding]:
    """Require a title and a description of each schema, and of every key unless what it refers to has one."""
    for family, version, schema in _each(icd):
        for key in ("title", "description"):
            if not _is_text(schema.get(key)):
                yield _at(family, version, key, f"expected text, got {shown(schema.get(key))}")
        for path, part, named in _parts(schema):
            if named and "$ref" not in part and not _is_text(part.get("description")):
                yield _at(
                    family, version, f"{path}.description", f"expected text, got {shown(part.get('description'))}"
                )


def argument_references_lead_somewhere(icd: Icd) -> Iterator[Finding]:
    """Require a part of this or another of the schemas for every ``$ref``."""
    known = {str(schema.get("$id")): schema for _, _, schema in _each(icd)}
    for family, version, schema in _each(icd):
        for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in _parts(schema))]:
            reference = part.get("$ref")
            if reference is not None and not _leads(str(schema.get("$id")), reference, known):
                what = f"expected the address of a part of these schemas, got {shown(reference)}"
                yield _at(family, version, f"{path}$ref", what)


def argument_keywords_are_supported(icd: Icd) -> Iterator[Finding]:
    """Refuse keywords for which a refusal would have no words."""
    for family, version, schema in _each(icd):
        for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in _parts(schema))]:
            for keyword in sorted(part.keys() - _SUPPORTED):
                what = f"expected one of {sorted(_SUPPORTED)}, got an unsupported keyword"
                yield _at(family, version, f"{path}{keyword}", what)


def argument_schemas_are_legal(icd: Icd) -> Iterator[Finding]:
    """Require schemas that follow JSON Schema 2020-12."""
    # Importing it takes longer than everything else that a server does with the interface.
    from jsonschema import Draft202012Validator

    meta = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    for family, version, schema in _each(icd):
        for error in meta.iter_errors(schema):
            what = f"expected JSON Schema 2020-12, got: {error.message:.200}"
            yield _at(family, version, ".".join(map(str, error.path)), what)


CHECKS = (
    argument_schemas_name_themselves,
    argument_properties_are_described,
    argument_references_lead_somewhere,
    argument_keywords_are_supported,
)
THOROUGH_CHECKS = (argument_schemas_are_legal,)


def _each(icd: Icd) -> Iterator[tuple[str, str, Schema]]:
    for family, versions in icd.arguments.items():
        for version, schema in versions.items():
            yield family, version, schema


def _parts(schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Visit every schema below one, and below its definitions."""
    yield from walk(schema)
    definitions = schema.get("$defs")
    if isinstance(definitions, dict):
        for name, part in definitions.items():
            if isinstance(part, dict):
                yield f"$defs.{name}", part, False
                yield from walk(part, f"$defs.{name}.")


def _leads(base: str, reference: object, known: dict[str, Schema]) -> bool:
    if not isinstance(reference, str):
        return False
    address, fragment = urldefrag(urljoin(base, reference))
    part: Any = known.get(address)
    for step in fragment.split("/")[1:]:
        part = part.get(step) if isinstance(part, dict) else None
    return isinstance(part, dict)


def _at(family: str, version: str, key: str, what: str) -> Finding:
    return Finding(f"{family}-{version}.schema.json", key, what)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
