"""From readings to events: sampled per attribute, coalesced, and paced.

A Tango client processes some ten thousand events per second and silently loses the rest. So events are spread over
time: events beyond the budget of a tick wait for the next one, and only the newest value of an attribute waits.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from facade.kernel.clock import Clock
from facade.kernel.icd.model import Icd, Sampling
from facade.kernel.reading import Reading
from facade.kernel.runtime.columns import Cell, ColumnSampler, ReadingColumn


class Sampler:
    """Decides which readings of one attribute become events.

    The rule is KATCP's ``differential-rate`` strategy with its trailing edge (KATCP guidelines 5.0, sensor sampling):

    * a change of quality is sent at once, regardless of the other filters;
    * otherwise two events are at least `shortest` apart;
    * a value inside the deadband of the last one sent is held back;
    * when the hold-off ends, the newest value is sent if it is outside the deadband, and after `longest` in any case.
    """

    __slots__ = ("_held", "_rule", "_sent", "_sent_at")

    def __init__(self, rule: Sampling) -> None:
        self._rule = rule
        self._sent: Reading | None = None
        self._sent_at = 0.0
        self._held: Reading | None = None

    def offer(self, reading: Reading, now: float) -> Reading | None:
        """Process a new reading; return the one to send now, if any; `now`: monotonic time [s]."""
        if self._sent is None or reading.quality is not self._sent.quality:
            return self._send(reading, now)
        self._held = reading
        return self.due(now)

    def due(self, now: float) -> Reading | None:
        """Return the reading whose hold-off has ended, if any."""
        held, sent = self._held, self._sent
        if held is None or sent is None:
            return None
        gap = now - self._sent_at
        if gap < self._rule.shortest:
            return None
        if gap >= self._rule.longest or self._outside_deadband(held, sent):
            return self._send(held, now)
        return None

    def due_at(self) -> float:
        """Return the time at which a held-back reading may be due [monotonic s]; infinite: there is none."""
        held, sent = self._held, self._sent
        if held is None or sent is None:
            return math.inf
        return self._sent_at + (self._rule.shortest if self._outside_deadband(held, sent) else self._rule.longest)

    def _send(self, reading: Reading, now: float) -> Reading:
        self._sent, self._sent_at, self._held = reading, now, None
        return reading

    def _outside_deadband(self, new: Reading, old: Reading) -> bool:
        a, b = new.value, old.value
        if isinstance(a, str | tuple | bool) or isinstance(b, str | tuple | bool):
            return a != b
        return self._rule.is_outside(a, b)


AttributeKey = tuple[str, str]
"""Device and attribute name."""

PUSHES_PER_SECOND = 10_000.0
"""Half of the rate at which no loss was seen at the default high-water mark."""
_BURST = 400
"""Readings that may leave at once; as change and archive events, below ZMQ's default high-water mark of 1000."""
_MOST_TRIES = 5
"""Tries to send one event; afterwards clients see a gap."""
_AT_ONCE = Sampling(shortest=0.0)


class EventSink(Protocol):
    """The receiver of readings: Tango in production, a list in tests."""

    def show(self, device: str, attribute: str, reading: Reading) -> bool:
        """Make a reading the one that clients read; return whether any client would get an event of it."""

    def show_column(self, column: ReadingColumn) -> Sequence[bool]:
        """Let clients read a column from now on; return for each device whether any client would get an event of it.

        It is called after each change of the column, and reads need no further call.
        """

    def push(self, device: str, attribute: str, reading: Reading) -> bool:
        """Push change and archive events; False: they could not be sent now, and may be later."""


