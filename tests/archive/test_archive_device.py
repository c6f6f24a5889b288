"""SdpArchive shows what a worker of the archive reports, as long as it is fresh; no archive, no device."""

from typing import Any

import pytest

from facade.archive.reports import REPORTS
from facade.kernel.config import load_settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.instances import instances
from facade.kernel.reading import Quality
from facade.sdp.device_state import StateMessage, state_record
from tests.support.commanding import DeviceServers

ICD = load()
DEVICE = "mid-sdp/archive/0"
VALUES = {"behind": "42", "writeRate": "1000000", "newestFile": "f", "errors": "3", "lastError": "e", "diskFree": "5"}


class Bench(DeviceServers):
    """A device server with the device of a worker."""

    def __init__(self) -> None:
        super().__init__(archive={"SdpArchive": [DEVICE]})

    def report(self, **values: str) -> None:
        time = self.clock.now_us()
        for name, value in (values or VALUES).items():
            message = StateMessage(device=DEVICE, attribute=name, value=value, time=time, origin="archive-0")
            self.broker.append(state_record(message, REPORTS))

    def run(self, seconds: float = 2.0) -> dict[str, Any]:
        self.cycle(round(seconds / self.pause))
        return {name: one.value for (_, name), one in self.sink.shown.items() if one.quality is Quality.VALID}

    @property
    def complaints(self) -> list[str]:
        ((server, _),) = self.servers
        return [one.text for one in server._complaints()]


@pytest.fixture
def bench() -> Bench:
    return Bench()


SHOWN = {"behind": 42, "writeRate": 1000000, "newestFile": "f", "errors": 3, "lastError": "e", "diskFree": 5}


def test_what_a_worker_reports_is_shown(bench: Bench) -> None:
    bench.report()
    shown = bench.run()
    assert {name: shown[name] for name in SHOWN} == SHOWN
    assert (shown["State"], shown["connected"], bench.complaints) == ("ON", True, [])


def test_a_worker_that_is_away_is_a_problem_of_its_device(bench: Bench) -> None:
    assert bench.run()["State"] == "ALARM"
    assert bench.complaints == ["state is ALARM: No worker has reported yet."]
    for _ in range(6):
        bench.report()
        assert bench.run(10)["State"] == "ON"
    shown = bench.run(30)
    assert shown["State"] == "ALARM"
    assert SHOWN.keys() & shown.keys() == {"newestFile", "errors", "lastError"}, "these stay true"
    assert bench.complaints == ["state is ALARM: The worker has not reported since 2027-01-15 08:00:55 UTC."]
    bench.report()
    assert bench.run()["State"] == "ON"


def test_a_restart_shows_the_last_report_and_never_an_old_one_as_fresh(bench: Bench) -> None:
    bench.report()
    bench.run()
    bench.start()
    assert bench.run()["behind"] == 42
    bench.clock.sleep(60)
    bench.start()
    bench.run()
    pushed = [reading for _, name, reading in bench.sink.pushed if name == "behind"]
    assert {one.quality for one in [bench.sink.shown[DEVICE, "behind"], *pushed]} == {Quality.INVALID}


def test_a_deployment_has_the_device_only_where_it_is_wanted() -> None:
    assert "archive" not in instances(ICD, load_settings({}))
    assert "archive" in instances(ICD, load_settings({"SDP_ARCHIVES": "1"}))
    with pytest.raises(ConfigError, match="archives: expected at least 0, got -1"):
        load_settings({"SDP_ARCHIVES": "-1"})
