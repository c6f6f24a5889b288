"""Arguments of commands as TM sends them: one document for each schema, with everything that it knows."""

import copy
from typing import Any

Document = dict[str, Any]
ADDRESS = "https://schema.skao.int/ska-sdp-{family}/{version}"
TRANSACTION = "txn-test-20261121-00042"

_FIELDS_04 = [
    {
        "field_id": "centaurus",
        "phase_dir": {
            "ra": [201.365, 0.25],
            "dec": [-43.019, 0.0],
            "reference_time": "2026-11-21T10:00:00Z",
            "reference_frame": "ICRF3",
        },
        "pointing_fqdn": "mid-tmc/leaf-node-dish/ska001/pointing",
    }
]
_FIELDS_10 = [
    {
        "field_id": "centaurus",
        "phase_dir": {
            "target_name": "Cen A",
            "reference_frame": "icrs",
            "attrs": {"c1": 201.365, "c2": -43.019, "epoch": 2000.0},
        },
    }
]
_ASSIGNMENT: Document = {
    "transaction_id": TRANSACTION,
    "resources": {"receptors": ["SKA001", "SKA036", "MKT000"], "csp_links": [1, 2], "receive_nodes": 1, "gpus": 4},
    "execution_block": {
        "eb_id": "eb-test-20261121-00001",
        "max_length": 3600.0,
        "context": {"baseband": [{"any": "thing"}]},
        "beams": [
            {"beam_id": "vis0", "function": "visibilities", "visibility_beam_id": 1},
            {"beam_id": "pss1", "function": "pulsar search", "search_beam_id": 1},
            {"beam_id": "pst1", "function": "pulsar timing", "timing_beam_id": 1},
            {"beam_id": "vlbi1", "function": "vlbi", "vlbi_beam_id": 1},
        ],
        "scan_types": [
            {
                "scan_type_id": ".default",
                "beams": {
                    "vis0": {"channels_id": "wide", "polarisations_id": "all"},
                    "pss1": {"field_id": "elsewhere", "channels_id": "wide", "polarisations_id": "all"},
                },
            },
            {
                "scan_type_id": "target:a",
                "derive_from": ".default",
                "beams": {"vis0": {"field_id": "centaurus"}},
            },
            {"scan_type_id": "calibration:b", "derive_from": "target:a"},
        ],
        "channels": [
            {
                "channels_id": "wide",
                "spectral_windows": [
                    {
                        "spectral_window_id": "low",
                        "count": 744,
                        "start": 0,
                        "stride": 2,
                        "freq_min": 350e6,
                        "freq_max": 368e6,
                        "link_map": [[0, 0], [200, 1], [744, 2]],
                    },
                    {"spectral_window_id": "high", "count": 744, "start": 2000, "freq_min": 360e6, "freq_max": 368e6},
                ],
            }
        ],
        "polarisations": [{"polarisations_id": "all", "corr_type": ["XX", "XY", "YX", "YY"]}],
        "fields": _FIELDS_04,
    },
    "processing_blocks": [
        {
            "pb_id": "pb-test-20261121-00001",
            "script": {"kind": "realtime", "name": "vis-receive", "version": "4.1.0"},
            "sbi_ids": ["sbi-test-20261121-00001"],
            "parameters": {"anything": {"goes": [1, 2.5, None, True]}},
        },
        {
            "pb_id": "pb-test-20261121-00002",
            "script": {"kind": "batch", "name": "ical", "version": "0.1.0"},
            "dependencies": [{"pb_id": "pb-test-20261121-00001", "kind": ["visibilities"]}],
        },
    ],
}
_RECEIVE: Document = {
    "target:a": {
        "vis0": {
            "function": "visibilities",
            "host": [[0, "192.0.2.1"], [2000, "192.0.2.2"]],
            "port": [[0, 9000, 1], [2000, 9000]],
            "mac": [[0, "06-00-00-00-00-00"]],
            "delay_cal": [[0, "mid-sdp/calibration/01/delay"]],
            "jones_cal": "mid-sdp/calibration/01/jones",
        }
    },
    "calibration:b": {},
}


def example(family: str, version: str) -> Document:
    """Make the document of a family and version that says everything there is to say."""
    old = version.startswith("0.")
    body: Document = {}
    match family:
        case "assignres":
            body = copy.deepcopy(_ASSIGNMENT)
            if not old:
                body["execution_block"]["fields"] = copy.deepcopy(_FIELDS_10)
        case "releaseres":
            body = {"transaction_id": TRANSACTION, "resources": {"receptors": ["SKA036"]}}
        case "configure":
            added = {"scan_type_id": "new", "derive_from": "target:a", "beams": {"vis0": {"field_id": "centaurus"}}}
            body = {"transaction_id": TRANSACTION, "scan_type": "new", "new_scan_types": [added]}
        case "scan":
            body = {"transaction_id": TRANSACTION, "scan_id": 17}
            if version == "2.1":
                body |= {"start_time": "2026-11-21T10:15:00.5Z", "duration": 600.0}
        case "prepare":
            body = {"transaction_id": TRANSACTION, "scan_type": "target:a"}
        case "recvaddrs":
            body = copy.deepcopy(_RECEIVE)
            if version == "0.5":
                body["target:a"]["vis0"]["pointing_cal"] = "tango://mid-sdp/queueconnector/01/pointing_cal_{dish_id}"
    return {"interface": ADDRESS.format(family=family, version=version), **body}
