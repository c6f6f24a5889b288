"""Frames of batches: used if they are right, named and not used if they are not, and of no harm where they say less."""

import json
from base64 import b64decode, b64encode
from dataclasses import replace

import jsonschema
import msgspec
import numpy as np
import pytest

from facade.flows.telemetry import summed as frames
from facade.kernel.bus.port import Aborted
from facade.kernel.clock import as_time
from facade.sdp.batches import BatchReader, ReadBatch
from facade.sdp.messages import StreamAccount
from facade.sdp.stream_accounts import WorkerAccounts
from tests.flows.test_worker import ICD, NOW, PLAN, broker, clock, totals, work, worker
from tests.support.columnar import columnar, summed
from tests.support.heaps import heap
from tests.support.overview import overview
from tests.support.summaries import partials

__all__ = ["broker", "clock"]

ROWS = [
    heap(node=1, seq=seq, at=seq / 100, lost=seq, flagged_fraction=seq / 64, latency=(1 + seq) / 64)
    for seq in range(20)
]
"""Statistics of them are exact as floats, and none is 0."""
FIRST = columnar([heap(node=1, seq=seq + 100, at=0.3) for seq in range(3)], producer="ingest-1")
BATCH = columnar(ROWS, producer="ingest-1")
OTHER = columnar([heap(node=2, seq=seq, latency=0.25) for seq in range(5)], producer="ingest-2")


def results(broker):
    """Return counts, and what windows and totals show, of all that a worker has written; floats in nine digits."""
    found = partials([one.value for one in broker.read("ingest.summary")], PLAN)
    texts = sorted((node, msgspec.json.encode(one)) for node, one in found)

    def nine(number):
        return f"{float(number):.9g}"

    return totals(broker), [(node, json.loads(text, parse_float=nine)) for node, text in texts]


def said(broker):
    entries = [msgspec.json.decode(one.value, type=StreamAccount) for one in broker.read("accounts")]
    return [text for entry in entries for text in entry.wrong_frames]


def worked(broker, *records, fault=lambda: None, **limits):
    for one in records:
        broker.append(replace(one, partition=0))
    work(broker, worker(broker, fault, **limits))
    return results(broker)


def first_partial(name, by):
    def lie(frame):
        frame["partials"][0][name] += by

    return lie


def field(name, what, by):
    def lie(frame):
        statistics = frame["partials"][0]["fields"][name]
        statistics[what] = statistics[what] | by if isinstance(by, dict) else statistics[what] + by

    return lie


def sketch(frame):
    packed = frame["partials"][0]["fields"]["latency"]["sketch"]
    counts = np.frombuffer(b64decode(packed["counts"]), "<u4").copy()
    first, second = np.flatnonzero(counts)[1:3]
    counts[[first, second]] = counts[[second + 1, first]]
    packed["counts"] = b64encode(counts.tobytes()).decode()


def runs(frame):
    frame["partials"][0]["runs"] = [[1, 20]]


def two_rows(frame):
    (one,) = frame["partials"]
    frame["partials"] = [one, one]


HIDDEN = {
    "sum": field("lost", "sum", 1),
    "sum less": field("lost", "sum", -1),
    "sum of floats": field("latency", "sum", 1 / 64),
    "max": field("flagged_fraction", "max", 1 / 64),
    "m2": field("latency", "m2", 1 / 64),
    "last": field("channel_start", "last", 1),
    "time_min": first_partial("time_min", 1),
    "time_max": first_partial("time_max", 1),
    "sketch": sketch,
    "runs": runs,
}
"""Lies that only the columns show, and what they are about."""
OPEN = {
    "count": first_partial("count", 1),
    "count less": first_partial("count", -1),
    "min": field("latency", "min", -1 / 64),
    "max of a sketch": field("latency", "max", 1 / 64),
    "sum below the largest": field("lost", "sum", -200),
    "sum above": field("received", "sum", 2**40),
    "m2 of other values": field("latency", "m2", 2.0),
    "sum of no whole number": field("lost", "sum", 0.5),
    "window": first_partial("window", 1),
    "the next window": first_partial("window", 1_000_000),
    "a row twice": two_rows,
    "no number": lambda frame: frame["partials"][0].update(count="20"),
    "a negative sum of squares": field("latency", "m2", -9.0),
    "buckets beyond": field("latency", "sketch", {"first": 2**40}),
    "half a count": field("latency", "sketch", {"counts": "AAA="}),
    "no counts": field("latency", "sketch", {"counts": ""}),
    "counts of nothing": field("latency", "sketch", {"counts": "AAAAAA=="}),
    "no partials": lambda frame: frame["partials"].clear(),
}
"""Lies that contradict themselves or the header of the batch."""


