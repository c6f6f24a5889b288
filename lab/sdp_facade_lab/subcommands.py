"""Sub-commands of ``sdp-facade`` that show what the facade does, and measure it."""

from importlib.util import find_spec

from facade.kernel.manifest import Subcommand

_DEMO = Subcommand(
    ("demo",),
    "sdp_facade_lab.demo.cli:demo",
    "Run the whole system here, and account for every record.",
    section="Deploy",
)
_PROOFS = (
    Subcommand(
        ("bench",),
        "sdp_facade_lab.bench.cli:bench",
        "Measure the facade beside the raw limits of this machine.",
        section="Develop",
    ),
    Subcommand(
        ("prove",),
        "sdp_facade_lab.fault_runs.frame:prove",
        "Send records of a flow while processes are killed, and account for each.",
        section="Develop",
    ),
)
"""These run from the source tree: a wheel has the demo only."""

SUBCOMMANDS = (_DEMO, *(_PROOFS if find_spec("sdp_facade_lab.bench") else ()))
