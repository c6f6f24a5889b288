"""What may be chosen about a demo, and the limits that it must keep."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from facade.flows.telemetry.simulator.faults import Faults
from facade.infra import local

BASELINE: Final = 1.5
"""How long a device server with nothing in it takes to its first answer, in the middle of a demo, on the machine for
which the limits of time below are set [s]; on a slower one they are longer in proportion."""
SERVER_RECOVERY: Final = 5.0
"""Longest time from the new start of a killed device server until a client reads its values again [s]; up to one
second of it is Tango's own: a client that could not connect waits before it tries again."""
WORKER_RECOVERY: Final = 15.0
"""The same for an aggregate worker [s]."""
CONTROLLER_RECOVERY: Final = 15.0
"""Longest time from the new start of a killed controller until the command that it was executing has an outcome [s]."""
INVALID_SLACK: Final = 1.0
"""Longest time from the ICD's staleness limit until a silent attribute is ATTR_INVALID [s]."""
FLOWS_WITHIN: Final = 30.0
"""Longest time from the start until all nodes show a value [s]."""
OBSERVED_WITHIN: Final = 90.0
"""Longest time from when all else is done until the observation has ended [s]."""
ENDS_WITHIN: Final = 15.0
"""Longest time from then until the last command has its outcome [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What may be chosen; see the options of `sdp_facade_lab.demo.cli.demo`."""

    nodes: int = 4
    subarrays: int = 2
    rate: float = 31_800.0
    seconds: float = 30.0
    columnar: bool = False
    garbage: float = 0.0002
    losses: tuple[str, ...] = ()
    """Nodes with the share of packets that each loses, as ``NODE:SHARE``."""
    kills: bool = True
    controller: bool = True
    """Whether a controller executes commands; otherwise TM does not observe, and its servers are not killed."""
    logs: bool = False
    mirror: bool = False
    blocks: bool = False
    """Whether a processing block of each observation fails."""
    orders: bool = False
    archive: bool = False
    secure: bool = False
    stay: bool = False
    live: bool = True
    state_dir: Path = local.DEFAULT_STATE_DIR
    report: Path | None = None
    patience: float = 1.0
    """Factor by which every limit of time may be passed, if the machine's own slowness does not allow more."""

    @property
    def folder(self) -> Path:
        """Where the demo keeps its own files and the logs of its processes."""
        return self.state_dir.resolve() / "demo"

    @property
    def archive_folder(self) -> Path:
        """Where files of the archive stay until the next demo with one."""
        return self.state_dir.resolve() / "demo-archive"

    @property
    def report_file(self) -> Path:
        return self.report or self.state_dir.resolve() / "demo-report.json"

    def faults(self) -> Faults:
        ahead = 1e-4 if self.garbage else 0.0  # a dead letter as well
        return Faults(gaps=1e-4, duplicates=1e-4, disorder=1e-4, late=1e-4, ahead=ahead, garbage=self.garbage)