def test_a_frame_is_used_instead_of_the_columns(broker):
    """A lie that nobody can see changes the sum: so it was the frame that was used."""
    counts, rows = worked(broker, summed(FIRST), summed(BATCH, HIDDEN["sum"]), recomputed=0.0)
    assert (counts["consumed"], counts["used"]) == (23, 23)
    ((_, one),) = rows
    assert one["fields"]["lost"]["sum"] == sum(range(20)) + 1
    assert not said(broker)


@pytest.mark.parametrize("lie", HIDDEN.values(), ids=HIDDEN)
def test_a_hidden_lie_by_one_is_found_when_it_is_drawn(broker, clock, lie):
    honest = worked(type(broker)(clock, broker.partitions), FIRST, BATCH, OTHER, BATCH)
    assert worked(broker, summed(FIRST), summed(BATCH, lie), OTHER, summed(BATCH, lie), recomputed=1.0) == honest
    (text,) = said(broker)
    assert text.startswith("ingest.heaps, partition 0: offset 1, frame of ingest-1: ")


@pytest.mark.parametrize("lie", OPEN.values(), ids=OPEN)
def test_a_lie_that_contradicts_itself_is_always_found(broker, clock, lie):
    honest = worked(type(broker)(clock, broker.partitions), FIRST, BATCH, OTHER)
    assert worked(broker, summed(FIRST), summed(BATCH, lie), summed(OTHER), recomputed=0.0) == honest
    assert len(said(broker)) == 1


def test_the_first_frame_of_each_producer_is_compared(broker, clock):
    """Who sums up wrongly from the beginning changes no total."""
    honest = worked(type(broker)(clock, broker.partitions), BATCH, OTHER, BATCH, OTHER)
    lie = HIDDEN["sum"]
    found = worked(broker, summed(BATCH, lie), summed(OTHER), summed(BATCH, lie), summed(OTHER), recomputed=0.0)
    assert found == honest
    (text,) = said(broker)
    sums = f"fields.lost.sum: expected {sum(range(20))} by the columns, got {sum(range(20)) + 1}"
    assert text == f"ingest.heaps, partition 0: offset 0, frame of ingest-1: {sums}"


def test_an_alarm_names_the_producer(broker):
    """With offset, and what differs; the accounts of the stream balance."""
    worked(broker, summed(OTHER), summed(BATCH, HIDDEN["sum"]), summed(BATCH))
    accounts = WorkerAccounts()
    for entry in broker.read("accounts"):
        accounts.fold(entry, count=True)
    restored = WorkerAccounts()
    restored.restore(msgspec.json.decode(msgspec.json.encode(accounts.as_dict())))
    seen = overview(streams=restored.streams)
    seen.issues(as_time(NOW))
    found = {condition: fault.text for (condition, _), fault in seen.find(as_time(NOW)).items()}
    assert "partition 0: offset 1, frame of ingest-1: fields.lost.sum: expected 190" in found["frameWrong"]
    assert "streamUnbalanced" not in found


def test_a_finding_outlives_a_transaction_that_fails(broker):
    """The records come again; the producer is known by then, and the account of the second transaction names it."""
    faults = iter([None, Aborted("for a test")])

    def fault():
        if error := next(faults, None):
            raise error

    worked(broker, summed(OTHER), summed(BATCH, HIDDEN["sum"]), summed(OTHER), fault=fault)
    assert next(faults, "all used") == "all used"
    assert len(said(broker)) == 1


def test_a_producer_without_a_name_is_named_by_its_node(broker):
    lying = summed(columnar(ROWS), HIDDEN["sum"])
    worked(broker, lying)
    assert "frame of node 1: " in said(broker)[0]


