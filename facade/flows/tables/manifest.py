"""Calibration tables: large objects in segments or by reference, put together and announced once they are whole."""

from facade.manifest import Isolation, Manifest, Subcommand, Worker

MANIFEST = Manifest(
    name="tables",
    summary="Calibration tables of each subarray: announced whole, shown in short, fetched by name.",
    topics={"calibration": Isolation.READ_COMMITTED, "tables": Isolation.READ_COMMITTED},
    device_classes={"SdpCalibration": "devices.calibration:SdpCalibration"},
    compose="facade.flows.tables.composition:compose",
    workers=(Worker("tables-assemble", "tables-assemble", ("calibration",), ("tables", "assemble")),),
    subcommands=(
        Subcommand(("tables",), "facade.flows.tables.cli:tables_app", "Send, list, fetch and draw calibration tables."),
        Subcommand(
            ("simulate", "calibration"),
            "facade.flows.tables.simulator.cli:calibration",
            "Play a calibration pipeline.",
        ),
    ),
    words="facade.flows.tables.words:WORDS",
)
