"""`register --prune`: what a smaller deployment leaves behind in the Tango database."""

import json
from types import SimpleNamespace

import pytest
import tango
from typer.testing import CliRunner

from devices import cli, properties, pruning
from devices.pruning import find_surplus, prune
from facade.kernel.cli.app import app
from facade.kernel.config import Settings
from facade.kernel.errors import InfraError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.instances import registration

ICD = load()
HOST = "tangodb:10000"


class Database:
    """A Tango database that has the devices of a deployment, and some of a person's own."""

    def __init__(self, settings: Settings) -> None:
        self.servers = {
            f"SdpFacade/{instance}": {device: name for name, devices in classes.items() for device in devices}
            for instance, classes in registration(ICD, settings)["servers"]["SdpFacade"].items()
        }
        for instance in self.servers:
            self.servers[instance][f"dserver/{instance}"] = "DServer"

    def get_server_list(self, pattern: str) -> list[str]:
        return sorted(self.servers)

    def get_device_class_list(self, server: str) -> list[str]:
        return [text for pair in self.servers.get(server, {}).items() for text in pair]

    def delete_device(self, device: str) -> None:
        for devices in self.servers.values():
            devices.pop(device, None)

    def delete_server(self, server: str) -> None:
        del self.servers[server]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database(Settings(nodes=6, rack_size=2, subarrays=2))
    monkeypatch.setattr(pruning.tango, "Database", lambda *_: made)
    monkeypatch.setattr(pruning, "_answers", lambda device: False)
    return made


def test_a_smaller_deployment_leaves_what_is_then_removed(database: Database) -> None:
    smaller = Settings(nodes=3, rack_size=2, subarrays=1)
    surplus = find_surplus(ICD, smaller, HOST)
    assert surplus == {
        "calibration": ["mid-sdp/calibration/02"],
        "ingest-01": ["mid-sdp/ingest/0003"],
        "ingest-02": ["mid-sdp/ingest/0004", "mid-sdp/ingest/0005"],
        "quality": ["mid-sdp/quality/02"],
        "subarray": ["mid-sdp/subarray/02"],
    }
    assert prune(surplus, HOST) == 6
    assert database.servers == Database(smaller).servers, "an instance without devices goes too"
    assert find_surplus(ICD, smaller, HOST) == {}


def test_what_a_person_added_is_left_alone(database: Database) -> None:
    database.servers["SdpFacade/control"]["lab/test/1"] = "SdpIngestNode"
    database.servers["SdpFacade/mine"] = {"lab/mine/1": "TangoTest"}
    assert find_surplus(ICD, Settings(nodes=6, rack_size=2), HOST) == {}


def test_devices_of_a_server_that_runs_are_kept(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    before = database.get_device_class_list("SdpFacade/ingest-01")
    monkeypatch.setattr(pruning, "_answers", lambda device: device == f"{HOST}/dserver/SdpFacade/ingest-01")
    with pytest.raises(InfraError, match=r"expected .* stopped, got running: SdpFacade ingest-01; stop them"):
        prune(find_surplus(ICD, Settings(nodes=3, rack_size=2), HOST), HOST)
    assert database.get_device_class_list("SdpFacade/ingest-01") == before


def test_nothing_is_changed_until_it_is_told(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[int] = []
    monkeypatch.setattr(cli, "register", lambda icd, settings, host: registered.append(settings.nodes) or 12)
    variables = {"TANGO_HOST": HOST, "SDP_INGEST_NODES": "5", "SDP_RACK_SIZE": "2"}

    def call(*options: str) -> SimpleNamespace:
        return CliRunner().invoke(app, ["register", *options], env=variables)

    shown = call("--prune")
    assert (shown.exit_code, registered) == (0, [])
    assert "1 devices to remove" in shown.output
    assert "SdpFacade ingest-02: mid-sdp/ingest/0005" in shown.output
    assert "register --prune --yes" in shown.output
    devices = {"ingest-02": ["mid-sdp/ingest/0005"]}
    assert json.loads(call("--prune", "--json").stdout) == {"removed": False, "devices": devices}
    assert json.loads(call("--prune", "--yes", "--json").stdout) == {"removed": True, "devices": devices}
    assert registered == [5]
    assert "0 devices to remove" in call("--prune").output
    assert call("--yes").exit_code == 2


def test_of_several_databases_one_that_is_away_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    away = {"second:1"}

    def register(icd: Icd, settings: Settings, host: str) -> int:
        if host in away:
            raise InfraError(f"{host} is away")
        return 12

    monkeypatch.setattr(cli, "register", register)
    monkeypatch.setattr(cli, "_prune", lambda *_, **__: None)

    def call(*options: str) -> SimpleNamespace:
        return CliRunner().invoke(app, ["register", *options], env={"TANGO_HOST": "first:1, second:1"})

    shown = call()
    assert (shown.exit_code, shown.stderr) == (0, "warning: second:1 is away; register again when it is back\n")
    assert "first:1: 12 devices registered" in shown.stdout
    for options in (["--prune", "--yes"], ["--properties-of", "first:1"]):
        assert str(call(*options).exception) == "second:1 is away", options
    away.add("first:1")
    assert str(call().exception) == "first:1 is away\nsecond:1 is away"


def test_a_database_that_goes_away_before_the_copy_of_properties_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with a traceback."""

    def refuse(address: str) -> tango.Database:
        tango.Except.throw_exception("API_DatabaseAccess", "no answer", "open")

    monkeypatch.setattr(properties, "open_database", refuse)
    for call in (lambda: properties.read_properties(HOST, "mid-sdp"), lambda: properties.copy_properties({}, {}, HOST)):
        with pytest.raises(InfraError, match=f"expected a Tango database at {HOST}, got: no answer"):
            call()
