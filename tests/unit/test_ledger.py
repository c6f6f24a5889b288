"""What device servers make of partials: windows that close, totals that restart, clocks that lie."""

from copy import deepcopy

import pytest

from facade.flows.telemetry.ledger import Ledger
from facade.flows.telemetry.partial import copy_partial, merge
from facade.flows.telemetry.plan import plan
from facade.flows.telemetry.view import TelemetryView
from facade.icd.load import load
from facade.messages import FieldStatistics, Partial
from facade.reading import Quality
from tests.support.heaps import BASE_US

ICD = load()
PLAN = plan(ICD, "ingest.heaps")
NODE_VIEW = TelemetryView(ICD.classes["SdpIngestNode"], PLAN, 0)
ALL_VIEW = TelemetryView(ICD.classes["SdpMaster"], PLAN, None)
BASE = BASE_US / 1e6
HOLD = PLAN.window.length + PLAN.window.hold
STALE = ICD.classes["SdpIngestNode"].stale_after


def summary(node: int, window: int, count: int = 10, first: int | None = None, **changes) -> tuple[int, list[Partial]]:
    """Return `count` heaps of one node in the window that starts `window` seconds after BASE."""
    first = window * 10 if first is None else first
    start = BASE_US + window * 1_000_000
    fields = {
        "received": FieldStatistics(sum=512 * count),
        "lost": FieldStatistics(sum=count, max=1),
        "late": FieldStatistics(sum=0),
        "latency": FieldStatistics(sum=0.002 * count, min=0.001, max=0.003, m2=0.0, sketch={700: count}),
        "flagged_fraction": FieldStatistics(sum=0.5 * count, max=0.5),
        "scan_id": FieldStatistics(last=7),
    }
    partial = Partial(
        epoch=7,
        window=start,
        late=False,
        count=count,
        time_min=start,
        time_max=start + 900_000,
        runs=[(first, first + count - 1)],
        fields=fields,
    )
    for name, value in changes.items():
        setattr(partial, name, value)
    return node, [partial]


def node_ledger(nodes=(0,)) -> Ledger:
    return Ledger(PLAN, nodes, per_group=True, over_all=False)


def all_ledger(nodes) -> Ledger:
    return Ledger(PLAN, nodes, per_group=False, over_all=True)


def shown(ledger, now, node=0):
    return dict(TelemetryView(ICD.classes["SdpIngestNode"], PLAN, node).readings(ledger, now, {}))


def over_all(ledger, now):
    return dict(ALL_VIEW.readings(ledger, now, {}))


def test_a_window_is_shown_when_the_node_has_left_it():
    ledger = node_ledger()
    ledger.fold(*summary(0, 0), BASE + 0.5)
    assert "heapRate" not in shown(ledger, BASE + 0.6)
    ledger.fold(*summary(0, 1, 3), BASE + 1.1)
    readings = shown(ledger, BASE + 1.1)
    assert readings["heapRate"].value == 10.0
    assert readings["heapRate"].time == pytest.approx(BASE + 0.9), "the time of the data, not of arrival"
    assert readings["heapsTotal"].value == 13, "totals do not wait for windows"
    assert readings["packetLossFraction"].value == pytest.approx(10 / 5130)
    assert readings["latencyMean"].value == pytest.approx(0.002)


def test_the_last_window_closes_in_silence():
    ledger = node_ledger()
    ledger.fold(*summary(0, 0), BASE + 0.5)
    assert "heapRate" not in shown(ledger, BASE + 0.5 + HOLD - 0.01)
    assert shown(ledger, BASE + 0.5 + HOLD)["heapRate"].value == 10.0


def test_silence_turns_window_values_invalid_and_leaves_totals_valid():
    """Design rule 2; a total stays true when nothing is added to it."""
    ledger = node_ledger()
    ledger.fold(*summary(0, 0), BASE + 0.5)
    before, after = shown(ledger, BASE + 0.5 + STALE), shown(ledger, BASE + 0.6 + STALE)
    assert before["heapRate"].quality is Quality.VALID
    assert after["heapRate"].quality is Quality.INVALID
    assert after["heapsTotal"].quality is Quality.VALID


def test_a_straggler_corrects_a_window_that_is_kept():
    ledger = node_ledger()
    for window in (0, 1):
        ledger.fold(*summary(0, window), BASE + window)
    marker = NODE_VIEW.marker(ledger, BASE + 1)
    ledger.fold(*summary(0, 0, 5, first=100), BASE + 1.2)
    assert NODE_VIEW.marker(ledger, BASE + 1.2) != marker
    assert shown(ledger, BASE + 1.2)["heapRate"].value == 15.0


