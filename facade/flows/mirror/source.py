"""The seam between the mirror, which decides, and a source, which accesses the devices of the telescope."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from facade.kernel.clock import NEVER, Time


class AttributeValue(NamedTuple):
    """A value of an attribute, from a read or an event."""

    name: str
    """Full name of the attribute."""
    value: Any = None
    """In a form for JSON; None: there is no value."""
    type: str = ""
    quality: str = "INVALID"
    time: Time = NEVER
    """Time by the device [Unix us]."""
    label: str = ""
    error: str = ""


class EventsMissed(NamedTuple):
    """Some events of an attribute did not arrive."""

    name: str


class DeviceLost(NamedTuple):
    """The events of a device have stopped."""

    device: str
    why: str


class DeviceJob(NamedTuple):
    """Requests to one device, in this order; an empty job asks whether the device is there."""

    device: str
    read: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    """Attributes to unsubscribe from."""
    anew: bool = False
    """Whether to open a new connection, without any of its subscriptions."""
    names: bool = False
    """Whether to request the names of all its attributes."""


class JobResult(NamedTuple):
    """Result of a job."""

    job: DeviceJob
    seen: tuple[AttributeValue, ...] = ()
    pushed: frozenset[str] = frozenset()
    """Attributes with a new subscription that will send events."""
    failed: frozenset[str] = frozenset()
    """Attributes whose subscription has failed, so that it is unknown whether the device pushes them."""
    trouble: str = ""
    """Reason why the device cannot be reached; empty: it answers."""
    names: frozenset[str] | None = None
    """Full names of all attributes of the device; None: not requested, or unavailable."""


class DeviceSearch(NamedTuple):
    """A search for devices whose names fit a pattern, in their Tango database."""

    pattern: str


class SearchResult(NamedTuple):
    """Result of a search."""

    pattern: str
    exported: frozenset[str] = frozenset()
    """Devices that their servers have exported."""
    defined: frozenset[str] = frozenset()
    """All devices in the database."""
    trouble: str = ""
    """Reason why the database could not be asked."""


SourceTask = DeviceJob | DeviceSearch
SourceEvent = AttributeValue | EventsMissed | DeviceLost | JobResult | SearchResult


class DeviceSource(Protocol):
    """Accesses devices. It accepts tasks, and answers each with an event later."""

    @property
    def most_jobs(self) -> int:
        """Return the number of devices that can be asked at once; searches are counted separately."""

    def begin(self, task: SourceTask) -> None:
        """Begin a task; never waits. At most one task per device, or per Tango database, is under way."""

    def take(self) -> Sequence[SourceEvent]:
        """Return the events since the last call, in order; never waits."""

    def wait(self, timeout: float) -> None:
        """Wait for the next event, at most `timeout` [s]."""

    def close(self) -> None:
        """Stop."""
