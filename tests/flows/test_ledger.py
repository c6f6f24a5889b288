"""What device servers make of partials and watermarks: windows that close, totals that restart, clocks that lie."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from facade.flows.telemetry.ledger import WindowLedger
from facade.flows.telemetry.partial import Summary
from facade.flows.telemetry.plan import plan
from facade.flows.telemetry.view import TelemetryView
from facade.kernel.icd.load import load
from facade.kernel.reading import Quality
from facade.kernel.windows.frame import Frame, Runs
from facade.sdp.messages import FieldStatistics, Partial, Watermark
from tests.support.frames import expanded, fold, readings, state
from tests.support.heaps import BASE_US

ICD = load()
PLAN = plan(ICD, "ingest.heaps")
CLOSED = PLAN.window.length + PLAN.window.disorder
"""From the start of a window until it is closed [s]."""
STALE = ICD.classes["SdpIngestNode"].stale_after


def instant(seconds: float) -> int:
    """Return a time, given in seconds after the first window began."""
    return BASE_US + round(seconds * 1e6)


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


def read(ledger, window, more=0.0, *, partition=0, partitions=1, **changes):
    """Read up to where a window is closed, or a little further [s]."""
    read_to = BASE_US + round((window + CLOSED + more) * 1e6)
    known = {"worker": "1", "stream": PLAN.topic, "log": "a", "partition": partition, "partitions": partitions}
    return ledger.take_watermark(Watermark(**known, read_to=read_to), 0, **changes)


def node_ledger(nodes=(0,)) -> WindowLedger:
    return WindowLedger(PLAN, nodes, per_group=True, over_all=False)


def all_ledger(nodes) -> WindowLedger:
    return WindowLedger(PLAN, nodes, per_group=False, over_all=True)


def node_view(node: int = 0) -> TelemetryView:
    return TelemetryView(ICD.classes["SdpIngestNode"], PLAN, {f"node {node}": node})


def shown(ledger, now, node=0):
    return readings(node_view(node), ledger, now)


def over_all(ledger, now):
    return readings(TelemetryView(ICD.classes["SdpMaster"], PLAN, {"all": None}), ledger, now)


def test_a_window_is_shown_when_the_watermark_has_passed_it():
    """Neither the next window nor the clock on the wall closes it."""
    ledger = node_ledger()
    fold(ledger, *summary(0, 0), instant(0.5))
    fold(ledger, *summary(0, 1, 3), instant(1.1))
    read(ledger, 0, -0.001)
    assert "heapRate" not in shown(ledger, instant(100))
    read(ledger, 0)
    readings = shown(ledger, instant(1.1))
    assert readings["heapRate"].value == 10.0
    assert readings["heapRate"].time == pytest.approx(instant(0.9)), "the time of the data, not of arrival"
    assert readings["heapsTotal"].value == 13, "totals do not wait for windows"
    assert readings["packetLossFraction"].value == pytest.approx(10 / 5130)
    assert readings["latencyMean"].value == pytest.approx(0.002)


@pytest.mark.parametrize("last", [0, 50], ids=["the worker stands still", "the node is silent"])
def test_a_window_that_is_old_is_invalid_and_totals_stay_valid(last):
    """Design rules 2 and 20; a total stays true when nothing is added to it."""
    ledger = node_ledger()
    fold(ledger, *summary(0, 0), instant(0.5))
    read(ledger, last)
    before, after = shown(ledger, instant(CLOSED + STALE)), shown(ledger, instant(CLOSED + STALE + 0.01))
    view = node_view()
    changes = [view.changed(ledger, instant(CLOSED + STALE + after)) for after in (0.0, 0.0, 0.01, 0.01)]
    assert changes == [True, False, True, False]
    assert before["heapRate"].quality is Quality.VALID
    assert after["heapRate"].quality is Quality.INVALID
    assert after["heapsTotal"].quality is Quality.VALID


def test_a_straggler_corrects_a_window_that_is_kept_and_says_so():
    """What comes later than the allowed disorder was not in the value before: VALID it would be half."""
    ledger = node_ledger()
    for window in (0, 1):
        fold(ledger, *summary(0, window), instant(window))
    read(ledger, 0)
    view = node_view()
    assert view.changed(ledger, instant(1))
    fold(ledger, *summary(0, 0, 5, first=100), instant(1.2))
    assert view.changed(ledger, instant(1.2))
    reading = shown(ledger, instant(1.2))["heapRate"]
    assert (reading.value, reading.quality) == (15.0, Quality.WARNING)
    read(ledger, 1)
    assert shown(ledger, instant(2.2))["heapRate"].quality is Quality.VALID


def test_a_worker_that_stands_still_is_named_and_what_it_reads_is_stale():
    ledger = WindowLedger(PLAN, (0, 1), per_group=True, over_all=True)
    for node in (0, 1):
        fold(ledger, *summary(node, 0), instant(0.5), partition=node)
        read(ledger, 0, partition=node, partitions=2)
    now = instant(CLOSED + STALE + 0.5)
    for window in (1, 2, 3):
        fold(ledger, *summary(0, window), instant(window + 0.5))
    read(ledger, 3, partitions=2)
    assert shown(ledger, now)["heapRate"].quality is Quality.VALID
    assert shown(ledger, now, 1)["heapRate"].quality is Quality.INVALID
    assert over_all(ledger, now)["heapRate"].quality is Quality.INVALID
    read_to = "Partition 1 of ingest.heaps is read up to 2027-01-15 08:00:01 UTC, last by aggregate-1."
    found = state(node_view(1), ledger, now)
    assert found["State"].value == "UNKNOWN"
    assert found["Status"].value.split("\n") == [
        "Node 1 is not known: its values are old. The worker that reads it is behind or has stopped; "
        "the node may be well.",
        read_to,
    ]
    other = state(node_view(), ledger, now)
    assert (other["State"].value, other["Status"].value) == ("ON", "Node 0 sends heap notifications of scan 7.")


def test_a_node_waits_for_all_partitions_of_a_topic_that_has_grown():
    """Its records may be on any of them from then on."""
    ledger = node_ledger()
    fold(ledger, *summary(0, 0), instant(0.5))
    read(ledger, 0)
    read(ledger, 0, partitions=2)
    assert "heapRate" not in shown(ledger, instant(1.1))
    fold(ledger, *summary(0, 1), instant(1.5), partition=1)
    read(ledger, 1, partition=1, partitions=2)
    assert shown(ledger, instant(2.2))["heapRate"].value == 10.0


def test_a_watermark_of_a_former_log_does_not_count():
    """A worker that has not heard yet that the topic was made again."""
    ledger = node_ledger()
    fold(ledger, *summary(0, 0), instant(0.5))
    one = Watermark(worker="0", stream=PLAN.topic, partition=0, partitions=1, log="a", read_to=BASE_US)
    for log, read_to in (("a", 1), ("b", 2), ("a", BASE_US + 9_000_000)):
        ledger.take_watermark(structs.replace(one, log=log, read_to=read_to), 0)
    assert "heapRate" not in shown(ledger, instant(9))
    ledger.take_watermark(structs.replace(one, log="b", read_to=BASE_US + 9_000_000), 0)
    assert "heapRate" in shown(ledger, instant(9))


@pytest.mark.parametrize("class_name", ["SdpIngestNode", "SdpMaster"])
def test_the_description_of_late_records_names_every_other_value_that_they_change(class_name):
    """A late record that fills a hole, and one that comes a second time."""
    ledger, view = (
        (node_ledger(), shown) if class_name == "SdpIngestNode" else (all_ledger([0]), lambda *args: over_all(*args))
    )
    for window, first in ((0, 4), (1, 14)):
        fold(ledger, *summary(0, window, first=first), instant(window))
    read(ledger, 0)
    before = view(ledger, instant(2))
    for _ in range(2):
        fold(ledger, *summary(0, 0, 2, first=0, late=True), instant(2))
    after = view(ledger, instant(2))
    changed = {name for name, reading in after.items() if reading.value != before[name].value} - {"heapsLate"}
    totals = {name for name in after if name.endswith("Total")} - {"packetsLateTotal"}  # none was late
    assert totals <= changed, "totals have late records"
    changed -= totals
    (late,) = (one for one in ICD.classes[class_name].attributes if one.name == "heapsLate")
    assert changed == {"heapsMissing", "heapsDuplicated"}
    assert changed == {one.name for one in ICD.classes[class_name].attributes if one.name in late.description}


def test_a_restart_goes_on_from_the_snapshot_without_half_windows():
    """Totals count nothing twice; a window that rebuilding entered in its middle is not shown."""
    before, after = (WindowLedger(PLAN, (0,), per_group=True, over_all=True) for _ in range(2))
    log = [summary(0, w // 2, 5, first=5 * w) for w in range(12)]  # two partials per window
    log[3][1][0].time_max = log[3][1][0].time_min  # it was written later than that, and its window may be cut

    def take(ledger, numbers, **changes):
        for i in numbers:
            fold(ledger, *log[i], instant(i / 2), **changes)
            read(ledger, i // 2 - 1, **changes)

    take(before, range(9))
    after.restore(after.parse(json.loads(json.dumps(before.as_dict()))))
    assert over_all(after, instant(4))["heapRate"].value == 10.0, "windows over all groups are in the snapshot"
    for i in range(3, 12):  # begins with the second half of window 1
        take(after, [i], count=i >= 9)
        for found in (shown(after, instant(i / 2)), over_all(after, instant(i / 2))):
            rate = found.get("heapRate")
            assert rate is None or (rate.value, rate.quality) == (10.0, Quality.VALID)
            assert i < 9 or round((rate.time - BASE_US) / 1e6 - 0.9) == i // 2 - 1
    assert shown(after, instant(6))["heapsTotal"].value == 60
    assert shown(after, instant(6))["heapsMissing"].value == 0


@pytest.mark.parametrize("cause", ["straggler", "gap"])
def test_a_restart_remembers_that_a_long_window_is_torn(cause):
    """After a restart a figure that lacks records would be VALID."""
    of = plan(ICD, "flagging")
    before, after = (WindowLedger(of, (3, 1, 2), per_group=True, over_all=True) for _ in range(2))
    for group in (1, 2):
        fold(before, group, summary(0, 0)[1], instant(0))
    at = {"worker": "1", "log": "a", "partition": 0}
    read_to = of.rule.closed_at(BASE_US)
    before.take_watermark(Watermark(**at, stream=of.topic, partitions=1, read_to=read_to), 0)
    if cause == "straggler":
        fold(before, 2, summary(0, 0, 5, first=100)[1], instant(1.2))
    else:
        for first in (0, 20):
            lost = Summary(**at, group=2, offset_from=first, offset_to=first + 10, partials=[])
            before.take(2, lost, instant(1.2), follows=first)
    after.restore(after.parse(json.loads(json.dumps(before.as_dict()))))
    for ledger in (before, after):
        assert [one.is_torn.tolist() for one in ledger.shown()] == [[cause == "gap", True]]
        assert [one.is_torn.tolist() for one in ledger.shown_over_all().shown] == [[True]]


def test_a_missing_node_shows_as_a_warning_on_window_values_only():
    ledger = all_ledger(range(4))
    for window in (-1, 0, 1):
        for node in range(3):
            fold(ledger, *summary(node, window, first=100 + 10 * window), instant(window + 0.5))
    read(ledger, 0)
    readings = over_all(ledger, instant(1.6))
    assert (readings["heapRate"].value, readings["heapRate"].quality) == (30.0, Quality.WARNING)
    assert (readings["heapsTotal"].value, readings["heapsTotal"].quality) == (90, Quality.VALID)


@pytest.mark.parametrize("skew", [-4, 3, 4])
def test_one_node_with_a_wrong_clock_cuts_no_window(skew):
    """Neither its own nor those of others; what comes too late for its window is missing, and so it is no VALID one."""
    ledger = WindowLedger(PLAN, range(4), per_group=True, over_all=True)
    for window in range(7, 16):
        read(ledger, window - 1)
        for half in (0, 5):
            for node in range(4):
                shift = skew if node == 3 else 0
                fold(ledger, *summary(node, window + shift, 5, first=10 * window + half), instant(window + half / 10))
            for node in range(4):
                rate = shown(ledger, instant(window + CLOSED), node).get("heapRate")
                assert rate is None or rate.value == 10.0 or rate.quality is not Quality.VALID
                assert (rate is not None and rate.quality is Quality.VALID) or window < 12 or (node == 3 and skew < 0)
            rate = over_all(ledger, instant(window + CLOSED)).get("heapRate")
            if window > 7 + max(skew, 0):
                assert rate.time == instant(window - 0.1), "one window each second, at the common time"
                assert (rate.value, rate.quality) == ((40.0, Quality.VALID) if skew > 0 else (30.0, Quality.WARNING))


def test_values_of_a_node_whose_records_all_come_too_late_have_a_time():
    """They were of 1970, and a client that follows them saw no age and no trend."""
    ledger = node_ledger()
    _, found = late = summary(0, 0, late=True)
    fold(ledger, *late, instant(100))
    assert {name: reading.time for name, reading in shown(ledger, instant(101)).items()}.items() >= {
        ("heapsLate", found[0].time_max),
        ("heapsTotal", found[0].time_max),
    }


@pytest.mark.parametrize("clock_was_ahead", [0, 3600])
def test_a_node_with_late_records_says_so_until_they_end(clock_was_ahead):
    """A node whose heaps were 9 % late was ON and VALID, and its device had no word of it."""
    ledger = WindowLedger(PLAN, (0,), per_group=True, over_all=False)
    view = node_view()
    state(view, ledger, instant(clock_was_ahead))

    def status(second, late):
        fold(ledger, *summary(0, second, 100 - late), instant(second))
        if late:
            fold(ledger, *summary(0, second, late, late=True, runs=[]), instant(second))
        return state(view, ledger, instant(second))["Status"].value

    for second in range(5):
        assert "too late" not in status(second, 0)
    for second in range(5, 20):
        found = status(second, 9)
    late = "90 of 1000 records within 10 s came too late for their window"
    assert found.endswith(f"{late}: they are in totals, but no window shows them.")
    for second in range(20, 31):
        found = status(second, 0)
    assert "too late" not in found


NODE = ICD.classes["SdpIngestNode"]
OF_WINDOWS = [one.name for one in NODE.attributes if one.source is not None and one.source.over == "window"]


@given(st.lists(st.tuples(st.sampled_from(["on time", "late", "nothing"]), st.booleans()), min_size=4, max_size=16))
def test_state_status_and_values_of_a_node_tell_one_story(seconds) -> None:
    """A node was ON and sent beside values that were all invalid, and silent while its worker had stopped."""
    ledger, view = WindowLedger(PLAN, (0,), per_group=True, over_all=False), node_view()
    fold(ledger, *summary(0, 0), instant(0.5))
    read(ledger, 0)
    last, shown_state, read_last = {}, {}, 0
    for window, (sends, reads) in enumerate(seconds, 1):
        now = instant(window + CLOSED)
        if reads:  # a worker writes what it has read and how far in one transaction
            if sends != "nothing":
                late = {"late": True, "runs": []} if sends == "late" else {}
                fold(ledger, *summary(0, window, **late), now)
            read(ledger, window)
            read_last = window
        for then in (now, now + 400_000):
            if view.changed(ledger, then):
                last |= {name: one for _, name, one in expanded(view.columns)}
            shown_state |= {name: one for _, name, one in view.state(ledger, then)}
        is_old = all(last[name].quality is Quality.INVALID for name in OF_WINDOWS if name in last)
        said, status = shown_state["State"].value, shown_state["Status"].value
        assert is_old is (said != "ON"), (window, said, status)
        if said == "ON":
            assert "sends heap notifications of" in status
        if window - read_last > STALE + 1:
            assert (said, "the node may be well" in status, "silent" in status) == ("UNKNOWN", True, False)


def test_the_state_of_a_silent_node_follows_its_worker():
    """No value of it changes when a worker begins, stops or comes back; its State must not say what held before."""
    ledger, view, told = node_ledger(), node_view(), {}

    def look(seconds: float) -> str:
        if view.changed(ledger, instant(seconds)):
            told.update({name: one.value for _, name, one in view.state(ledger, instant(seconds))})
        return told["State"]

    assert look(0) == "UNKNOWN", "nobody has read it"
    read(ledger, 9)
    assert look(9 + CLOSED) == "STANDBY"
    assert look(20 + CLOSED) == "UNKNOWN", "its worker has stopped"
    assert look(21 + CLOSED) == "UNKNOWN"
    read(ledger, 30)
    assert look(30 + CLOSED) == "STANDBY"


def test_a_snapshot_has_room_for_the_gaps_of_all_nodes() -> None:
    """That of 1,500 nodes with 500 gaps each was too large for its topic, and so was never stored."""
    nodes, gaps = 1500, 700
    node, number = np.arange(nodes), np.arange(gaps)
    time, zero = np.full(nodes, BASE_US), np.zeros(nodes, dtype=np.int64)
    ledger = WindowLedger(PLAN, range(nodes), per_group=False, over_all=True)
    for turn in range(2):
        first = np.tile(10**9 + 10 * (turn * gaps + number), nodes)
        runs = Runs(np.repeat(node, gaps), first, first + 8)
        is_late = zero.astype(np.bool_)
        ledger.fold(Frame(node, zero + 7, time, is_late, zero + 9 * gaps, time, time, runs, {}), instant(1))
        assert set(ledger.totals.missing.tolist()) == {(turn + 1) * gaps - 1}
        stored = ledger.parse(ledger.as_dict())
        size = len(msgspec.json.encode(ledger.as_dict()))
        assert size < ICD.topics["snapshots"].max_bytes / 2, f"{size:,} bytes"
        for totals in stored.groups.values():
            totals.seen.limit = 1000  # as in snapshots of the release before
        ledger.restore(stored)
