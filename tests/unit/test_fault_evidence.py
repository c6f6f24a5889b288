"""What a fault run with a finding says about its cause."""

import json
from typing import Any

import pytest

from facade.kernel.bus.port import Record
from sdp_facade_lab.fault_runs.evidence import missing, unjoined


def entry(first: int, after: int, **more: Any) -> dict[str, Any]:
    return {"stream": "ingest.heaps", "partition": 1, "log": "id", "offset_from": first, "offset_to": after, **more}


def account(first: int, after: int, consumed: int) -> dict[str, Any]:
    return entry(first, after, consumed=consumed)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([account(0, 10, 10), account(10, 10, 0), account(10, 25, 15)], []),
        ([account(0, 10, 10), account(12, 20, 8)], ["offsets 10 to 11 were not taken"]),
        ([account(0, 10, 10), account(8, 12, 4)], ["expected offset 10 or later"]),
        ([account(0, 10, 10), account(10, 20, 7)], ["have 7 records"]),
        ([entry(0, 10, consumed=400, batches=10)], []),
        ([entry(0, 10, part=0), entry(0, 10, part=1), entry(10, 20, part=0)], []),
        ([entry(0, 10, part=0), entry(13, 20, part=0)], ["offsets 10 to 12 were not taken"]),
        ([{"stream": "ingest.heaps", "partition": 1, "read_to": 7}, account(-1, -1, 0)], []),
    ],
)
def test_ranges_that_do_not_join_are_told(entries: list[dict[str, Any]], said: list[str]) -> None:
    records = [Record(topic="accounts", key=b"k", value=json.dumps(one).encode()) for one in entries]
    found = list(unjoined(records))
    assert len(found) == len(said)
    assert all(text in line for text, line in zip(said, found, strict=True))


def test_numbers_that_are_on_no_record_are_told_as_ranges() -> None:
    seen = {0: [0, 1, 2, 7, 8], 1: [3, 2, 1, 0], 2: [1]}
    said = ["node 0: numbers 3 to 6", "node 2: numbers 0 to 0", "node 3: numbers 0 to 1"]
    assert list(missing(seen, {0: 9, 1: 4, 2: 2, 3: 2})) == said
