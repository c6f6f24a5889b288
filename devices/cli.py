"""The executable ``sdp-facade``."""

import sys
from importlib import import_module
from typing import Final

from facade.cli.parts import PARTS, add
from facade.cli.root import app, run

BUS_SIDE: Final = frozenset(PARTS) - {"alerts"}
"""Sub-commands that start without Tango and without each other; one of `alerts` needs Tango."""


def main() -> None:
    """Run the command line."""
    wanted = BUS_SIDE.intersection(sys.argv[1:2])
    if wanted:
        add(*wanted)
    else:
        import_module("devices.tango_cli")
    run(app)
