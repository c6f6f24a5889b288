"""Mirrors attributes of devices: decides on subscriptions, reads, and records.

A device gets one job at a time. First all of its attributes are read, so that their values are known at once. Then they
are subscribed to and read again, as events are lost while a subscription is being made. Later they are read at long
intervals, as any event may be lost silently. Attributes that a device does not push are read each period. A device
without any traffic gets a keep-alive request.

A device that hangs does not delay the others: the pauses between its jobs grow, and it uses none of their turns. A job
holds a thread of the source until its device answers, or Tango gives up after 3 to 9 s. Few jobs are begun at the same
time, as Python runs one thread at a time. A longer job only waits, so another one may begin. Devices that did not
answer last time have at most half of the threads.

The value of an attribute is repeated only while the mirror has read it within a few periods.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from msgspec.structs import replace

from facade.flows.mirror.choice import Choice, Searches
from facade.flows.mirror.device import ALIVE, By, MirroredAttribute, MirroredDevice, pause_after
from facade.flows.mirror.messages import (
    CONNECTED,
    DISCONNECTED,
    ENDED,
    MODEL,
    MirrorWriter,
    TelescopeAttribute,
    Writers,
    attribute_record,
    device_of,
)
from facade.flows.mirror.source import AttributeValue, DeviceLost, DeviceSource, EventsMissed, JobResult, SearchResult
from facade.flows.mirror.streaming import Forms
from facade.kernel.bus.port import QueueingWriter, Reader, Record
from facade.kernel.clock import Clock, as_seconds
from facade.kernel.runtime.readers import Bus
from facade.kernel.runtime.steps import run_steps
from facade.sdp.bounded_writer import BoundedWriter

PROMPT = 16
"""Most jobs begun at once, for devices that answered last time."""
SLOW = 0.1
"""Age from which a job counts as waiting [s]."""
_OVER = 10
"""Period of the longest latency that is shown [s]."""
REPEAT = 10.0
"""Time between two records of an unchanged attribute [s]."""
CONFIRM = 0.5
"""Time from a subscription to the read that finds values pushed before it stood; also the time between two reads that
must agree before an event counts as lost [s]."""
CHECK = 4.0
"""Time between two reads of a pushed attribute [s]: the loss of the last event shows no gap."""
PUSH_AGAIN = 60.0
"""Time between two attempts to subscribe to an attribute that is not pushed [s]."""
FAILED_AGAIN = 5.0
"""Time from a failed subscription to the next attempt [s]."""
LOOKS = 3
"""Reads that may fail before an attribute counts as not read; never less than `REPEAT`."""
APPLY_EACH = 0.2
"""Least time between two updates of the choice [s], while thousands of devices report their attributes."""
_PACE = 0.002
"""Pause after an event [s]: later events are written together with it, which takes a fraction of the time."""
_WAIT = 0.1
"""Longest time between two steps [s]."""
_MANY, _FEW = 10_000, 200
"""Records of the topic that are read at once: before the first value, and between two steps."""


class Turns:
    """Turns of the devices: the queue, and the jobs under way."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._answering: deque[str] = deque()
        """Waiting devices, the longest wait first."""
        self._silent: deque[str] = deque()
        """The same for devices that did not answer last time."""
        self._began: dict[str, float] = {}
        """Begin of the jobs of devices that answered last time [monotonic s]."""
        self._retried: set[str] = set()
        """Devices with a job under way that did not answer last time."""

    def wait(self, device: str, *, answered: bool) -> None:
        """Put a device in the queue; `answered`: whether it answered last time."""
        (self._answering if answered else self._silent).append(device)

    def end(self, device: str) -> None:
        """Note that the turn of a device is over."""
        self._began.pop(device, None)
        self._retried.discard(device)

    def take(self, now: float) -> Iterator[str]:
        """Return the devices whose jobs begin now [monotonic s]."""
        prompt = sum(now - at < SLOW for at in self._began.values())
        while self._answering and prompt < PROMPT and len(self._began) + len(self._retried) < self._most:
            device = self._answering.popleft()
            self._require_idle(device)
            self._began[device] = now
            prompt += 1
            yield device
        while (
            self._silent and len(self._retried) < self._most // 2 and len(self._began) + len(self._retried) < self._most
        ):
            device = self._silent.popleft()
            self._require_idle(device)
            self._retried.add(device)
            yield device

    def _require_idle(self, device: str) -> None:
        busy = len(self._began) + len(self._retried)
        assert busy < self._most, f"{device} would be job {busy + 1} of {self._most}: the source has no thread for it"
        assert device not in self._began.keys() | self._retried, f"{device} would have two jobs"


