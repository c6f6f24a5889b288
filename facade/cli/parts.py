"""The sub-commands of ``sdp-facade`` that need no Tango, by module: each adds itself when it is loaded.

Loading all of them takes longer than the work of some. Who starts one sub-command, as each
worker and each simulator does, loads no other.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "aggregate": ("facade.flows.telemetry.cli",),
    "alerts": ("facade.flows.alerts.cli",),
    "config": ("facade.cli.config",),
    "icd": ("facade.cli.icd", "facade.cli.exports", "facade.cli.icd_diff"),
    "infra": ("facade.cli.infra",),
    "simulate": ("facade.flows.telemetry.simulator.cli",),
    "tables": ("facade.flows.tables.cli",),
    "topics": ("facade.cli.topics",),
}
"""Modules by the sub-command that they make."""


def add(*names: str) -> None:
    """Add sub-commands to the command."""
    for name in names:
        for module in PARTS[name]:
            import_module(module)
