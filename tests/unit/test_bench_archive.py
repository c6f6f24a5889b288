"""The archives that `bench --only archive` makes: whole, and with the figures that they are to have."""

from pathlib import Path

from facade.clock import SystemClock
from facade.flows.archive.files import HOUR_US
from facade.flows.archive.night.report import read_night
from facade.flows.archive.night.span import Night
from facade.flows.archive.stores import FolderStore
from facade.icd.load import load
from proving.bench import archive
from tests.support.archives import faults

BEGIN = 500_000 * HOUR_US


def test_the_night_has_the_heaps_of_all_nodes(tmp_path: Path) -> None:
    store, icd = FolderStore(tmp_path), load()
    archive._put(tmp_path, icd, "ingest.summary", archive._summaries(400))
    assert faults(store) == []
    assert len(store.names()) == 2
    report = read_night(store, icd, Night(BEGIN, BEGIN + HOUR_US), 50)
    line = report.topics["ingest.summary"]
    assert (line.records, line.unusable, line.missing) == (800, 0, [])
    assert [(len(rack.nodes), rack.missing, rack.doubled) for rack in report.telemetry.racks] == [(50, 0, 0)] * 2
    assert [rack.used for rack in report.telemetry.racks] == [400 * 31_800 * 50] * 2


def test_the_history_has_all_attributes(tmp_path: Path) -> None:
    found = [*archive._history(tmp_path, SystemClock(), 400)]
    assert faults(FolderStore(tmp_path)) == []
    assert found[-1].what == "all 1,001 attributes at a time"
    assert found[-1].found.endswith(" s")
