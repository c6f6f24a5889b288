"""Columns of readings: one rule with the sampler of single readings, and nothing made that nobody looks at."""

import math
from random import Random

import msgspec
import numpy as np
import pytest

from facade.flows.telemetry.view import TelemetryColumn, TelemetryView
from facade.kernel.clock import ManualClock, Time
from facade.kernel.icd.model import Sampling
from facade.kernel.messages import AccountTotals, Snapshot
from facade.kernel.reading import QUALITIES, Quality, Reading
from facade.kernel.runtime.columns import UNKNOWN, Cell, ColumnArrays, ColumnSampler, ReadingColumn, nothing, stored
from facade.kernel.runtime.publisher import Publisher, Sampler
from facade.kernel.runtime.snapshots import decode_snapshot, load_readings, to_record
from tests.flows.test_ledger import CLOSED, ICD, PLAN, STALE, fold, instant, node_ledger, read, summary
from tests.support.commanding import Sink

NODES = (0, 1, 2)
DEVICES = [f"mid-sdp/ingest/{node:04d}" for node in NODES]


class Column(ReadingColumn):
    """Shows what a test puts into it."""

    def __init__(self, attribute: str = "latencyMean") -> None:
        super().__init__(attribute, DEVICES)
        self.shown, self.asked = nothing(len(DEVICES)), 0

    def put(self, *readings: Reading | None) -> None:
        rows = [one or Reading(0, Time(0)) for one in readings]
        qualities = [UNKNOWN if one is None else QUALITIES.index(one.quality) for one in readings]
        values, times = [one.value for one in rows], [one.time for one in rows]
        self.shown = ColumnArrays(np.array(values), np.array(times), np.array(qualities))

    def arrays(self) -> ColumnArrays:
        self.asked += 1
        return self.shown

    def restore(self, position: int, reading: Reading) -> None:
        raise TypeError("expected a number")


class Following(Sink):
    """Has clients of some devices."""

    def __init__(self, *followed: str) -> None:
        super().__init__()
        self.followed = set(followed)

    def show_column(self, column):
        return [device in self.followed for device in column.devices]


@pytest.mark.parametrize("seed", range(30))
def test_a_column_is_sampled_as_each_of_its_readings_would_be(seed):
    """Gaps, deadbands, trailing edge, changes of quality; devices that are followed only later."""
    dice = Random(seed)
    rule = Sampling(
        shortest=dice.choice([0.0, 0.5, 1.0]), longest=dice.choice([2.0, 4.0]),
        absolute=dice.choice([0.0, 1.0]), relative=dice.choice([0.0, 0.25]),
    )  # fmt: skip
    column = Column()
    sampler, alone = ColumnSampler(column, rule), [Sampler(rule) for _ in NODES]
    before, followed, now = [None] * len(NODES), np.zeros(len(NODES), dtype=np.bool_), 0.0
    for _ in range(150):
        now += dice.choice([0.125, 0.25, 0.5])
        found = [(at, one.due(now)) for at, one in enumerate(alone)]
        due = sampler.due(now) if sampler.due_at <= now else []
        assert due == [(at, one) for at, one in found if one is not None]
        if dice.random() < 0.3:
            followed[dice.randrange(len(NODES))] = True
        new = list(before)
        for at in NODES:
            if dice.random() < 0.5:
                new[at] = Reading(float(dice.randrange(6)), now, dice.choices(list(Quality), [9, 1, 1, 1])[0])
        column.put(*new)
        expected = [
            (at, alone[at].offer(new[at], now)) for at in NODES if followed[at] and new[at] not in (None, before[at])
        ]
        assert sampler.offer(followed, now) == [(at, one) for at, one in expected if one is not None]
        before = new


