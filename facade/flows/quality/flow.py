"""The newest value of each quality metric, as ``quality`` has it."""

from collections.abc import Collection
from dataclasses import dataclass, field

from facade.bus.port import Record
from facade.codec.arrays import Array
from facade.flows.quality.decode import TEXT, decode
from facade.flows.quality.fit import axes
from facade.flows.quality.messages import METRIC, QUALITY, read_header
from facade.icd.model import Attribute, Icd
from facade.icd.units import unit_of
from facade.messages import Metric
from facade.outcome import LATE, TOMBSTONE, USED, Outcome, Rejected, Suppressed, Unused
from facade.runtime.flow import Flow

CLASS = "SdpQuality"
_OWN = frozenset({"scanID", "metricsRate", "unknownMetrics", "connected", "versionId"})
"""Attributes that the view provides itself."""
AHEAD = 5.0
"""A metric whose time is ahead of the broker's by more is refused [s]."""
BEHIND = 60.0
"""A metric whose time is behind the broker's by more is too late to be shown [s]."""
_MOST_UNKNOWN = 64
"""Names per subarray that are kept, the newest ones."""


@dataclass(frozen=True, slots=True, eq=False)
class NewestMetric:
    """The newest value of a metric."""

    header: Metric
    array: Array = field(repr=False)
    appended: float
    """When it came to the bus, by the broker's clock [Unix s]."""


@dataclass(slots=True)
class Measured:
    """What is known of one subarray."""

    newest: dict[str, NewestMetric] = field(default_factory=dict)
    """By name."""
    unknown: dict[str, None] = field(default_factory=dict)
    """Metrics that came and that the ICD does not have, the newest last."""
    used: int = 0
    """Records."""
    scan: tuple[int, float] | None = None
    """The newest scan id, and the time of its data [Unix s]."""


class QualityFlow(Flow):
    """A flow: the newest value of each metric; see `facade.runtime.flow.Flow`.

    The topic is compacted and has a key for each metric, so that reading it from its beginning gives all of it,
    whenever a device server starts.

    Parameters
    ----------
    subarrays
        Numbers of those that this server shows.
    """

    topic = QUALITY

    def __init__(self, icd: Icd, subarrays: Collection[int]) -> None:
        self.measured = {number: Measured() for number in subarrays}
        """By subarray."""
        self._metrics = {one.name: _Wanted.of(icd, one) for one in icd.classes[CLASS].attributes if is_metric(one)}

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Take a metric; see `facade.runtime.flow.Flow`."""
        if record.value is None:
            return self._remove(record)
        header = read_header(record)
        if isinstance(header, Rejected):
            return header
        if (measured := self.measured.get(header.subarray)) is None:
            return Suppressed("other-subarray")
        if (wanted := self._metrics.get(header.metric)) is None:
            measured.unknown.pop(header.metric, None)
            measured.unknown[header.metric] = None
            if len(measured.unknown) > _MOST_UNKNOWN:
                del measured.unknown[next(iter(measured.unknown))]
            return Suppressed("unknown-metric")
        appended = record.timestamp_us / 1e6
        if why := _untimely(header, appended) or wanted.differs(header):
            return why
        array = decode(header.encoding, record.value, header.shape, header.dtype)
        if isinstance(array, Rejected):
            return array
        measured.newest[header.metric] = NewestMetric(header, array, appended)
        measured.used += 1
        if header.scan_id is not None:
            measured.scan = header.scan_id, header.time / 1e6
        return USED

    def _remove(self, record: Record) -> Outcome:
        """Forget a metric whose key has come without a value."""
        for number, measured in self.measured.items():
            prefix = f"subarray/{number:02d}/".encode()
            if record.key is not None and record.key.startswith(prefix):
                name = record.key.removeprefix(prefix).decode("utf-8", "replace")
                measured.newest.pop(name, None)
                measured.unknown.pop(name, None)
        return TOMBSTONE


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a metric must be for its attribute to show it."""

    axes: int
    is_text: bool
    unit: str

    @classmethod
    def of(cls, icd: Icd, attribute: Attribute) -> "_Wanted":
        return cls(len(axes(attribute)), attribute.type == "DevString", unit_of(icd, attribute))

    def differs(self, header: Metric) -> Rejected | None:
        """Return why a metric cannot be shown; None: it can."""
        if len(header.shape) != self.axes:
            return _differs("shape", f"{self.axes} axes", header, tuple(header.shape))
        if (header.dtype == TEXT) != self.is_text:
            expected = "names" if self.is_text else "numbers"
            return _differs("dtype", expected, header, header.dtype)
        if header.unit != self.unit:
            return _differs("unit", repr(self.unit), header, repr(header.unit))
        return None


def _differs(field: str, expected: str, header: Metric, got: object) -> Rejected:
    what = f"expected {expected}, as the attribute {header.metric} has, got {got}"
    return Rejected(field, f"headers.{METRIC}.{field}", what)


def _untimely(header: Metric, appended: float) -> Unused | None:
    age = appended - header.time / 1e6
    if age > BEHIND:
        return LATE
    if age < -AHEAD:
        what = f"expected a time at most {AHEAD:g} s ahead of the broker's, got {-age:.3f} s"
        return Rejected("ahead", f"headers.{METRIC}.time", what)
    return None


def is_metric(attribute: Attribute) -> bool:
    """Return whether an attribute of the class shows the metric of its name."""
    return attribute.name not in _OWN and attribute.source is None
