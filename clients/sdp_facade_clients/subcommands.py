"""Sub-commands of ``sdp-facade`` that are clients of the devices."""

from facade.kernel.manifest import Subcommand

_HERE = "sdp_facade_clients"
_ALERTS = f"{_HERE}.alert_commands"

SUBCOMMANDS = (
    Subcommand(("alerts", "ack"), f"{_ALERTS}:acknowledge", "Acknowledge an alarm."),
    Subcommand(("alerts", "comment"), f"{_ALERTS}:comment", "Add a comment to an alarm."),
    Subcommand(("alerts", "follow"), f"{_ALERTS}:follow", "Print alerts and operators' actions, live."),
    Subcommand(("alerts", "history"), f"{_ALERTS}:history", "Print the history of an alarm."),
    Subcommand(("alerts", "list"), f"{_ALERTS}:list_alarms", "Print all alarms that are not at rest."),
    Subcommand(("alerts", "remove-from-service"), f"{_ALERTS}:remove_from_service", "Take an alarm out of service."),
    Subcommand(("alerts", "reset"), f"{_ALERTS}:reset", "Reset a latched alarm whose condition has gone."),
    Subcommand(("alerts", "return-to-service"), f"{_ALERTS}:return_to_service", "Put an alarm back into service."),
    Subcommand(("alerts", "shelve"), f"{_ALERTS}:shelve", "Hide an alarm from operators for a limited time."),
    Subcommand(("alerts", "show"), f"{_ALERTS}:show", "Print one alarm as a whole."),
    Subcommand(("alerts", "unshelve"), f"{_ALERTS}:unshelve", "End the shelving of an alarm before its time."),
    Subcommand(("command",), f"{_HERE}.command:command", "Give a command to a device, and wait for its outcome."),
    Subcommand(
        ("conformance",),
        f"{_HERE}.conformance.runner:conformance",
        "Compare a running system with the ICD.",
        section="Develop",
    ),
    Subcommand(("status",), f"{_HERE}.cli:status", "Show the health of the deployment, its faults, and what to do."),
    Subcommand(("watch",), f"{_HERE}.cli:watch", "Watch the deployment live, through Tango events."),
    Subcommand(("web",), f"{_HERE}.web.cli:web", "Serve the operator's page: the deployment in a browser."),
)
