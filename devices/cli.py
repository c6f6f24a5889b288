"""The executable ``sdp-facade``."""

import sys
from importlib import import_module
from typing import Final

from facade.cli.app import app, run

BUS_SIDE: Final = frozenset({"aggregate", "config", "icd", "infra", "simulate", "tables", "topics", "version"})
"""Sub-commands that need no Tango, as each process of a worker or a simulator: they start in half the time without."""


def main() -> None:
    """Run the command line."""
    if not BUS_SIDE.intersection(sys.argv[1:2]):
        import_module("devices.tango_cli")
    run(app)