@pytest.mark.parametrize("class_name", ["SdpIngestNode", "SdpMaster"])
def test_the_description_of_late_records_names_every_other_value_that_they_change(class_name):
    """A late record that fills a hole, and one that comes a second time."""
    ledger, view = (
        (node_ledger(), shown) if class_name == "SdpIngestNode" else (all_ledger([0]), lambda *args: over_all(*args))
    )
    for window, first in ((0, 4), (1, 14)):
        ledger.fold(*summary(0, window, first=first), BASE + window)
    before = view(ledger, BASE + 2)
    for _ in range(2):
        ledger.fold(*summary(0, 0, 2, first=0, late=True), BASE + 2)
    after = view(ledger, BASE + 2)
    changed = {name for name, reading in after.items() if reading.value != before[name].value} - {"heapsLate"}
    (late,) = (one for one in ICD.classes[class_name].attributes if one.name == "heapsLate")
    assert changed == {"heapsMissing", "heapsDuplicated"}
    assert changed == {one.name for one in ICD.classes[class_name].attributes if one.name in late.description}


def test_late_records_are_counted_and_in_no_value():
    ledger = node_ledger()
    ledger.fold(*summary(0, 1), BASE + 1)
    ledger.fold(*summary(0, 0, 4, first=0, late=True), BASE + 1)
    readings = shown(ledger, BASE + 1 + HOLD)
    assert (readings["heapsLate"].value, readings["heapsTotal"].value) == (4, 10)
    assert readings["heapsMissing"].value == 6, "0-3 came late, 4-9 never"


def test_a_new_scan_restarts_the_sequence():
    ledger = node_ledger()
    ledger.fold(*summary(0, 0), BASE)
    ledger.fold(*summary(0, 3), BASE + 3)
    assert shown(ledger, BASE + 3 + HOLD)["heapsMissing"].value == 20
    ledger.fold(*summary(0, 4, first=0, epoch=8), BASE + 4)
    assert shown(ledger, BASE + 4 + HOLD)["heapsMissing"].value == 0


def test_one_record_of_a_wrong_scan_does_not_end_the_counting():
    ledger = node_ledger()
    ledger.fold(*summary(0, 0), BASE)
    ledger.fold(*summary(0, 1, first=0, epoch=2**53 - 1), BASE + 1)
    for window in (2, 4):
        ledger.fold(*summary(0, window), BASE + window)
    assert shown(ledger, BASE + 4 + HOLD)["heapsMissing"].value == 10, (
        "from window 3; what came before is another scan's"
    )


def test_a_straggler_of_the_last_scan_changes_nothing_in_this_one():
    ledger = node_ledger()
    ledger.fold(*summary(0, 0), BASE)
    ledger.fold(*summary(0, 1, first=0, epoch=8), BASE + 1)
    ledger.fold(*summary(0, 0, 3, first=10), BASE + 1.1)
    readings = shown(ledger, BASE + 1.1 + HOLD)
    assert (readings["heapsMissing"].value, readings["heapsDuplicated"].value) == (0, 0)
    assert ledger.totals[0].epoch == 8


def test_windows_kept_are_few_whatever_comes():
    ledger = node_ledger()
    for window in range(1000):
        ledger.fold(*summary(0, window), BASE + window)
    assert len(ledger.windows_of(0)._windows) == 3


