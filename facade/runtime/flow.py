"""The seam between flows and views on one side, and the service that reads and publishes on the other."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from facade.bus.offsets import Extent
from facade.bus.port import Record
from facade.outcome import Outcome
from facade.reading import Reading
from facade.severities import Severity

DeviceReading = tuple[str, str, Reading]
"""Device name, attribute name and what it shows."""

LastReadings = Mapping[str, Mapping[str, Reading]]
"""What was shown last, by device and attribute."""


FaultKey = tuple[str, str]
"""Condition of the ICD and source."""


class Fault(NamedTuple):
    """A fault of a source, for which an alert is raised."""

    severity: Severity
    text: str
    began: int | None = None
    """When, if that is known [Unix us]: a later one is a new occurrence of the alarm."""
    values: Mapping[str, float] = MappingProxyType({})
    """Measured values, by name: an alarm whose values grow may ask anew."""


class Alerts(Protocol):
    """Raises and clears the alerts of one source; see `facade.manifest.Manifest.alert_source`."""

    def raise_alert(self, condition: str, severity: Severity, text: str) -> object:
        """Report that a condition is active.

        Raises
        ------
        BusError
            The bus has not confirmed it.
        """

    def clear(self, condition: str, text: str) -> object:
        """Report that a condition has gone, also if an earlier run may have raised it; raises as `raise_alert`."""


class Missing(NamedTuple):
    """Records that a topic should have had."""

    records: int
    """At most so many."""
    text: str
    """Topic, partition and offsets, and what happened."""


class Flow(ABC):
    """What a device server makes of one topic; by default it reads the whole topic at each start, and views show it."""

    topic: str
    durable: bool = False
    """Whether it goes on from a snapshot; otherwise it reads the whole (compacted) topic at start."""
    partitions: Sequence[int] | None = None
    """Partitions to read; None: all."""
    replayed: Callable[[], float] | None = None
    """Returns the time of the replay that the deployment shows [Unix s]; None: it shows none."""

    def heard(self, record: Record) -> float:
        """Return when a record of the facade itself was written [Unix s]: in a replay, when it was read."""
        written = record.timestamp_us / 1e6
        return written if self.replayed is None else min(written, self.replayed())

    @abstractmethod
    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Take one record and return its outcome; a rejected record becomes a dead letter.

        `count`: False for a record that the snapshot already counts, given again to rebuild windows.
        """

    def lost_before(self) -> Iterable[Missing]:
        """Return the records that were found missing since the last call."""
        return ()

    def readings(self, now: float, last: LastReadings) -> Iterable[DeviceReading]:
        """Return what has changed.

        Parameters
        ----------
        now
            Wall-clock time [Unix s].
        last
            The readings shown before, perhaps before a restart.
        """
        return ()

    def as_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        return {}

    def place(self, now: Extent, before: Mapping[int, int], after: Mapping[int, int]) -> None:  # noqa: B027 - few number
        """Learn which topic is read, and by partition which offset was expected next and which one comes next.

        The offset that comes next is the smaller one where the topic was made again, or its end was lost: other records
        get the offsets of those that have been folded.
        """

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - what is not durable has nothing to restore
        """Take the state from a snapshot."""


VIEW_PERIOD = 0.25
"""Time between two looks of a view, as values change with time alone [s]."""


def is_due(now: float, looked_at: float, gap: float = VIEW_PERIOD) -> bool:
    """Return whether a view is to look again, `gap` after the last time or when the clock was set back [s].

    The clock of a replay may stand still: each look is due then.
    """
    return not 0.0 < now - looked_at < gap


class View(Protocol):
    """Something that shows what several flows together amount to."""

    def readings(self, now: float) -> Iterable[DeviceReading]:
        """Return what may have changed since the last call; what has not is filtered out later."""


class Effects(Protocol):
    """A flow of whose records none may be lost, nor merged with others, on the way to clients.

    The place from which a restart goes on is written down only once all events that it gave have been
    sent, and all records that it gave are durable.
    """

    topic: str
    device: str
    recalls: str
    """Compacted topic with the state from before a restart; it is read whole before the first record is folded."""
    kept: int
    """Records before the place to go on from that are read again at a start, without being counted."""

    def recall(self, record: Record) -> Outcome:
        """Take a record of `recalls`, and return what became of it."""

    remembered: Sequence[str]
    """Attributes that are shown right after a restart as they were before."""

    def events(self, now: float, *, current: bool) -> Iterable[DeviceReading]:
        """Return what happened since the last call; each is one event, in this order.

        `current`: whether the newest record of the topic has been read: before that the wall clock says nothing about
        it.
        """

    def records(self, now: float) -> Iterable[Record]:
        """Return the changes of state since the last call, to be written to `recalls`."""

    def again(self) -> None:
        """Return all states again with the next call of `records`: some may have been lost."""
