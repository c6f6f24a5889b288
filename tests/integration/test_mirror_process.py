"""Attributes of devices in other processes are mirrored to the bus, through deaths of the devices and of the mirror."""

import itertools
import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from streaming_data_types import deserialise_al00, deserialise_f144

from facade.flows.mirror import cli
from facade.flows.mirror.messages import (
    TelescopeAttribute,
    attribute_record,
)
from facade.flows.mirror.streaming import STREAMING
from facade.flows.mirror.telescope_model import TelescopeModel
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.sdp.device_state import StateMessage, state_record
from tests.conftest import Deploy
from tests.support.deployment import CLOCK, Deployment
from tests.support.telescope import Mirrored, add_dish, start_dish
from tests.support.waiting import HANG, until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

DISH, MIRROR, SUBARRAY = "mid-dish/dish-manager/ska001", "mid-sdp/mirror/01", "mid-sdp/subarray/01"


class Model(Mirrored):
    """The newest records of the dish."""

    def newest(self, attribute: str, device: str = DISH) -> TelescopeAttribute | None:
        found = self.take().get(f"{device}/{attribute}".lower())
        return found[-1] if found else None

    def shows(self, attribute: str, value: Any, connection: str = "CONNECTED") -> TelescopeAttribute:
        def found() -> TelescopeAttribute | None:
            newest = self.newest(attribute)
            fits = newest is not None and (newest.value, newest.connection) == (value, connection)
            return newest if fits else None

        return until(found, f"{attribute} is {value!r}, {connection}")


def reported(bus: KafkaBus) -> list[str]:
    """Return what alerts have said of the dish."""
    alerts = [json.loads(record.value or b"{}") for record in bus.read_all("alerts")]
    return [one["state"] for one in alerts if (one["condition"], one["source"]) == ("mirrorDisconnected", DISH)]


WANTED = {
    "azimuth": (1.5, "DevDouble"),
    "source": ("Vela", "DevString"),
    "band": (1, "DevEnum"),
    "achievedPointing": ([0.0, 181.25, 45.5], "DevDouble"),
    "beam": ([[1, 2, 3], [4, 5, 6]], "DevLong64"),
    "flags": ([True, False], "DevBoolean"),
    "State": ("ON", "DevState"),
    "temperature": (20.0, "DevDouble"),
    "blob": ({"format": "raw", "data": "AAH/"}, "DevEncoded"),
}
"""What the device shows at first: each kind of value, of which the last two are not pushed."""


