"""The SDK for programs of SDP that read the state of the telescope: values of its attributes at a time.

See `TelescopeModel` for an example.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from facade.flows.mirror.messages import (
    CONNECTED,
    MODEL,
    SILENT,
    TelescopeAttribute,
    Writers,
    decode_attribute,
    is_next,
    writer_of,
)
from facade.kernel.bus.kafka.opening import open_bus
from facade.kernel.bus.port import Reader, Record
from facade.kernel.clock import Clock, SystemClock, Time, as_duration, as_seconds, as_time, wait_until
from facade.kernel.config import Settings
from facade.kernel.runtime.steps import StepThread

_TAKE, _WAIT = 1000, 0.1
_FLOATS = ("DevDouble", "DevFloat")
"""Types whose values are interpolated."""


class Known(NamedTuple):
    """The value of an attribute at a time."""

    value: Any
    """A NumPy array if it is a spectrum or an image of numbers; None if there is no value."""
    quality: str
    """Quality of Tango, such as VALID. A value that is INVALID must not be used."""
    time: float
    """Time of the value [Unix s]. For an interpolated value it is the time that was asked for."""
    why: str = ""
    """The reason why the value is INVALID."""
    is_interpolated: bool = False
    """Whether the value lies between two that were mirrored."""


class _Point(NamedTuple):
    time: Time
    message: TelescopeAttribute


class TelescopeModel:
    """Reads the topic of the telescope model, and keeps its recent past. Any thread may ask for values.

    It is a context manager: it reads from the beginning of the block to its end.

    Parameters
    ----------
    settings
        The deployment. By default the environment and the settings file give it.
    keep
        Length of the past that is kept [s].
    wraps
        Period of attributes that are angles, by name, such as 360.0 for degrees. Their values are interpolated
        along the shorter way.
    clock
        Replacement of the system's clock, for tests.

    Raises
    ------
    ConfigError
        No broker is configured, or a setting is wrong.

    Examples
    --------
    >>> AZIMUTH = "mid-dish/dish-manager/ska001/azimuth"
    >>> with TelescopeModel(wraps={AZIMUTH: 360.0}) as model:
    ...     has_all = model.wait(10.0)
    ...     known = model.at(1795282430.8, AZIMUTH)[AZIMUTH]
    >>> if known.quality == "VALID":
    ...     print(known.value)
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        keep: float = 120.0,
        wraps: Mapping[str, float] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._bus = open_bus("telescope-model", settings, clock=self._clock)
        self._keep = as_duration(keep)
        self._wraps = {name.lower(): wrap for name, wrap in (wraps or {}).items()}
        self._points: dict[str, list[_Point]] = {}
        """Points by name, the oldest first."""
        self._heard: dict[str, Time] = {}
        """Time of the last record of each attribute, by the broker's clock."""
        self._writers = Writers()
        self._lock = threading.Lock()
        self._reader: Reader | None = None
        self.is_complete = False
        """Whether all records have been read that were on the bus at the start."""
        self._thread = StepThread(self.step, "telescope-model")

    def __enter__(self) -> Self:
        """Begin to read."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading."""
        self._thread.end()
        if self._reader is not None:
            self._reader.close()

    def wait(self, timeout: float) -> bool:
        """Wait until all records have been read that were on the bus at the start.

        Parameters
        ----------
        timeout
            Longest wait [s].

        Returns
        -------
        bool
            False if the time was not enough.
        """
        return wait_until(self._clock, lambda: self.is_complete, timeout)

    def step(self) -> None:
        """Read new records."""
        if self._reader is None:
            self._reader = self._bus.open_reader({MODEL: None}, {})
        self.take(self._reader.take(_TAKE, _WAIT))
        self.is_complete = self.is_complete or self._reader.caught_up(MODEL)

    def take(self, records: Iterable[Record]) -> None:
        """Process records of the topic; undecodable records are left out."""
        for record in records:
            message = decode_attribute(record.value)
            if isinstance(message, TelescopeAttribute):
                with self._lock:
                    self._writers.note(message, record.timestamp_us)
                    self._take(message, record.timestamp_us)

    def writers(self) -> list[str]:
        """Return the incarnations of mirrors that write at once, the valid one first; none, if there is only one."""
        with self._lock:
            return [one.incarnation for one in self._writers.at_once()]

    def _take(self, message: TelescopeAttribute, heard: Time) -> None:
        points = self._points.setdefault(message.name, [])
        holds = writer_of(points[-1].message) if points else writer_of(message)
        if writer_of(message) < holds and heard - self._heard[message.name] <= SILENT:
            return  # a later mirror writes this attribute: its numbers are another sequence
        self._heard[message.name] = heard
        # A missing value has the time of this finding, which is the append time.
        time = message.time if message.connection == CONNECTED else heard
        is_same = writer_of(message) == holds
        if points and is_same and message.number == points[-1].message.number and time <= points[-1].time:
            return  # a heartbeat
        while points and (points[-1].time > time or (is_same and points[-1].time == time)):
            points.pop()  # the clock of the device was set back
        points.append(_Point(time, message))
        oldest = bisect_right(points, time - self._keep, key=lambda point: point.time)
        del points[: max(oldest - 1, 0)]

    def names(self) -> list[str]:
        """Return the names of all attributes on the topic."""
        with self._lock:
            return sorted(self._points)

    def at(self, time: float, *names: str) -> dict[str, Known]:
        """Return the values of attributes at a time.

        Floating-point values are interpolated between the two values around that time if none is missing between
        them. In all other cases the result is the value before that time.

        Parameters
        ----------
        time
            The time [Unix s].
        *names
            Names of attributes; by default all.

        Returns
        -------
        dict of str to Known
            By the name in lower case.
        """
        with self._lock:
            wanted = [name.lower() for name in names] or sorted(self._points)
            return {name: self._at(name, as_time(time), time) for name in wanted}

    def _at(self, name: str, time: Time, asked: float) -> Known:
        points = self._points.get(name, [])
        index = bisect_right(points, time, key=lambda point: point.time)
        if not index:
            return Known(None, "INVALID", asked, f"nothing is known of {name} at that time")
        before = points[index - 1].message
        found = Known(_numbers(before), before.quality, as_seconds(before.time), before.error)
        if before.connection != CONNECTED:
            return found._replace(quality="INVALID", why=before.error or before.connection)
        if index == len(points):
            silent = time - self._heard[name]
            if silent > SILENT:
                return found._replace(quality="INVALID", why=f"nothing was heard of it for {as_seconds(silent):.0f} s")
            return found
        after = points[index].message
        if after.gap or not is_next(before, after) or after.connection != CONNECTED:
            return found
        if before.type not in _FLOATS or "INVALID" in (before.quality, after.quality):
            return found
        share = (time - points[index - 1].time) / (points[index].time - points[index - 1].time)
        value = _between(found.value, _numbers(after), share, self._wraps.get(name))
        return found if value is None else found._replace(value=value, time=asked, is_interpolated=True)


def _numbers(message: TelescopeAttribute) -> Any:
    if message.type not in _FLOATS or message.value is None:
        is_table = isinstance(message.value, list) and message.type not in ("DevString", "DevState")
        return np.asarray(message.value) if is_table else message.value
    value = np.asarray(message.value, dtype=float)  # NumPy parses NaN and Infinity, too
    return float(value) if value.ndim == 0 else value


def _between(before: Any, after: Any, share: float, wrap: float | None) -> Any:
    first, second = np.asarray(before), np.asarray(after)
    if first.shape != second.shape:
        return None
    way = second - first
    if wrap is not None:
        way = (way + wrap / 2) % wrap - wrap / 2
    value = first + share * way
    if wrap is not None:
        value = value % wrap
    return float(value) if value.ndim == 0 else value
