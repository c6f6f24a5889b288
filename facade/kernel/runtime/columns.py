"""Readings of one attribute of many devices as arrays; a `Reading` is made for each reader or subscriber.

A flow with many devices offers a `ReadingColumn` for each attribute. Its arrays are worked out when a client has a
subscription to one of the attributes, or when somebody reads one; otherwise a new state of the flow costs nothing.
Tango's threads read a column while the event loop changes it, so the arrays from `arrays` never change afterwards.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from facade.kernel.clock import Time
from facade.kernel.icd.model import Sampling
from facade.kernel.messages import ShownColumn, ShownColumns
from facade.kernel.reading import QUALITIES, Reading

Array = npt.NDArray[Any]

UNKNOWN = -1
"""Quality of a device without a reading."""


class ColumnArrays(NamedTuple):
    """Readings with an entry for each device."""

    values: Array
    times: Array
    """Times of the data [Unix us]."""
    qualities: Array
    """Numbers in `facade.kernel.reading.QUALITIES`, or `UNKNOWN`."""

    def reading(self, position: int) -> Reading | None:
        """Return the reading of a device; None: it has none."""
        quality = int(self.qualities[position])
        if quality == UNKNOWN:
            return None
        return Reading(self.values[position].item(), Time(self.times[position].item()), QUALITIES[quality])

    def readings(self) -> list[Reading | None]:
        """Return the readings of all devices."""
        rows = zip(self.values.tolist(), self.times.tolist(), self.qualities.tolist(), strict=True)
        return [None if at == UNKNOWN else Reading(value, time, QUALITIES[at]) for value, time, at in rows]


def nothing(devices: int) -> ColumnArrays:
    """Return the arrays of devices without a reading."""
    zeros = np.zeros(devices, dtype=np.int64)
    return ColumnArrays(zeros, zeros.copy(), np.full(devices, UNKNOWN))


class ReadingColumn(ABC):
    """The readings of one attribute.

    Parameters
    ----------
    devices
        Names of the devices, in the order of the arrays.
    """

    def __init__(self, attribute: str, devices: Sequence[str]) -> None:
        self.attribute, self.devices = attribute, devices

    @abstractmethod
    def arrays(self) -> ColumnArrays:
        """Return the newest readings; any thread may call it."""

    @abstractmethod
    def restore(self, position: int, reading: Reading) -> None:
        """Take over the reading of a device from before a restart; raises TypeError if its value is no number."""

    def reading(self, position: int) -> Reading | None:
        """Return the newest reading of a device; None: it has none."""
        return self.arrays().reading(position)


def stored(columns: Iterable[ReadingColumn]) -> list[ShownColumns]:
    """Return columns in the form of a snapshot, without values that are no JSON numbers."""
    return [
        ShownColumns(devices=[*devices], attributes={one.attribute: _stored(one.arrays()) for one in mine})
        for devices, mine in groupby(columns, lambda one: one.devices)
    ]


def _stored(arrays: ColumnArrays) -> ShownColumn:
    is_number = np.isfinite(arrays.values)
    values, qualities = np.where(is_number, arrays.values, 0), np.where(is_number, arrays.qualities, UNKNOWN)
    return ShownColumn(values=values.tolist(), times=arrays.times.tolist(), qualities=qualities.tolist())


class Cell(NamedTuple):
    """The reading of one device in a column."""

    column: ReadingColumn
    position: int

    def reading(self) -> Reading | None:
        """Return the newest reading; None: there is none."""
        return self.column.reading(self.position)


class ColumnSampler:
    """Decides which readings of a column become events, by the rule of `facade.kernel.runtime.publisher.Sampler`."""

    def __init__(self, column: ReadingColumn, rule: Sampling) -> None:
        self.column, self._rule = column, rule
        size = len(column.devices)
        self._offered = self._sent = nothing(size)
        self._due_at = np.full(size, np.inf)
        """Times at which held-back readings are due [monotonic s]; infinite: there is none."""
        self._sent_at = np.zeros(size)
        self.due_at = np.inf
        """Time at which the first held-back reading is due."""

    def offer(self, followed: Array, now: float) -> list[tuple[int, Reading]]:
        """Return what to send now, after a change of the column.

        Parameters
        ----------
        followed
            Whether a client has a subscription to the attribute of each device.
        now
            Monotonic time [s].
        """
        new, before, sent, rule = self.column.arrays(), self._offered, self._sent, self._rule
        sizes = {len(one) for one in (*new, followed, self.column.devices)}  # a shorter one would stand for all devices
        assert len(sizes) == 1, f"{self.column.attribute}: readings of {sizes} devices"
        self._offered = new
        is_new = (new.values != before.values) | (new.times != before.times) | (new.qualities != before.qualities)
        is_new &= followed & (new.qualities != UNKNOWN)
        if not is_new.any():
            return []
        is_outside = abs(new.values - sent.values) > np.maximum(rule.absolute, rule.relative * abs(sent.values))
        due_at = self._sent_at + np.where(is_outside, rule.shortest, rule.longest)
        due_at[new.qualities != sent.qualities] = now
        self._due_at = np.where(is_new, due_at, self._due_at)
        return self.due(now)

    def due(self, now: float) -> list[tuple[int, Reading]]:
        """Return the readings that are due, by the positions of their devices."""
        is_due, new, sent = self._due_at <= now, self._offered, self._sent
        found = np.flatnonzero(is_due)
        if len(found):
            self._sent = ColumnArrays(*(np.where(is_due, *both) for both in zip(new, sent, strict=True)))
            self._sent_at[found], self._due_at[found] = now, np.inf
        self.due_at = float(self._due_at.min())
        rows = zip(found.tolist(), *(one[found].tolist() for one in new), strict=True)
        return [(position, Reading(value, time, QUALITIES[at])) for position, value, time, at in rows]

    def forget(self, position: int) -> None:
        """Send the reading of a device at the next offer in any case."""
        at = np.arange(len(self.column.devices)) == position
        self._offered, self._sent = (
            one._replace(qualities=np.where(at, UNKNOWN, one.qualities)) for one in (self._offered, self._sent)
        )
