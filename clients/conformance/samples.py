"""Arguments that are given to the subarray: one good one of each family, and what is wrong with bad ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from clients.sample_arguments import VERSION, sample
from facade.icd.model import Icd

UNKNOWN_KEY = "conformanceUnknownKey"
_NO_VERSION = "99.9"

WRONG_TYPE: Mapping[str, tuple[str, Any]] = {
    "assignres": ("resources", "everything"),
    "releaseres": ("resources", "everything"),
    "configure": ("scan_type", 17),
    "scan": ("scan_id", "seventeen"),
}
"""A key of each family, and a value of another type than its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """A bad argument."""

    aspect: str
    text: str
    words: tuple[str, ...]
    """What the refusal must name: the key, and what came."""


def good(icd: Icd, family: str, run: str) -> str:
    """Return an argument that must be taken."""
    return json.dumps({"interface": address(icd, family, VERSION), **sample(family, f"conformance-{run}")})


def bad(icd: Icd, family: str, run: str) -> list[Bad]:
    """Return arguments that must be refused."""
    document = json.loads(good(icd, family, run))
    key, value = WRONG_TYPE[family]
    interface = address(icd, family, VERSION)
    no_version = f"{interface.rpartition('/')[0]}/{_NO_VERSION}"
    found = [
        Bad(aspect="refuses-no-json", text="{not json", words=("JSON",)),
        Bad(aspect="refuses-wrong-type", text=json.dumps({**document, key: value}), words=(key, str(value))),
        Bad(aspect="refuses-unknown-key", text=json.dumps({**document, UNKNOWN_KEY: 0}), words=(UNKNOWN_KEY,)),
        Bad(
            aspect="refuses-version",
            text=json.dumps({**document, "interface": no_version}),
            words=("interface", _NO_VERSION),
        ),
    ]
    # A version that is not known would be refused because of the interface, not because of the key.
    found += [
        Bad(
            aspect=f"knows-version-{version}",
            text=json.dumps({"interface": address(icd, family, version), UNKNOWN_KEY: 0}),
            words=(_complaint(icd, family, version),),
        )
        for version in icd.arguments[family]
    ]
    return found


def _complaint(icd: Icd, family: str, version: str) -> str:
    """Return the key that a version must complain about if it has only `interface` and a key of the kit."""
    schemas = [schema for versions in icd.arguments.values() for schema in versions.values()]
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"], DRAFT202012.create_resource(schema)) for schema in schemas
    )
    document = {"interface": address(icd, family, version), UNKNOWN_KEY: 0}
    missing = ""
    for error in Draft202012Validator(icd.arguments[family][version], registry=registry).iter_errors(document):
        if error.validator == "additionalProperties":
            return UNKNOWN_KEY
        if error.validator == "required":
            missing = missing or next(name for name in error.validator_value if name not in error.instance)
    return missing


def address(icd: Icd, family: str, version: str) -> str:
    """Return what `interface` says for a version."""
    return str(icd.arguments[family][version]["$id"])
