"""Sub-commands of ``sdp-facade`` that show what the facade does, and measure it."""

from importlib.util import find_spec

from facade.manifest import Subcommand

_DEMO = Subcommand(
    ("demo",), "proving.demo.cli:demo", "Run the whole system here, and account for every record.", section="Develop"
)
_PROOFS = (
    Subcommand(
        ("alert-faults",),
        "proving.fault_runs.alerts:alert_faults",
        "Send alerts while processes are killed.",
        section="Fault and load runs",
    ),
    Subcommand(
        ("bench",),
        "proving.bench.cli:bench",
        "Measure the facade beside the raw limits of this machine.",
        section="Develop",
    ),
    Subcommand(
        ("block-faults",),
        "proving.fault_runs.blocks:block_faults",
        "Publish states of processing blocks while processes are killed.",
        section="Fault and load runs",
    ),
    Subcommand(
        ("faults",),
        "proving.fault_runs.commands:faults",
        "Give commands while processes are killed.",
        section="Fault and load runs",
    ),
    Subcommand(
        ("fuzz",),
        "proving.fuzz.run:fuzz",
        "Send good and bad records on every topic, and account for each.",
        section="Fault and load runs",
    ),
    Subcommand(
        ("log-faults",),
        "proving.fault_runs.logs:log_faults",
        "Ship logs while processes are killed.",
        section="Fault and load runs",
    ),
    Subcommand(
        ("mirror-faults",),
        "proving.fault_runs.mirror:mirror_faults",
        "Mirror while processes are killed.",
        section="Fault and load runs",
    ),
    Subcommand(
        ("storage-faults",),
        "proving.fault_runs.storage:storage_faults",
        "Let the broker lose records, and account for each total.",
        section="Fault and load runs",
    ),
    Subcommand(
        ("overload",),
        "proving.overload:overload",
        "Send ten times the promised rates, to many clients.",
        section="Fault and load runs",
    ),
    Subcommand(
        ("table-faults",),
        "proving.fault_runs.tables:table_faults",
        "Send tables while processes are killed.",
        section="Fault and load runs",
    ),
)
"""These run from the source tree: a wheel has the demo only."""

SUBCOMMANDS = (_DEMO, *(_PROOFS if find_spec("proving.bench") else ()))
