"""Issues of health: flows report them, the overview shows them and raises alerts for them.

The texts are in the `HealthSource` of each flow; for a missing process see `Presence` in
`facade/flows/overview/presence.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from facade.kernel.clock import Time
from facade.kernel.names import PROGRAM
from facade.kernel.reading import Value
from facade.kernel.runtime.flow import FaultKey
from facade.kernel.severities import Severity

AlarmDict = Mapping[str, Any]
"""An alarm in the form of GetAlarms."""

ORIGIN = PROGRAM
"""Source of alerts about the facade itself, or the begin of it, as in ``PROGRAM/control/0``."""

HealthState = Literal["OK", "DEGRADED", "FAILED", "UNKNOWN"]
"""Labels of the attribute healthState."""
OK: HealthState
DEGRADED: HealthState
FAILED: HealthState
UNKNOWN: HealthState
OK, DEGRADED, FAILED, UNKNOWN = get_args(HealthState)


class HealthIssue(NamedTuple):
    """One reason why the facility is not healthy."""

    health_state: HealthState
    """The healthState of the facility while the issue lasts, unless another issue is graver: DEGRADED or FAILED."""
    text: str
    alarm: FaultKey | None = None
    """Condition of the ICD and source of the alert that is raised for the issue and cleared after it; None: none."""
    severity: Severity | None = None
    """None: the severity of the condition; without an alarm, CRITICAL for FAILED, WARNING for DEGRADED."""
    of_bus: bool = False
    """Whether the issue is one of the bus itself: the device of the bus shows it too."""
    values: Mapping[str, float] = MappingProxyType({})
    """Measured values of that alert, by name."""
    device: str = ""
    """Device that reports the issue about itself; empty: none."""
    reasons: tuple[str, ...] = ()
    """Reasons of that device, one by one. If each of them has its own issue, this issue is left out."""
    response: str = ""
    """Instruction to the operator; empty: the response of the condition."""
    host: str = ""
    """Host of a process that is missing; empty: the issue is about no process, or its host is not known."""


class HealthSource(ABC):
    """Health issues of one flow; called by the event loop's thread."""

    conditions: Mapping[str, str]
    """Conditions of the flow's alerts, with the begin of their sources; the flow clears no other alerts."""

    @abstractmethod
    def issues(self, now: Time) -> Iterable[HealthIssue]:
        """Return the issues at a time, the gravest first."""

    def judges(self, key: FaultKey) -> bool:
        """Return whether the absence of an alarm from the last issues means that all is well.

        It does not until everything has been heard after a start, nor while what would tell is away: an alarm that was
        raised then stays.
        """
        return True

    def alarms(self) -> Sequence[AlarmDict]:
        """Return the alarms that are not at rest, if this flow knows them."""
        return ()

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return the attributes that this flow provides for a device of the overview, by name."""
        return {}
