"""What the fault run, and the thinking about it, found wrong on the way of the alerts."""

import json

import pytest
import tango

from devices.kernel.mapping import tango_attribute, tango_text, to_tango
from facade.kernel.reading import Reading
from tests.support.alerting import Bench
from tests.support.commanding import ICD


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def server(bench):
    return bench.server()


def entries(server, sequence: int = 0) -> list[dict]:
    return json.loads(server.api.since(sequence))["entries"]


TEXT = "5 µs → 😀 \\u00b5"


def test_no_panel_of_alerts_has_a_row_as_wide_as_an_alert():
    """D26: ATKPanel shows each scalar that is not for experts in a row, all as wide as the longest text."""
    texts = [one for one in ICD.classes["SdpAlerts"].attributes if one.type == "DevString" and not one.length]
    assert {one.name for one in texts if not one.expert} == {"versionId"}
    (wide,) = (one for one in texts if one.name == "lastAlert")
    assert tango_attribute(ICD, wide).display_level is tango.DispLevel.EXPERT


def test_a_text_of_any_language_gets_through_tango_which_knows_only_latin_1(bench, server):
    bench.alert(text=TEXT)
    server.cycle()
    attributes = {entry.name: entry for entry in ICD.classes["SdpAlerts"].attributes}
    (event,) = (reading for _, name, reading in server.sink.pushed if name == "lastAlert")
    carried, _, _ = to_tango(ICD, attributes["lastAlert"], event)
    assert carried.isascii()
    assert json.loads(carried)["alert"]["text"] == TEXT
    ((active,), _, _) = to_tango(ICD, attributes["activeAlerts"], Reading(server.shows("activeAlerts"), 0.0))
    assert active.isascii()
    assert json.loads(active)["text"] == TEXT
    assert json.loads(tango_text(server.api.since(0)))["entries"][0]["alert"]["text"] == TEXT


def test_an_action_that_took_effect_is_still_there_after_its_alarm_was_forgotten_and_a_restart(bench, server):
    bench.alert()
    server.cycle()
    server.acknowledge(comment="seen")
    bench.alert(state="CLEARED")
    server.cycle()
    server.act("RemoveFromService", "REMOVE_FROM_SERVICE", source="receive/1", comment="maintenance")
    server.act("ReturnToService", "RETURN_TO_SERVICE")
    server.cycle(seconds=700.0)  # at rest for so long that it is forgotten
    server.cycle(seconds=2.1)
    before = entries(server)
    assert [entry["sequence"] for entry in before] == [1, 2, 3, 4, 5]
    again = bench.server()
    again.cycle()
    assert entries(again) == before


def test_a_refused_action_stays_refused_when_the_server_is_killed_before_its_next_snapshot(bench, server):
    server.cycle(seconds=2.1)
    bench.alert()
    server.cycle(1, seconds=0.0)
    bench.action("ACKNOWLEDGE", occurrence=0)
    bench.alert(severity="CRITICAL")
    server.cycle(1, seconds=0.0)  # the states are written, and the place to go on from is not
    before = entries(server)
    assert [entry["sequence"] for entry in before] == [1, 3]
    again = bench.server()
    again.cycle()
    assert entries(again) == before
