"""Arguments of AssignResources for a whole telescope."""

from collections.abc import Iterator
from typing import Any

_LINK = 20
"""Channels that come over one link."""
_POINTINGS = 2000


def telescope_arguments() -> dict[str, dict[str, Any]]:
    """Return the arguments by telescope."""
    dishes = [f"SKA{number:03}" for number in range(1, 134)] + [f"MKT{number:03}" for number in range(64)]
    stations = [f"C{number}" for number in range(1, 225)] + [
        f"{arm}{cluster}-{station}" for arm in "NES" for cluster in range(1, 17) for station in range(1, 7)
    ]
    return {
        "SKA-Mid": _assignment(dishes, searched=1125, channels=65_536, band=(350e6, 1050e6)),
        "SKA-Low": _assignment(stations, searched=500, channels=55_296, band=(50e6, 350e6)),
    }


def _assignment(receptors: list[str], *, searched: int, channels: int, band: tuple[float, float]) -> dict[str, Any]:
    kinds = {"visibilities": ("vis", 1), "pulsar search": ("pss", searched), "pulsar timing": ("pst", 16)}
    beams = [
        {"beam_id": f"{prefix}{number}", "function": function}
        for function, (prefix, count) in kinds.items()
        for number in range(count)
    ]
    setup = {"channels_id": "all", "polarisations_id": "all"}
    every = {beam["beam_id"]: {"field_id": f"at-{beam['beam_id']}", **setup} for beam in beams}
    pointings = [
        {"scan_type_id": f"p{number}", "derive_from": ".all", "beams": {"vis0": {"field_id": f"m{number}"}}}
        for number in range(_POINTINGS)
    ]
    window = {"spectral_window_id": "all", "count": channels, "start": 0, "freq_min": band[0], "freq_max": band[1]}
    links = [[channel, link] for link, channel in enumerate(range(0, channels, _LINK))]
    return {
        "interface": "https://schema.skao.int/ska-sdp-assignres/1.0",
        "transaction_id": "txn-bench-20261121-00001",
        "resources": {"receptors": receptors, "receive_nodes": 32},
        "execution_block": {
            "eb_id": "eb-bench-20261121-00001",
            "beams": beams,
            "scan_types": [{"scan_type_id": ".all", "beams": every}, *pointings],
            "channels": [{"channels_id": "all", "spectral_windows": [{**window, "link_map": links}]}],
            "polarisations": [{"polarisations_id": "all", "corr_type": ["XX", "XY", "YX", "YY"]}],
            "fields": list(_fields([one["field_id"] for one in every.values()])),
        },
    }


def _fields(names: list[str]) -> Iterator[dict[str, Any]]:
    for number, name in enumerate([*names, *(f"m{number}" for number in range(_POINTINGS))]):
        attrs = {"c1": round(number * 0.09, 6), "c2": round(-45 + number * 0.01, 6), "epoch": 2000.0}
        yield {
            "field_id": name,
            "phase_dir": {"target_name": f"J{number:06}", "reference_frame": "icrs", "attrs": attrs},
        }
