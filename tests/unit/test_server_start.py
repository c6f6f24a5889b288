"""What a device server imports before it knows its devices is what every restart of every server takes."""

import subprocess
import sys

SELDOM = (
    "jsonschema",  # arguments of commands
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
