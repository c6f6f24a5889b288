"""Summaries of racks: as columns they say what summaries of the nodes say, are counted once, and as a whole or not."""

import json
import math
from copy import deepcopy
from dataclasses import replace
from itertools import groupby
from random import Random

import jsonschema
import msgspec
import numpy as np
import pytest

from facade.flows.telemetry.composition import TelemetryFlow
from facade.flows.telemetry.ledger import Coverage, WindowLedger
from facade.flows.telemetry.plan import plan
from facade.flows.telemetry.rack import nothing, tables
from facade.flows.telemetry.view import TelemetryView
from facade.kernel.bus.offsets import Overlap
from facade.kernel.bus.port import OffsetRange, Record
from facade.kernel.clock import ManualClock
from facade.kernel.icd.load import load
from facade.kernel.outcome import USED, RecordRejected
from facade.kernel.runtime.progress import Progress
from facade.kernel.windows.frame import STATISTICS
from facade.sdp.messages import FieldStatistics, Partial, RackSummary
from facade.sdp.racks import Racks
from facade.sdp.summaries import as_partials, frame_of
from tests.support.frames import expanded, rack
from tests.support.heaps import BASE_US

ICD = load()
PLAN = plan(ICD, "ingest.heaps")
BUFFERS = plan(ICD, "ingest.buffers")
SPAN = OffsetRange("a", 0, 10)
RACKS = Racks(3, 1)
NODES = range(6)
RACK = range(3)
WRITTEN = BASE_US + 5_000_000
MOST = 500_000
NOW = BASE_US + 3_000_000


def partial(node: int = 0, window: int = 0, count: int = 4, **changes) -> Partial:
    """Return what a worker made of some records of a node; all numbers can be added without rounding."""
    start = BASE_US + window * 1_000_000
    fields = {
        "received": FieldStatistics(sum=512 * count),
        "lost": FieldStatistics(sum=count + node, max=node),
        "late": FieldStatistics(sum=0),
        "latency": FieldStatistics(
            sum=0.25 * count, min=0.125, max=0.5 * (node + 1), m2=0.5, sketch={700 + node: count}
        ),
        "flagged_fraction": FieldStatistics(sum=0.5 * count, max=0.5),
        "scan_id": FieldStatistics(last=7),
    }
    first = 100 * window
    made = Partial(7, start, False, count, start + node, start + 900_000 + node, [(first, first + count - 1)], fields)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def columns_of(found) -> list[dict]:
    """Return the columns of rows; those with other statistics go into a record of their own."""
    alike = (list(rows) for _, rows in groupby(found, key=lambda row: form(row[1])))
    return [columns for rows in alike for columns in tables(rack(rows), MOST)]


def form(one: Partial) -> list:
    return sorted(
        (name, [n for n in STATISTICS if getattr(found, n) is not None]) for name, found in one.fields.items()
    )


def rack_records(found, nodes=RACK, span=SPAN, number=0, of=PLAN) -> list[Record]:
    """Return the records that a worker writes about the nodes of a rack."""
    summaries = [
        of.rack_summary("0", 0, nodes, columns, span, part) for part, columns in enumerate(columns_of(found), number)
    ]
    return [record(one, of, of.rack_key(nodes[0], nodes[-1])) for one in summaries]


def node_records(found, span=SPAN) -> list[Record]:
    """Return the records that an older worker writes about nodes."""
    parts: dict[int, int] = {}
    made = []
    for node, one in found:
        parts[node] = parts.get(node, -1) + 1
        made.append(record(PLAN.summary("0", 0, node, one, span, parts[node])))
    return made


def record(summary, of=PLAN, key="0") -> Record:
    value = msgspec.json.encode(summary)
    return Record(topic=of.window.summary, key=key.encode(), value=value, partition=0, offset=0, timestamp_us=WRITTEN)


def flow(nodes=NODES, *, over_all: bool = True, racks=RACKS) -> TelemetryFlow:
    """Return a flow of a device server that shows nodes, and perhaps all of them together."""
    ledger = WindowLedger(PLAN, nodes, per_group=True, over_all=over_all)
    devices = {str(node): node for node in nodes}
    shown = [TelemetryView(ICD.classes["SdpIngestNode"], PLAN, devices)]
    if over_all:
        shown.append(TelemetryView(ICD.classes["SdpMaster"], PLAN, {"all": None}))
    return TelemetryFlow(PLAN.window.summary, {PLAN.topic: PLAN}, {PLAN.topic: ledger}, shown, None, racks)


