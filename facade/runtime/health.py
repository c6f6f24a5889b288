"""What a flow says about the health of SDP, to the device server that shows it and raises the alerts about it."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

from facade.reading import Value
from facade.runtime.flow import Fault, FaultKey

ORIGIN = "sdp-facade"
"""Source of alerts about the facade itself, or the first part of it."""


class Complaint(NamedTuple):
    """One reason why SDP is not healthy."""

    severity: Literal["FAILED", "DEGRADED"]
    """What healthState is because of it."""
    text: str
    alarm: FaultKey | None = None
    """Condition of the ICD and source of the alert that is raised about it, and cleared once it is gone; None: none."""
    urgency: str = "WARNING"
    """Severity of that alert."""
    of_bus: bool = False
    """Whether the bus itself is not what it should be."""


class Health(Protocol):
    """What one flow knows; asked by the event loop's thread."""

    def complaints(self, now: float) -> Iterable[Complaint]:
        """Return what is wrong at a time [Unix s], the gravest first."""

    def faults(self, now: float) -> Mapping[FaultKey, Fault]:
        """Return what is wrong by condition and source: it is raised as alerts, and cleared once it is gone."""

    def finds(self, key: FaultKey) -> bool:
        """Return whether a condition and source are of the kind that `faults` gives."""

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return attributes of a device of the overview that this flow provides, by name."""
