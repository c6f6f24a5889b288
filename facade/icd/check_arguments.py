"""Checks of the schemas of command arguments: each names itself, says what its keys are, and leads nowhere astray."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urldefrag, urljoin

from facade.icd.checks import Checks, Entries, Found, illegal, is_text
from facade.icd.explain import shown
from facade.icd.fields import Schema, properties, walk
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


def _arguments(icd: Icd) -> Entries:
    for family, versions in icd.arguments.items():
        for version, schema in versions.items():
            yield f"{family}-{version}.schema.json", "", (family, version, schema)


of_argument, of_argument_slowly = Checks(_arguments), Checks(_arguments)


@of_argument.rule
def argument_schemas_name_themselves(icd: Icd, family: str, version: str, schema: Schema) -> Found:
    """Require SKA's address as ``$id``, and the same one as the only value of ``interface``."""
    address = ADDRESS.format(family=family, version=version)
    if schema.get("$id") != address:
        yield "$id", f"expected {address!r}, got {shown(schema.get('$id'))}"
    interface = properties(schema).get("interface", {}).get("const")
    if interface != address:
        yield "properties.interface.const", f"expected {address!r}, got {shown(interface)}"


@of_argument.rule
def argument_properties_are_described(icd: Icd, family: str, version: str, schema: Schema) -> Found:
    """Require a title and a description of each schema, and of every key unless what it refers to has one."""
    for key in ("title", "description"):
        if not is_text(schema.get(key)):
            yield key, f"expected text, got {shown(schema.get(key))}"
    for path, part, named in _parts(schema):
        if named and "$ref" not in part and not is_text(part.get("description")):
            yield f"{path}.description", f"expected text, got {shown(part.get('description'))}"


@of_argument.rule
def argument_references_lead_somewhere(icd: Icd, family: str, version: str, schema: Schema) -> Found:
    """Require a part of this or another of the schemas for every ``$ref``."""
    for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in _parts(schema))]:
        reference = part.get("$ref")
        if reference is not None and not _leads(str(schema.get("$id")), reference, icd):
            yield f"{path}$ref", f"expected the address of a part of these schemas, got {shown(reference)}"


@of_argument.rule
def argument_keywords_are_supported(icd: Icd, family: str, version: str, schema: Schema) -> Found:
    """Refuse keywords for which a refusal would have no words."""
    for path, part in [("", schema), *((f"{path}.", part) for path, part, _ in _parts(schema))]:
        for keyword in sorted(part.keys() - _SUPPORTED):
            yield f"{path}{keyword}", f"expected one of {sorted(_SUPPORTED)}, got an unsupported keyword"


@of_argument_slowly.rule
def argument_schemas_are_legal(icd: Icd, family: str, version: str, schema: Schema) -> Found:
    """Require schemas that follow JSON Schema 2020-12."""
    yield from illegal(schema)


CHECKS, THOROUGH_CHECKS = tuple(of_argument), tuple(of_argument_slowly)


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
