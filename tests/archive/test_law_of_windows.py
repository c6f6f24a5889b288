"""One law of windows: what is wrong in `facade.kernel.windows` is wrong for devices, archives, files and reports
alike."""

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import h5py
import msgspec
import numpy as np
import pytest

from facade.archive import nexus_groups, sums
from facade.archive.compare import compare
from facade.archive.nexus_groups import WindowGrid
from facade.archive.night.span import Night
from facade.archive.night.telemetry import NightTelemetry
from facade.archive.sums import Summed
from facade.kernel import sketch
from facade.kernel.bus.port import Record
from facade.kernel.errors import ConfigError
from facade.kernel.outcome import USED
from facade.kernel.windows import frame
from facade.kernel.windows.newest import Rule
from facade.sdp.messages import FieldStatistics, IngestSummary, Partial
from facade.sdp.summaries import as_frames
from tests.archive.test_archive_replayed import archive_of
from tests.flows.test_ledger import CLOSED, ICD, instant, node_ledger, node_view, read
from tests.support.frames import fold, readings
from tests.support.heaps import BASE_US

pytestmark = pytest.mark.needs("sdp_facade_lab")

SECOND = 1_000_000
PARTS = [[0.001, 0.004, 0.0025], [0.020, 0.031], [0.0005]]
"""Latencies of the heaps of one window, as three transactions had them [s]."""
ALL = [value for part in PARTS for value in part]


def partials(parts: list[list[float]]) -> list[Partial]:
    """Return what a worker makes of the heaps of each transaction."""
    found, first = [], 0
    for part in parts:
        buckets, counts = np.unique(sketch.buckets(np.array(part), 0.01), return_counts=True)
        latency = FieldStatistics(
            sum=sum(part), min=min(part), max=max(part), m2=float(np.var(part) * len(part)),
            sketch=dict(zip(buckets.tolist(), counts.tolist(), strict=True)),
        )  # fmt: skip
        runs = [(first, first + len(part) - 1)]
        first += len(part)
        fields = {"latency": latency, "received": FieldStatistics(sum=512 * len(part))}
        found.append(Partial(7, BASE_US, False, len(part), BASE_US, BASE_US + first, runs, fields))
    return found


def summaries(parts: list[list[float]]) -> list[IngestSummary]:
    known = {"worker": "0", "partition": 0, "node": 0, "log": ""}
    return [IngestSummary(**known, partials=[one]) for one in partials(parts)]


def telemetry_is_right(folder: Path) -> bool:
    ledger = node_ledger()
    fold(ledger, 0, partials(PARTS), instant(0.5))
    read(ledger, 0)
    try:
        found = readings(node_view(), ledger, instant(CLOSED))
        median = found["latencyP50"].value
        return found["latencyStd"].value == pytest.approx(np.std(ALL)) and median == pytest.approx(0.0025, rel=0.02)
    except (AssertionError, KeyError):
        return False


def comparison_is_right(folder: Path) -> bool:
    """The same heaps in other transactions."""
    sides = [
        archive_of(folder / name, *(("ingest.summary", one) for one in summaries(parts)))
        for name, parts in {"a": PARTS, "b": [ALL]}.items()
    ]
    (kind, *_) = compare(*sides, ICD).kinds
    return (kind.compared, kind.equal) == (1, 1)


def night_is_right(folder: Path) -> bool:
    night = NightTelemetry(ICD, Night(BASE_US, BASE_US + 3600 * SECOND), 50)
    for one in summaries(PARTS):
        assert night.take(Record(topic="ingest.summary", key=b"0", value=msgspec.json.encode(one))) is USED
    (rack,) = night.racks
    median = night.latency(rack, 0.5)
    return rack.deviation == pytest.approx(np.std(ALL)) and median == pytest.approx(0.0025, rel=0.02)


def file_is_right(folder: Path) -> bool:
    window = ICD.topics["ingest.heaps"].window
    assert window is not None
    schema = ICD.messages["heap"]["properties"]
    grid = WindowGrid(folder / "parts", BASE_US, BASE_US + 2 * SECOND, window, schema)
    grid.add(Summed("ingest.heaps", None, as_frames(0, partials(PARTS)), summaries(PARTS)[0]))
    with h5py.File(folder / "windows.nxs", "w") as file:
        parent = nexus_groups.child(file, "windows", "NXcollection")
        grid.write(parent, "windows", BASE_US + round(CLOSED * SECOND))
        mean, quality = parent["latency_mean/value"][0, 0], parent["count/quality"][0, 0]
        return bool(mean == pytest.approx(np.mean(ALL)) and quality == 0)


USERS = {
    "telemetry": telemetry_is_right, "compare": comparison_is_right, "night": night_is_right, "NeXus": file_is_right,
}  # fmt: skip


def changed(field: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what makes the merging of a statistic wrong where several rows are merged."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        merge = frame._field

        def wrong(parts, at, count, last):
            found = merge(parts, at, count, last)
            values = getattr(found, field)
            return (
                found
                if values is None or len(at.order) == len(at.starts)
                else replace(found, **{field: change(values)})
            )

        patch.setattr(frame, "_field", wrong)

    return mutate


def closes_late(patch: pytest.MonkeyPatch) -> None:
    closed_at = Rule.closed_at
    patch.setattr(Rule, "closed_at", lambda rule, window: closed_at(rule, window) + 1)


def counts_twice(one: frame.Counts) -> frame.Counts:
    return replace(one, count=one.count * np.arange(2, len(one.count) + 2))


MUTANTS = {
    "m2": (changed("m2", lambda values: values * 1.01), {"telemetry", "compare", "night"}),
    "sum": (changed("sum", lambda values: values * 1.01), {"compare", "NeXus"}),
    "sketch": (changed("sketch", counts_twice), {"telemetry", "compare", "night"}),
    "closed_at": (closes_late, {"telemetry", "NeXus"}),
}
"""What is wrong, and who needs it."""


@pytest.mark.parametrize("user", USERS)
def test_windows_of_several_transactions_are_right(user: str, tmp_path: Path) -> None:
    assert USERS[user](tmp_path)


@pytest.mark.parametrize("user", ["compare", "NeXus"])
def test_windows_that_memory_does_not_hold_are_as_right(
    user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, flush = list[int](), sums.Sums._flush
    monkeypatch.setattr(sums, "_MOST_WAITING", 2)
    monkeypatch.setattr(sums.Sums, "_flush", lambda found: (sizes.append(found._size), flush(found)))
    assert USERS[user](tmp_path)
    assert {*sizes} == {2}, "no more rows wait in memory"


@pytest.mark.parametrize(("user", "place"), {"compare": "/sdp-compare-", "NeXus": "No space"}.items())
def test_a_full_disk_is_said_with_the_place_of_the_user(
    user: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "_MOST_WAITING", 2)
    monkeypatch.setattr(sums.pickle, "dump", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises((ConfigError, OSError), match=f"{place}.*left on device") as found:
        USERS[user](tmp_path)
    assert "TMPDIR" not in str(found.value)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_is_wrong_in_the_law_is_wrong_for_all(
    mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate, users = MUTANTS[mutant]
    mutate(monkeypatch)
    assert {user for user, is_right in USERS.items() if not is_right(tmp_path)} == users
