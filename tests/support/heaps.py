"""Heap notifications for tests: small, plain, and easy to count by hand."""

import json
from typing import Any

BASE_US = 1_800_000_000_000_000
"""A whole second [Unix us]."""


def heap(node: int = 0, seq: int = 0, at: float = 0.0, **changes: Any) -> dict[str, Any]:
    """Return a valid notification; `at` is the data time in seconds after `BASE_US`."""
    return {
        "schema": "heap/1",
        "node": node,
        "scan_id": 7,
        "seq": seq,
        "time": BASE_US + round(at * 1e6),
        "channel_start": 0,
        "channel_count": 128,
        "received": 512,
        "lost": 0,
        "late": 0,
        "flagged_fraction": 0.25,
        "latency": 0.002,
    } | changes


def encoded(*heaps: dict[str, Any]) -> list[bytes | None]:
    """Return the values as they stand on the topic."""
    return [json.dumps(document, separators=(",", ":")).encode() for document in heaps]
