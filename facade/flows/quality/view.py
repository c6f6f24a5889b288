"""What SdpQuality shows: the newest value of each metric of its subarray, and whether metrics still come."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from facade.bus.port import BusHealth
from facade.errors import ConfigError
from facade.flows.quality.fit import axes, fit
from facade.flows.quality.flow import OWN, Metric, QualityFlow
from facade.icd.model import Attribute, DeviceClass, Limits
from facade.reading import Changes, Quality, Reading, Value, judge
from facade.runtime.flow import DeviceReading

_GAP = 0.2
"""Least time between two looks [s]."""
_RATE_OVER = 10.0
"""[s]"""
_MOST_NAMES = 8
"""That Status gives."""


@dataclass(slots=True)
class _Shown:
    """What is shown of a metric."""

    metric: Metric
    reading: Reading
    """As if it had come just now."""


class QualityView:
    """A view: the metrics of one subarray; see `facade.runtime.flow.View`.

    Parameters
    ----------
    known
        Whether the topic has been read as far as it went at the start.
    """

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
        self._device = device
        self._attributes = {one.name: one for one in device_class.attributes if one.name not in OWN}
        self._stale_after = device_class.stale_after
        self.subarray = subarray_of(device)
        self._measured = flow.measured[self.subarray]
        self._health = health
        self._known = known
        self._version = version
        self._looked_at = 0.0
        self._shown: dict[str, _Shown] = {}
        self._metrics: dict[str, Reading] = {}
        """As of the last look."""
        self._changes = Changes()
        """What is shown beside the metrics."""
        self._counts: deque[tuple[float, int]] = deque()
        """Records used until a time, oldest first."""

    def readings(self, now: float) -> Iterator[DeviceReading]:
        """Return all that is to be shown; what has not changed is filtered out later."""
        if 0.0 <= now - self._looked_at < _GAP:
            return
        self._looked_at = now
        values: dict[str, Value] = {"connected": self._health.connected, "versionId": self._version}
        self._metrics = metrics = {}
        if self._known():
            found = {name: self._metric(name, now) for name in self._attributes}
            self._metrics = metrics = {name: reading for name, reading in found.items() if reading is not None}
            values |= {"metricsRate": self._rate(now), "unknownMetrics": tuple(sorted(self._measured.unknown))}
        values |= self._state(metrics)
        for name, reading in metrics.items():
            yield self._device, name, reading
        if self._measured.scan is not None and metrics:
            yield self._device, "scanID", Reading(*self._measured.scan)
        for name, value in values.items():
            yield self._device, name, self._changes.reading(name, value, now)

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
        return shown.reading.invalid() if stopped else shown.reading

    def _rate(self, now: float) -> float:
        if self._counts and now < self._counts[-1][0]:
            self._counts.clear()  # the clock was set back
        self._counts.append((now, self._measured.used))
        while now - self._counts[0][0] > _RATE_OVER:
            self._counts.popleft()
        since, before = self._counts[0]
        return round((self._measured.used - before) / (now - since), 1) if now > since else 0.0

    def _state(self, metrics: dict[str, Reading]) -> dict[str, Value]:
        if not self._known():
            error = self._health.last_error or "none yet"
            return {"State": "UNKNOWN", "Status": f"The metrics were not read from the bus yet; last error: {error}."}
        by_quality: dict[Quality, list[str]] = {}
        for name, reading in metrics.items():
            by_quality.setdefault(reading.quality, []).append(name)
        beyond = by_quality.get(Quality.ALARM, []) + by_quality.get(Quality.WARNING, [])
        state = "ALARM" if beyond else "ON"
        lines = [f"The device is in {state} state."]
        if not metrics:
            lines.append("No metric has come yet.")
        lines += _line("Beyond their limits", beyond)
        lines += _line("Stopped, or without a number", by_quality.get(Quality.INVALID, []))
        lines += _line("Metrics that no attribute has the name of", sorted(self._measured.unknown))
        if not self._health.connected:
            lines.append(f"No Kafka broker reachable; last error: {self._health.last_error or 'none yet'}.")
        return {"State": state, "Status": "\n".join(lines)}


def subarray_of(device: str) -> int:
    """Return the number of the subarray that a device stands for: the last part of its name."""
    last = device.rsplit("/", 1)[-1]
    if not last.isdecimal():
        raise ConfigError(f"device {device}: expected a subarray's number as the last part of the name, got {last!r}")
    return int(last)


def _reading(attribute: Attribute, metric: Metric) -> Reading:
    value, known = fit(metric.array, axes(attribute))
    time = metric.header.time / 1e6
    return Reading(value, time, judge(value, attribute.limits) if known else Quality.INVALID)


def _line(what: str, names: list[str]) -> list[str]:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return [f"{what}: {', '.join(names[:_MOST_NAMES])}{more}."] if names else []