class Publisher:
    """Decides which readings leave the server, and when.

    Parameters
    ----------
    classes
        Device class by device name.
    """

    def __init__(self, icd: Icd, classes: dict[str, str], sink: EventSink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._rules: dict[AttributeKey, Sampling] = {
            (device, attribute.name): attribute.sampling or icd.classes[name].sampling
            for device, name in classes.items()
            for attribute in icd.classes[name].attributes
        }
        self._reported = {
            (device, attribute.name)
            for device, name in classes.items()
            for attribute in icd.classes[name].attributes
            if attribute.reported
        }
        self._samplers: dict[AttributeKey, Sampler] = {}
        self._due: list[tuple[float, AttributeKey]] = []
        self._due_at: dict[AttributeKey, float] = {}
        """Time of the next check of each held-back reading; most held-back readings did not change at all."""
        self._waiting: dict[AttributeKey, Reading] = {}
        self._queue: deque[tuple[AttributeKey, Reading]] = deque()
        self._tries = 0
        """Tries of the first event in the queue."""
        self._anew: deque[tuple[str, Callable[[], bool]]] = deque()
        """Devices whose subscribers get all values again, and whether this may happen by now."""
        self._budget = float(_BURST)
        self._refilled = clock.monotonic()
        self.last: dict[str, dict[str, Reading]] = {}
        """Shown readings that are in no column, by device and attribute."""
        self._columns: dict[ReadingColumn, ColumnSampler] = {}
        self._cells: dict[str, dict[str, Cell]] = {}
        """Readings in columns, by device and attribute."""
        self.pushed = 0
        self.coalesced = 0
        """Readings replaced by a newer one before they left."""

    def offer(self, device: str, attribute: str, reading: Reading) -> None:
        """Process a reading: reads return it at once, subscribers get it when the attribute's rule allows."""
        shown = self.last.setdefault(device, {})
        before = shown.get(attribute)
        if before is reading or before == reading:  # mostly the former, many thousand times a second
            return
        shown[attribute], key = reading, (device, attribute)
        if not self._sink.show(device, attribute, reading):
            # A new subscriber reads it first, and gets the next one as an event, not one that was held back before.
            self._samplers.pop(key, None)
            self._due_at.pop(key, None)
            return
        sampler = self._samplers.get(key)
        if sampler is None:
            sampler = self._samplers[key] = Sampler(self._rules.get(key, _AT_ONCE))
        event = sampler.offer(reading, self._clock.monotonic())
        if event is None:
            self._hold(key, sampler)
        else:
            self._due_at.pop(key, None)
            self._wait(key, event)

    def adopt(self, column: ReadingColumn) -> None:
        """Take a column; `offer_column` shows it."""
        name, devices = column.attribute, column.devices
        rule = self._rules.get((devices[0], name), _AT_ONCE) if devices else _AT_ONCE
        self._columns[column] = ColumnSampler(column, rule)
        for position, device in enumerate(devices):
            self._cells.setdefault(device, {})[name] = Cell(column, position)

    def offer_column(self, column: ReadingColumn) -> None:
        """Process a change of a column, as `offer` does with a reading."""
        followed = self._sink.show_column(column)
        if any(followed):
            sampler = self._columns[column]
            self._send(sampler, sampler.offer(np.array(followed), self._clock.monotonic()))

    def _send(self, sampler: ColumnSampler, found: Sequence[tuple[int, Reading]]) -> None:
        for position, reading in found:
            self._wait((sampler.column.devices[position], sampler.column.attribute), reading)

    def shown_of(self, attribute: str) -> dict[str, Reading]:
        """Return the shown readings of one attribute, by device; any thread may call it."""
        found = {device: shown[attribute] for device, shown in dict(self.last).items() if attribute in shown}
        for column in [*self._columns]:
            if column.attribute == attribute:
                readings = zip(column.devices, column.arrays().readings(), strict=True)
                found |= {device: reading for device, reading in readings if reading is not None}
        return found

    def append(self, device: str, attribute: str, reading: Reading) -> None:
        """Queue a reading that is an event by itself: it is never merged, and keeps the order of these calls."""
        self._queue.append(((device, attribute), reading))

    def begin_anew(self, device: str, may_tell: Callable[[], bool]) -> dict[str, Reading | Cell]:
        """Return the readings of a device, and send all of them as events once this is allowed.

        Any thread may call it.
        """
        self._anew.append((device, may_tell))
        return {**self.last.get(device, {}), **self._cells.get(device, {})}

    @property
    def queued(self) -> int:
        """Return the number of appended events that have not been sent yet."""
        return len(self._queue)

    @property
    def waiting(self) -> int:
        """Return the number of events beyond the budget."""
        return len(self._waiting) + len(self._queue)

    @property
    def due_at(self) -> float:
        """Return the monotonic time at which a held-back reading may be due [s]."""
        found = [one.due_at for one in self._columns.values()]
        return min(self._due[0][0] if self._due else math.inf, *found, math.inf)

    def restore(self, readings: Mapping[str, Mapping[str, Reading]]) -> list[str]:
        """Show the readings from before a restart, and return a text about each unusable one.

        Reported attributes are left out: their topic has the newest value, and a snapshot may be older.
        """
        troubles = []
        for device, shown in readings.items():
            for attribute, reading in shown.items():
                if (device, attribute) in self._rules and (device, attribute) not in self._reported:
                    cell = self._cells.get(device, {}).get(attribute)
                    try:
                        if cell is None:
                            self.offer(device, attribute, reading)
                        else:
                            cell.column.restore(cell.position, reading)
                    except Exception as error:  # a reading of an older interface, or a forged one
                        self.last.get(device, {}).pop(attribute, None)
                        troubles.append(f"{attribute} of {device} in the snapshot cannot be shown: {error!r:.200}")
        for column in self._columns:
            self.offer_column(column)
        return troubles

    def tick(self) -> None:
        """Release the readings that their rules allow, and push as many as the budget allows."""
        now = self._clock.monotonic()
        for _ in range(len(self._anew)):
            device, may_tell = self._anew.popleft()
            if not may_tell():
                self._anew.append((device, may_tell))
                continue
            for attribute, reading in self.last.get(device, {}).items():
                if self._sink.show(device, attribute, reading):
                    self._wait((device, attribute), reading)
            for cell in self._cells.get(device, {}).values():
                self._columns[cell.column].forget(cell.position)
                self.offer_column(cell.column)
        self._release(now)
        self._budget = min(self._budget + (now - self._refilled) * PUSHES_PER_SECOND, _BURST)
        self._refilled = now
        while self._queue and self._budget >= 1.0:
            key, reading = self._queue[0]
            self._waiting.pop(key, None)  # an older one, from before a restart
            # Together with its event, not before: a read after an event returns that value or a later one.
            self.last.setdefault(key[0], {})[key[1]] = reading
            self._sink.show(*key, reading)
            self._tries += 1
            if not self._push(key, reading) and self._tries < _MOST_TRIES:
                break  # it stays the first, for the order, and is tried again
            self._queue.popleft()
            self._tries = 0
        while self._waiting and self._budget >= 1.0:
            key = next(iter(self._waiting))
            reading = self._waiting.pop(key)  # before the push: the next one follows even after an error
            if not self._push(key, reading):
                self._waiting.setdefault(key, reading)
                break

    def _push(self, key: AttributeKey, reading: Reading) -> bool:
        self._budget -= 1.0
        assert self._budget >= 0.0, f"{key}: an event leaves beyond the budget, and may be lost"
        if not self._sink.push(*key, reading):
            return False
        self.pushed += 1
        return True

    def _release(self, now: float) -> None:
        again = []
        while self._due and self._due[0][0] <= now:
            due_at, key = heapq.heappop(self._due)
            if self._due_at.get(key) != due_at:
                continue  # it has been sent, or is due at another time by now
            del self._due_at[key]
            event = self._samplers[key].due(now)
            if event is None:
                again.append(key)  # not at once: a rounding error could make it due for ever
            else:
                self._wait(key, event)
        for key in again:
            self._hold(key, self._samplers[key])
        for column in self._columns.values():
            if column.due_at <= now:
                self._send(column, column.due(now))

    def _hold(self, key: AttributeKey, sampler: Sampler) -> None:
        due_at = sampler.due_at()
        if self._due_at.get(key) != due_at:
            self._due_at[key] = due_at
            heapq.heappush(self._due, (due_at, key))

    def _wait(self, key: AttributeKey, event: Reading) -> None:
        if key in self._waiting:
            self.coalesced += 1
        self._waiting[key] = event  # a newer value takes the older one's place in the queue
