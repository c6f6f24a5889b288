"""The sub-commands of ``sdp-facade`` that need no Tango, by module: each adds itself when it is loaded.

Loading all of them takes longer than the work of some. Who starts one sub-command, as each
worker and each simulator does, loads no other.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Final

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "aggregate": ("aggregate",),
    "alerts": ("alerts",),
    "config": ("config",),
    "icd": ("icd", "exports", "icd_diff"),
    "infra": ("infra",),
    "simulate": ("simulate",),
    "tables": ("tables",),
    "topics": ("topics",),
}
"""Modules of this package by the sub-command that they make."""


def add(*names: str) -> None:
    """Add sub-commands to the command."""
    for name in names:
        for module in PARTS[name]:
            import_module(f"facade.cli.{module}")