def change(**values):
    return lambda frame: frame.update(values)


def drop_statistic(frame):
    del frame["partials"][0]["fields"]["latency"]["m2"]


def drop_field(frame):
    del frame["partials"][0]["fields"]["lost"]


@pytest.mark.parametrize(
    "lie",
    [change(schema="batch-frame/2"), change(length=2_000_000), change(quantile_error=0.02), drop_statistic, drop_field],
    ids=["version", "windows", "sketches", "a statistic too few", "a field too few"],
)
def test_a_frame_by_another_interface_is_of_no_use_and_no_lie(broker, clock, lie):
    honest = worked(type(broker)(clock, broker.partitions), FIRST, BATCH)
    assert worked(broker, summed(FIRST), summed(BATCH, lie), recomputed=1.0) == honest
    assert not said(broker)


def test_more_statistics_than_needed_do_no_harm(broker):
    """A producer with a newer interface is read as before, and its frames are used."""

    def lie(frame):
        frame["partials"][0]["fields"]["lost"] |= {"sum": 191, "min": 0}
        frame["partials"][0]["fields"]["jitter"] = {"sum": 1.0}

    _, rows = worked(broker, summed(FIRST), summed(BATCH, lie), recomputed=0.0)
    assert rows[0][1]["fields"]["lost"]["sum"] == 191


@pytest.mark.parametrize("limit", [0, 1_000])
def test_the_append_time_decides_what_is_late(broker, clock, limit):
    """A frame that says that its rows are in time is of no use where they are not; a row at the limit is in time."""
    late = columnar([heap(node=1, seq=seq, at=1 - 10 + seq - limit / 1e6) for seq in range(3)], producer="ingest-1")
    counts, _ = worked(broker, summed(FIRST), summed(late), recomputed=0.0)
    assert (counts["used"], counts["late"]) == (6 - bool(limit), bool(limit))
    assert not said(broker)


@pytest.mark.parametrize("with_frame", [True, False])
@pytest.mark.parametrize("numbers", [(3, 1, 2), (254, 255, 0, 1)])
def test_numbers_in_any_order_are_right_also_in_a_column_of_unsigned_ones(broker, numbers, with_frame):
    """Its differences are never negative: an honest producer was called wrong, and a summary was refused."""
    rows = [heap(node=1, seq=seq, at=at / 100) for at, seq in enumerate(numbers)]
    batch = columnar(rows, types={"seq": "uint8"}, bases=("time",), producer="ingest-1")
    _, ((_, found),) = worked(broker, summed(batch) if with_frame else batch)
    assert [number for first, last in found["runs"] for number in range(first, last + 1)] == sorted(numbers)
    assert said(broker) == []


def test_a_row_that_is_ahead_is_a_dead_letter_alone(broker):
    ahead = columnar([heap(node=1, seq=seq, at=5 + seq) for seq in range(3)], producer="ingest-1")
    counts, _ = worked(broker, summed(FIRST), summed(ahead), recomputed=0.0)
    assert (counts["used"], counts["reason time-ahead"]) == (5, 1)


def test_a_frame_hides_no_bad_row(broker):
    """The producer checks its rows, so a batch with a bad one has no frame; if it has, it is wrong."""
    rows = [*ROWS[:5], ROWS[5] | {"latency": -1.0}]
    assert "frame" not in dict(summed(columnar(rows)).headers)
    bad = columnar(rows, producer="ingest-1")
    frame = dict(summed(BATCH).headers)["frame"].replace(b'"count": 20', b'"count": 6')
    counts, _ = worked(broker, replace(bad, headers=(*bad.headers, ("frame", frame))), recomputed=0.0)
    assert (counts["used"], counts["dead_lettered"], counts["reason schema"]) == (5, 1, 1)
    assert said(broker)[0].endswith("expected no frame, as a row is invalid")
    (letter,) = broker.read("dead-letters")
    assert "frame" not in dict(letter.headers)


def test_a_node_of_another_deployment_is_a_dead_letter(broker):
    counts, _ = worked(broker, summed(OTHER), summed(columnar([heap(node=77)])))
    assert (counts["used"], counts["reason unknown-node"]) == (5, 1)


