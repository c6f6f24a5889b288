"""SdpCalibration on the simulation's brokers: the newest complete solution, what is under way, and late starters."""

import json
import math
from typing import Any

import pytest

from facade.flows.tables.flow import TablesFlow, describe
from facade.kernel.bus.port import Record
from facade.kernel.clock import utc_text
from facade.kernel.icd.load import load
from facade.kernel.reading import Quality
from tests.support.commanding import DeviceServers
from tests.support.heaps import BASE_US
from tests.support.tables import announced

ICD = load()
FIRST, SECOND = "mid-sdp/calibration/01", "mid-sdp/calibration/02"
GAINS = "subarray/01/gains"
SUMMARY = {
    "solution_id": "sol-7",
    "source_model": "J1939-6342",
    "valid_from": BASE_US,
    "valid_until": BASE_US + 600_000_000,
    "antennas": ["SKA001", "SKA002"],
    "channels": 4096,
    "polarisations": ["XX", "YY"],
    "flagged_fraction": 0.02,
    "snr": 31.5,
    "amplitude": [[1.0, 1.1], [0.9, None]],
    "phase": [[0.1, 0.2], [-0.3, None]],
    "channel_frequencies": [0.95e9, 1.05e9],
    "antenna_amplitude": [1.05, 0.9],
    "antenna_phase_rms": [0.01, 0.02],
    "antenna_flagged": [0.0, 0.5],
}


class Bench(DeviceServers):
    def __init__(self) -> None:
        super().__init__(c={"SdpCalibration": [FIRST, SECOND]})

    def cycle(self, times: int = 3) -> None:
        super().cycle(times)

    def find(self, kind: type) -> Any:
        ((server, _),) = self.servers
        return server.find(kind)

    def tell(self, state: str = "COMPLETE", product: str = GAINS, table: str = "t1", **more: Any) -> None:
        """Say on the bus what became of a table."""
        if state == "COMPLETE":
            more = {"partition": 2, "first_offset": 5, "last_offset": 24, "summary": SUMMARY, **more}
        self.broker.append(announced(state, table, product, self.clock.now_us(), **more))
        self.cycle()

    def shown(self, name: str, device: str = FIRST) -> Any:
        return self.sink.shown[device, name]


@pytest.fixture
def bench():
    return Bench()


def test_the_newest_complete_solution_is_shown(bench):
    bench.tell()
    for name, value in (
        ("solutionId", "sol-7"),
        ("product", GAINS),
        ("validUntil", BASE_US / 1e6 + 600.0),
        ("validUntilUtc", utc_text(BASE_US + 600_000_000)),
        ("antennas", ("SKA001", "SKA002")),
        ("channels", 4096),
        ("flaggedFraction", 0.02),
        ("transferTime", 1.5),
        ("State", "ON"),
    ):
        assert bench.shown(name).value == value
        assert bench.shown(name).quality is Quality.VALID
    assert json.loads(bench.shown("location").value) == {
        "topic": "calibration",
        "partition": 2,
        "first_offset": 5,
        "last_offset": 24,
    }
    (first, second) = bench.shown("gainAmplitude").value
    assert (first, second[0]) == ((1.0, 1.1), 0.9)
    assert math.isnan(second[1])
    assert (SECOND, "solutionId") not in bench.sink.shown


def test_what_is_said_of_a_table_does_not_name_those_before_it(bench):
    bench.tell(earlier={"t0": "0" * 16})
    found = bench.find(TablesFlow).find("subarray/01/", "t1")
    assert found.earlier == {"t0": "0" * 16}
    assert "earlier" not in describe(found)
    assert describe(found, summary=True).keys() - describe(found).keys() == {"summary"}


def test_what_a_table_does_not_say_is_invalid(bench):
    """An .npy has no times."""
    bench.tell(summary=SUMMARY | {"valid_from": None, "valid_until": None, "snr": None, "channel_frequencies": []})
    for name in ("validFrom", "validUntil", "snr"):
        assert bench.shown(name).quality is Quality.INVALID
    assert (bench.shown("validFromUtc").value, bench.shown("validUntilUtc").value) == ("", "")
    assert bench.shown("flaggedFraction").quality is Quality.VALID
    assert bench.shown("State").value == "ON"


def test_a_product_that_is_removed_is_not_shown_as_valid(bench):
    """A tombstone under its name."""
    bench.tell()
    bench.cycle()
    assert bench.shown("age").quality is Quality.VALID
    bench.broker.append(Record(topic="tables", key=GAINS.encode(), value=None))
    bench.cycle()
    assert bench.shown("solutionId").quality is Quality.INVALID
    assert bench.shown("age").quality is Quality.INVALID
    assert bench.shown("gainAmplitude").quality is Quality.INVALID
    assert bench.shown("tablesComplete").value == 0
    bench.tell(table="t2")
    assert bench.shown("solutionId").quality is Quality.VALID


