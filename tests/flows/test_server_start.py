"""What a device server imports before it knows its devices is what every restart of every server takes."""

import subprocess
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace

import pytest

from devices import registration
from devices.kernel import server
from devices.registration import register
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError, InfraError
from facade.kernel.icd.load import load

SELDOM = (
    "opentelemetry",  # where traces are wanted
    "jsonschema_rs",  # arguments of commands
    "pyarrow",  # tables and metrics
    "prometheus_client",  # where a port is given
    "facade.flows.alerts.operator_api",
    "facade.flows.commands.gateway",
    "facade.flows.overview.views",
    "facade.flows.telemetry.composition",
    "facade.flows.quality.flow",
    "facade.flows.tables.references",
)
"""What only some device servers need."""


def test_a_device_server_starts_without_what_only_others_need() -> None:
    code = f"import sys, devices.kernel.server; print([name for name in {SELDOM!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_an_instance_that_is_not_registered_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    database = SimpleNamespace(
        get_device_class_list=lambda name: SimpleNamespace(value_string=[]),
        get_server_list=lambda pattern: ["SdpFacade/alerts", "SdpFacade/control"],
        get_db_host=lambda: "tangodb",
        get_db_port=lambda: "10000",
    )
    monkeypatch.setattr(server.tango, "Database", lambda: database)
    with pytest.raises(SystemExit, match=r"SdpFacade nosuch: .* tangodb:10000, which are: alerts, control; register"):
        server.main(["nosuch"])


def listing(monkeypatch: pytest.MonkeyPatch, *classes: str) -> None:
    pairs = [text for name in classes for text in (f"mid-sdp/{name}/01", name)]
    database = SimpleNamespace(
        get_device_class_list=lambda name: SimpleNamespace(value_string=pairs),
        get_server_list=lambda pattern: ["SdpFacade/control"],
        get_db_host=lambda: "tangodb",
        get_db_port=lambda: "10000",
        get_device_info=lambda device: SimpleNamespace(exported=False, ior=""),
    )
    monkeypatch.setattr(server.tango, "Database", lambda: database)


def test_the_case_of_a_class_in_the_database_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    listing(monkeypatch, "DServer", "sdpmaster", "SdpBus")
    assert sorted(server._wanted(load(), ["control"])) == ["SdpBus", "SdpMaster"]


def test_a_class_that_is_no_longer_in_the_interface_is_said_and_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listing(monkeypatch, "DServer", "SdpOld", "SdpBus")
    assert server._wanted(load(), ["control"]) == ["SdpBus"]
    assert "sdpold" in caplog.text


@pytest.mark.parametrize(
    ("exported", "address", "mended"),
    [(True, "null", True), (True, "", True), (True, "IOR:010000", False), (False, "null", False)],
)
def test_an_instance_that_is_exported_without_an_address_is_unexported(
    exported: bool, address: str, mended: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listing(monkeypatch, "SdpBus")
    database, done = server.tango.Database(), []
    database.get_device_info = lambda device: SimpleNamespace(exported=exported, ior=address)
    database.unexport_server = done.append
    monkeypatch.setattr(server.tango, "Database", lambda: database)
    assert server._wanted(load(), ["control"]) == ["SdpBus"]
    assert done == ["SdpFacade/control"] * mended
    assert ("unusable address" in caplog.text) == mended


@pytest.mark.parametrize(
    ("classes", "said"), [(["DServer"], "register it: sdp-facade register"), (["DServer", "SdpOld"], "got sdpold")]
)
def test_an_instance_without_devices_of_the_interface_is_said(
    monkeypatch: pytest.MonkeyPatch, classes: list[str], said: str
) -> None:
    listing(monkeypatch, *classes)
    with pytest.raises(ConfigError, match=said):
        server._wanted(load(), ["control"])


@pytest.mark.parametrize("option", [["-dlist", "SdpBus::a/b/c,SdpMaster::a/b/d"], ["-dlist", "sdpbus::a/b/c"]])
def test_without_a_database_a_server_has_the_classes_that_its_call_names(option: list[str]) -> None:
    wanted = server._wanted(load(), ["control", "-nodb", *option])
    assert sorted(wanted) == ["SdpBus", "SdpMaster"][: len(option[1].split(","))]


def test_what_tango_refuses_at_the_start_is_a_failure() -> None:
    call = [sys.executable, "-m", "devices.kernel.server", "control", "-nodb", "-ORBendPoint", "giop:tcp:127.0.0.1:0"]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "SdpFacade control: Tango: " in ended.stderr


def test_a_mistake_in_a_flow_ends_the_server_that_it_keeps_from_starting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(server, "_assemble", fail)
    monkeypatch.setattr(server, "_wanted", lambda icd, arguments: [])
    monkeypatch.setattr(server, "run", lambda classes, *, post_init_callback, **_: post_init_callback())
    monkeypatch.setattr(server.tango.Util, "instance", lambda: SimpleNamespace(unregister_server=lambda: None))
    monkeypatch.setattr(server.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        server._serve(load(), Settings(), ["control"])
    assert ended.value.code == 1
    assert "ZeroDivisionError" in caplog.text


def test_what_dsconfig_leaves_behind_goes_with_the_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """D11: it keeps what it has changed in a temporary file, each time."""
    left: list[Path] = []

    def json2tango(argv: list[str], env: dict[str, str], **_: object) -> SimpleNamespace:
        with NamedTemporaryFile(dir=env["TMPDIR"], prefix="dsconfig-", delete=False) as file:
            left.append(Path(file.name))
        return SimpleNamespace(returncode=2)

    monkeypatch.setattr(registration.subprocess, "run", json2tango)
    assert register(load(), Settings(nodes=2), "here:1") > 2
    assert [file.exists() for file in left] == [False]


def test_a_database_that_does_not_answer_is_one_line() -> None:
    with pytest.raises(InfraError, match=r"expected a Tango database at TANGO_HOST=127.0.0.1:1, got: ") as refused:
        register(load(), Settings(), "127.0.0.1:1")
    assert "DevError" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_standby_chooses_its_database_after_its_turn_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have waited for days: the database that answered at its start may stand still."""
    done: list[str] = []
    for name in ("put_first", "await_turn", "_serve"):
        monkeypatch.setattr(server, name, lambda *_, name=name: done.append(name))
    for name in ("start_logging", "start_log_export", "device_classes", "_wanted", "_leave"):
        monkeypatch.setattr(server, name, lambda *_: None)

    server.main(["control", "--standby"])

    assert done == ["put_first", "await_turn", "put_first", "_serve"]
