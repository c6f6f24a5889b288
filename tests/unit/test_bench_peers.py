"""What the bench makes of what its peers say."""

import json

import pytest

from facade.errors import InfraError
from proving.bench.peer_roles import PeerTiming
from proving.bench.peers import OURS, medians, verdicts
from proving.bench.peers_java import Totals, warm
from proving.bench.peers_windows import after_ends
from proving.bench.peers_windows import verdicts as windows_verdicts


def window(node: int, start: int, count: int) -> bytes:
    """Give a record of the output topic, as the programs in Java write it."""
    figures = [float(count), 0.0, 0.0, 0.5 * count, 0.25 * count]
    more = {"squares": figures, "min": figures, "max": figures}
    return json.dumps({"node": node, "start": start, "count": count, "sum": figures, **more}).encode()


def test_a_later_record_replaces_its_window() -> None:
    """Kafka Streams writes a window at each commit, Flink once: both have the same totals."""
    totals = Totals()
    assert totals.take([window(0, 1000, 3), window(1, 1000, 4)]) == 7
    assert totals.take([window(0, 1000, 10), window(0, 2000, 1)]) == 15
    assert totals.sums == (15.0, 0.0, 0.0, 7.5, 3.75)


def test_the_time_begins_when_the_virtual_machine_is_warm() -> None:
    assert warm("WARNING: something\nwarm 5000000000 2500000000\n") == (5.0, 2.5)
    with pytest.raises(InfraError, match="expected a line `warm MONOTONIC_NS CPU_NS`, got none"):
        warm("Exception in thread main\n")


def test_ways_are_compared_by_wall_clock_and_by_processor_time() -> None:
    ours = PeerTiming(records=1000, seconds=1.0, cpu=0.5)
    peer = PeerTiming(records=500, seconds=1.0, cpu=1.0)
    found = [{OURS: ours, "peer": peer}] * 2
    assert [(one.what, one.found) for one in verdicts(found)] == [
        ("worker / peer, records/s", "2.00 (2.00 to 2.00 of 2 pairs)"),
        ("worker / peer, records/s per core", "4.00 (4.00 to 4.00 of 2 pairs)"),
    ]
    assert medians(found)[1] == "peer: 500/s, 500/s per core (medians)"


def test_windows_count_that_lie_within_the_measurement() -> None:
    """The window of node 0 that began at 100 was there 0.2 s after its end; others began or ended outside."""
    last = {(0, 100): 101.2, (1, 101): 102.4, (0, 99): 100.1, (1, 102): 103.1}
    assert after_ends(last, 99.5, 102.5) == pytest.approx([0.2, 0.4])
    said = windows_verdicts({"one": [0.1, 0.2, 0.4], "none": []})
    assert [one.found for one in said] == ["p50 200, p99 400, max 400 ms of 3 windows", "-"]
