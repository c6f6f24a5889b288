"""Sub-commands of ``sdp-facade`` that are clients of the devices."""

from facade.manifest import Subcommand

_ALERTS = "clients.alert_commands"

SUBCOMMANDS = (
    Subcommand(("alerts", "ack"), f"{_ALERTS}:acknowledge", "Say that you have seen an alarm."),
    Subcommand(("alerts", "comment"), f"{_ALERTS}:comment", "Add a comment to an alarm."),
    Subcommand(("alerts", "follow"), "clients.alert_follow:follow", "Print alerts and operators' actions, live."),
    Subcommand(("alerts", "history"), f"{_ALERTS}:history", "Print what happened to an alarm, and who did what."),
    Subcommand(("alerts", "list"), f"{_ALERTS}:list_alarms", "Print all alarms that are not at rest."),
    Subcommand(("alerts", "remove-from-service"), f"{_ALERTS}:remove_from_service", "Take an alarm out of service."),
    Subcommand(("alerts", "reset"), f"{_ALERTS}:reset", "Let go of a latched alarm whose condition has gone."),
    Subcommand(("alerts", "return-to-service"), f"{_ALERTS}:return_to_service", "Put an alarm back into service."),
    Subcommand(("alerts", "shelve"), f"{_ALERTS}:shelve", "Put an alarm aside for a time."),
    Subcommand(("alerts", "unshelve"), f"{_ALERTS}:unshelve", "Take an alarm from the shelf before its time."),
    Subcommand(("conformance",), "clients.conformance.cli:conformance", "Compare a running system with the ICD."),
    Subcommand(("status",), "clients.cli:status", "Say how the deployment is, what is wrong, and what to do."),
    Subcommand(("watch",), "clients.cli:watch", "Watch the deployment live, through Tango events."),
)
