"""Arguments of the commands of a subarray, such as TM gives them: for the conformance kit and the demo."""

from collections.abc import Sequence
from typing import Any, Final

VERSION: Final = "0.4"
"""Of their schemas."""
SCAN_TYPE: Final = "target:a"
FAMILIES: Final = ("assignres", "releaseres", "configure", "scan")


def sample(
    family: str, name: str, *, number: int = 1, receptors: Sequence[str] = ("SKA001", "SKA036")
) -> dict[str, Any]:
    """Return a good argument of a family, without ``interface``.

    Parameters
    ----------
    name
        In the ids of the execution block and the processing block, which no other may have.
    number
        Of the scan.
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
