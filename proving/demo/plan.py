"""The observation of a demo as TM plans it: which command leads from where to where, and with what argument."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from facade.config import MOST_SUBARRAYS

Argument = dict[str, Any]

OFF, UNKNOWN = "OFF", "UNKNOWN"
"""Shown in the place of obsState while State is this."""
TRANSITIONAL: Final = frozenset({"RESOURCING", "CONFIGURING", "ABORTING", "RESETTING", "RESTARTING", UNKNOWN})
_FAILED: Final = frozenset({"FAULT", "ABORTED"})


@dataclass(frozen=True, slots=True)
class Step:
    """One command of an observation."""

    command: str
    begins: str
    """obsState in which it is given, or OFF."""
    ends: str
    """obsState that it leads to, or OFF."""
    argument: Callable[[int, int, str], Argument] | None = None
    """Made of the subarray's number, that of the try, and the day (YYYYMMDD)."""
    stays: bool = False
    """Whether TM lets some time pass in the state reached."""


def assign(subarray: int, number: int, day: str) -> Argument:
    """Return the argument of AssignResources: an execution block with two scan types of one beam."""
    fields = {"beams": {"vis0": {"field_id": "field_a"}}, "derive_from": ".default"}
    return {
        "interface": "https://schema.skao.int/ska-sdp-assignres/0.4",
        "resources": {"receptors": [f"SKA{receptor:03d}" for receptor in range(subarray, 64, MOST_SUBARRAYS)]},
        "execution_block": {
            "eb_id": f"eb-demo{subarray:02d}-{day}-{number:05d}",
            "max_length": 100.0,
            "context": {},
            "beams": [{"beam_id": "vis0", "function": "visibilities"}],
            "scan_types": [
                {
                    "scan_type_id": ".default",
                    "beams": {"vis0": {"channels_id": "vis_channels", "polarisations_id": "all"}},
                },
                {"scan_type_id": "target:a", **fields},
                {"scan_type_id": "calibration:b", **fields},
            ],
            "channels": [{"channels_id": "vis_channels", "spectral_windows": [_WINDOW]}],
            "polarisations": [{"polarisations_id": "all", "corr_type": ["XX", "XY", "YX", "YY"]}],
            "fields": [_FIELD],
        },
        "processing_blocks": [
            {
                "pb_id": f"pb-demo{subarray:02d}-{day}-{number:05d}",
                "script": {"kind": "realtime", "name": "vis-receive", "version": "0.6.0"},
                "parameters": {},
            }
        ],
    }


def configure(subarray: int, number: int, day: str) -> Argument:
    """Return the argument of Configure."""
    return {"interface": "https://schema.skao.int/ska-sdp-configure/0.4", "scan_type": "target:a"}


def scan(subarray: int, number: int, day: str) -> Argument:
    """Return the argument of Scan."""
    return {"interface": "https://schema.skao.int/ska-sdp-scan/0.4", "scan_id": number}


_WINDOW: Mapping[str, Any] = {
    "spectral_window_id": "fsp_1_channels",
    "count": 13824,
    "start": 0,
    "stride": 1,
    "freq_min": 0.35e9,
    "freq_max": 1.05e9,
    "link_map": [[0, 0], [6912, 1]],
}
_FIELD: Mapping[str, Any] = {
    "field_id": "field_a",
    "phase_dir": {
        "ra": [201.365],
        "dec": [-43.019],
        "reference_time": "2026-11-21T00:00:00.0",
        "reference_frame": "ICRF3",
    },
    "pointing_fqdn": "mid-tmc/telstate/0/pointing",
}

OBSERVATION = (
    Step("On", OFF, "EMPTY"),
    Step("AssignResources", "EMPTY", "IDLE", assign),
    Step("Configure", "IDLE", "READY", configure),
    Step("Scan", "READY", "SCANNING", scan, stays=True),
    Step("EndScan", "SCANNING", "READY"),
    Step("End", "READY", "IDLE"),
    Step("ReleaseAllResources", "IDLE", "EMPTY"),
    Step("Off", "EMPTY", OFF),
)


def remedy(shown: str, step: Step) -> Step | None:
    """Return the command that leads out of a failure of a step; None where nothing is broken."""
    if shown not in _FAILED:
        return None
    if step.begins == "EMPTY":
        return Step("Restart", shown, "EMPTY")
    return Step("ObsReset", shown, "IDLE")


def place(shown: str, steps: Sequence[Step], at: int) -> int | None:
    """Return the step to go on with after one has failed: the last one, up to it, that begins there."""
    return next((i for i in range(at, -1, -1) if steps[i].begins == shown), None)
