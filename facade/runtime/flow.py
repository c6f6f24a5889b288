"""The seam between flows and views on one side, and the event loop and publisher on the other."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from facade.bus.offsets import Extent
from facade.bus.port import Record
from facade.outcome import Outcome
from facade.reading import Reading
from facade.runtime.columns import ReadingColumn
from facade.severities import Severity

DeviceReading = tuple[str, str, Reading]
"""Device name, attribute name and reading."""

LastReadings = Mapping[str, Mapping[str, Reading]]
"""Last shown reading, by device and attribute."""


FaultKey = tuple[str, str]
"""Condition of the ICD and source."""


class Fault(NamedTuple):
    """A fault of a source, for which an alert is raised."""

    text: str
    severity: Severity | None = None
    """None: the severity of the condition."""
    began: int | None = None
    """Begin of the fault, if it is known [Unix us]: a later one is a new occurrence of the alarm."""
    values: Mapping[str, float] = MappingProxyType({})
    """Measured values, by name: growing values may lead to a re-alarm."""
    host: str = ""
    """Host of the process that has gone; empty: the fault is of no process, or its host is not known."""


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
        """Report that a condition has gone, also if an earlier run may have raised it. Raises as `raise_alert`."""


class Missing(NamedTuple):
    """Records missing from a topic."""

    records: int
    """Upper bound of their number."""
    text: str
    """Topic, partition, offsets, and the event."""


class Flow(ABC):
    """The state that a device server derives from one topic. By default it reads the whole topic at each start."""

    topic: str
    durable: bool = False
    """Whether it continues from a snapshot; otherwise it reads the whole (compacted) topic at start."""
    partitions: Sequence[int] | None = None
    """Partitions to read; None: all."""
    columns: Sequence[ReadingColumn] = ()
    """Attributes whose readings are made when somebody looks at them."""
    replayed: Callable[[], float] | None = None
    """Returns the time of the replay that the deployment shows [Unix s]; None: there is no replay."""

    def heard(self, record: Record) -> float:
        """Return the time of a record of the facade itself [Unix s]; in a replay, the time at which it was read."""
        written = record.timestamp_us / 1e6
        return written if self.replayed is None else min(written, self.replayed())

    @abstractmethod
    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Process one record and return its outcome; a rejected record becomes a dead letter.

        `count`: False for a record that the snapshot already counts; it is read again to rebuild windows.
        """

    def lost_before(self) -> Iterable[Missing]:
        """Return the missing records found since the last call."""
        return ()

    def readings(self, now: float) -> Iterable[DeviceReading | ReadingColumn]:
        """Return changed readings, and the changed ones among the `columns`; `now`: wall-clock time [Unix s]."""
        return ()

    def as_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        return {}

    def place(self, now: Extent, before: Mapping[int, int], after: Mapping[int, int]) -> None:  # noqa: B027 - few number
        """Note the extent of the topic, and by partition the offset expected before and the one that comes next.

        The next offset is the smaller one if the topic was created again, or its end was lost: other records get
        offsets that have been folded.
        """

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - what is not durable has nothing to restore
        """Restore the state from a snapshot, before the topic is read."""


VIEW_PERIOD = 0.25
"""Time between two updates of a view, as values change with time alone [s]."""


def is_due(now: float, looked_at: float, gap: float = VIEW_PERIOD) -> bool:
    """Return whether a view is due, `gap` [s] after the last time or when the clock was set back.

    The clock of a replay may stand still: a view is always due then.
    """
    return not 0.0 < now - looked_at < gap


class View(Protocol):
    """Derives readings from several flows together."""

    def readings(self, now: float) -> Iterable[DeviceReading]:
        """Return the readings that may have changed since the last call; unchanged ones are filtered out later."""


class Effects(Protocol):
    """A flow whose records must neither be lost nor merged on their way to clients.

    The position for a restart is stored only after all its events have been sent, and all its records are durable.
    """

    topic: str
    device: str
    recalls: str
    """Compacted topic with the state from before a restart; it is read completely before the first record is folded."""
    kept: int
    """Number of records before the position that are read again at a start, without being counted."""

    def recall(self, record: Record) -> Outcome:
        """Process a record of `recalls`, and return its outcome."""

    remembered: Sequence[str]
    """Attributes that are shown right after a restart as they were before."""

    def events(self, now: float, *, current: bool) -> Iterable[DeviceReading]:
        """Return the events since the last call, in order; each is one Tango event.

        `current`: whether the newest record of the topic has been read; before that the wall clock does not apply to
        it.
        """

    def records(self, now: float) -> Iterable[Record]:
        """Return the changes of state since the last call, to write to `recalls`."""

    def again(self) -> None:
        """Let the next call of `records` return all states: some may have been lost."""