@pytest.mark.parametrize("constants", [("node", "channel_count"), ("scan_id", "channel_count")])
def test_a_batch_of_several_nodes_or_scans_has_no_frame(constants):
    assert "frame" not in dict(summed(columnar(ROWS, constants=constants)).headers)


def test_a_batch_whose_rows_are_scattered_has_no_frame():
    """It would be larger than the columns that it saves."""
    scattered = columnar([heap(node=1, seq=2 * seq, at=seq / 1e5) for seq in range(8_000)])
    assert "frame" not in dict(summed(scattered).headers)


def test_who_knows_no_frames_reads_the_columns():
    reader = BatchReader(ICD.messages["heap"], ["seq", "time"])
    plain, with_frame = (reader.read(one.value, one.headers[:2]) for one in (BATCH, summed(BATCH)))
    assert isinstance(plain, ReadBatch)
    assert (plain.header, summed(BATCH).value) == (with_frame.header, BATCH.value)
    jsonschema.Draft202012Validator(ICD.messages["batch-frame"]).validate(
        json.loads(dict(summed(BATCH).headers)["frame"])
    )


def from_producer(name, lie=lambda frame: None, rows=ROWS):
    return replace(summed(columnar(rows, producer=name), lie), partition=0)


@pytest.mark.parametrize("lie", [HIDDEN["sum"], OPEN["count"]], ids=["sum", "count"])
def test_a_wrong_frame_is_used_by_nobody_though_more_producers_come_than_are_kept(broker, monkeypatch, lie):
    monkeypatch.setattr(frames, "_MOST_PRODUCERS", 5)
    known = [from_producer(name) for name in ("old", "a", "b", "c", "d")]
    for one in known:
        broker.append(one)
    mine = worker(broker, recomputed=1.0)
    work(broker, mine)
    for one in (from_producer("a"), from_producer("old", lie), *(from_producer(f"new-{n}") for n in range(7))):
        broker.append(one)
    work(broker, mine)
    found, rows = results(broker)
    assert found["used"] == 14 * len(ROWS)
    assert sum(row["fields"]["lost"]["sum"] for _, row in rows) == 14 * sum(range(20))
    (text,) = set(said(broker))
    assert "frame of old" in text


def test_first_frames_of_many_producers_take_no_longer_than_their_columns_and_each_producer_is_judged_once(
    broker, monkeypatch
):
    monkeypatch.setattr(frames, "_MOST_FIRST", 3)
    for number in range(10):
        for _ in range(2):
            broker.append(from_producer(f"p{number}", rows=ROWS[:1]))
    recomputed = []
    rows_of = frames.BatchSums.rows
    monkeypatch.setattr(frames.BatchSums, "rows", lambda self, batch: recomputed.append(batch) or rows_of(self, batch))
    work(broker, worker(broker, recomputed=0.0))
    producers = [batch.header.producer for batch in recomputed]
    assert producers == ["p0", "p1", "p2", "p3"], "the first record is taken alone"
    assert totals(broker)["used"] == 20


def test_a_record_whose_headers_would_fill_a_transaction_with_dead_letters_becomes_one(broker):
    rows = [heap(node=1, seq=seq, at=seq / 1e5) | ({"latency": -1.0} if seq else {}) for seq in range(500)]
    bad = columnar(rows, producer="x")
    bad = replace(bad, headers=(*bad.headers, ("trace", b"y" * 100_000)), partition=0)
    broker.append(bad)
    work(broker, worker(broker))
    (letter,) = broker.read("dead-letters")
    assert dict(letter.headers)["dl.count"] == b"500"
    assert totals(broker)["dead_lettered"] == 500


def test_batches_of_the_same_nodes_make_commits_no_rarer(broker):
    """Sums of many batches are many rows until they are merged, and readers get one for each node."""
    commits = []
    mine = worker(broker, lambda: commits.append(broker.clock.monotonic()), cells_per_second=10)
    for number in range(60):
        for _ in range(5):
            broker.append(from_producer("ingest-1", rows=[heap(node=1, seq=number)]))
        mine.step()
        broker.clock.sleep(0.02)
    gaps = np.diff(sorted(set(commits)))
    assert len(gaps) > 4
    assert gaps.max() <= 0.2, "the interval of one node is 0.1 s"