class Latency:
    """The longest latency of the last seconds; for any thread."""

    def __init__(self) -> None:
        self._longest: deque[tuple[int, float]] = deque(maxlen=_OVER)

    def note(self, now: float, latency: float) -> None:
        """Add the latency of one value [s] at a time [monotonic s]."""
        second = int(now)
        if self._longest and self._longest[-1][0] == second:
            latency = max(latency, self._longest.pop()[1])
        self._longest.append((second, latency))

    def longest(self, now: float) -> float:
        """Return the longest time [s]; 0: no value came."""
        since = now - _OVER
        return round(max((longest for second, longest in list(self._longest) if second >= since), default=0.0), 4)


class ModelOutbox:
    """Writes records of attributes; never waits."""

    def __init__(self, writer: QueueingWriter, forms: Forms = lambda _: ()) -> None:
        self.writer, self._forms = BoundedWriter(writer, MODEL), forms
        self._held: dict[str, TelescopeAttribute] = {}
        """Records to write, by name."""
        self._queue: list[TelescopeAttribute] = []
        self.gaps = 0
        """Records with a gap before them."""

    @property
    def waiting(self) -> int:
        """Count the unconfirmed records."""
        return len(self._queue) + len(self._held) + self.writer.waiting

    def put(self, message: TelescopeAttribute | None) -> None:
        """Queue a record."""
        if message is not None:
            self._queue.append(message)

    def send(self) -> None:
        """Write the records that may be written now."""
        self.writer.settle()
        room = self.writer.room
        if self._held or len(self._queue) > room:
            self._hold()
            if room <= 0:
                return
        ready = [self._held.pop(name) for name in list(self._held)[:room]] + self._queue
        self._queue = []
        for message in ready:
            self.writer.send(attribute_record(message), *self._forms(message))

    def _hold(self) -> None:
        for message in self._queue:
            before = self._held.get(message.name)
            skips = before is not None and before.number != message.number
            self.gaps += skips
            # The heartbeat of a held record keeps the gap before that record.
            is_gap = skips or (before is not None and before.gap)
            self._held[message.name] = replace(message, gap=True) if is_gap else message
        self._queue = []


