"""Commands of TM: durable before the caller has an id, with exactly one outcome."""

from facade.kernel.manifest import Isolation, Manifest, Subcommand

MANIFEST = Manifest(
    name="commands",
    summary="Commands of TM, orders that controllers give each other, and the states that controllers report.",
    topics={
        "commands": Isolation.READ_COMMITTED,
        "orders": Isolation.READ_COMMITTED,
        "command-acks": Isolation.READ_COMMITTED,
        "command-refusals": Isolation.READ_COMMITTED,
        "commands-held": Isolation.READ_COMMITTED,
        "state": Isolation.READ_COMMITTED,
        "settings": Isolation.READ_COMMITTED,
        "server-heartbeats": Isolation.READ_COMMITTED,
    },
    set_aside_by=dict.fromkeys(
        (
            *("commands", "orders", "commands-held", "command-acks", "command-refusals"),
            *("state", "settings", "server-heartbeats"),
        ),
        "subarray",
    ),
    device_classes={"SdpSubarray": "devices.commands:CommandedDevice"},
    compose="facade.flows.commands.composition:compose",
    for_commands=True,
    health="facade.flows.commands.composition:CommandsHealth",
    subcommands=(
        Subcommand(("commands",), "", "Look at past commands, their acknowledgements and outcomes."),
        Subcommand(
            ("commands", "list"), "facade.flows.commands.cli:list_commands", "List commands and their outcomes."
        ),
        Subcommand(("commands", "show"), "facade.flows.commands.cli:show", "Show one command and who acknowledged it."),
        Subcommand(
            ("simulate", "controller"),
            "facade.sdk.controller.simulator.cli:controller",
            "Execute the commands, for want of a real SDP.",
        ),
    ),
    audit={
        "commands": "facade.flows.commands.audit:command_entry",
        "command-refusals": "facade.flows.commands.audit:refusal_entry",
        "commands-held": "facade.flows.commands.audit:held_entry",
        "settings": "facade.flows.commands.audit:mode_entry",
    },
    conformance="sdp_facade_clients.conformance.command_checks:COMMANDS",
)
