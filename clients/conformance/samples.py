"""Arguments that are given to the subarray: one good one of each family, and what is wrong with bad ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from facade.icd.model import Icd

UNKNOWN_KEY = "conformanceUnknownKey"
SCAN_TYPE = "target:conformance"
_NO_VERSION = "99.9"

GOOD: Mapping[str, tuple[str, dict[str, Any]]] = {
    "assignres": (
        "0.4",
        {
            "resources": {"receptors": ["SKA001", "SKA036"]},
            "execution_block": {
                "eb_id": "eb-conformance-{run}",
                "max_length": 60.0,
                "context": {},
                "beams": [{"beam_id": "vis0", "function": "visibilities"}],
                "scan_types": [
                    {
                        "scan_type_id": ".default",
                        "beams": {"vis0": {"channels_id": "channels", "polarisations_id": "all"}},
                    },
                    {"scan_type_id": SCAN_TYPE, "derive_from": ".default", "beams": {"vis0": {"field_id": "field"}}},
                ],
                "channels": [
                    {
                        "channels_id": "channels",
                        "spectral_windows": [
                            {
                                "spectral_window_id": "window",
                                "count": 16,
                                "start": 0,
                                "stride": 1,
                                "freq_min": 350000000.0,
                                "freq_max": 360000000.0,
                                "link_map": [[0, 0]],
                            }
                        ],
                    }
                ],
                "polarisations": [{"polarisations_id": "all", "corr_type": ["XX", "XY", "YX", "YY"]}],
                "fields": [
                    {
                        "field_id": "field",
                        "phase_dir": {
                            "ra": [180.0],
                            "dec": [-30.0],
                            "reference_time": "2026-01-01T00:00:00",
                            "reference_frame": "ICRF3",
                        },
                    }
                ],
            },
            "processing_blocks": [
                {
                    "pb_id": "pb-conformance-{run}",
                    "script": {"kind": "realtime", "name": "vis-receive", "version": "1.0.0"},
                    "parameters": {},
                }
            ],
        },
    ),
    "releaseres": ("0.4", {"resources": {"receptors": ["SKA036"]}}),
    "configure": ("0.4", {"scan_type": SCAN_TYPE}),
    "scan": ("0.4", {"scan_id": 1}),
}
"""Version and content by family; ``{run}`` differs from one command to the next."""
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
    version, content = GOOD[family]
    text = json.dumps({"interface": address(icd, family, version), **content})
    return text.replace("{run}", run)


def bad(icd: Icd, family: str, run: str) -> list[Bad]:
    """Return arguments that must be refused."""
    document = json.loads(good(icd, family, run))
    key, value = WRONG_TYPE[family]
    interface = address(icd, family, GOOD[family][0])
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
