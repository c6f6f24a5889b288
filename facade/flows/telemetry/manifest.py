"""Windowed telemetry: topics whose records workers aggregate exactly-once, and devices show by window and in total."""

from facade.kernel.manifest import Isolation, Manifest, Subcommand, WorkerEntry

MANIFEST = Manifest(
    name="telemetry",
    summary="Notifications of SDP, such as those of the ingest nodes, aggregated by window.",
    topics=dict.fromkeys(("ingest.heaps", "ingest.summary", "telemetry.summary"), Isolation.READ_COMMITTED),
    set_aside_by=dict.fromkeys(("ingest.summary", "telemetry.summary"), "control"),
    device_classes={"SdpIngestNode": "devices.kernel.base:FacadeDevice"},
    compose="facade.flows.telemetry.composition:compose",
    for_sources=True,
    health="facade.flows.telemetry.composition:TelemetryHealth",
    workers=(WorkerEntry("aggregate", (), ("aggregate",)),),
    subcommands=(
        Subcommand(
            ("aggregate",),
            "facade.flows.telemetry.cli:aggregate",
            "Aggregate windowed topics, exactly-once.",
            section="Deploy",
        ),
        Subcommand(
            ("simulate", "telemetry"),
            "facade.flows.telemetry.simulator.telemetry_cli:telemetry",
            "Play the senders of any windowed topic.",
        ),
        Subcommand(("simulate", "ingest"), "facade.flows.telemetry.simulator.cli:ingest", "Simulate the ingest nodes."),
    ),
    trials="facade.flows.telemetry.worker:trials",
)
