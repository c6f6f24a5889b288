"""Derives JSON Schemas of the TOML files of the ICD, with which an editor completes and checks them.

The first line of a file names its schema, as taplo and the editors that use it read it.
"""

import json
from collections.abc import Mapping

import msgspec

from facade.kernel.icd.load import COMMON
from facade.kernel.icd.model import DeviceClass, Icd

FOLDER = "schemas/tables"
CLASS = "class.schema.json"
"""Schema of the files of device classes."""


def export(icd: Icd) -> Mapping[str, str]:
    """Return the schema of each kind of file, by its path; the interface itself does not matter."""
    kinds = {name.replace(".toml", ".schema.json"): kind for name, kind in COMMON.items()} | {CLASS: DeviceClass}
    schemas = {name: msgspec.json.schema(kind) for name, kind in kinds.items()}
    return {f"{FOLDER}/{name}": json.dumps(schema, indent=1) + "\n" for name, schema in schemas.items()}