class Mirror:
    """Mirrors the chosen attributes; `run` is the body of a thread, and `step` is one turn of it."""

    def __init__(
        self,
        source: DeviceSource,
        writer: QueueingWriter,
        choice: Choice,
        *,
        known: Callable[[], bool],
        clock: Clock,
        incarnation: str = "",
        forms: Forms = lambda _: (),
    ) -> None:
        self._source, self._choice, self._known, self._clock = source, choice, known, clock
        self.outbox = ModelOutbox(writer, forms)
        self.own = MirrorWriter(1, incarnation)
        self.writers = Writers()
        self.entries: dict[str, MirroredAttribute] = {}
        self.searches = Searches(source, choice.is_own)
        self.values = 0
        self._latency = Latency()
        self._gaps = 0
        self._before: dict[str, TelescopeAttribute] = {}
        """Newest records of attributes that are not mirrored."""
        self._devices: dict[str, MirroredDevice] = {}
        self._turns = Turns(source.most_jobs)
        self._due: list[tuple[float, str]] = []
        self._said: dict[str, float] = {}
        """Time of the last record of each attribute [monotonic s], the oldest first."""
        self._version = -1
        self._is_chosen, self._chosen_at = True, float("-inf")
        """Whether the choice is up to date, and the time of its last update [monotonic s]."""

    def run(self, stop: threading.Event, bus: Bus) -> None:
        """Work until `stop` is set."""
        reader: Reader | None = None

        def turn() -> None:
            nonlocal reader
            reader = reader or self._read_back(bus.open_reader({MODEL: None}, {}), stop)
            self.writers.take(reader.take(_FEW, 0.0))
            if self.step():
                self._clock.sleep(_PACE)
            self._source.wait(_WAIT)

        run_steps(turn, stop, "the mirror")
        self._source.close()
        if reader is not None:
            reader.close()

    def _read_back(self, reader: Reader, stop: threading.Event) -> Reader:
        newest: dict[bytes | None, Record] = {}
        while not reader.caught_up(MODEL) and not stop.is_set():
            newest.update((record.key, record) for record in reader.take(_MANY, _WAIT))
        self.recall(newest.values())
        return reader

    def recall(self, records: Iterable[Record]) -> None:
        """Process the records of earlier mirrors: the numbers continue after them."""
        for message in self.writers.take(records):
            self._before[message.name] = message
        self.own = self.own._replace(epoch=self.writers.next_epoch())

    def step(self) -> bool:
        """Take one turn, without waiting; return whether there were events."""
        now = self._clock.monotonic()
        if self._known():
            self._choose(now)
        came = self._source.take()
        for event in came:
            match event:
                case AttributeValue():
                    self._event(event, now)
                case EventsMissed():
                    if (entry := self.entries.get(event.name)) is not None:
                        entry.miss()
                        entry.read_at = now
                        self._call(self._devices[device_of(event.name)], now)
                case DeviceLost():
                    if (device := self._devices.get(event.device)) is not None and not device.is_lost:
                        self._lose(device, event.why, now)
                case JobResult():
                    self._done(event, now)
                case SearchResult():
                    self._search(event, now)
        while self._due and self._due[0][0] <= now:
            due, name = heappop(self._due)
            device = self._devices.get(name)
            if device is not None and device.due == due and not device.is_busy:
                device.is_busy = True
                self._turns.wait(name, answered=not device.failures)
        for name in self._turns.take(now):
            self._ask(self._devices[name], now)
        self._repeat(now)
        self.outbox.send()
        return bool(came)

    # Choice

    def _choose(self, now: float) -> None:
        self.searches.begin(now)
        if self._version != self._choice.version:
            self._version = self._choice.version
            patterns = dict(self._choice.patterns())
            self.searches.want(patterns, {one: why for one in patterns if (why := self._choice.refusal(one))}, now)
            self._apply(now)
        elif not self._is_chosen and now - self._chosen_at >= APPLY_EACH:
            self._apply(now)

    def _search(self, found: SearchResult, now: float) -> None:
        if self.searches.is_other(found):
            self._is_chosen = False
        for name, at in self.searches.take(found, now):
            device = self._devices.setdefault(name, MirroredDevice(name))
            device.list_at = min(at, device.list_at)
            if not device.entries and not device.failures:
                self._call(device, at)

    def _apply(self, now: float) -> None:
        self._is_chosen, self._chosen_at = True, now
        before = [(name, message.connection) for name, message in self._before.items()]
        known = self.searches.known([*before, *((name, one.connection) for name, one in self.entries.items())])
        wanted = self._choice.wanted(known, self.entries)
        for name, period in wanted.items():
            if name not in self.entries:
                self._add(name, now)
            self.entries[name].period = period
        over = (name for name, message in self._before.items() if message.connection != ENDED)
        ended = [name for name in (*self.entries, *over) if name not in wanted]
        for name in ended:
            entry = self.entries.pop(name, None) or MirroredAttribute(name, self.own, self._before.get(name))
            self._put(entry.end(self._clock.now_us()), now)
            self._said.pop(name, None)
            if entry.newest is not None:
                self._before[name] = entry.newest
            device = self._devices.get(device_of(name))
            if device is not None and name in device.entries:
                del device.entries[name]
                device.leaving.add(name)
                self._call(device, now)

    def _add(self, name: str, now: float) -> None:
        entry = self.entries[name] = MirroredAttribute(name, self.own, self._before.pop(name, None))
        device = self._devices.setdefault(device_of(name), MirroredDevice(device_of(name)))
        device.entries[name] = entry
        device.leaving.discard(name)
        device.unread.append(name)
        self._call(device, now)

    # Devices

    def _call(self, device: MirroredDevice, at: float) -> None:
        device.due = at
        if not device.is_busy:
            heappush(self._due, (at, device.name))

    def _ask(self, device: MirroredDevice, now: float) -> None:
        if not self.searches.wants(device.name):
            device.list_at = float("inf")
        if device.is_done_with:
            self._turns.end(device.name)
            del self._devices[device.name]
            return
        self._source.begin(device.job(now))

    def _done(self, done: JobResult, now: float) -> None:
        device = self._devices[done.job.device]
        self._turns.end(device.name)
        device.is_busy = False
        device.failures = device.failures + 1 if done.trouble else 0
        if done.job.names and self.searches.answer(device.name, done.names, done.trouble):
            self._is_chosen = False
        if done.trouble or device.is_lost:
            self._lose(device, done.trouble or "its events have stopped", now)
            return
        device.is_deaf = False
        device.list_at = float("inf") if done.job.names else device.list_at
        for name in done.job.subscribe:
            if (entry := device.entries.get(name)) is not None:
                entry.is_pushed = name in done.pushed if name not in done.failed else None
                entry.is_unsure &= entry.is_pushed is not False
                again = FAILED_AGAIN if entry.is_pushed is None else PUSH_AGAIN
                entry.push_at = float("inf") if entry.is_pushed else now + again
                entry.read_at = now + (CONFIRM if entry.is_pushed else entry.period)
            elif name in done.pushed:
                device.leaving.add(name)
        for seen in done.seen:  # a read before a subscription is older than its first event
            if (entry := device.entries.get(seen.name)) is not None:
                self._take(entry, seen, "POLL", now)
                if seen.name not in done.pushed:
                    period = CONFIRM if entry.is_doubtful else CHECK
                    entry.read_at = now + (period if entry.is_pushed else entry.period)
        self._call(device, min(device.next_due(now), now + ALIVE))

    def _lose(self, device: MirroredDevice, why: str, now: float) -> None:
        device.is_lost = True
        for entry in device.entries.values():
            self._put(entry.disconnect(why, self._clock.now_us()), now)
        self._call(device, now + pause_after(device.failures))

    def _event(self, seen: AttributeValue, now: float) -> None:
        entry = self.entries.get(seen.name)
        if entry is None or (device := self._devices[device_of(seen.name)]).is_lost or device.is_deaf:
            return
        self._take(entry, seen, "EVENT", now)
        if seen.time:
            self._latency.note(now, as_seconds(self._clock.now_us() - seen.time))

    # Records

    def _take(self, entry: MirroredAttribute, seen: AttributeValue, by: By, now: float) -> None:
        self.values += 1
        entry.seen_at = now
        message = entry.see(seen, by, self._clock.now_us())
        self._gaps += message is not None and message.gap
        self._put(message, now)

    def _put(self, message: TelescopeAttribute | None, now: float) -> None:
        if message is not None:
            self._said.pop(message.name, None)
            self._said[message.name] = now
            self.outbox.put(message)

    def _repeat(self, now: float) -> None:
        while self._said:
            name, at = next(iter(self._said.items()))
            if now - at < REPEAT:
                return
            del self._said[name]
            entry = self.entries.get(name)
            if entry is None or entry.newest is None:
                continue
            silent = now - entry.seen_at
            if entry.connection == CONNECTED and silent >= max(REPEAT, LOOKS * entry.period):
                self._put(entry.overlook(f"not looked at for {silent:.0f} s", self._clock.now_us()), now)
            else:
                self._put(entry.newest, now)

    def refused(self) -> dict[str, str]:
        """Return the reasons why patterns choose nothing, or not everything; from any thread."""
        return self.searches.troubles | self._choice.crowded

    @property
    def has_chosen(self) -> bool:
        """Return whether the choice is known; from any thread."""
        return self._version >= 0

    @property
    def gaps(self) -> int:
        """Count the records with a gap before them."""
        return self._gaps + self.outbox.gaps

    def latency(self) -> float:
        """Return the longest latency from a value to its record in the last seconds [s]; from any thread."""
        return self._latency.longest(self._clock.monotonic())

    def disconnected(self) -> list[MirroredAttribute]:
        """Return the attributes whose devices do not answer; from any thread."""
        return [entry for entry in list(self.entries.values()) if entry.connection == DISCONNECTED]