def test_a_restart_goes_on_from_the_snapshot_without_half_windows():
    """Totals count nothing twice; a window that rebuilding entered in its middle is not shown."""
    before = node_ledger()
    log = [summary(0, w // 2, 5, first=5 * w) for w in range(12)]  # two partials per window
    for i, entry in enumerate(log[:9]):
        before.fold(*entry, BASE + i / 2)
    after = node_ledger()
    after.restore(after.parse(before.as_dict()))
    for i, entry in enumerate(log[3:9], start=3):  # begins with the second half of window 1
        after.fold(*entry, BASE + i / 2, count=False)
        rate = shown(after, BASE + i / 2).get("heapRate")
        assert rate is None or rate.value == 10.0
    for i, entry in enumerate(log[9:], start=9):
        after.fold(*entry, BASE + i / 2)
        assert shown(after, BASE + i / 2)["heapRate"].value == 10.0
    assert shown(after, BASE + 6)["heapsTotal"].value == 60
    assert shown(after, BASE + 6)["heapsMissing"].value == 0


def test_all_nodes_add_up_when_every_live_node_has_left_the_window():
    ledger = all_ledger(range(4))
    for node in range(4):
        ledger.fold(*summary(node, -1), BASE - 0.5)
        ledger.fold(*summary(node, 0), BASE + 0.5)
    for node in range(3):
        ledger.fold(*summary(node, 1), BASE + 1.1)
    assert "heapRate" not in over_all(ledger, BASE + 1.1), "node 3 may still have more for window 0"
    ledger.fold(*summary(3, 1), BASE + 1.15)
    reading = over_all(ledger, BASE + 1.15)["heapRate"]
    assert (reading.value, reading.quality) == (40.0, Quality.VALID)


def test_all_nodes_wait_for_a_slow_one_only_as_long_as_the_hold():
    ledger = all_ledger(range(4))
    for node in range(4):
        ledger.fold(*summary(node, -1), BASE - 0.5)
        ledger.fold(*summary(node, 0), BASE + 0.5)
    for node in range(3):
        ledger.fold(*summary(node, 1), BASE + 1.1)
    over_all(ledger, BASE + 1.1)
    assert over_all(ledger, BASE + 1.1 + PLAN.window.hold)["heapRate"].value == 40.0


@pytest.mark.parametrize("before", [None, -60])
def test_the_first_window_of_a_stream_is_not_shown_before_it_is_known_who_is_in_it(before):
    """The nodes of one partition come some tenths of a second before those of another; also after a long silence."""
    ledger = all_ledger(range(4))
    for window in () if before is None else range(before - 3, before):
        for node in range(4):
            ledger.fold(*summary(node, window), BASE + window)
    for window in (0, 1):
        for node in (0, 1):
            ledger.fold(*summary(node, window), BASE + window + 0.1)
    for now in (BASE + 1.1, BASE + 1.15 + PLAN.window.hold):
        assert "heapRate" not in over_all(ledger, now), "nodes 2 and 3 were not heard of yet"
    for window in (0, 1, 2):
        for node in range(4):
            if window == 2 or node > 1:
                ledger.fold(*summary(node, window), BASE + 2.1)
    assert over_all(ledger, BASE + 2.1)["heapRate"].value == 40.0


def test_after_a_silence_the_window_before_it_is_not_shown_again():
    ledger = node_ledger()
    for window in (0, 1, 2, 60):
        ledger.fold(*summary(0, window), BASE + window)
    assert "heapRate" not in shown(ledger, BASE + 60.5), "as if the value of a minute ago were new"
    ledger.fold(*summary(0, 61), BASE + 61)
    assert shown(ledger, BASE + 61)["heapRate"].time == pytest.approx(BASE + 60.9)


def test_the_only_window_of_a_stream_is_shown_in_silence():
    ledger = all_ledger(range(4))
    for node in range(4):
        ledger.fold(*summary(node, 0), BASE + 0.5)
    assert over_all(ledger, BASE + 0.5 + HOLD)["heapRate"].value == 40.0


def test_a_missing_node_shows_as_a_warning_on_window_values_only():
    ledger = all_ledger(range(4))
    for window in (-1, 0, 1):
        for node in range(3):
            ledger.fold(*summary(node, window, first=100 + 10 * window), BASE + window + 0.5)
    readings = over_all(ledger, BASE + 1.6)
    assert (readings["heapRate"].value, readings["heapRate"].quality) == (30.0, Quality.WARNING)
    assert (readings["heapsTotal"].value, readings["heapsTotal"].quality) == (90, Quality.VALID)


@pytest.mark.parametrize("skew", [-4, 3, 4])
def test_one_node_with_a_wrong_clock_drags_no_window(skew):
    """The other nodes are shown as without it; the wrong one is missing from their windows or not."""
    ledger = all_ledger(range(4))
    values = []
    for window in range(7, 16):
        for node in range(4):
            shift = skew if node == 3 else 0
            ledger.fold(*summary(node, window + shift, first=10 * window), BASE + window)
        now = BASE + window + PLAN.window.hold
        over_all(ledger, BASE + window)
        if (reading := over_all(ledger, now).get("heapRate")) and window > 8:  # the first window may not be shown
            values.append((round(reading.time - BASE), reading.value))
    assert [at for at, _ in values] == list(range(9, 16)), "one window each second, at the common time"
    assert all(value >= 30.0 for _, value in values)


def test_a_node_far_ahead_does_not_stop_the_others_after_it_falls_silent():
    ledger = all_ledger(range(2))
    ledger.fold(*summary(1, 5), BASE)
    for window in range(6):
        ledger.fold(*summary(0, window), BASE + window)
    over_all(ledger, BASE + 5.1)
    assert over_all(ledger, BASE + 5.1 + PLAN.window.hold)["heapRate"].value == 10.0


def test_partials_of_other_nodes_change_nothing():
    ledger = node_ledger((0,))
    assert ledger.keeps(0)
    assert not ledger.keeps(1)
    assert ledger.totals.keys() == {0}
    assert shown(ledger, BASE) == {}


def test_totals_keep_their_last_value_where_the_newer_partial_has_none():
    """What a field never had in a window says nothing of the windows before."""
    older = summary(0, 0)[1][0]
    newer = summary(0, 1, fields={"received": FieldStatistics(sum=1)})[1][0]
    newer.fields["scan_id"] = FieldStatistics()
    before, whole = deepcopy(older), copy_partial(older)
    merge(whole, newer)
    assert whole.fields["scan_id"].last == 7
    assert whole.fields["latency"].sketch == {700: 10}
    whole.fields["latency"].sketch[700] += 1
    assert older == before, "a copy shares nothing"
