"""The simulated calibration pipeline: repeatable, of the size that was asked for, and it drifts as an array does."""

from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from facade.flows.tables.content import ARROW, decode, encode, summarise
from facade.flows.tables.simulator import cli
from facade.flows.tables.simulator.cli import SolutionScenario, SolutionSeries
from facade.kernel.cli.app import app
from facade.kernel.errors import BusError
from facade.simulate.array import MID

NOW_US = 1_800_000_000_000_000


def series(**options) -> SolutionSeries:
    return SolutionSeries(SolutionScenario(**{"antennas": 20, "channels": 200, **options}))


@pytest.mark.parametrize("polarisations", [("XX", "YY"), ("XX", "XY", "YX", "YY")])
@pytest.mark.parametrize("kind", ["gains", "bandpass"])
def test_any_solution_can_be_written_read_and_summed_up(kind, polarisations):
    content = encode(series(kind=kind, polarisations=polarisations).next(NOW_US))
    assert decode(content).kind == kind
    found = summarise(kind, ARROW, memoryview(content))
    assert found["antennas"] == list(MID.names(20))
    assert found["snr"] == pytest.approx(80, rel=0.3)
    assert found["antenna_phase_rms"][0] < 0.05


def test_failed_antennas_and_interference_are_flagged_and_hold_nonsense():
    one = series(antennas=197, channels=400).next(NOW_US)
    failed = one.flags.all(axis=(1, 2))
    assert 0 < failed.sum() < 20
    assert not failed[0]
    channels = one.flags[0, :, 0]
    assert 0.05 < channels.mean() < 0.2
    assert (one.snr[one.flags[..., 0]] == 0).all()
    assert np.abs(one.gains[0, channels, 0] - 1).max() > 2


@pytest.mark.parametrize("lost", [0, 1])
def test_the_folder_for_copies_is_made_and_a_lost_table_is_an_error(monkeypatch, tmp_path, lost):
    tables = []

    def send(self, product, kind, content, content_type, table=None):
        tables.append(table)
        if len(tables) <= lost:
            raise BusError("no broker")
        return SimpleNamespace(table=table, product=product, size=len(content), count=1)

    monkeypatch.setattr(cli.TableProducer, "send", send)
    words = "simulate calibration --count 2 --every 0 --megabytes 0.01 --antennas 2 --no-pointing --save"
    folder = tmp_path / "new" / "folder"
    done = CliRunner().invoke(app, [*words.split(), str(folder)])
    assert done.exit_code == lost, done.output
    assert {one.name for one in folder.iterdir()} == set(tables[lost:])
