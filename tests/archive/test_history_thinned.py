"""The history of an attribute as columns: thinned to bins, and whole for data frames."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sdp_facade_sdk
from facade.archive.files import ArchiveError
from facade.archive.history import SILENT_US, Columns, HistoryArchive, Series
from facade.archive.stores import FolderStore
from facade.archive.thinned import Thinned, thin
from facade.kernel.clock import Duration, Time, utc_text
from facade.kernel.errors import ConfigError
from tests.archive.test_history_archive import MINUTE, RATE, SECOND, archived, record
from tests.support.archives import START
from tests.support.waiting import HANG

DEVICE, _, ATTRIBUTE = RATE.rpartition("/")

pytestmark = pytest.mark.needs("sdp_facade_sdk")


def rows(found: Thinned) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in zip(*found[1:], strict=True)]


def test_a_value_holds_until_the_next_one_and_gaps_stay_gaps(tmp_path: Path) -> None:
    end = 3 * MINUTE + 4 * SILENT_US
    records = [
        record(0, 1.0),
        record(MINUTE, 4.0),
        record(MINUTE + 30 * SECOND, 2.0, quality="WARNING"),
        record(2 * MINUTE, 9.0, quality="INVALID"),
        record(3 * MINUTE, "NaN"),
        record(end, 5.0),
    ]
    found = thin(archived(FolderStore(tmp_path), records), RATE, Time(START), Time(START + 4 * MINUTE), 8)
    assert found.time == [START + place * MINUTE // 2 for place in range(8)]
    assert rows(found) == [
        (1.0, 1.0, 1.0, 1.0, "VALID"),
        (1.0, 1.0, 1.0, 1.0, "VALID"),
        (4.0, 4.0, 4.0, 4.0, "VALID"),
        (2.0, 2.0, 2.0, 2.0, "WARNING"),
        (None, None, None, None, "INVALID"),
        (None, None, None, None, "INVALID"),
        (None, None, None, "NaN", "VALID"),
        (None, None, None, None, None),
    ]


def test_the_last_value_holds_until_the_end_of_the_archive(tmp_path: Path) -> None:
    """But not where the archive goes on for so long that the value would have been repeated."""
    other = "a/b/c/x"
    records = [record(0, 1.0), record(4 * MINUTE, 7.0, other), record(5 * MINUTE, 8.0), record(6 * MINUTE, 8.0)]
    found = archived(FolderStore(tmp_path), records)

    def lows(name: str) -> list[float | None]:
        return [row[0] for row in rows(thin(found, name, Time(START), Time(START + 8 * MINUTE), 8))]

    assert lows(RATE) == [1.0, None, None, None, None, 8.0, 8.0, None]
    assert lows(other) == [None, None, None, None, 7.0, None, None, None]
    assert found.extent()[1] == START + 6 * MINUTE
    late = archived(FolderStore(tmp_path / "late"), [record(0, 1.0), record(MINUTE, 2.0, other)])
    assert [row[0] for row in rows(thin(late, RATE, Time(START), Time(START + 2 * MINUTE), 4))] == [1.0, 1.0, 1.0, None]


def test_texts_have_a_last_value_only(tmp_path: Path) -> None:
    name = "mid-sdp/subarray/01/obsState"
    records = [record(at * SECOND, one, name) for at, one in enumerate(("EMPTY", "IDLE", "IDLE", "READY"))]
    found = thin(archived(FolderStore(tmp_path), records), name, Time(START), Time(START + 4 * SECOND), 2)
    assert rows(found) == [(None, None, None, "IDLE", "VALID"), (None, None, None, "READY", "VALID")]


class Made(HistoryArchive):
    """An archive with these values, each of so many microseconds."""

    def __init__(self, values: list[tuple[int, float]]) -> None:
        self._values = values

    def extent(self) -> tuple[Time, Time]:
        return Time(START), Time(START)

    def find(self, name: str, begin: Time, end: Time) -> Series:
        lengths = np.array([length for length, _ in self._values])
        at = START + np.cumsum(lengths) - lengths
        values = np.fromiter((value for _, value in self._values), np.object_, len(at))
        columns = Columns(at, at, np.zeros(len(at), np.int8), values, np.zeros(len(at), np.bool_))
        return Series(last=Time(int(at[-1] + lengths[-1])), columns=columns)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(-5, 5).map(float)), min_size=1, max_size=30),
    st.integers(1, 50),
)
@settings(max_examples=150, deadline=None)
def test_each_bin_has_what_was_shown_in_each_of_its_microseconds(values: list[tuple[int, float]], bins: int) -> None:
    whole = [value for length, value in values for _ in range(length)]
    end = max(len(whole), bins)
    found = thin(Made(values), "d/a", Time(START), Time(START + end), bins)
    for place, row in enumerate(rows(found)):
        first, last = (one * end // bins for one in (place, place + 1))
        shown = whole[first:last]
        if len(shown) < last - first:
            continue  # the end of the record
        assert row[0] == min(shown)
        assert row[1] == max(shown)
        assert row[2] == pytest.approx(sum(shown) / len(shown))
        assert row[3] == shown[-1]


def test_a_data_frame_in_three_lines(tmp_path: Path) -> None:
    records = [record(0, 1), record(SECOND, 2.5), record(2 * SECOND, "NaN"), record(3 * SECOND, 3, quality="ALARM")]
    archived(FolderStore(tmp_path), [*records, record(3 * SECOND + 3 * SILENT_US, 4)])
    end = Time(START) + 10 * Duration(MINUTE)
    found = sdp_facade_sdk.history(DEVICE, ATTRIBUTE, utc_text(Time(START)), utc_text(end), archive=str(tmp_path))
    columns = found.to_pydict()
    assert [one for one in columns["value"] if not math.isnan(one)] == [1.0, 2.5, 3.0, 4.0]
    assert columns["quality"] == ["VALID"] * 3 + ["ALARM", "VALID"]
    assert columns["gap"] == [False] * 4 + [True]
    assert columns["recorded"][1].isoformat() == utc_text(Time(START + SECOND))[:19] + "+00:00"
    again = sdp_facade_sdk.history(DEVICE, ATTRIBUTE, columns["time"][0], columns["time"][-1], archive=str(tmp_path))
    assert again.num_rows == 4


def test_texts_and_arrays_are_texts_of_the_table(tmp_path: Path) -> None:
    name = "a/b/c/x"
    archived(FolderStore(tmp_path), [record(0, "IDLE", name), record(SECOND, [1, 2], name), record(2, True, name)])
    found = sdp_facade_sdk.history("a/b/c", "x", "2027-01-15", "2027-01-16", archive=str(tmp_path))
    assert found["value"].to_pylist() == ["IDLE", "true", "[1,2]"]


def test_without_its_libraries_the_extra_is_named() -> None:
    program = "import sys, sdp_facade_sdk; sys.modules['pyarrow'] = None; sdp_facade_sdk.history"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG)
    assert ended.stderr.strip().endswith("history needs pyarrow: pip install 'sdp-tango-facade[archive]'")


def test_mistakes_of_a_program_are_told(tmp_path: Path) -> None:
    archived(FolderStore(tmp_path), [record(0, 1)])
    with pytest.raises(ConfigError, match="begin: expected a time before the end"):
        sdp_facade_sdk.history(DEVICE, ATTRIBUTE, "2027-01-15", "2027-01-15", archive=str(tmp_path))
    with pytest.raises(ArchiveError, match="near ones: mid-sdp/ingest/0001/heapRate"):
        sdp_facade_sdk.history(DEVICE, "heaprate", "2027-01-15", "2027-01-16", archive=str(tmp_path))
