"""The telescope model: Tango attributes of the telescope, mirrored to the bus."""

from facade.kernel.manifest import FlowPage, Isolation, Manifest, Subcommand

MANIFEST = Manifest(
    name="mirror",
    summary="Tango attributes of the telescope on the bus: where the antennas point, and what else SDP has to know.",
    topics=dict.fromkeys(("telescope.model", "telescope.mirror", "telescope.streaming"), Isolation.READ_COMMITTED),
    device_classes={"SdpMirror": "devices.kernel.base:FacadeDevice"},
    compose="facade.flows.mirror.composition:compose",
    subcommands=(
        Subcommand(("mirror",), "", "Choose which Tango attributes of the telescope are mirrored to the bus."),
        Subcommand(("mirror", "list"), "facade.flows.mirror.cli:list_rules", "Show the rules."),
        Subcommand(("mirror", "add"), "facade.flows.mirror.cli:add", "Add patterns to a rule."),
        Subcommand(("mirror", "replace"), "facade.flows.mirror.cli:replace", "Replace the patterns of a rule."),
        Subcommand(("mirror", "remove"), "facade.flows.mirror.cli:remove", "Remove a rule, or some of its patterns."),
    ),
    conformance="sdp_facade_clients.conformance.devices:MIRROR",
    page=FlowPage(title="Telescope model"),
)