def test_an_unchanged_image_is_no_new_event(bench):
    """NaN is not equal to itself, and must not look like a change."""
    bench.tell()
    pushed = len(bench.sink.pushed)
    bench.cycle(8)
    assert {name for _, name, _ in bench.sink.pushed[pushed:]} <= {"age"}


def test_a_solution_that_has_expired_says_so(bench):
    bench.tell()
    bench.clock.sleep(601.0)
    bench.cycle()
    assert bench.shown("snr").quality is Quality.WARNING
    assert bench.shown("gainPhase").quality is Quality.WARNING
    assert bench.shown("State").value == "ALARM"
    assert "The solution sol-7 is no longer valid" in bench.shown("Status").value, "the id that solutionId shows"
    assert "sol" not in bench.shown("lastFailure").value
    later = SUMMARY | {"solution_id": "sol-8", "valid_until": BASE_US + 3_600_000_000}
    bench.tell(table="t2", summary=later)
    assert (bench.shown("solutionId").value, bench.shown("snr").quality) == ("sol-8", Quality.VALID)
    assert bench.shown("State").value == "ON"


def test_what_is_under_way_and_what_failed(bench):
    bench.tell("ASSEMBLING", key=f"{GAINS}!t3", table="t3", received=7_000_000)
    (one,) = map(json.loads, bench.shown("assembling").value)
    assert (one["table"], one["received"], one["size"]) == ("t3", 7_000_000, 20_000_000)
    bench.broker.append(Record(topic="tables", key=f"{GAINS}!t3".encode(), value=None))
    bench.tell("FAILED", table="t3", reason="digest: expected 00, got 01")
    assert bench.shown("assembling").value == ()
    assert json.loads(bench.shown("lastFailure").value)["reason"].startswith("digest")
    assert bench.shown("tablesComplete").value == 0


def test_pointing_offsets_are_where_tm_reads_them(bench):
    summary = {"pointing": {"SKA001": [17, 0.5, -0.25], "SKA999": [17, 0.0, 0.0]}}
    bench.tell(product="subarray/01/pointing", kind="pointing", content_type="application/json", summary=summary)
    assert bench.shown("pointing_cal_SKA001").value == (17.0, 0.5, -0.25)
    assert (FIRST, "pointing_cal_SKA999") not in bench.sink.shown
    assert "SKA999" in bench.shown("Status").value


def test_pointing_offsets_that_no_table_has_any_more_are_invalid(bench):
    def tell(table, **pointing):
        more = {"product": product, "kind": "pointing", "content_type": "application/json"}
        bench.tell(table=table, summary={"pointing": pointing}, **more)
        return {dish: bench.shown(f"pointing_cal_{dish}").quality for dish in ("SKA001", "SKA002")}

    product, valid, invalid = "subarray/01/pointing", Quality.VALID, Quality.INVALID
    assert tell("p1", SKA001=[17, 0.5, -0.25], SKA002=[17, 0.1, 0.1]) == {"SKA001": valid, "SKA002": valid}
    assert tell("p2", SKA001=[18, 0.4, -0.2]) == {"SKA001": valid, "SKA002": invalid}
    bench.broker.append(Record(topic="tables", key=product.encode(), value=None))
    bench.cycle()
    assert bench.shown("pointing_cal_SKA001").quality is invalid
    assert tell("p3", SKA002=[19, 0.1, 0.1]) == {"SKA001": invalid, "SKA002": valid}


@pytest.mark.parametrize(
    ("summary", "reason"),
    [
        (SUMMARY | {"amplitude": [["x"]]}, "summary"),
        ({"antennas": 7}, "summary"),
        ({}, "summary"),
        (SUMMARY | {"amplitude": [[1.0, 2.0], [1.0]]}, "summary"),
        (SUMMARY | {"channels": 10**30}, "summary"),
        (SUMMARY | {"channels": 2**31}, "summary"),
        (SUMMARY | {"antenna_count": -1}, "summary"),
        (SUMMARY | {"valid_until": 10**300}, "summary"),
    ],
)
def test_a_summary_of_another_form_is_a_dead_letter(bench, summary, reason):
    bench.tell()
    bench.tell(table="t9", summary=summary)
    assert bench.shown("solutionId").value == "sol-7"
    (letter,) = bench.broker.read("dead-letters")
    assert dict(letter.headers)["dl.reason"].decode() == reason


@pytest.mark.parametrize("summary", [{"note": "pyarrow is not installed"}, "x", [], 0])
def test_a_table_that_nobody_looked_into_is_listed_and_changes_no_figure(bench, summary):
    bench.tell()
    bench.tell(table="t9", summary=summary)
    assert bench.shown("solutionId").value == "sol-7"
    assert [one.table for one in bench.find(TablesFlow).of("subarray/01/")] == ["t9"]
    assert bench.broker.read("dead-letters") == []
