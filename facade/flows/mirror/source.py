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


class Search(NamedTuple):
    """The names of attributes that a pattern chooses are to be found."""

    pattern: str


class Found(NamedTuple):
    """What a search has found."""

    pattern: str
    names: frozenset[str] = frozenset()
    trouble: str = ""
    """What could not be asked; the names are those of the others."""


Task = Job | Search
News = Seen | Missed | Lost | Done | Found


class Source(Protocol):
    """Talks to devices; whatever it is asked for, it answers with news, later."""

    def begin(self, task: Task) -> None:
        """Take a task; never waits. At most one of a device is under way."""

    def take(self) -> Sequence[News]:
        """Return what has come since the last call, in its order; never waits."""

    def wait(self, timeout: float) -> None:
        """Wait until something has come, at most `timeout` [s]."""

    def close(self) -> None:
        """End."""
