"""The sweep of the bench, very short, on a real broker: each phase has its figures, and nothing is lost."""

from pathlib import Path

import pytest

import proving.testbed
from facade.infra import local
from proving.bench.sweep import measure
from proving.bench.sweep_points import MB, Point, Timing
from tests.support.deployment import CLOCK, Console, Progress

TINY = Timing(seconds=600.0, steady=0.2, most=100_000, large=1)


@pytest.mark.kafka
def test_each_phase_of_a_point_has_its_figures(infra: local.Endpoints, tmp_path: Path) -> None:
    testbed = proving.testbed.Testbed(infra, tmp_path, Progress(Console(quiet=True), CLOCK))
    with testbed.deployment("sweep") as deployment:
        split = Point(series="size", size=1000, partitions=2, members=2, codec="zstd", phases=("in", "out", "latency"))
        found = measure(deployment, split, TINY, "a")
        stream = Point(series="002", size=1000, producers=2, groups=2, messages=50, phases=("stream",))
        streamed = measure(deployment, stream, TINY, "b")
        each = Point(series="sangrenel", size=1000, producers=30, batch=1, one_by_one=True, phases=("in",))
        called = measure(deployment, each, TINY, "d")
        segments = measure(deployment, Point(series="segments", size=10 * MB, phases=("segments",)), TINY, "c")
    flows = {**found.flows, **streamed.flows}
    sent = {name: (flow.messages, flow.lost) for name, flow in flows.items() if name != "latency"}
    assert sent == {"in": (100, 0), "out": (100, 0), "stream-in": (50, 0), "stream-out": (100, 0)}
    assert 0 < found.stored < 1000, "zstd makes notifications smaller, and the broker keeps them so"
    assert found.delay is not None
    assert found.delay.count == flows["latency"].messages > 0
    assert 0 < found.delay.p50 <= found.delay.p99 <= found.delay.p999 <= found.delay.highest
    assert called.delay is not None
    assert called.delay.count == called.flows["in"].messages == 90, "three from each, each waited for"
    assert [len(one.each) for one in segments.large.values()] == [1, 1]
