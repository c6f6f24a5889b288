"""The tables of flows, measurements and roles name what there is."""

from collections.abc import Mapping
from importlib import import_module

import pytest

from proving.bench.cli import MEASUREMENTS
from proving.fault_runs.frame import FLOWS


@pytest.mark.parametrize("table", [FLOWS, MEASUREMENTS], ids=["flows", "measurements"])
def test_each_flow_and_measurement_is_where_its_table_says(table: Mapping[str, str]) -> None:
    for place in table.values():
        module, _, name = place.partition(":")
        assert callable(getattr(import_module(module), name)), place
