"""A batch of `HeapProducer` ends with its window, whatever the order and the times of the notifications."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from facade.flows.telemetry.plan import plan
from facade.kernel.bus.port import Record
from facade.kernel.clock import SECOND, ManualClock, Time, as_duration
from facade.kernel.icd.load import load
from facade.sdk.producer.heaps import HeapProducer
from tests.sdk.test_heap_producer import Fate, Log
from tests.support.examples import examples

RULE = plan(load(), "ingest.heaps").rule
STEP = 0.02
STEP_US = as_duration(STEP)
PERIOD = 0.1

times = st.lists(st.integers(-150, 150) | st.sampled_from([-20_000, -1_500, 1_000, 30_000]), max_size=12)
"""Data times against the clock [ms]."""


class TimedLog(Log):
    """Knows when each batch came."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock, self.came = clock, list[Time]()

    def post(self, record: Record) -> Fate:
        self.came.append(self._clock.now_us())
        return super().post(record)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 12), times), min_size=1, max_size=40))
def test_a_batch_ends_with_its_window(calls):
    """It has notifications of one open window at most, and leaves at the end of that, or soon after a straggler."""
    clock = ManualClock()
    log, added = TimedLog(clock), list[tuple[Time, int]]()
    with TemporaryDirectory() as folder:
        producer = HeapProducer(42, Path(folder), log=log, clock=clock, rows=7, period=PERIOD)
        for pause, shifts in calls:
            now, first = clock.now_us(), len(added)
            added += [(now, int(now) + 1000 * shift) for shift in shifts]
            ones, halves = np.ones(len(shifts), int), np.full(len(shifts), 0.5)
            producer.add_columns(
                scan_id=7, channel_count=64, seq=np.arange(first, len(added)),
                time=np.array([time for _, time in added[first:]], int), channel_start=ones, received=ones, lost=ones,
                late=ones, flagged_fraction=halves, latency=halves,
            )  # fmt: skip
            for _ in range(pause):
                producer.step()
                clock.sleep(STEP)
        producer.close()
    assert sorted(log.seqs()) == list(range(len(added)))
    for came, batch in zip(log.came, log.batches(), strict=True):
        windows = set()
        for number in batch.content.columns["seq"].tolist():
            now, time = added[number + batch.header.bases["seq"]]
            window = time - time % RULE.length_us
            if RULE.closed_at(window) > now and window <= now + RULE.ahead_us:
                windows.add(window)
                assert came <= max(window + RULE.length_us, now + STEP_US) + STEP_US + 1
            assert came <= now + as_duration(PERIOD + STEP) + 1
        assert len(windows) <= 1, f"the windows {[window / SECOND for window in windows]} share a batch"