def test_what_nobody_follows_is_not_even_worked_out():
    column, sink, clock = Column(), Following(), ManualClock(0.0)
    publisher = Publisher(ICD, dict.fromkeys(DEVICES, "SdpIngestNode"), sink, clock)
    publisher.adopt(column)
    column.put(*(Reading(1.0, 1.0) for _ in NODES))
    publisher.offer_column(column)
    publisher.tick()
    assert (column.asked, sink.pushed) == (0, [])
    sink.followed.add(DEVICES[1])
    column.put(*(Reading(2.0, 2.0) for _ in NODES))
    publisher.offer_column(column)
    publisher.tick()
    assert sink.pushed == [(DEVICES[1], "latencyMean", Reading(2.0, 2.0))]
    assert publisher.shown_of("latencyMean") == dict.fromkeys(DEVICES, Reading(2.0, 2.0))


def test_of_a_device_that_begins_anew_the_columns_are_shown_and_told():
    column, sink, clock = Column(), Following(*DEVICES), ManualClock(0.0)
    publisher = Publisher(ICD, dict.fromkeys(DEVICES, "SdpIngestNode"), sink, clock)
    publisher.adopt(column)
    column.put(*(Reading(float(node), 1.0) for node in NODES))
    publisher.offer_column(column)
    publisher.tick()
    sink.pushed.clear()
    assert publisher.begin_anew(DEVICES[1], lambda: True) == {"latencyMean": Cell(column, 1)}
    for _ in range(2):  # once, not each time
        publisher.tick()
        assert sink.pushed == [(DEVICES[1], "latencyMean", Reading(1.0, 1.0))]


def test_what_cannot_be_restored_is_said_and_stops_nothing():
    column = Column()
    publisher = Publisher(ICD, dict.fromkeys(DEVICES, "SdpIngestNode"), Following(), ManualClock())
    publisher.adopt(column)
    (trouble,) = publisher.restore({DEVICES[0]: {"latencyMean": Reading("x", 1.0), "heapsTotal": Reading(5, 1.0)}})
    assert trouble.startswith(f"latencyMean of {DEVICES[0]} in the snapshot cannot be shown")
    assert publisher.last == {DEVICES[0]: {"heapsTotal": Reading(5, 1.0)}}
    assert not publisher.shown_of("latencyMean")


def through_a_snapshot(columns) -> dict[str, dict[str, Reading]]:
    empty = {"offsets": {}, "rebuild_from": {}, "ledger": {}, "readings": {}}
    snapshot = Snapshot(instance="i", topic="t", time=1, account=AccountTotals(), **empty, columns=columns)
    return load_readings(decode_snapshot(to_record(snapshot).value))


def test_what_columns_show_comes_back_from_a_snapshot():
    """Without what is no JSON number, and what is not shown."""
    counts, means = Column("heapsTotal"), Column()
    counts.put(Reading(2**53 - 1, Time(7)), None, Reading(3, Time(9), Quality.INVALID))
    means.put(Reading(math.nan, Time(7)), Reading(0.25, Time(8), Quality.WARNING), Reading(-math.inf, Time(9)))
    found = through_a_snapshot(stored([counts, means]))
    assert found == {
        DEVICES[0]: {"heapsTotal": Reading(2**53 - 1, Time(7))},
        DEVICES[1]: {"latencyMean": Reading(0.25, Time(8), Quality.WARNING)},
        DEVICES[2]: {"heapsTotal": Reading(3, Time(9), Quality.INVALID)},
    }
    assert isinstance(found[DEVICES[0]]["heapsTotal"].value, int)


def test_a_column_that_lacks_a_device_makes_a_snapshot_of_another_form():
    column = Column()
    column.put(*(Reading(1.0, Time(1)) for _ in NODES))
    (one,) = stored([column])
    with pytest.raises(ValueError, match="shorter"):
        through_a_snapshot([msgspec.structs.replace(one, devices=[*DEVICES, "another"])])


def node_columns() -> tuple[TelemetryView, dict[str, ReadingColumn]]:
    view = TelemetryView(ICD.classes["SdpIngestNode"], PLAN, {DEVICES[0]: 0})
    return view, {one.attribute: one for one in view.columns}


