"""The seam between flows and views on one side, and the event loop and publisher on the other."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from facade.kernel.bus.offsets import Extent
from facade.kernel.bus.port import Record
from facade.kernel.clock import FOREVER, NEVER, NOTHING, SECOND, Duration, Time
from facade.kernel.outcome import Outcome
from facade.kernel.reading import Changes, Reading, Value
from facade.kernel.severities import Severity

if TYPE_CHECKING:  # producers and controllers do without arrays
    from facade.kernel.runtime.columns import ReadingColumn

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
    began: Time | None = None
    """Begin of the fault, if it is known: a later one is a new occurrence of the alarm."""
    values: Mapping[str, float] = MappingProxyType({})
    """Measured values, by name: growing values may lead to a re-alarm."""
    host: str = ""
    """Host of the process that has gone; empty: the fault is of no process, or its host is not known."""


class Alerts(Protocol):
    """Raises and clears the alerts of one source; see `facade.kernel.manifest.Manifest.alert_source`."""

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
    columns: "Sequence[ReadingColumn]" = ()
    """Attributes whose readings are made when somebody looks at them."""
    heard_at: Callable[[Time], Time] = staticmethod(lambda written: written)
    """Returns the time at which a record of the facade itself counts as written, by the brokers' time."""

    def heard(self, record: Record) -> Time:
        """Return the time of a record of the facade itself, in the time that the deployment shows."""
        return self.heard_at(record.timestamp_us)

    @abstractmethod
    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Process one record and return its outcome; a rejected record becomes a dead letter.

        `count`: False for a record that the snapshot already counts; it is read again to rebuild windows.
        """

    def lost_before(self) -> Iterable[Missing]:
        """Return the missing records found since the last call."""
        return ()

    def readings(self, now: Time) -> "Iterable[DeviceReading | ReadingColumn]":
        """Return changed readings, and the changed ones among the `columns`; `now`: wall-clock time."""
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


VIEW_PERIOD = SECOND // 4
"""Time between two looks of a view, as values change with time alone."""
AFTER_CHANGES: Final = FOREVER - NEVER
"""Time between two looks of a view whose values change only with its records, not with time."""


class Gate:
    """Decides when a view looks again: after a change, or when a while has passed.

    Parameters
    ----------
    period
        Longest time between two looks.
    gap
        Least time between two looks, however much changes.
    """

    def __init__(self, period: Duration = VIEW_PERIOD, gap: Duration = NOTHING) -> None:
        self.period, self.gap = period, gap
        self._looked_at, self._version = NEVER, object()

    def is_due(self, now: Time, version: object = None) -> bool:
        """Return whether to look at a time, when a version shows what has changed.

        It is due, too, when the clock was set back. The clock of a replay may stand still: a look is always due then.
        """
        return not NOTHING < now - self._looked_at < (self.period if version == self._version else self.gap)

    def close(self, now: Time, version: object = None) -> None:
        """Note a look."""
        self._looked_at, self._version = now, version

    def passes(self, now: Time, version: object = None) -> bool:
        """Return whether to look, and note that."""
        if is_due := self.is_due(now, version):
            self.close(now, version)
        return is_due


class View(Protocol):
    """Derives readings from several flows together."""

    def readings(self, now: Time) -> Iterable[DeviceReading]:
        """Return the readings that may have changed since the last call; unchanged ones are filtered out later."""


class DeviceView(ABC):
    """A view of one device, behind a gate."""

    def __init__(self, device: str, gate: Gate | None = None) -> None:
        self._device, self._gate = device, gate or Gate()
        self._changes = Changes()
        """Shown values without a time of their own."""

    def readings(self, now: Time) -> Iterator[DeviceReading]:
        """Return all readings after a change, or when a while has passed; see `View`."""
        version = self._version()
        if not self._gate.is_due(now, version):
            return
        for name, reading in self._readings(now):
            yield self._device, name, reading
        self._gate.close(now, version)  # not before: a reading that fails would hide the others

    def _version(self) -> object:
        """Return a value that differs after each change that must be shown at once."""
        return None

    @abstractmethod
    def _readings(self, now: Time) -> Iterable[tuple[str, Reading]]:
        """Return the readings by name."""

    def _dated(self, values: Mapping[str, Value], now: Time) -> Iterator[tuple[str, Reading]]:
        """Return the readings of values that have no time of their own."""
        return ((name, self._changes.reading(name, value, now)) for name, value in values.items())


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

    def events(self, now: Time, *, current: bool) -> Iterable[DeviceReading]:
        """Return the events since the last call, in order; each is one Tango event.

        `current`: whether the newest record of the topic has been read; before that the wall clock does not apply to
        it.
        """

    def records(self, now: Time) -> Iterable[Record]:
        """Return the changes of state since the last call, to write to `recalls`."""

    def again(self) -> None:
        """Let the next call of `records` return all states: some may have been lost."""
