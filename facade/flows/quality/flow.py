"""Quality metrics on SdpQuality: the newest array of each metric, as small as its attribute, and alerts about limits.

The rule for size: an axis of n elements that is longer than the attribute's m is divided into m blocks of neighbours of
nearly equal length: block b begins at element b * n // m. Each block is shown as the mean of its finite elements, over
both axes of an image; NaN where there is none. An infinite element is shown as NaN, also without a division. Of names,
the first one of each block is shown.

A metric is ATTR_INVALID, and raises no alert, if it has stopped for longer than its `stale_after`
(`schemas/icd/SdpQuality.toml`) or has no finite element.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from facade.flows.quality.records import METRIC, QUALITY, TEXT, decode, key_of, read_header
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.clock import MINUTE, NEVER, NOTHING, SECOND, Time, as_duration, as_seconds, as_time
from facade.kernel.icd.model import Attribute, Icd
from facade.kernel.icd.topic_model import Limits
from facade.kernel.icd.units import unit_of
from facade.kernel.instances import device_number, devices_of, number_of
from facade.kernel.numbers import Seconds
from facade.kernel.outcome import LATE, TOMBSTONE, USED, Outcome, RecordRejected, Suppressed, Unused
from facade.kernel.printable import listed
from facade.kernel.reading import Quality, Reading, Value, judge
from facade.kernel.recent import Bounded, MeanRate
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import Fault, FaultKey
from facade.kernel.runtime.projection import Projection
from facade.kernel.runtime.view import NewestView
from facade.kernel.severities import ALARM, WARNING
from facade.sdp.arrays import Array
from facade.sdp.device_state import OBS_STATE
from facade.sdp.messages import DeviceComplaint, Metric
from facade.sdp.scans import OTHER_SUBARRAY

CLASS = "SdpQuality"
_OWN = frozenset({"scanID", "metricsRate", "unknownMetrics", "connected", "versionId"})
"""Attributes that the view provides itself."""
AHEAD = 5 * SECOND
"""A metric whose time is ahead of the broker's by more is refused."""
BEHIND = MINUTE
"""A metric whose time is behind the broker's by more is too late to be shown."""
_MOST_UNKNOWN = 64
"""Names kept per subarray, the newest ones."""
_RATE_OVER = 10 * SECOND
"""Period of the mean in `metricsRate`."""
_MOST_NAMES = 8
"""Names of metrics in a line of Status, or of health."""
QUALITY_LOW = "qualityLow"
_BACK = 15 * SECOND
"""Time after an outage of the bus in which a metric may still be on its way; producers retry after up to 10 s."""
_SEVERITY_OF_QUALITY = {Quality.WARNING: WARNING, Quality.ALARM: ALARM}
_WORDS = {
    "min_warning": "above {:g}",
    "max_warning": "below {:g}",
    "min_alarm": "above {:g} in any case",
    "max_alarm": "below {:g} in any case",
}


@dataclass(frozen=True, slots=True, eq=False)
class NewestMetric:
    """The newest value of a metric."""

    header: Metric
    array: Array = field(repr=False)
    appended: Time
    """Append time, by the broker's clock."""


@dataclass(slots=True)
class Measured:
    """The metrics of one subarray."""

    newest: dict[str, NewestMetric] = field(default_factory=dict)
    unknown: Bounded[str, None] = field(default_factory=lambda: Bounded(_MOST_UNKNOWN))
    """Metrics that are not in the ICD, the newest last."""
    used: int = 0
    scan: tuple[int, Time] | None = None
    """The newest scan id, and the time of its data."""


