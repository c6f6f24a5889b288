"""SdpQuality on the simulation's brokers: the newest metric of each name, what stops, and what cannot be shown."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from devices.kernel.mapping import to_tango
from facade.flows.quality.flow import AHEAD, BEHIND
from facade.kernel.bus.port import Record
from facade.kernel.icd.load import load
from facade.kernel.reading import Quality
from tests.support.commanding import DeviceServers
from tests.support.heaps import BASE_US
from tests.support.metrics import WRITERS, metric

ICD = load()
FIRST, SECOND = "mid-sdp/quality/01", "mid-sdp/quality/02"
LIMIT = ICD.classes["SdpQuality"].stale_after


class Bench(DeviceServers):
    def __init__(self) -> None:
        super().__init__(q={"SdpQuality": [FIRST, SECOND]})

    def start(self) -> None:
        super().start()
        ((self.service, self.reader),) = self.servers

    def cycle(self, times: int = 2) -> None:
        super().cycle(times)

    @property
    def now_us(self) -> int:
        return self.clock.now_us()

    def tell(self, name: str, value: Any, **changes: Any) -> None:
        """Say a metric on the bus."""
        self.give(metric(name, value, **{"time": self.now_us, **changes}))

    def give(self, *records: Record) -> None:
        for record in records:
            self.broker.append(record)
        self.cycle()

    def shown(self, name: str, device: str = FIRST) -> Any:
        return self.sink.shown[device, name]

    def letters(self) -> list[str]:
        return [dict(letter.headers)["dl.reason"].decode() for letter in self.broker.read("dead-letters")]

    @property
    def account(self) -> Any:
        account = self.service.event_loop.accounts["quality"]
        assert account.balance == 0
        return account


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.parametrize("encoding", sorted(WRITERS))
def test_a_metric_is_shown_by_the_attribute_of_its_name(bench, encoding):
    at = bench.now_us - 1_000_000
    bench.tell("flaggedFraction", 0.125, encoding=encoding, time=at, scan_id=17)
    bench.tell("noiseAntenna", np.array([1.5, np.nan, np.inf], np.float32), unit="Jy", encoding=encoding)
    bench.tell("flaggedFractionBaseline", np.array([[0.5, 0.25], [0.25, 0.0]]), encoding=encoding)
    bench.tell("antennaNames", np.array(["SKA001", "MKT000"]), encoding=encoding)
    assert (bench.shown("flaggedFraction").value, bench.shown("flaggedFraction").time) == (0.125, at)
    first, *rest = bench.shown("noiseAntenna").value
    assert first == 1.5
    assert all(map(math.isnan, rest))
    assert bench.shown("flaggedFractionBaseline").value == ((0.5, 0.25), (0.25, 0.0))
    assert bench.shown("antennaNames").value == ("SKA001", "MKT000")
    assert (bench.shown("scanID").value, bench.shown("scanID").time) == (17, at)
    assert {bench.shown(name).quality for name in ("flaggedFraction", "noiseAntenna")} == {Quality.VALID}
    assert bench.shown("State").value == "ON"
    assert (SECOND, "flaggedFraction") not in bench.sink.shown
    assert (bench.account.used, bench.letters()) == (4, [])


def test_an_image_in_tangos_form(bench):
    bench.tell("noiseBaseline", np.ones((3, 3), np.float32), unit="Jy")
    entry = next(one for one in ICD.classes["SdpQuality"].attributes if one.name == "noiseBaseline")
    value, _, _ = to_tango(ICD, entry, bench.shown("noiseBaseline"))
    assert value == [[1.0] * 3] * 3


def test_a_metric_that_stops_is_invalid_by_the_wall_clock_and_the_others_are_not(bench):
    bench.tell("channelFrequencies", np.array([1e9, 2e9]), unit="Hz")
    bench.tell("flaggedFraction", 0.1)
    bench.tell("flaggedFractionAntenna", np.array([0.1, 0.2]))
    came = bench.clock.now()
    while bench.clock.now() - came < LIMIT - 1.0:
        assert bench.shown("flaggedFractionAntenna").quality is Quality.VALID
        bench.tell("flaggedFraction", 0.1)
    bench.tell("flaggedFraction", 0.1)
    bench.cycle()
    assert bench.shown("flaggedFractionAntenna").quality is Quality.INVALID
    assert bench.shown("flaggedFractionAntenna").value == (0.1, 0.2)
    stopped = [reading.quality for _, name, reading in bench.sink.pushed if name == "flaggedFractionAntenna"]
    assert stopped == [Quality.VALID, Quality.INVALID]
    assert bench.shown("flaggedFraction").quality is Quality.VALID
    assert bench.shown("channelFrequencies").quality is Quality.VALID
    assert "Stopped, or without a number: flaggedFractionAntenna." in bench.shown("Status").value
    bench.tell("flaggedFractionAntenna", np.array([0.3]))
    assert bench.shown("flaggedFractionAntenna").quality is Quality.VALID


@pytest.mark.parametrize(
    ("value", "quality", "state"),
    [(0.1, Quality.VALID, "ON"), (0.3, Quality.WARNING, "ALARM"), (0.9, Quality.ALARM, "ALARM")],
)
def test_limits_of_the_icd_hold(bench, value, quality, state):
    bench.tell("flaggedFraction", value)
    assert bench.shown("flaggedFraction").quality is quality
    assert bench.shown("State").value == state
    assert ("Beyond their limits: flaggedFraction." in bench.shown("Status").value) == (state == "ALARM")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_invalid(bench, value):
    bench.tell("flaggedFraction", value)
    bench.tell("noiseBaseline", np.full((2, 2), value), unit="Jy")
    for name in ("flaggedFraction", "noiseBaseline"):
        assert bench.shown(name).quality is Quality.INVALID
    assert bench.shown("State").value == "ON"


REFUSED = {
    "another shape": (metric("noiseAntenna", [1.0, 2.0], unit="Jy", shape=[3]), "shape"),
    "another type": (metric("noiseAntenna", [1.0], unit="Jy", dtype="int32"), "dtype"),
    "axes that the attribute has not": (metric("noiseAntenna", [[1.0]], unit="Jy"), "shape"),
    "numbers for names": (metric("antennaNames", [1.0]), "dtype"),
    "another unit": (metric("noiseAntenna", [1.0], unit="Hz"), "unit"),
    "three axes": (metric("noiseBaseline", [[[1.0]]], unit="Jy"), "schema"),
    "another version": (metric("noiseAntenna", [1.0], unit="Jy", schema="metric/2"), "version"),
    "far ahead": (metric("noiseAntenna", [1.0], unit="Jy", time=BASE_US + 3_600_000_000), "ahead"),
    "no header": (Record(topic="quality", key=b"subarray/01/noiseAntenna", value=b"x"), "no-header"),
    "a header that is no JSON": (
        Record(topic="quality", key=b"k", value=b"x", headers=(("metric", b"\x80"),)),
        "not-json",
    ),
    "another key": (
        Record(
            topic="quality",
            key=b"subarray/02/flaggedFraction",
            value=b"x",
            headers=metric("flaggedFraction", 1.0).headers,
        ),
        "key",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_record_that_cannot_be_used_is_a_dead_letter_and_changes_nothing(bench, what):
    record, reason = REFUSED[what]
    bench.tell("noiseAntenna", np.array([7.0]), unit="Jy")
    bench.give(record)
    assert bench.letters() == [reason]
    (letter,) = bench.broker.read("dead-letters")
    assert letter.value == record.value
    assert bench.shown("noiseAntenna").value == (7.0,)
    assert (bench.account.consumed, bench.account.used) == (2, 1)


def test_times_are_judged_by_the_brokers_clock(bench):
    for seconds in (AHEAD / 1e6 - 0.1, -BEHIND / 1e6 + 0.1):
        bench.tell("flaggedFraction", 0.25, time=bench.now_us + round(seconds * 1e6))
        assert bench.shown("flaggedFraction").quality is Quality.VALID
    bench.tell("flaggedFraction", 0.5, time=bench.now_us - BEHIND - 100_000)
    bench.tell("flaggedFraction", 0.5, time=bench.now_us + (AHEAD + 100_000))
    assert bench.shown("flaggedFraction").value == 0.25
    assert (bench.account.reasons["late"], bench.account.suppressed, bench.letters()) == (1, 1, ["ahead"])


def test_a_metric_that_no_attribute_has_the_name_of_is_named(bench):
    bench.tell("uvCoverage", [[1.0]])
    bench.tell("connected", 1.0)
    assert bench.shown("unknownMetrics").value == ("connected", "uvCoverage")
    assert bench.shown("connected").value is True
    assert "no attribute has the name of: connected, uvCoverage." in bench.shown("Status").value
    assert (bench.account.suppressed, bench.letters()) == (2, [])
    for number in range(100):
        bench.broker.append(metric(f"m{number}", 1.0))
    bench.cycle()
    assert len(bench.shown("unknownMetrics").value) == 64
    assert "m99" in bench.shown("unknownMetrics").value, "the newest names are those that are looked for"
    bench.give(Record(topic="quality", key=b"subarray/01/uvCoverage", value=None))
    assert "uvCoverage" not in bench.shown("unknownMetrics").value


def test_a_metric_that_is_removed_is_invalid(bench):
    bench.tell("channelFrequencies", np.array([1.0]), unit="Hz")
    bench.give(Record(topic="quality", key=b"subarray/01/channelFrequencies", value=None))
    assert bench.shown("channelFrequencies").quality is Quality.INVALID
    assert not [one for find in bench.service.complaints for one in find()], "nobody expects it any more"
    bench.give(Record(topic="quality", key=None, value=None))
    assert bench.account.reasons["tombstone"] == 2


def test_the_rate_is_that_of_the_last_seconds(bench):
    bench.cycle(4)
    for _ in range(30):
        for name in ("flaggedFraction", "channelFrequencies"):
            bench.broker.append(metric(name, 0.1 if name == "flaggedFraction" else [1.0], time=bench.now_us, unit=""))
        bench.cycle(1)
    assert bench.shown("metricsRate").value == pytest.approx(2.0, abs=0.3)  # the unit of the other one is wrong
    bench.clock.sleep(30.0)
    bench.cycle(4)
    assert bench.shown("metricsRate").value == 0.0


def test_a_longer_array_is_shown_as_means_of_blocks(bench):
    spectrum = np.arange(10_000, dtype=np.float64)
    bench.tell("bandpassSpectrum", spectrum)
    shown = bench.shown("bandpassSpectrum").value
    assert len(shown) == 2000
    assert shown[:3] == (2.0, 7.0, 12.0)
    bench.tell("visibilityAmplitude", np.ones((400, 1000), np.float32), unit="Jy")
    assert np.shape(bench.shown("visibilityAmplitude").value) == (197, 64)
    bench.tell("antennaNames", np.array([f"A{number}" for number in range(394)]))
    assert bench.shown("antennaNames").value[:2] == ("A0", "A2")


BAD = {
    "late": lambda bench: metric("flaggedFraction", 0.9, time=bench.now_us - (BEHIND + 1_000_000)),
    "no header": lambda bench: replace(metric("flaggedFraction", 0.9, time=bench.now_us), headers=()),
    "no array": lambda bench: replace(metric("flaggedFraction", 0.9, time=bench.now_us), value=b"x"),
    "another unit": lambda bench: metric("flaggedFraction", 0.9, time=bench.now_us, unit="Jy"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_record_does_not_replace_the_good_one_at_a_restart(bench, kind):
    """The topic is compacted: the good record is gone from it. What only the publisher remembers never gets old."""
    bench.tell("flaggedFraction", 0.1, scan_id=17)
    names, frequencies = np.array(["SKA001", "MKT000"]), np.array([1e9, np.nan])
    bench.tell("antennaNames", names)
    bench.tell("channelFrequencies", frequencies, unit="Hz")
    bench.give(BAD[kind](bench), replace(metric("antennaNames", names), value=b"x"))
    bench.give(replace(metric("channelFrequencies", frequencies, unit="Hz"), value=b"x"))
    bench.cycle(4)  # a snapshot
    for _ in range(2):  # the value stays in the snapshots
        for partition in bench.broker.model.topics["quality"].partitions:
            partition.compact()
        bench.start()
        assert bench.shown("antennaNames").value == ("SKA001", "MKT000")
        first, second = bench.shown("channelFrequencies").value
        assert first == 1e9
        assert math.isnan(second)
        assert bench.shown("flaggedFraction").value == 0.1
        assert {bench.shown(name).quality for name in ("antennaNames", "channelFrequencies")} == {Quality.VALID}
        assert bench.shown("scanID").value == 17
        assert "No metric has come yet" not in bench.shown("Status").value
        bench.clock.sleep(LIMIT)
        bench.cycle(4)
        assert bench.shown("flaggedFraction").quality is Quality.INVALID, "it has stopped"
    bench.tell("flaggedFraction", 0.2)
    assert bench.shown("flaggedFraction").value == 0.2
    bench.give(replace(metric("antennaNames", np.array(["SKA001"])), value=None))
    bench.cycle(4)
    bench.start()
    assert bench.shown("flaggedFraction").value == 0.2
    assert bench.shown("antennaNames").quality is Quality.INVALID, "a tombstone removes it"
