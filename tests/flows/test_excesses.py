"""Values beyond their alarm limits: from the columns of a device server to the health of SDP and its alarms."""

from types import SimpleNamespace

import numpy as np
import pytest

from facade.flows.telemetry.composition import TelemetryHealth
from facade.flows.telemetry.excesses import Excesses
from facade.flows.telemetry.plan import RECENT, plans
from facade.flows.telemetry.view import TelemetryView
from facade.kernel.clock import ManualClock, as_seconds, as_time
from facade.kernel.icd.load import load
from facade.kernel.icd.topic_model import Limits
from facade.kernel.reading import QUALITIES, Quality
from facade.kernel.runtime.columns import ColumnArrays
from facade.kernel.runtime.health_issues import ORIGIN
from tests.support.overview import INSTANCES, NOW, health_of, judgement_of, overview, signs_of_life

ICD = load()
DEVICES = ("mid-sdp/ingest/0000", "mid-sdp/ingest/0001")
WELL, ILL = "VALID", "ALARM"


class Column(SimpleNamespace):
    """A column whose qualities are given."""

    attribute, devices = "packetLossFraction", DEVICES
    limits: Limits | None = Limits(max_warning=1e-3, max_alarm=1e-2)
    shown: tuple[str, ...] = (WELL, WELL)

    def arrays(self) -> ColumnArrays:
        numbers = [QUALITIES.index(Quality[one]) for one in self.shown]
        return ColumnArrays(np.zeros(2), np.zeros(2, dtype=np.int64), np.array(numbers))


def test_an_excess_is_told_while_the_figures_of_its_node_have_it() -> None:
    """The page has figures of ten seconds: one of them was red when the window beyond the limit had passed."""
    clock, loss, drops = ManualClock(NOW), Column(), Column(attribute="bufferDropped", limits=Limits(max_alarm=1))
    excesses = Excesses([loss, drops], clock)  # type: ignore[list-item]

    def told() -> list[str]:
        return [f"{one.device} {one.text.partition(': ')[2]}" for one in excesses.complaints()]

    assert told() == []
    loss.shown = (WELL, ILL)
    assert told() == [f"{DEVICES[1]} packetLossFraction (from 0.01)"]
    loss.shown, drops.shown = (WELL, WELL), (ILL, ILL)
    both = f"{DEVICES[1]} packetLossFraction (from 0.01), bufferDropped (from 1)"
    assert told() == [f"{DEVICES[0]} bufferDropped (from 1)", both]
    drops.shown = (WELL, WELL)
    clock.sleep(as_seconds(RECENT) - 0.1)
    assert len(told()) == 2, "one window of the last ten seconds"
    clock.sleep(0.2)
    assert told() == []


@pytest.mark.parametrize(
    ("limits", "quality", "said"),
    [
        (Limits(min_alarm=2.0), ILL, "up to 2"),
        (Limits(min_alarm=2.0, max_alarm=5.0), ILL, "up to 2 or from 5"),
        (Limits(max_alarm=5.0), "WARNING", ""),
        (Limits(max_alarm=5.0), "INVALID", ""),
        (Limits(max_warning=5.0), ILL, ""),
        (None, ILL, ""),
    ],
)
def test_only_a_valid_value_at_an_alarm_limit_is_an_excess(limits: Limits | None, quality: str, said: str) -> None:
    excesses = Excesses([Column(limits=limits, shown=(quality, WELL))], ManualClock(NOW))  # type: ignore[list-item]
    found = [one.text for one in excesses.complaints()]
    assert (f"({said})" in found[0]) if said else not found


def test_each_alarm_limit_of_a_node_is_watched() -> None:
    entry = ICD.classes["SdpIngestNode"]
    views = [TelemetryView(entry, plan, {DEVICES[0]: 0}) for plan in plans(ICD).values()]
    excesses = Excesses((column for one in views for column in one.columns), ManualClock(NOW))
    limited = {one.name for one in entry.attributes if one.limits and one.limits.max_alarm is not None}
    assert {one.column.attribute for one in excesses._watched} == limited
    assert {"packetLossFraction", "latencyP99", "bufferDropped"} < limited


def complaining(*nodes):
    texts = {f"mid-sdp/ingest/{node:04d}": "packetLossFraction" for node in nodes}
    return {"SdpFacade-ingest-00": [(one, text, "", [f"{one}: {text}"]) for one, text in texts.items()]}


def judged(**change):
    return judgement_of(overview(**change))


def test_a_node_beyond_a_limit_is_one_reason_with_an_alarm():
    """The page showed a node in red beside OK, as no limit of a node was a reason for anything."""
    shown = overview(heartbeats=signs_of_life(complaints=complaining(1)))
    assert health_of(shown) == ("DEGRADED", ("mid-sdp/ingest/0001: packetLossFraction",))
    (finding,) = judgement_of(shown).findings
    assert (finding.alarm, finding.severity) == ("nodeDegraded@ingest/0001", "ALARM")
    assert finding.do == ICD.conditions["nodeDegraded"].response
    assert {*(shown.find(as_time(NOW)) or ())} == {("nodeDegraded", "ingest/0001")}


def test_an_excess_of_a_device_of_the_overview_itself_is_a_reason():
    """Storage that was 96 % full was red on the page beside OK."""
    column = Column(attribute="storageUsedFraction", devices=("mid-sdp/control/0", "x"), shown=(ILL, WELL))
    own = [*Excesses([column], ManualClock(NOW)).complaints()]  # type: ignore[list-item]
    found = judged(excesses=own)
    assert found.state == "DEGRADED"
    assert "storageUsedFraction" in found.findings[0].text


@pytest.mark.parametrize(("silent", "is_known"), [((), True), (("SdpFacade-ingest-00",), False)])
def test_an_excess_ends_only_by_the_word_of_the_server_that_shows_the_node(silent, *, is_known):
    shown = overview(heartbeats=signs_of_life(silent=silent, instances=INSTANCES, until=NOW))
    health_of(shown)
    health = next(one for one in shown._flows if isinstance(one, TelemetryHealth))
    key = ("nodeDegraded", "ingest/0001")
    assert shown.finds(key)
    assert not shown.finds(("nodeDegraded", ORIGIN))
    assert health.judges(key) == is_known
    assert health.judges(("streamLate", "ingest/0001"))