def state(one: TelemetryFlow, *, coverage: bool = True) -> dict:
    found = deepcopy(one.as_dict())
    if not coverage:
        del found["streams"][PLAN.topic]["counted"]
    return found


def fold(one: TelemetryFlow, records, *, count: bool = True) -> list:
    return [one.fold(each, count=count) for each in records]


def random_rows(seed: int, nodes=RACK) -> list[tuple[int, Partial]]:
    """Return rows of some nodes, windows and epochs, late ones among them, and entries with nothing but runs."""
    dice = Random(seed)
    found = []
    for node in nodes:
        for window in range(dice.randrange(4)):
            one = partial(node, window, dice.randrange(1, 5), late=dice.random() < 0.2, epoch=7 + window // 2)
            found.append((node, one))
            if dice.random() < 0.3:
                found.append((node, msgspec.structs.replace(one, count=0, fields={}, runs=[(200, 201)])))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_columns_say_what_rows_say(seed):
    """On the wire and back, in their order."""
    found = random_rows(seed)
    back = []
    for one in rack_records(found):
        jsonschema.validate(json.loads(one.value), ICD.messages["rack-summary"])
        back += as_partials(frame_of(msgspec.json.decode(one.value, type=RackSummary)))
    assert back == found


@pytest.mark.parametrize("seed", range(20))
def test_a_rack_at_once_amounts_to_what_its_nodes_amount_to(seed):
    """Windows of nodes and over all, totals, sequences, epochs; also where records only rebuild windows."""
    for count in (True, False):
        at_once, one_by_one = flow(), flow()
        found = random_rows(seed)
        assert set(fold(at_once, rack_records(found), count=count)) <= {USED}
        assert set(fold(one_by_one, node_records(found), count=count)) <= {USED}
        assert state(at_once, coverage=False) == state(one_by_one, coverage=False)
        shown = [sorted(expanded(each.readings(NOW)), key=repr) for each in (at_once, one_by_one)]
        assert shown[0] == shown[1]


ODD = {
    "too large": {**partial().fields, "latency": FieldStatistics(sum=1e200, min=0.0, max=1.0, m2=0.0, sketch={1: 4})},
    "infinite": {**partial().fields, "latency": FieldStatistics(sum=1.0, min=0.0, max=1.0, m2=math.inf, sketch={1: 4})},
}


@pytest.mark.parametrize("odd", ODD)
def test_a_node_with_an_impossible_number_harms_no_other(odd):
    """Such a row is written alone; so only what is wrong becomes a dead letter."""
    one = flow()
    outcomes = fold(one, rack_records([(0, partial(0)), (1, partial(1, fields=ODD[odd])), (2, partial(2))]))
    assert len(outcomes) == 3, "a record for each row"
    assert isinstance(outcomes[1], RecordRejected)
    assert outcomes[0] is outcomes[2] is USED


def test_records_are_divided_before_they_are_too_large():
    """By what is in their rows; the parts are counted one behind the other, however many there are."""
    found = [(node, partial(node, runs=[(2 * i, 2 * i) for i in range(9000)])) for node in range(50)]
    records = rack_records(found, range(50))
    assert len(records) > 10
    assert max(len(one.value) for one in records) < MOST + 1000
    one = flow(range(50), racks=Racks(50, 1))
    assert set(fold(one, records)) == {USED}
    assert all(len(one.ledgers[PLAN.topic].totals.seen(node).runs) > 1 for node in range(50))
    assert {type(outcome) for outcome in fold(one, records)} == {RecordRejected}


WRONG = {
    "offset_to": {"offset_to": 0},
    "first": {"first": 1},
    "first ": {"last": 3},
    "node": {"node": [0, 1, 3]},
    "epoch": {"epoch": [7, 7]},
    "runs": {"runs": []},
    "fields.lost.max": {"fields": {"lost": {"sum": [1, 1, 1], "max": [1, 1]}}},
    "fields.lost.sum": {"fields": {"lost": {"sum": []}}},
    "fields": {"count": [4, 4, 0]},
    "window[2]": {"window": [BASE_US, BASE_US, BASE_US + 1]},
    "window[1]": {"time_min": [BASE_US, BASE_US - 1, BASE_US]},
    "time_max[2]": {"count": [0, 0, 0], "fields": {}, "time_max": [BASE_US, BASE_US, BASE_US + 10**9]},
    "time_max[2] ": {"late": [True, True, True], "time_max": [BASE_US, BASE_US, BASE_US + 10**9]},
    "runs[2]": {"runs": [[], [], [[5, 4]]]},
    "fields.lost": {"fields": {"lost": {"sum": [1, 1.5, 1]}}},
    "fields.latency": {"fields": {"latency": {"sum": [0.1, 1e151, 0.1]}}},
    "fields.latency ": {"fields": {"latency": {"sketch": [{}, {}, {"99999999": 1}]}}},
    "fields.unknown": {"fields": {"unknown": {"last": [0, 0, 2**53]}}},
    "fields.latency  ": {"fields": {"latency": {"m2": [0.0, 0.0, 1e301]}}},
}  # fmt: skip


@pytest.mark.parametrize("path", WRONG)
def test_of_a_rack_that_contradicts_itself_nothing_is_folded(path):
    """One bad row must not leave a half-folded rack: the whole record is one dead letter, and counted by nobody."""
    one = flow()
    before = state(one)
    (good,) = rack_records([(node, partial(node)) for node in RACK])
    bad = replace(good, value=json.dumps(json.loads(good.value) | WRONG[path]).encode())
    (outcome,) = fold(one, [bad])
    assert isinstance(outcome, RecordRejected)
    assert (outcome.reason, outcome.path) == ("inconsistent", f"$.{path.strip()}")
    assert state(one) == before
    assert fold(one, [good]) == [USED], "its offsets were not counted"


@pytest.mark.parametrize("of", ["flagging", "storage", "ingest.buffers"])
def test_only_topics_of_which_nodes_are_the_groups_have_racks(of):
    """A stream that the server does not show is checked nevertheless: one of them sets aside for all."""
    found = plan(ICD, of)
    one = TelemetryFlow("telemetry.summary", {of: found}, {}, [], None, RACKS)
    (made,) = rack_records([(0, partial(0, fields={}))], of=found)
    (outcome,) = fold(one, [made])
    if of == "ingest.buffers":
        assert outcome.reason == "other-device"
    else:
        assert (outcome.reason, outcome.path) == ("inconsistent", "$.stream")


def test_racks_of_other_devices_and_streams_are_left_out():
    """A server of some nodes of a rack takes these alone; the summary is counted once for all of them."""
    one = flow([1], over_all=False)
    records = rack_records([(node, partial(node)) for node in RACK])
    assert fold(one, records) == [USED]
    assert one.ledgers[PLAN.topic].groups == [1]
    (other,) = rack_records([(4, partial(4))], range(3, 6))
    assert fold(one, [other])[0].reason == "other-device"
    before = state(one)
    (mine,) = rack_records([(1, partial(1))], RACK, OffsetRange("a", 10, 20))
    for key in (b"3-5", b"9-0"):
        assert fold(one, [replace(mine, key=key)])[0].reason == "other-device", "who keeps all nodes sets it aside"
    for key in (b"0-3", b"0-2 ", b"ingest.heaps/0-2", b"1", b"", None):
        outcomes = fold(one, [replace(mine, key=key)]) + fold(flow(), [replace(mine, key=key)])
        assert [(each.reason, each.path) for each in outcomes] == [("inconsistent", "$.first")] * 2
    assert state(one) == before
    (buffers,) = rack_records([(1, partial(1, fields={}))], of=BUFFERS)
    assert fold(one, [buffers])[0].reason == "other-stream"


R, N = "rack", "node"
COVERED = {
    "the next transaction": [(R, 0, 2, 0, 10, 0, 1), (R, 0, 2, 10, 20, 0, 1)],
    "the same once more": [(R, 0, 2, 0, 10, 0, 1), (R, 0, 2, 0, 10, 0, 0)],
    "a part of it": [(R, 0, 2, 0, 10, 0, 1), (R, 0, 2, 5, 15, 0, 0)],
    "parts": [(R, 0, 2, 0, 10, 0, 1), (R, 0, 2, 0, 10, 1, 1), (R, 0, 2, 0, 10, 0, 0), (R, 0, 2, 0, 10, 2, 1)],
    "a node alone": [(N, 0, 0, 0, 10, 0, 1), (N, 1, 1, 5, 20, 0, 1), (N, 0, 0, 5, 20, 0, 0), (N, 0, 0, 15, 20, 0, 1)],
    "another rack": [(R, 0, 2, 0, 10, 0, 1), (R, 3, 5, 0, 10, 0, 1)],
}  # fmt: skip
"""Kind, first and last node, offsets from and to, part, and whether it may be counted."""


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("name", COVERED)
def test_no_offset_is_counted_twice_for_any_node(name, restarts):
    """Also where the reader restarts from its snapshot before each summary."""
    covered = Coverage()
    for kind, first, last, begin, end, part, fits in COVERED[name]:
        if restarts:
            covered = msgspec.convert(msgspec.to_builtins(covered), Coverage, strict=False)
        span = OffsetRange("a", begin, end)
        if kind == R:
            (columns,) = columns_of([(first, partial(first))])
            found = covered.take_rack(PLAN.rack_summary("0", 0, range(first, last + 1), columns, span, part))
        else:
            found = covered.take(first, PLAN.summary("0", 0, first, partial(first), span, part))
        assert isinstance(found, Overlap) != bool(fits), (kind, first, last, begin, end, part, found)


def test_a_rack_of_another_size_and_a_worker_of_another_version_are_refused_with_the_reason():
    one = flow()
    before = state(one)
    records = rack_records([(0, partial())], range(6))
    summary = json.loads(node_records([(0, partial())])[0].value)
    records.append(replace(records[0], key=b"0", value=json.dumps({**summary, "log": ""}).encode()))
    first, second = fold(one, records)
    assert (first.reason, first.path, second.reason, second.path) == (
        "inconsistent",
        "$.first",
        "inconsistent",
        "$.log",
    )
    assert (
        "expected a rack of nodes 0 to 2, as rack_size is 3, got 0-5: workers and device servers must" in first.detail
    )
    assert "workers must be of this version" in second.detail
    assert state(one) == before


def test_the_nodes_of_a_rack_are_those_that_a_partition_has():
    assert Racks(3000, 4).nodes(3) == range(9000, 10_000), "as far as messages can name them"
    racks = Racks(50, 4)
    assert [racks.nodes(rack) for rack in (0, 5)] == [range(50), range(250, 300)]
    assert {racks.partition(node) for node in racks.nodes(5)} == {1}


def told(begin: int, end: int, rack=RACK, *, found=(), log: str = "a", **changes) -> Record:
    """Return the summary of a rack by one transaction, by default one without records of it."""
    columns = columns_of(found)[0] if found else nothing()
    summary = PLAN.rack_summary("0", 0, rack, columns, OffsetRange(log, begin, end), 0)
    return record(msgspec.structs.replace(summary, **changes), key=PLAN.rack_key(rack[0], rack[-1]))


SECOND = range(3, 6)
GAPS = {
    "none": ([told(0, 10), told(10, 20), told(20, 20), told(20, 30)], []),
    "one": ([told(0, 10), told(20, 30), told(30, 40)], [(10, 19, 10)]),
    "of one record": ([told(0, 10), told(11, 20)], [(10, 10, 1)]),
    "found in silence": ([told(0, 10), told(20, 20)], [(10, 19, 10)]),
    "of one rack": (
        [told(0, 10), told(0, 10, SECOND), told(10, 20), told(20, 30), told(20, 30, SECOND)], [(10, 19, 10)]
    ),
    "of both racks": ([told(0, 10), told(0, 10, SECOND), told(20, 30), told(20, 30, SECOND)], [(10, 19, 10)]),
    "larger of the other rack": (
        [told(0, 10), told(0, 5, SECOND), told(20, 30), told(20, 30, SECOND)], [(10, 19, 10)]
    ),
    "newer of the other rack": (
        [told(0, 10), told(0, 10, SECOND), told(20, 30), told(25, 30, SECOND)], [(10, 19, 10), (20, 24, 5)]
    ),
    "of a worker that is not contiguous": ([told(0, 10), told(20, 30, contiguous=False)], []),
    "after the log was cut": ([told(0, 20), told(10, 12, log="a#1"), told(12, 20, log="a#1")], []),
    "behind the log that was cut": (
        [told(0, 10), told(15, 20, log="a#1"), told(20, 30, log="a#1"), told(35, 40, log="a#1")], [(30, 34, 5)]
    ),
    "at the beginning of another topic": ([told(0, 10), told(0, 0, log="b"), told(5, 10, log="b")], [(0, 4, 5)]),
    "of another topic": ([told(0, 10), told(15, 20, log="b"), told(20, 30, log="b")], []),
}  # fmt: skip
"""Summaries, and the gaps between them: first and last offset, and how many that is."""


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("name", GAPS)
def test_summaries_that_never_came_are_named(name, restarts):
    """Whoever lost them, and also where the reader restarts from its snapshot before each."""
    one, found = flow(), []
    records, gaps = GAPS[name]
    for each in records:
        if restarts:
            before, one = msgspec.json.decode(msgspec.json.encode(one.as_dict())), flow()
            one.restore(before)
        assert one.fold(each, count=True) == USED
        assert one.fold(each, count=False) == USED, "what is only rebuilt finds nothing missing"
        found += one.lost_before()
    texts = [
        f"ingest.heaps, partition 0: offsets {first} to {last} have lost summaries: up to {last - first + 1} records"
        " are missing from totals"
        for first, last, _ in gaps
    ]
    assert found == [(count, text) for (_, _, count), text in zip(gaps, texts, strict=True)]


def test_the_account_of_the_device_server_has_the_hole():
    """So that SdpBus shows it, and an alarm is raised; not again after a restart."""
    one = Progress(flow(), keep=1.0, clock=ManualClock(NOW / 1e6))
    for offset, each in enumerate([told(0, 10), told(20, 30), told(30, 40)]):
        one.take(replace(each, offset=offset))
    assert (one.account.skipped, one.account.balance) == (10, 0)
    assert one.account.deviations["skipped"] == one.account.last_error
    assert one.account.last_error.startswith("ingest.heaps, partition 0: offsets 10 to 19 have lost summaries")
    again = Progress(flow(), keep=1.0, clock=ManualClock(NOW / 1e6))
    again.restore(one.snapshot("ingest-00", {}, now=NOW, monotonic=0.0), 0.0)
    again.take(replace(told(40, 50), offset=3))
    assert again.account.skipped == 10


def test_a_rack_without_records_is_heard_of_and_its_nodes_are_not():
    """The sign that no summary was lost is no sign of life of a node."""
    one = flow()
    assert fold(one, [told(0, 10), told(10, 20)]) == [USED, USED]
    assert one.ledgers[PLAN.topic].heard == 0
    shown = list(expanded(one.readings(NOW)))
    assert {(device, name) for device, name, _ in shown} == {
        (str(n), name) for n in NODES for name in ("State", "Status")
    }
    # Without a watermark nothing says up to where the partition was read.
    assert {reading.value for _, name, reading in shown if name == "State"} == {"UNKNOWN"}


def test_summaries_without_rows_of_this_server_leave_no_hole():
    """They are of its rack, and say that the rack was summarised."""
    one = flow([1], over_all=False)
    others = told(10, 20, found=[(0, partial())])
    assert fold(one, [told(0, 10), others, told(20, 30, found=[(1, partial(1))])])[::2] == [USED, USED]
    assert list(one.lost_before()) == []


@pytest.mark.parametrize(
    ("by_rack", "begin", "log", "is_torn"),
    [(True, 20, "a", True), (True, 5, "a#1", True), (False, 20, "a", False), (False, 5, "a#1", True)],
)
def test_a_window_that_may_lack_records_is_not_shown_as_whole(by_rack, begin, log, is_torn):
    """Summaries are lost, or the log was cut: as with a straggler, its values are ATTR_WARNING.

    A transaction without records of a node writes no summary of it alone, so a gap between these is no loss.
    """

    def written(begin, end, log, window):
        found = [(0, partial(0, window))]
        return (
            [told(begin, end, log=log, found=found)] if by_rack else node_records(found, OffsetRange(log, begin, end))
        )

    one = flow()
    ledger = one.ledgers[PLAN.topic]
    fold(one, written(0, 10, "a", 0) + written(begin, 30, log, 1))
    later = BASE_US + 60_000_000

    def torn():
        """Return whether the newest windows of node 0 and over all are torn."""
        return [
            found.shown(np.full(groups, later))[0].is_torn.tolist()[0]
            for found, groups in ((ledger._windows, len(NODES)), (ledger._all_groups, 1))
        ]

    assert torn() == [is_torn, is_torn]
    fold(one, written(30, 40, log, 5))
    assert torn() == [False, False], "it began at that time"


@pytest.mark.parametrize(
    ("records", "nodes"),
    [
        ([told(0, 10)], set()),
        ([told(1, 10)], set(RACK)),
        ([told(1, 10, SECOND)], set(SECOND)),
        ([told(0, 10), told(0, 5, log="a#1")], set(RACK)),
    ],
)
def test_the_nodes_with_first_records_in_no_total_are_told(records, nodes):
    one = flow()
    fold(one, records)
    assert {node for node in NODES if list(one.ledgers[PLAN.topic].epochs(node))} == nodes
