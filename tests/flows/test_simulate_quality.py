"""The simulated receive pipeline: repeatable, of the size that was asked for, and as real data are."""

import json

import numpy as np
import pytest

from facade.flows.quality.flow import QualityFlow, is_metric
from facade.flows.quality.records import decode
from facade.flows.quality.simulator import QualityScenario, QualitySeries
from facade.kernel.icd.load import load
from facade.kernel.outcome import USED
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
def test_every_attribute_gets_its_metric(encoding):
    flow = QualityFlow(ICD, [1])
    for record in series(encoding=encoding, scan_id=9).next(NOW_US):
        at = {name: getattr(record, name) for name in ("topic", "key", "value", "headers")}
        assert flow.fold(type(record)(**at, timestamp_us=NOW_US), count=True) is USED
    names = {one.name for one in ICD.classes["SdpQuality"].attributes if is_metric(one)}
    assert set(flow.measured[1].newest) == names
    assert flow.measured[1].scan == (9, NOW_US)


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
