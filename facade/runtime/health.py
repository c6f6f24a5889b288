"""What a flow says about the health of SDP, to the device server that shows it and raises the alerts about it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from facade.reading import Value
from facade.runtime.flow import FaultKey

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
    values: Mapping[str, float] = MappingProxyType({})
    """Measured values of that alert, by name."""
    device: str = ""
    """Device that says it of itself; empty: none."""
    reasons: tuple[str, ...] = ()
    """The reasons one by one, of a device that complains of several: if others tell of all of them, it is left out."""


class Health(ABC):
    """What one flow knows; asked by the event loop's thread."""

    conditions: Mapping[str, str]
    """Conditions of the alerts that it raises, and how their sources begin; what others raise is theirs to clear."""

    @abstractmethod
    def complaints(self, now: float) -> Iterable[Complaint]:
        """Return what is wrong at a time [Unix s], the gravest first."""

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return attributes of a device of the overview that this flow provides, by name."""
        return {}
