"""The seam between the mirror, which decides, and a source, which talks to the devices of the telescope."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class AttributeValue(NamedTuple):
    """A value of an attribute; one that comes by itself was pushed by the device."""

    name: str
    """Full name of the attribute."""
    value: Any = None
    """As it can be written in JSON; None: there is none."""
    type: str = ""
    quality: str = "INVALID"
    time: int = 0
    """As the device gives it [Unix us]."""
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
    """Requests to one device, in this order; a job without any asks whether the device is there."""

    device: str
    read: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    """Attributes of which no more events are wanted."""
    anew: bool = False
    """Whether the connection is to be made anew, without any of its subscriptions."""
    names: bool = False
    """Whether the device is to name all of its attributes."""


class JobResult(NamedTuple):
    """Result of a job."""

    job: DeviceJob
    seen: tuple[AttributeValue, ...] = ()
    """Values of the attributes to read."""
    pushed: frozenset[str] = frozenset()
    """Attributes of which events will come, of those to subscribe to."""
    failed: frozenset[str] = frozenset()
    """Of those, attributes of which it is not known whether the device pushes them: the subscription has failed."""
    trouble: str = ""
    """Why the device cannot be reached; empty: it answers."""
    names: frozenset[str] | None = None
    """Full names of all attributes of the device; None: they were not asked for, or it could not name them."""


class DeviceSearch(NamedTuple):
    """A search for the devices whose names fit a pattern, in their Tango database."""

    pattern: str


class SearchResult(NamedTuple):
    """Result of a search."""

    pattern: str
    exported: frozenset[str] = frozenset()
    """Devices whose servers have told the database where they are."""
    defined: frozenset[str] = frozenset()
    """All devices that the database has."""
    trouble: str = ""
    """Why the database could not be asked."""


SourceTask = DeviceJob | DeviceSearch
SourceEvent = AttributeValue | EventsMissed | DeviceLost | JobResult | SearchResult


class DeviceSource(Protocol):
    """Talks to devices. It takes tasks, and answers each with an event later."""

    @property
    def most_jobs(self) -> int:
        """How many devices can be asked at once; searches have room beside them."""

    def begin(self, task: SourceTask) -> None:
        """Take a task; never waits. At most one of a device, or of a Tango database, is under way."""

    def take(self) -> Sequence[SourceEvent]:
        """Return the events since the last call, in their order; never waits."""

    def wait(self, timeout: float) -> None:
        """Wait for the next event, at most `timeout` [s]."""

    def close(self) -> None:
        """End."""
