"""What may be chosen about a run of the conformance kit, and how exactly time is judged."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ANSWERS_WITHIN: Final = 0.5
"""Longest answer to a command [s]: TM's clients give a call no longer."""
CLOCKS: Final = 1.0
"""How far clocks may differ, here, at the device and at the source of the data [s]."""
STALE_SLACK: Final = 1.0
"""Values are ATTR_INVALID so long after the ICD's staleness limit at the latest [s]."""
SAMPLE: Final = 20
"""Newest records per partition that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may be chosen."""

    tango_host: str
    bootstrap: str
    prefix: str
    only: tuple[str, ...] = ()
    """Patterns of what is to be checked; none: all."""
    thorough: bool = False
    """All that is checked of the first device of a family also of the others."""
    active: bool = False
    subarray: str = ""
    """Device that may be commanded; must be OFF and EMPTY."""
    outcome: tuple[str, str] | None = None
    """A command of the observation, and the outcome to which a controller was set for it; None: all end well."""
    nodes: int | None = None
    """Ingest nodes that the deployment must have; None: those that it says it has."""
    subarrays: int | None = None
    """Subarrays that it must have; None: as many as there are."""
    window: float = 10.0
    """How long events are observed [s]."""
    icd: Path | None = None
    """Folder of the ICD; None: the one that is installed with the kit."""
    junit: Path | None = None
    html: Path | None = None
