"""Calibration tables: large objects in segments or by reference, announced when they are complete."""

from facade.kernel.manifest import FlowPage, Isolation, Manifest, Subcommand, WorkerEntry

MANIFEST = Manifest(
    name="tables",
    summary="Calibration tables of each subarray: announced whole, shown in short, fetched by name.",
    topics={"calibration": Isolation.READ_COMMITTED, "tables": Isolation.READ_COMMITTED},
    device_classes={"SdpCalibration": "devices.calibration:SdpCalibration"},
    compose="facade.flows.tables.composition:compose",
    workers=(WorkerEntry("tables-assemble", ("calibration",), ("tables", "assemble"), "assemblerGone"),),
    subcommands=(
        Subcommand(("tables",), "", "Assemble calibration tables, send, list and fetch them.", section="Publish"),
        Subcommand(("tables", "assemble"), "facade.flows.tables.cli:assemble", "Assemble tables from segments."),
        Subcommand(("tables", "get"), "facade.flows.tables.cli:get", "Fetch a complete table."),
        Subcommand(("tables", "list"), "facade.flows.tables.cli:list_tables", "List tables and their states."),
        Subcommand(("tables", "plot"), "facade.flows.tables.cli:plot", "Draw a solution as Tango shows it."),
        Subcommand(("tables", "put"), "facade.flows.tables.cli:put", "Send a file as a table."),
        Subcommand(("tables", "remove"), "facade.flows.tables.cli:remove", "Remove a product and its alarm."),
        Subcommand(
            ("simulate", "calibration"),
            "facade.flows.tables.simulator.cli:calibration",
            "Play a calibration pipeline.",
        ),
    ),
    trials="facade.flows.tables.messages:trials",
    conformance="sdp_facade_clients.conformance.devices:TABLES",
    page=FlowPage(
        title="Calibration",
        each=("solutionId", "validFromUtc", "validUntilUtc"),
        over=dict.fromkeys(("antennaAmplitude", "antennaPhaseRms", "antennaFlagged"), "antennas")
        | dict.fromkeys(("gainAmplitude", "gainPhase"), "channelFrequencies"),
    ),
)
