"""The interface, the names and the rights of a deployment of another telescope than the interface's own."""

import json
from unittest.mock import MagicMock

import pytest

from devices.pruning import find_surplus
from facade.admin import rights
from facade.admin.quotas import name_of
from facade.kernel.clock import ManualClock
from facade.kernel.config import Settings, load_settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.load import load
from facade.kernel.icd.telescope import instance_of, is_foreign, of_telescope
from facade.kernel.instances import instances, registration
from facade.simulate.array import LOW, MID, array_of

pytestmark = pytest.mark.needs("tools")

MID_ICD = load()
LOW_ICD = of_telescope(MID_ICD, "low")
LOW_SETTINGS = Settings(telescope="low", prefix="low.")


def test_a_deployment_has_its_own_names_and_none_of_the_other_telescope():
    registered = json.dumps(registration(LOW_ICD, LOW_SETTINGS)["servers"])
    texts = [text for one in LOW_ICD.conditions.values() for text in (one.description, one.check, one.response)]
    commanded = [one.device for one in LOW_ICD.commanded.values()]

    assert "mid" not in registered.lower()
    assert not [text for text in (*texts, *commanded) if "mid-" in text]
    assert '"low-sdp/subarray/01"' in registered
    assert all(one.startswith("low-") for one in instances(LOW_ICD, LOW_SETTINGS))
    assert not {*instances(LOW_ICD, LOW_SETTINGS)} & {*instances(MID_ICD, Settings())}


def test_an_aperture_array_has_no_attributes_of_dishes_and_the_rest_of_the_interface_is_the_same():
    lacking = {
        name: {one.name for one in own.attributes} - {one.name for one in LOW_ICD.classes[name].attributes}
        for name, own in MID_ICD.classes.items()
    }

    assert {name for name, gone in lacking.items() if gone} == {"SdpCalibration"}
    assert all(name.startswith("pointing_cal_") for name in lacking["SdpCalibration"])
    assert len(lacking["SdpCalibration"]) == len(MID.receptors)
    assert (LOW_ICD.topics, LOW_ICD.messages, LOW_ICD.roles) == (MID_ICD.topics, MID_ICD.messages, MID_ICD.roles)


def test_the_installed_interface_has_the_names_of_the_settings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SDP_TELESCOPE", "low")

    assert load() == LOW_ICD
    assert load() is load()
    monkeypatch.delenv("SDP_TELESCOPE")
    assert load() is MID_ICD


def test_the_names_of_an_own_telescope_stay_as_they_were():
    assert of_telescope(MID_ICD, "mid") == MID_ICD
    assert of_telescope(LOW_ICD, "low") == LOW_ICD
    assert instance_of("mid", "control") == "control"
    assert instance_of("low", "control") == instance_of("low", "low-control") == "low-control"
    assert name_of("control") == "sdp-control"
    assert name_of("control", "low") == "low-sdp-control"


def test_two_deployments_of_one_cluster_share_no_login_and_no_name():
    mid, low = (
        rights.planned(icd, settings) for icd, settings in ((MID_ICD, Settings(prefix="mid.")), (LOW_ICD, LOW_SETTINGS))
    )

    assert not {one.principal for one in mid} & {one.principal for one in low}
    assert not {(one.kind, one.name) for one in mid} & {(one.kind, one.name) for one in low}
    assert rights.surplus(low, mid) == rights.surplus(mid, low) == []
    assert len(low) == len(mid)


@pytest.mark.parametrize(
    ("device", "telescope", "foreign"),
    [
        ("mid-sdp/control/0", "low", True),
        ("LOW-SDP/control/0", "mid", True),
        ("low-sdp/control/0", "low", False),
        ("mid-dish/dish-manager/ska001", "low", False),
        ("site/weather/1", "mid", False),
    ],
)
def test_devices_of_another_telescopes_sdp_are_told_from_those_of_a_site(device: str, telescope: str, foreign: bool):
    assert is_foreign(device, telescope) is foreign


@pytest.mark.parametrize("wrong", ["", "Low", "low-sdp", "1low", "a" * 21])
def test_a_name_that_tango_or_kafka_would_refuse_is_refused_with_its_form(wrong: str):
    with pytest.raises(ConfigError, match="telescope: expected up to 20 small letters and digits"):
        load_settings({"SDP_TELESCOPE": wrong})


def test_stations_have_their_own_names_and_band_and_do_not_turn():
    assert array_of("low") is LOW
    assert array_of("mid") is array_of("another") is MID
    assert (len(LOW.receptors), len(set(LOW.receptors))) == (512, 512)
    assert LOW.names(2) == ("C1", "C2")
    assert LOW.names(513)[-1] == "SIM512"
    assert not LOW.turns
    assert LOW.band == (50e6, 350e6)


def test_pruning_leaves_the_instances_of_another_telescope(monkeypatch: pytest.MonkeyPatch):
    class Database:
        def get_server_list(self, _: str) -> list[str]:
            return ["SdpFacade/control", "SdpFacade/ingest-07", "SdpFacade/low-control", "SdpFacade/low-ingest-07"]

        def get_device_class_list(self, server: str) -> list[str]:
            known = {
                "SdpFacade/control": ["mid-sdp/control/0", "SdpMaster"],
                "SdpFacade/low-control": ["low-sdp/control/0", "SdpMaster"],
            }
            return known.get(server, [])

    monkeypatch.setattr("devices.pruning.open_database", lambda _: Database())

    assert find_surplus(MID_ICD, Settings(), "tango:1") == {"ingest-07": []}
    assert find_surplus(LOW_ICD, LOW_SETTINGS, "tango:1") == {"low-ingest-07": []}


@pytest.mark.needs("sdp_facade_clients")
def test_the_page_knows_the_device_servers_by_the_names_that_the_master_lists(monkeypatch: pytest.MonkeyPatch):
    from sdp_facade_clients.web import following
    from sdp_facade_clients.web.site import Site

    servers = {
        "SdpFacade/low-control": {"low-sdp/control/0": "SdpMaster"},
        "SdpFacade/low-ingest-00": {"low-sdp/ingest/0000": "SdpIngestNode"},
    }
    monkeypatch.setattr(following, "find_servers", lambda tango_host, server: servers)
    for name in ("EventRecorder", "EventPulse"):
        monkeypatch.setattr(following, name, lambda *_, **__: MagicMock(silent=dict))
    look = following.Following("db:1", "SdpFacade", LOW_ICD, ManualClock(), on_change=print, on_forget=print)

    look.step()

    assert dict(look.instances) == {"low-sdp/control/0": "control", "low-sdp/ingest/0000": "ingest-00"}
    silent = Site(
        "db:1",
        LOW_ICD,
        lambda: look.devices,
        ManualClock(),
        instances=lambda: look.instances,
        silent=lambda: dict.fromkeys(look.devices, 0.0),
    )
    found = [one["about"] for one in silent.judgement()["findings"]]
    assert "device server ingest-00" in found
