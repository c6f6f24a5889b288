"""Stand-ins for the SDP side of the bus, which know each record sent and its expected outcome.

The flows add their simulators to the group ``simulate``, which an entry point names:
`facade.kernel.manifest.SUBCOMMANDS`.
"""

from facade.kernel.manifest import Subcommand

SUBCOMMANDS = (
    Subcommand(("simulate",), "", "Simulate parts of SDP, with an exact account of what was sent.", section="Publish"),
)
