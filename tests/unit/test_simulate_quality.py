"""The simulated receive pipeline: repeatable, of the size that was asked for, and as real data are."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from facade.cli.app import app
from facade.errors import ConfigError
from facade.flows.quality.flow import QualityFlow, is_metric
from facade.flows.quality.records import decode
from facade.flows.quality.simulator import QualityScenario, QualitySeries, channels_for
from facade.icd.load import load
from facade.outcome import USED
from tests.support.metrics import WRITERS

ICD = load()
NOW_US = 1_800_000_000_000_000


def series(**options) -> QualitySeries:
    return QualitySeries(QualityScenario(**{"antennas": 20, "channels": 400, **options}))


def arrays(one: QualitySeries) -> dict[str, np.ndarray]:
    found = {}
    for record in one.next(NOW_US):
        header = json.loads(record.headers[0][1])
        found[header["metric"]] = decode(header["encoding"], record.value, header["shape"], header["dtype"])
    return found


@pytest.mark.parametrize("encoding", sorted(WRITERS))
def test_the_same_seed_gives_the_same_series(encoding):
    one, other = series(seed=5, encoding=encoding), series(seed=5, encoding=encoding)
    for number in range(12):
        records = list(one.next(NOW_US + number))
        assert records == list(other.next(NOW_US + number))
        assert any(record.key == b"subarray/01/antennaNames" for record in records) == (number % 10 == 0)
    assert list(series(seed=6).next(NOW_US)) != list(series(seed=5).next(NOW_US))


@pytest.mark.parametrize("encoding", sorted(WRITERS))
def test_every_attribute_gets_its_metric(encoding):
    flow = QualityFlow(ICD, [1])
    for record in series(encoding=encoding, scan_id=9).next(NOW_US):
        at = {name: getattr(record, name) for name in ("topic", "key", "value", "headers")}
        assert flow.fold(type(record)(**at, timestamp_us=NOW_US), count=True) is USED
    names = {one.name for one in ICD.classes["SdpQuality"].attributes if is_metric(one)}
    assert set(flow.measured[1].newest) == names
    assert flow.measured[1].scan == (9, NOW_US / 1e6)


@pytest.mark.parametrize(("megabytes", "antennas"), [(0.1, 64), (1.0, 64), (3.0, 197), (0.01, 8)])
def test_a_round_is_as_large_as_was_asked_for(megabytes, antennas):
    one = series(antennas=antennas, channels=channels_for(megabytes, antennas=antennas))
    list(one.next(NOW_US))
    records = list(one.next(NOW_US))
    assert sum(len(record.value) for record in records) == pytest.approx(megabytes * 1e6, rel=0.2, abs=2000)
    assert max(len(record.value) for record in records) < ICD.topics["quality"].max_bytes


@pytest.mark.parametrize("megabytes", [0.001, 50.0])
def test_a_size_that_cannot_be_says_what_can(megabytes):
    with pytest.raises(ConfigError, match=r"expected 0\.03\d to 4\.\d MB in a round of 64 antennas"):
        channels_for(megabytes, antennas=64)


def test_there_is_a_bad_antenna_and_interference_and_all_of_it_drifts():
    one = series(antennas=40)
    first = arrays(one)
    assert int(np.argmax(first["noiseAntenna"])) == one.bad
    assert int(np.argmax(first["flaggedFractionAntenna"])) == one.bad
    assert 3 < first["noiseAntenna"][one.bad] / np.median(first["noiseAntenna"]) < 5
    lost = np.isnan(first["visibilityAmplitude"]).all(axis=0)
    assert np.array_equal(lost, first["flaggedFractionChannel"] > 0.5)
    assert 0.05 < lost.mean() < 0.2
    assert np.isnan(np.diag(first["noiseBaseline"])).all()
    assert 0.05 < float(first["flaggedFraction"]) < 0.3
    assert np.median(first["bandpassSpectrum"]) == pytest.approx(1, abs=0.01)
    assert first["channelFrequencies"][-1] == 1760e6
    assert first["antennaNames"][0] == "SKA001"
    for _ in range(20):
        later = arrays(one)
    change = later["noiseAntenna"] / first["noiseAntenna"]
    assert 0.01 < np.std(change) < 0.2


def test_an_encoding_that_nobody_knows_is_refused_before_anything_is_sent():
    result = CliRunner().invoke(app, ["simulate", "quality", "--encoding", "pickle"])
    assert result.exit_code == 2
    assert "npy, arrow, msgpack-numpy" in " ".join(result.output.replace("│", " ").split())
