"""The sub-commands of the facade as a whole; an entry point names them: `facade.kernel.manifest.SUBCOMMANDS`."""

from facade.kernel.manifest import Subcommand

SUBCOMMANDS = (
    Subcommand(("audit",), "facade.tools.audit:audit", "List by time who commanded, acted on alarms, or set modes."),
    Subcommand(("bus",), "", "Look at the Kafka bus.", section="Deploy"),
    Subcommand(("bus", "check"), "facade.tools.bus:check", "Show the faults of the bus, and what to do."),
    Subcommand(("config",), "", "Look at the settings, and where they come from.", section="Deploy"),
    Subcommand(
        ("config", "check"), "facade.tools.config:check", "Show each setting, its origin, and all that is wrong."
    ),
    Subcommand(
        ("config", "template"), "facade.tools.config:print_template", "Print a settings file with the defaults."
    ),
    Subcommand(("dead-letters",), "", "Look through records that could not be used, and put them back."),
    Subcommand(("dead-letters", "export"), "facade.tools.dead_letters:export", "Write dead letters to a file."),
    Subcommand(("dead-letters", "list"), "facade.tools.dead_letters:list_dead_letters", "List dead letters by time."),
    Subcommand(("dead-letters", "redrive"), "facade.tools.dead_letters:redrive", "Put dead letters back, each once."),
    Subcommand(("dead-letters", "show"), "facade.tools.dead_letters:show", "Show one dead letter with what is in it."),
    Subcommand(("icd",), "", "Look at the interface (ICD) and check it.", section="Develop"),
    Subcommand(("icd", "check"), "facade.tools.icd:check_command", "Check that the interface is complete."),
    Subcommand(("icd", "diff"), "facade.tools.icd_diff:diff_command", "Say what a change of the interface breaks."),
    Subcommand(
        ("icd", "export"), "facade.tools.icd:export_command", "Make all files that are derived from the interface."
    ),
    Subcommand(("icd", "show"), "facade.tools.icd:show_command", "Show the attributes and commands of a device class."),
    Subcommand(("infra",), "", "Run Kafka and a Tango database on this machine.", section="Deploy"),
    Subcommand(("infra", "up"), "facade.tools.infra:up", "Start what does not run yet."),
    Subcommand(("infra", "status"), "facade.tools.infra:status", "Show each process."),
    Subcommand(("infra", "down"), "facade.tools.infra:down", "Stop what was started here."),
    Subcommand(("infra", "env"), "facade.tools.infra:env", "Print the environment variables for a shell."),
    Subcommand(("infra", "renew"), "facade.tools.infra:renew", "Give a secured broker a new certificate."),
    Subcommand(("infra", "secrets"), "facade.tools.infra:secrets", "Make certificates and logins for other brokers."),
    Subcommand(("infra", "start"), "facade.tools.infra:start", "Start one service again."),
    Subcommand(("infra", "stop"), "facade.tools.infra:stop", "Stop one service; its port and data are kept."),
    Subcommand(("olog",), "facade.tools.olog:olog", "Post operators' comments to an Olog."),
    Subcommand(("quotas",), "", "Limit the write rates of clients, by the classes of their topics.", section="Deploy"),
    Subcommand(("quotas", "apply"), "facade.tools.quotas:apply", "Set the quotas with Kafka's own tool."),
    Subcommand(("quotas", "check"), "facade.tools.quotas:check", "Say how the brokers' quotas differ from the plan."),
    Subcommand(("quotas", "plan"), "facade.tools.quotas:plan", "Print the commands that set the quotas."),
    Subcommand(("rights",), "", "Give each role of the ICD its rights on the bus, and no others.", section="Deploy"),
    Subcommand(("rights", "apply"), "facade.tools.rights:apply", "Give the rights at the brokers."),
    Subcommand(("rights", "check"), "facade.tools.rights:check", "Say how the brokers' rights differ from the ICD."),
    Subcommand(("rights", "export"), "facade.tools.rights:export", "Print the rights, for people or for other tools."),
    Subcommand(("topics",), "", "Create or delete the ICD's topics.", section="Deploy"),
    Subcommand(("topics", "create"), "facade.tools.topics:create", "Create the topics that are missing."),
    Subcommand(("topics", "delete"), "facade.tools.topics:delete", "Delete all topics of a deployment."),
)
