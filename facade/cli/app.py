"""The command ``sdp-facade`` with all that needs no Tango; `devices.tango_cli` adds the rest."""

from facade.cli.parts import PARTS, add
from facade.cli.root import app, run

__all__ = ["app", "run"]

add(*PARTS)