def test_a_reader_gets_the_newest_window_and_each_is_made_once(monkeypatch):
    made, work_out = [], TelemetryColumn._read

    def count(column, look, before):
        made.append(column.attribute)
        return work_out(column, look, before)

    monkeypatch.setattr(TelemetryColumn, "_read", count)
    ledger, (view, columns) = node_ledger(), node_columns()
    for window in range(3):
        fold(ledger, *summary(0, window, 10 + window), instant(window + 0.5))
        read(ledger, window)
        assert view.changed(ledger, instant(window + CLOSED))
    assert made == []
    assert columns["heapRate"].reading(0) == columns["heapRate"].reading(0) == Reading(12.0, instant(2.9))
    assert made == ["heapRate"]


@pytest.mark.parametrize("name", ["heapRate", "latencyMean"])
def test_a_reading_from_before_a_restart_is_shown_until_there_is_a_window_and_grows_old(name):
    ledger, (view, columns) = node_ledger(), node_columns()
    cell, before = columns[name], Reading(7.0, instant(0.5))
    cell.restore(0, before)
    assert cell.reading(0) == before
    assert view.changed(ledger, instant(CLOSED + STALE))
    assert cell.reading(0) == before
    assert view.changed(ledger, instant(CLOSED + STALE + 0.01)), "the wall clock alone"
    assert cell.reading(0) == before.invalid()
    fold(ledger, *summary(0, 5), instant(5.5))
    read(ledger, 5)
    assert view.changed(ledger, instant(5 + CLOSED))
    assert (cell.reading(0).time, cell.reading(0).quality) == (instant(5.9), Quality.VALID)


def test_an_unknown_value_leaves_the_last_known_one_which_grows_old():
    """A worker of another release may not know a statistic."""
    ledger, (view, columns) = node_ledger(), node_columns()
    for window in range(6):
        _, (one,) = summary(0, window)
        if window:
            del one.fields["latency"]
        fold(ledger, 0, [one], instant(window + 0.5))
        read(ledger, window)
        assert view.changed(ledger, instant(window + CLOSED))
        found = columns["latencyMean"].reading(0)
        expected = Quality.INVALID if window > STALE else Quality.VALID
        assert (found.time, found.quality) == (instant(0.9), expected)
        assert columns["heapRate"].reading(0).time == instant(window + 0.9)


def test_totals_of_other_nodes_are_shown_when_their_own_window_closes():
    """Otherwise each window that closes on one partition would be an event of the totals on all others."""
    view = TelemetryView(ICD.classes["SdpIngestNode"], PLAN, dict(zip(DEVICES[:2], (0, 1), strict=True)))
    (total,) = [one for one in view.columns if one.attribute == "heapsTotal"]
    ledger = node_ledger((0, 1))
    for node in (0, 1):
        fold(ledger, *summary(node, 0), instant(0.5), partition=node)
        read(ledger, 0, partition=node, partitions=2)
    assert view.changed(ledger, instant(CLOSED))
    for node in (0, 1):
        fold(ledger, *summary(node, 1), instant(1.5), partition=node)
    read(ledger, 1, partition=0, partitions=2)
    assert view.changed(ledger, instant(1 + CLOSED))
    assert [total.reading(at).value for at in (0, 1)] == [20, 10]
    read(ledger, 1, partition=1, partitions=2)
    assert view.changed(ledger, instant(1 + CLOSED + 0.1))
    assert [total.reading(at).value for at in (0, 1)] == [20, 20]


def test_totals_have_the_last_records_also_if_their_window_is_not_kept_any_more():
    """Of a worker that is far behind: the ledger had counted them, and the shown totals stayed too low for ever."""
    ledger, (view, columns) = node_ledger(), node_columns()
    for window in range(8):
        fold(ledger, *summary(0, window), instant(window + 0.5))
        read(ledger, window)
        assert view.changed(ledger, instant(window + CLOSED))
    assert columns["heapsTotal"].reading(0).value == 80
    fold(ledger, *summary(0, 0, 5, first=1000), instant(8.1))
    looks = [view.changed(ledger, instant(7 + CLOSED + after)) for after in (0.2, 1.0, 1.9, 2.0, 2.1, 2.9)]
    assert looks == [False, False, False, True, False, False], "once, and not before a window could have closed"
    assert columns["heapsTotal"].reading(0).value == 85
