"""The frame of fault runs: its tables, and its judgement of standstills."""

from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace

import pytest

from facade.clock import ManualClock
from proving.bench.cli import MEASUREMENTS
from proving.fault_runs.frame import FLOWS, Balance, FaultRun, Size


@pytest.mark.parametrize("table", [FLOWS, MEASUREMENTS], ids=["flows", "measurements"])
def test_each_flow_and_measurement_is_where_its_table_says(table: Mapping[str, str]) -> None:
    for place in table.values():
        module, _, name = place.partition(":")
        assert callable(getattr(import_module(module), name)), place


class SlowFault(FaultRun):
    """One fault that takes long, and no records."""

    short = Size(1, 1)
    faults = ("reset",)

    def parts(self):
        return {}

    def begin(self):
        self.moved = self.clock.monotonic()

    def step(self):
        return bool(self.left)

    def inject(self, fault):
        self.clock.sleep(200.0)

    def in_words(self):
        return ""

    def account(self):
        return Balance()


def test_the_time_that_a_fault_takes_is_no_standstill():
    clock = ManualClock()
    progress = SimpleNamespace(step=lambda text: None)
    run = SlowFault(
        SimpleNamespace(clock=clock, progress=progress, processes=(), register=lambda: 0), SlowFault.short, 1
    )
    run.run()
    assert run.injected["reset"] == 1
    assert clock.monotonic() - run.moved < 1.0
