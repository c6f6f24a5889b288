"""What SdpQuality shows: the newest value of each metric of its subarray, and whether metrics still come."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from facade.bus.port import BusHealth
from facade.errors import ConfigError
from facade.flows.quality.fit import axes, fit
from facade.flows.quality.flow import NewestMetric, QualityFlow, is_metric
from facade.icd.model import Attribute, DeviceClass
from facade.icd.topic_model import Limits
from facade.printable import listed
from facade.reading import Quality, Reading, Value, judge
from facade.runtime.view import NewestView

_RATE_OVER = 10.0
"""[s]"""
_MOST_NAMES = 8
"""That Status gives."""


@dataclass(slots=True)
class _Shown:
    """What is shown of a metric."""

    metric: NewestMetric
    reading: Reading
    """As if it had come just now."""


class QualityView(NewestView):
    """A view: the metrics of one subarray."""

    what = "metrics"

    def __init__(
        self,
        device: str,
        device_class: DeviceClass,
        flow: QualityFlow,
        health: BusHealth,
        *,
        known: Callable[[], bool],
        version: str,
    ) -> None:
        super().__init__(device, device_class, health, known=known, version=version)
        self._stale_after = device_class.stale_after
        self.subarray = subarray_of(device)
        self._measured = flow.measured[self.subarray]
        self._shown: dict[str, _Shown] = {}
        self._metrics: dict[str, Reading] = {}
        """As of the last look."""
        self.stopped: list[str] = []
        """Metrics that have come once and come no more, as of then."""
        self._counts: deque[tuple[float, int]] = deque()
        """Records used until a time, oldest first."""

    def _look(self, now: float) -> dict[str, Value]:
        self.stopped = []
        found = {name: self._metric(name, now) for name, one in self._attributes.items() if is_metric(one)}
        self._metrics = {name: reading for name, reading in found.items() if reading is not None}
        return {"metricsRate": self._rate(now), "unknownMetrics": tuple(sorted(self._measured.unknown))}

    def _show(self, values: dict[str, Value], now: float, *, is_known: bool) -> Iterator[tuple[str, Reading]]:
        if not is_known:
            self._metrics = {}
        yield from self._metrics.items()
        if self._measured.scan is not None and self._metrics:
            yield "scanID", Reading(*self._measured.scan)
        for name, value in values.items():
            yield name, self._changes.reading(name, value, now)

    def beyond(self) -> Iterator[tuple[str, Reading, Limits]]:
        """Return the metrics that were beyond their limits at the last look."""
        for name, reading in self._metrics.items():
            limits = self._attributes[name].limits
            if limits is not None and reading.quality in (Quality.WARNING, Quality.ALARM):
                yield name, reading, limits

    def _metric(self, name: str, now: float) -> Reading | None:
        """Return what the attribute of a metric shows; None: it never came."""
        metric, shown, attribute = self._measured.newest.get(name), self._shown.get(name), self._attributes[name]
        if metric is not None and (shown is None or shown.metric is not metric):
            shown = self._shown[name] = _Shown(metric, _reading(attribute, metric))
        if shown is None:
            return None
        limit = self._stale_after if attribute.stale_after is None else attribute.stale_after
        stopped = metric is None or (limit > 0 and now - metric.appended > limit)
        if stopped:
            self.stopped.append(name)
        return shown.reading.invalid() if stopped else shown.reading

    def _rate(self, now: float) -> float:
        if self._counts and now < self._counts[-1][0]:
            self._counts.clear()  # the clock was set back
        self._counts.append((now, self._measured.used))
        while now - self._counts[0][0] > _RATE_OVER:
            self._counts.popleft()
        since, before = self._counts[0]
        return round((self._measured.used - before) / (now - since), 1) if now > since else 0.0

    def _judge(self, now: float) -> tuple[str, list[str]]:
        by_quality: dict[Quality, list[str]] = {}
        for name, reading in self._metrics.items():
            by_quality.setdefault(reading.quality, []).append(name)
        beyond = by_quality.get(Quality.ALARM, []) + by_quality.get(Quality.WARNING, [])
        lines = [] if self._metrics else ["No metric has come yet."]
        lines += _line("Beyond their limits", beyond)
        lines += _line("Stopped, or without a number", by_quality.get(Quality.INVALID, []))
        lines += _line("Metrics that no attribute has the name of", sorted(self._measured.unknown))
        return "ALARM" if beyond else "ON", lines


def subarray_of(device: str) -> int:
    """Return the number of the subarray that a device stands for: the last part of its name."""
    last = device.rsplit("/", 1)[-1]
    if not last.isdecimal():
        raise ConfigError(f"device {device}: expected a subarray's number as the last part of the name, got {last!r}")
    return int(last)


def _reading(attribute: Attribute, metric: NewestMetric) -> Reading:
    value, known = fit(metric.array, axes(attribute))
    time = metric.header.time / 1e6
    return Reading(value, time, judge(value, attribute.limits) if known else Quality.INVALID)


def _line(what: str, names: list[str]) -> list[str]:
    return [f"{what}: {listed(names, _MOST_NAMES)}."] if names else []
