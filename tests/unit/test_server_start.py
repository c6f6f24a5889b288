"""What a device server imports before it knows its devices is what every restart of every server takes."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from devices import server
from devices.registration import register
from facade.config import Settings
from facade.errors import InfraError
from facade.icd.load import load

SELDOM = (
    "opentelemetry",  # where traces are wanted
    "jsonschema",  # arguments of commands
    "confluent_kafka.admin",  # making and looking at topics
    "pyarrow",  # tables and metrics
    "prometheus_client",  # where a port is given
    "facade.flows.alerts.operator_api",
    "facade.flows.commands.gateway",
    "facade.flows.overview.views",
    "facade.flows.telemetry.flow",
    "facade.flows.quality.flow",
    "facade.flows.tables.references",
)
"""What only some device servers need."""


def test_a_device_server_starts_without_what_only_others_need() -> None:
    code = f"import sys, devices.server; print([name for name in {SELDOM!r} if name in sys.modules])"
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


def test_a_database_that_does_not_answer_is_one_line() -> None:
    with pytest.raises(InfraError, match=r"expected a Tango database at TANGO_HOST=127.0.0.1:1, got: ") as refused:
        register(load(), Settings(), "127.0.0.1:1")
    assert "DevError" not in str(refused.value)
    assert "\n" not in str(refused.value)
