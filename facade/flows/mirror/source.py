"""The seam between the mirror, which decides what is to be done, and what talks to the devices of the telescope."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Seen(NamedTuple):
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
    """Why there is no value."""


class Missed(NamedTuple):
    """Some events of an attribute did not arrive."""

    name: str


class Lost(NamedTuple):
    """The events of a device have stopped."""

    device: str
    why: str


class Job(NamedTuple):
    """What is to be done with one device; with nothing to do, it is asked whether it is there."""

    device: str
    read: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    """Attributes of which no more events are wanted."""
    anew: bool = False
    """Whether the connection is to be made anew, without any of its subscriptions."""
    names: bool = False
    """Whether the device is to name all of its attributes."""


class Done(NamedTuple):
    """What became of a job."""

    job: Job
    seen: tuple[Seen, ...] = ()
    """What was read."""
    pushed: frozenset[str] = frozenset()
    """Attributes of which events will come, of those to subscribe to."""
    failed: frozenset[str] = frozenset()
    """Of those, attributes of which it is not known whether the device pushes them: the subscription has failed."""
    trouble: str = ""
    """Why the device cannot be reached; empty: it answers."""
    names: frozenset[str] | None = None
    """Full names of all attributes of the device; None: they were not asked for, or it could not name them."""


class Search(NamedTuple):
    """The devices whose names fit a pattern are to be found in their Tango database."""

    pattern: str


class Found(NamedTuple):
    """What a search has found."""

    pattern: str
    exported: frozenset[str] = frozenset()
    """Devices whose servers have told the database where they are."""
    defined: frozenset[str] = frozenset()
    """All devices that the database has."""
    trouble: str = ""
    """Why the database could not be asked."""


Task = Job | Search
News = Seen | Missed | Lost | Done | Found


class Source(Protocol):
    """Talks to devices; whatever it is asked for, it answers with news, later."""

    @property
    def most_jobs(self) -> int:
        """How many devices can be asked at once; searches have room beside them."""

    def begin(self, task: Task) -> None:
        """Take a task; never waits. At most one of a device, or of a Tango database, is under way."""

    def take(self) -> Sequence[News]:
        """Return what has come since the last call, in its order; never waits."""

    def wait(self, timeout: float) -> None:
        """Wait until something has come, at most `timeout` [s]."""

    def close(self) -> None:
        """End."""
