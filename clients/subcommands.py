"""Sub-commands of ``sdp-facade`` that are clients of the devices."""

from facade.manifest import Subcommand

SUBCOMMANDS = (
    Subcommand(("alerts", "follow"), "clients.alert_follow:follow", "Print alerts and operators' actions, live."),
    Subcommand(("conformance",), "clients.conformance.cli:conformance", "Compare a running system with the ICD."),
    Subcommand(("watch",), "clients.cli:watch", "Watch the deployment live, through Tango events."),
)
