"""Issues of health: flows report them, SdpMaster shows them and raises alerts for them.

The texts are in the `HealthSource` of each flow; for a missing process see `Presence` in
`facade/flows/overview/views.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from facade.reading import Value
from facade.runtime.flow import FaultKey
from facade.severities import WARNING, Severity

ORIGIN = "sdp-facade"
"""Source of alerts about the facade itself; longer ones begin with it, such as ``sdp-facade/subarray/01``."""

HealthState = Literal["OK", "DEGRADED", "FAILED", "UNKNOWN"]
"""Labels of the attribute healthState."""
OK: HealthState
DEGRADED: HealthState
FAILED: HealthState
UNKNOWN: HealthState
OK, DEGRADED, FAILED, UNKNOWN = get_args(HealthState)


class HealthIssue(NamedTuple):
    """One reason why SDP is not healthy."""

    health_state: HealthState
    """The healthState of SDP while the issue lasts, unless another issue is graver: DEGRADED or FAILED."""
    text: str
    alarm: FaultKey | None = None
    """Condition of the ICD and source of the alert that is raised for the issue and cleared after it; None: none."""
    alert_severity: Severity = WARNING
    """Severity of that alert."""
    of_bus: bool = False
    """Whether the issue is one of the bus itself: SdpBus shows it too."""
    values: Mapping[str, float] = MappingProxyType({})
    """Measured values of that alert, by name."""
    device: str = ""
    """Device that reports the issue about itself; empty: none."""
    reasons: tuple[str, ...] = ()
    """Reasons of that device, one by one. If each of them is an issue of its own, this issue is left out."""


class HealthSource(ABC):
    """The knowledge of one flow about the health of SDP; asked by the event loop's thread."""

    conditions: Mapping[str, str]
    """Conditions of the alerts that the flow raises, and how their sources begin; no other alert is cleared by it."""

    @abstractmethod
    def issues(self, now: float) -> Iterable[HealthIssue]:
        """Return the present issues at a time [Unix s], the gravest first."""

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return attributes of a device of the overview that this flow provides, by name."""
        return {}