class QualityFlow(Projection[NewestMetric]):
    """A flow: the newest value of each metric; see `facade.kernel.runtime.flow.Flow`.

    The topic is compacted and has a key for each metric, so a read from its beginning gives all metrics at any start. A
    record that cannot be used takes the place of a good one there; then the snapshot has the good value.
    """

    topic = QUALITY

    def __init__(self, icd: Icd, subarrays: Collection[int]) -> None:
        self.measured = {number: Measured() for number in subarrays}
        self._metrics = {one.name: _Wanted.of(icd, one) for one in icd.classes[CLASS].attributes if is_metric(one)}
        self._replaced: set[bytes] = set()
        """Keys whose newest record is not the shown one."""

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Process a metric; see `facade.kernel.runtime.flow.Flow`."""
        outcome = super().fold(record, count=count)
        if outcome in (USED, TOMBSTONE):
            self._replaced.discard(record.key or b"")
        elif record.key in {key_of(metric.header).encode() for metric in self._shown()}:
            self._replaced.add(record.key or b"")
        return outcome

    def _shown(self) -> Iterator[NewestMetric]:
        return (metric for measured in self.measured.values() for metric in measured.newest.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the values that are not on the topic any more."""
        lost = [metric for metric in self._shown() if key_of(metric.header).encode() in self._replaced]
        most = {metric.header.metric: self._metrics[metric.header.metric].most for metric in lost}
        return {
            "replaced": [
                (one.header, fit(one.array, most[one.header.metric])[0], as_seconds(one.appended)) for one in lost
            ]
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Show the values that are not on the topic any more, until it has newer ones."""
        for header, value, appended in msgspec.convert(state.get("replaced", []), list[tuple[Metric, Any, Seconds]]):
            measured, wanted = self.measured.get(header.subarray), self._metrics.get(header.metric)
            array = np.array(value, np.str_ if header.dtype == TEXT else np.float64)
            if measured is not None and wanted is not None and array.ndim == wanted.axes and not wanted.differs(header):
                self._show(NewestMetric(header, array, as_time(appended)))
                self._replaced.add(key_of(header).encode())

    def _read(self, record: Record) -> NewestMetric | Unused:
        header = read_header(record)
        if isinstance(header, RecordRejected):
            return header
        if (measured := self.measured.get(header.subarray)) is None:
            return OTHER_SUBARRAY
        if (wanted := self._metrics.get(header.metric)) is None:
            measured.unknown[header.metric] = None
            return Suppressed("unknown-metric")
        if why := _untimely(header, record.timestamp_us) or wanted.differs(header):
            return why
        array = decode(header.encoding, record.value or b"", header.shape, header.dtype)
        return array if isinstance(array, RecordRejected) else NewestMetric(header, array, record.timestamp_us)

    def _take(self, metric: NewestMetric, record: Record) -> Outcome:
        self.measured[metric.header.subarray].used += 1
        self._show(metric)
        return USED

    def _show(self, metric: NewestMetric) -> None:
        header, measured = metric.header, self.measured[metric.header.subarray]
        shape, expected = metric.array.shape, self._metrics[header.metric].axes
        assert len(shape) == expected, f"{header.metric}: an array of {shape} for {expected} axes"
        measured.newest[header.metric] = metric
        if header.scan_id is not None:
            measured.scan = header.scan_id, header.time

    def _remove(self, key: str) -> None:
        for number, measured in self.measured.items():
            place, _, name = key.rpartition("/")
            if place == f"subarray/{number:02d}":
                measured.newest.pop(name, None)
                measured.unknown.pop(name, None)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Form of a metric that its attribute can show."""

    most: tuple[int, ...]
    """See `axes`."""
    is_text: bool
    unit: str

    @classmethod
    def of(cls, icd: Icd, attribute: Attribute) -> "_Wanted":
        return cls(axes(attribute), attribute.type == "DevString", unit_of(icd, attribute))

    @property
    def axes(self) -> int:
        """Return the number of axes."""
        return len(self.most)

    def differs(self, header: Metric) -> RecordRejected | None:
        """Return the reason why a metric cannot be shown; None: it can."""
        if len(header.shape) != self.axes:
            return _differs("shape", f"{self.axes} axes", header, tuple(header.shape))
        if (header.dtype == TEXT) != self.is_text:
            expected = "names" if self.is_text else "numbers"
            return _differs("dtype", expected, header, header.dtype)
        if header.unit != self.unit:
            return _differs("unit", repr(self.unit), header, repr(header.unit))
        return None


def _differs(field: str, expected: str, header: Metric, got: object) -> RecordRejected:
    what = f"expected {expected}, as the attribute {header.metric} has, got {got}"
    return RecordRejected(field, f"headers.{METRIC}.{field}", what)


def _untimely(header: Metric, appended: Time) -> Unused | None:
    age = appended - header.time
    if age > BEHIND:
        return LATE
    if age < -AHEAD:
        what = f"expected a time at most {as_seconds(AHEAD):g} s ahead of the broker's, got {as_seconds(-age):.3f} s"
        return RecordRejected("ahead", f"headers.{METRIC}.time", what)
    return None


def is_metric(attribute: Attribute) -> bool:
    """Return whether an attribute of the class shows the metric of its name."""
    return attribute.name not in _OWN and attribute.source is None


def axes(attribute: Attribute) -> tuple[int, ...]:
    """Return the largest number of elements of each axis of an attribute."""
    return (attribute.height, attribute.length) if attribute.height else (attribute.length,) if attribute.length else ()


def fit(array: Array, most: tuple[int, ...]) -> tuple[Value, bool]:
    """Reduce an array to the size of its attribute, from `axes`; return it, and whether it has anything but NaN."""
    if array.dtype.kind == "U":
        for axis, limit in enumerate(most):
            array = array.take(_begins(array.shape[axis], limit), axis)
        return _plain(array), True
    means = _means(array.astype(np.float64), most)
    return _plain(means), bool(np.isfinite(means).any())


def _means(values: Array, most: tuple[int, ...]) -> Array:
    finite = np.isfinite(values)
    if all(length <= limit for length, limit in zip(values.shape, most, strict=True)):
        return np.where(finite, values, np.nan)
    with np.errstate(all="ignore"):  # infinite means become NaN
        scale = 2.0 ** values.size.bit_length()  # no sum of finite values becomes infinite
        sums, counts = np.where(finite, values / scale, 0.0), finite.astype(np.float64)
        for axis, limit in enumerate(most):
            if values.shape[axis] <= limit:
                continue
            begins = _begins(values.shape[axis], limit)
            sums, counts = np.add.reduceat(sums, begins, axis), np.add.reduceat(counts, begins, axis)
        means = sums / counts * scale
    return np.where(np.isfinite(means), means, np.nan)


def _begins(length: int, limit: int) -> Array:
    blocks = min(length, limit)
    return np.arange(blocks) * length // blocks


def _plain(array: Array) -> Value:
    values: Any = array.tolist()
    return tuple(map(tuple, values)) if array.ndim == 2 else tuple(values) if array.ndim else values


class QualityView(NewestView):
    """A view: the metrics of one subarray."""

    what = "metrics"

    def __init__(self, device: str, server: Server, flow: QualityFlow, subarray: int) -> None:
        super().__init__(device, server, flow.topic)
        self.subarray = subarray
        self._measured = flow.measured[subarray]
        self._shown: dict[str, tuple[NewestMetric, Reading]] = {}
        """Each metric with its reading, without regard to its age."""
        self._metrics: dict[str, Reading] = {}
        """As of the last update."""
        self.stopped: list[str] = []
        """Metrics that have stopped, as of the last update."""
        self._rate = MeanRate(_RATE_OVER)

    def _look(self, now: Time) -> dict[str, Value]:
        self.stopped = []
        found = {name: self._metric(name, now) for name, one in self._attributes.items() if is_metric(one)}
        self._metrics = {name: reading for name, reading in found.items() if reading is not None}
        rate = round(self._rate.note(self._measured.used, now), 1)
        return {"metricsRate": rate, "unknownMetrics": tuple(sorted(self._measured.unknown))}

    def _show(self, values: dict[str, Value], now: Time, *, is_known: bool) -> Iterator[tuple[str, Reading]]:
        if not is_known:
            self._metrics = {}
        yield from self._metrics.items()
        if self._measured.scan is not None and self._metrics:
            yield "scanID", Reading(*self._measured.scan)
        for name, value in values.items():
            yield name, self._changes.reading(name, value, now)

    def beyond(self) -> Iterator[tuple[str, Reading, Limits]]:
        """Return the metrics that were beyond their limits at the last update."""
        for name, reading in self._metrics.items():
            limits = self._attributes[name].limits
            if limits is not None and reading.quality in (Quality.WARNING, Quality.ALARM):
                yield name, reading, limits

    def _metric(self, name: str, now: Time) -> Reading | None:
        """Return the reading of a metric's attribute; None: the metric never came."""
        metric, shown, attribute = self._measured.newest.get(name), self._shown.get(name), self._attributes[name]
        if metric is not None and (shown is None or shown[0] is not metric):
            value, known = fit(metric.array, axes(attribute))
            quality = judge(value, attribute.limits) if known else Quality.INVALID
            shown = self._shown[name] = metric, Reading(value, metric.header.time, quality)
        if shown is None:
            return None
        limit = self._class.stale_after if attribute.stale_after is None else attribute.stale_after
        stopped = metric is None or (limit > 0 and now - metric.appended > as_duration(limit))
        if stopped and metric is not None:  # one that was removed is not expected any more
            self.stopped.append(name)
        return shown[1].invalid() if stopped else shown[1]

    def _judge(self, now: Time) -> tuple[str, list[str]]:
        by_quality: dict[Quality, list[str]] = {}
        for name, reading in self._metrics.items():
            by_quality.setdefault(reading.quality, []).append(name)
        beyond = by_quality.get(Quality.ALARM, []) + by_quality.get(Quality.WARNING, [])
        lines = [] if self._metrics else ["No metric has come yet."]
        lines += _line("Beyond their limits", beyond)
        lines += _line("Stopped, or without a number", by_quality.get(Quality.INVALID, []))
        lines += _line("Metrics that no attribute has the name of", sorted(self._measured.unknown))
        return "ALARM" if beyond else "ON", lines


def _line(what: str, names: list[str]) -> list[str]:
    return [f"{what}: {listed(names, _MOST_NAMES)}."] if names else []


class Excesses:
    """Finds the metrics beyond their limits."""

    def __init__(self, views: Sequence[QualityView], health: BusHealth) -> None:
        self._views = views
        self._prefixes = tuple(f"subarray/{view.subarray:02d}/" for view in views)
        self._health = health
        self._away_at = NEVER
        """Last time that the bus was away."""

    def is_excess(self, key: FaultKey) -> bool:
        """Return whether a fault of this condition and source is found here."""
        condition, source = key
        return condition == QUALITY_LOW and source.startswith(self._prefixes)

    def find(self, now: Time) -> dict[FaultKey, Fault] | None:
        """Return the excesses by condition and metric; None during an outage of the bus, and a little longer."""
        if not self._health.connected:
            self._away_at = now
        if NOTHING <= now - self._away_at < _BACK:
            return None
        found = {}
        for prefix, view in zip(self._prefixes, self._views, strict=True):
            for name, reading, limits in view.beyond():
                text = f"{name}: expected {_in_words(limits)}, got {reading.value}"
                found[QUALITY_LOW, prefix + name] = Fault(text, _SEVERITY_OF_QUALITY[reading.quality])
        return found


def _in_words(limits: Limits) -> str:
    given = ((words, getattr(limits, name)) for name, words in _WORDS.items())
    return ", ".join(words.format(limit) for words, limit in given if limit is not None)


def compose(server: Server) -> None:
    """Add the quality metrics to a device server."""
    devices, health = server.devices[CLASS], server.bus.health
    entry = server.icd.classes[CLASS]
    numbers = [device_number(entry, device, server.settings) for device in devices]
    flow = QualityFlow(server.icd, numbers)
    server.flows.append(flow)
    views = [QualityView(device, server, flow, number) for device, number in zip(devices, numbers, strict=True)]
    server.views += views
    excesses = Excesses(views, health)
    server.report(excesses.find, excesses.is_excess, flow.topic)
    subarrays = {
        number_of(one, device): device
        for one in server.icd.classes.values()
        if any(attribute.name == OBS_STATE for attribute in one.attributes)
        for names in devices_of(one, server.settings).values()
        for device in names
    }
    by_device = dict(zip(devices, views, strict=True))

    def stopped() -> Iterator[DeviceComplaint]:
        for device, view in by_device.items():
            if view.stopped:
                text = f"metrics have stopped: {listed(view.stopped, _MOST_NAMES)}"
                yield DeviceComplaint(device, text, subarrays.get(view.subarray, ""))

    server.complaints.append(stopped)
