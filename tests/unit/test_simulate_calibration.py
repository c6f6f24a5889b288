"""The simulated calibration pipeline: repeatable, of the size that was asked for, and it drifts as an array does."""

import numpy as np
import pytest

from facade.errors import ConfigError
from facade.flows.tables.content import ARROW, decode, encode, summarise
from facade.flows.tables.simulator.cli import PointingSeries, SolutionScenario, SolutionSeries, channels_for
from facade.simulate.array import antenna_names

NOW_US = 1_800_000_000_000_000


def series(**options) -> SolutionSeries:
    return SolutionSeries(SolutionScenario(**{"antennas": 20, "channels": 200, **options}))


def test_the_same_seed_gives_the_same_series():
    one, other = series(seed=5), series(seed=5)
    for number in range(3):
        assert encode(one.next(NOW_US + number)) == encode(other.next(NOW_US + number))
    assert not np.array_equal(series(seed=6).next(NOW_US).gains, series(seed=5).next(NOW_US).gains)


@pytest.mark.parametrize("polarisations", [("XX", "YY"), ("XX", "XY", "YX", "YY")])
@pytest.mark.parametrize("kind", ["gains", "bandpass"])
def test_any_solution_can_be_written_read_and_summed_up(kind, polarisations):
    content = encode(series(kind=kind, polarisations=polarisations).next(NOW_US))
    assert decode(content).kind == kind
    found = summarise(kind, ARROW, memoryview(content))
    assert found["antennas"] == list(antenna_names(20))
    assert found["snr"] == pytest.approx(80, rel=0.3)
    assert found["antenna_phase_rms"][0] < 0.05


@pytest.mark.parametrize("megabytes", [0.1, 1, 5])
def test_a_table_is_as_large_as_was_asked_for(megabytes):
    one = SolutionSeries(SolutionScenario(channels=channels_for(megabytes, antennas=197)))
    assert len(encode(one.next(NOW_US))) == pytest.approx(megabytes * 1e6, rel=0.1)


def test_failed_antennas_and_interference_are_flagged_and_hold_nonsense():
    one = series(antennas=197, channels=400).next(NOW_US)
    failed = one.flags.all(axis=(1, 2))
    assert 0 < failed.sum() < 20
    assert not failed[0]
    channels = one.flags[0, :, 0]
    assert 0.05 < channels.mean() < 0.2
    assert (one.snr[one.flags[..., 0]] == 0).all()
    assert np.abs(one.gains[0, channels, 0] - 1).max() > 2


def test_dishes_have_the_names_of_ska_mid():
    names = antenna_names(300)
    assert (names[0], names[132], names[133], names[196], names[197]) == (
        "SKA001",
        "SKA133",
        "MKT000",
        "MKT063",
        "SIM197",
    )
    assert len(set(names)) == 300


def test_pointing_offsets_walk_scan_by_scan():
    one = PointingSeries(("SKA001", "SKA002"), seed=3, first_scan=7)
    first, second = one.next(), one.next()
    assert [(entry.dish, entry.scan_id) for entry in first + second] == [
        *(("SKA001", 7), ("SKA002", 7)),
        *(("SKA001", 8), ("SKA002", 8)),
    ]
    assert 0 < abs(first[0].elevation - second[0].elevation) < 0.01
    assert PointingSeries(("SKA001", "SKA002"), seed=3, first_scan=7).next() == first


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "delays"}, "expected one of gains, bandpass"),
        ({"channels": 0}, "expected 1 to 1000000 channels"),
    ],
)
def test_a_scenario_that_cannot_be_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        series(**options)