def test_attributes_are_mirrored_through_deaths(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind of value; the device dies and comes back; the mirror dies while values come: no gap is unsaid."""
    deployment = deploy(nodes=1, mirror_forms="f144,al00")
    add_dish(deployment, DISH)
    dish, mirror = start_dish(deployment, DISH), deployment.server("mirror")
    model = Model(deployment)
    model.rule("dish", f"{DISH}/*", f"{MIRROR}/gaps")
    for name, (value, kind) in WANTED.items():
        found = model.shows(name, value)
        assert (found.type, found.quality, found.number, found.gap) == (kind, "VALID", 1, False)
    assert model.newest("band").label == "B1"
    assert "the sensor is broken" in model.newest("broken").error
    figures = {"mirrored": 11, "polled": 4, "disconnected": 0, "gaps": 0}
    until(lambda: deployment.read(MIRROR, *figures) == figures, "the device shows what is mirrored")
    assert "the facade's own devices" in deployment.read_one(MIRROR, "rulesRefused")[0]

    values = itertools.cycle((math.nan, 1.5))

    def is_pushed() -> bool:
        """Change it until an event tells so: those before Tango has made the connection are lost, and reads tell."""
        change(deployment, azimuth=next(values))
        newest = model.newest("azimuth")
        return newest is not None and newest.by == "EVENT"

    until(is_pushed, "a value comes as an event")
    change(deployment, azimuth=math.nan, State="FAULT", temperature=21.0)
    model.shows("azimuth", "NaN")
    model.shows("State", "FAULT")
    assert model.shows("temperature", 21.0).by == "POLL"

    dish.kill()
    model.shows("achievedPointing", [0.0, 181.25, 45.5], "DISCONNECTED")
    until(lambda: str(deployment.proxy(MIRROR).state()) == "ALARM", "the device says so")
    until(lambda: reported(model.bus) == ["ACTIVE"], "an alert says so")
    start_dish(deployment, DISH)
    assert model.shows("azimuth", 1.5).gap

    until(lambda: deployment.read_one(MIRROR, "polled") == 4, "all is subscribed to again")
    until(lambda: reported(model.bus) == ["ACTIVE", "CLEARED"], "the alert is cleared")
    change(deployment, azimuth=0.0)
    model.shows("azimuth", 0.0)  # before the mirror is killed: of what comes next a busy one may not have written any
    for value in range(1, 300):
        change(deployment, azimuth=float(value))
        if value == 100:
            mirror.kill()
            mirror = deployment.server("mirror", ready=False)
    deployment.await_server(mirror, "mirror")
    model.shows("azimuth", 299.0)
    records = {one.number: one for one in model.take()[f"{DISH}/azimuth"]}.values()
    for before, after in itertools.pairwise(records):
        assert after.number == before.number + 1
        # An event may tell again what a read has told.
        assert after.gap or before.value in ("NaN", 1.5) or after.value in (before.value, before.value + 1)

    another_writes(model, deployment)
    flatbuffers = [
        record.value or b"" for record in model.bus.read_all(STREAMING) if record.key == f"{DISH}/azimuth".encode()
    ]
    assert {deserialise_f144(one).value for one in flatbuffers if one[4:8] == b"f144"} >= {1.5, 0.0, 299.0}
    alarms = [deserialise_al00(one).severity.name for one in flatbuffers if one[4:8] == b"al00"]
    assert {*alarms} == {"OK", "INVALID"}, "the dish was away for a while"
    with TelescopeModel(deployment.settings) as telescope:
        assert telescope.wait(HANG)
        known = telescope.at(CLOCK.now(), f"{DISH}/azimuth", f"{DISH}/achievedPointing")
        assert [(list(np.atleast_1d(one.value)), one.quality) for one in known.values()] == [
            ([299.0], "VALID"),
            ([0.0, 181.25, 45.5], "VALID"),
        ]

    for name, value in deployment.variables.items():
        monkeypatch.setenv(name, value)
    cli.add("more", [f"{DISH}/source"])
    cli.replace("dish", [f"{DISH}/azimuth", f"{DISH}/flags"])
    model.shows("temperature", 20.0, "ENDED")
    cli.remove("dish", [f"{DISH}/azimuth"])
    model.shows("azimuth", 299.0, "ENDED")
    cli.remove("dish")
    model.shows("flags", [True, False], "ENDED")
    capsys.readouterr()
    cli.list_rules()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["rule", "more"]
    for pointing, connection in (([f"{DISH}/azimuth"], "CONNECTED"), ([], "ENDED")):
        said = json.dumps(pointing)
        report = StateMessage(device=SUBARRAY, attribute="pointingAttributes", value=said, time=1, origin="controller")
        model.bus.writer().send_durably(state_record(report), HANG)
        model.shows("azimuth", 299.0, connection)
    model.close()
    assert mirror.terminate() == 0


def another_writes(model: Model, deployment: Deployment) -> None:
    """Write as another mirror would: the device says so."""
    newest = model.newest("azimuth")
    assert newest is not None
    assert newest.epoch == 2, "the second mirror of this deployment"
    assert deployment.read_one(MIRROR, "otherMirrors") == ()
    other = msgspec.structs.replace(newest, incarnation="another", epoch=1, name=f"{DISH}/of-another")

    def is_seen() -> bool:
        model.bus.writer().send_durably(attribute_record(other), HANG)
        return deployment.read_one(MIRROR, "otherMirrors") == ("another",)

    until(is_seen, "the device says that another mirror writes")
    until(lambda: "another" in (deployment.read_one(MIRROR, "Status") or ""), "its Status says so")


def change(deployment: Deployment, **values: object) -> None:
    deployment.proxy(DISH).command_inout("Set", json.dumps(values))
