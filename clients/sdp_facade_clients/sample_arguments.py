"""Arguments of the commands of a subarray, as TM would give them: for the conformance kit and the demo."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from facade.kernel.icd.model import Icd

VERSION: Final = "0.4"
SCAN_TYPE: Final = "target:a"
FAMILIES: Final = ("assignres", "releaseres", "configure", "scan")


def sample(
    family: str, name: str, *, number: int = 1, receptors: Sequence[str] = ("SKA001", "SKA036")
) -> dict[str, Any]:
    """Return a valid argument of a family, without ``interface``.

    Parameters
    ----------
    name
        Part of the ids of the execution block and the processing block; it must be unique.
    number
        Number of the scan.
    """
    samples: dict[str, dict[str, Any]] = {
        "assignres": {
            "resources": {"receptors": list(receptors)},
            "execution_block": {"eb_id": f"eb-{name}", **_EXECUTION_BLOCK},
            "processing_blocks": [{"pb_id": f"pb-{name}", **_PROCESSING_BLOCK}],
        },
        "releaseres": {"resources": {"receptors": list(receptors[-1:])}},
        "configure": {"scan_type": SCAN_TYPE},
        "scan": {"scan_id": number},
    }
    return samples[family]


_EXECUTION_BLOCK: dict[str, Any] = {
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
}
_PROCESSING_BLOCK: dict[str, Any] = {
    "script": {"kind": "realtime", "name": "vis-receive", "version": "1.0.0"},
    "parameters": {},
}


# --- Texts for the conformance kit ---

UNKNOWN_KEY = "conformanceUnknownKey"
_WRONG_TYPE: Mapping[str, tuple[str, Any]] = {
    "assignres": ("resources", "everything"),
    "releaseres": ("resources", "everything"),
    "configure": ("scan_type", 17),
    "scan": ("scan_id", "seventeen"),
}
"""A key of each family, and a value of a wrong type."""


def good_argument(icd: Icd, family: str, number: int) -> str:
    """Return an argument that must be accepted."""
    interface = icd.arguments[family][VERSION]["$id"]
    return json.dumps({"interface": interface, **sample(family, f"conformance-{number}")})


def bad_arguments(icd: Icd, family: str, number: int) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return arguments that must be refused: the aspect, the text, and the expected words of the refusal."""
    document = json.loads(good_argument(icd, family, number))
    key, value = _WRONG_TYPE[family]
    no_version = f"{document['interface'].rpartition('/')[0]}/99.9"
    found: list[tuple[str, str, tuple[str, ...]]] = [
        ("refuses-no-json", "{not json", ("JSON",)),
        ("refuses-wrong-type", json.dumps({**document, key: value}), (key, str(value))),
        ("refuses-unknown-key", json.dumps({**document, UNKNOWN_KEY: 0}), (UNKNOWN_KEY,)),
        ("refuses-version", json.dumps({**document, "interface": no_version}), ("interface", "99.9")),
    ]
    schemas = [schema for versions in icd.arguments.values() for schema in versions.values()]
    registry: Registry[Any] = Registry().with_resources(
        (schema["$id"], DRAFT202012.create_resource(schema)) for schema in schemas
    )
    for version, schema in icd.arguments[family].items():
        # An unknown version would be refused because of the interface; with a known one the refusal must name another
        # key.
        only = {"interface": schema["$id"], UNKNOWN_KEY: 0}
        errors = list(Draft202012Validator(schema, registry=registry).iter_errors(only))
        named = [UNKNOWN_KEY for error in errors if error.validator == "additionalProperties"]
        required = (error for error in errors if error.validator == "required")
        named += [next(name for name in error.validator_value if name not in error.instance) for error in required]
        found.append((f"knows-version-{version}", json.dumps(only), (next(iter(named), ""),)))
    return found
