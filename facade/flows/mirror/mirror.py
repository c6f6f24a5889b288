"""Mirrors attributes of devices: decides what to subscribe to, what to read, and which records to write.

A device is asked for one thing at a time. At first all of its attributes are read, so that their values are known at
once; then they are subscribed to, and read once more: what a device pushes while a subscription is being made is lost.
Later they are read now and then, as any event may be lost without a word. Of what a device does not push, each value is
read. A device that gives no other sign of life is asked whether it is there.

A device that hangs costs the others nothing: it is left alone for longer and longer, and takes none of their turns (see
`facade.flows.mirror.turns`). The value of an attribute that nobody has looked at is not repeated as one that holds.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from facade.bus.port import QueueingWriter, Reader, Record
from facade.clock import Clock
from facade.errors import BusError
from facade.flows.mirror.choice import Choice
from facade.flows.mirror.device import AGAIN, ALIVE, Device, pause_after
from facade.flows.mirror.entry import By, Entry
from facade.flows.mirror.latency import Latency
from facade.flows.mirror.messages import CONNECTED, DISCONNECTED, ENDED, MODEL, TelescopeAttribute, device_of
from facade.flows.mirror.outbox import Outbox
from facade.flows.mirror.searches import Searches
from facade.flows.mirror.source import Done, Found, Lost, Missed, Seen, Source
from facade.flows.mirror.streaming import Forms, no_forms
from facade.flows.mirror.turns import Turns
from facade.flows.mirror.writers import Writer, Writers
from facade.runtime.readers import Bus

_log = logging.getLogger(__name__)

REPEAT = 10.0
"""Time between two records of an attribute of which there is nothing new [s]."""
CONFIRM = 0.5
"""Time from a subscription to the read that tells what was pushed before it stood; and between two reads that must
agree before an event is taken for lost [s]."""
CHECK = 4.0
"""Time between two reads of what is pushed [s]: the last event of all may be lost, and nobody would tell."""
PUSH_AGAIN = 60.0
"""Time between two attempts to subscribe to what a device does not push [s]."""
FAILED_AGAIN = 5.0
"""Time from a subscription that has failed until the next attempt [s]."""
LOOKS = 3
"""Reads that may be left out before an attribute counts as not looked at; never less than `REPEAT`."""
APPLY_EACH = 0.2
"""Least time between two choices [s], while thousands of devices name their attributes."""
_PACE = 0.002
"""Pause after something came [s]: what comes meanwhile is written together, which takes a fraction of the time."""
_WAIT = 0.1
"""Longest time between two steps [s]."""
_MANY, _FEW = 10_000, 200
"""Records of the topic that are taken at once: before the first value, and between two steps."""


class Mirror:
    """Mirrors what is chosen; `run` is the body of a thread, and `step` is one turn of it.

    Parameters
    ----------
    known
        Whether all rules, and what is reported of subarrays, have been read that stood on the bus at the start.
    incarnation
        Tells this mirror from those before it, and from others that run at the same time.
    forms
        Makes further records of each record.
    """

    def __init__(
        self,
        source: Source,
        writer: QueueingWriter,
        choice: Choice,
        *,
        known: Callable[[], bool],
        clock: Clock,
        incarnation: str = "",
        forms: Forms = no_forms,
    ) -> None:
        self._source, self._choice, self._known, self._clock = source, choice, known, clock
        self.outbox = Outbox(writer, forms)
        self.own = Writer(1, incarnation)
        self.writers = Writers()
        """Who writes the telescope model."""
        self.entries: dict[str, Entry] = {}
        """What is mirrored, by name."""
        self.searches = Searches(source, choice.is_own)
        self.values = 0
        """Values that came."""
        self._latency = Latency()
        self._gaps = 0
        self._before: dict[str, TelescopeAttribute] = {}
        """Newest records of what is not mirrored."""
        self._devices: dict[str, Device] = {}
        self._turns = Turns(source.most_jobs)
        self._due: list[tuple[float, str]] = []
        self._said: dict[str, float] = {}
        """When each attribute was last written [monotonic s], the oldest first."""
        self._version = -1
        self._is_chosen, self._chosen_at = True, float("-inf")
        """Whether all that is known has been chosen from, and when that was done last [monotonic s]."""

    def run(self, stop: threading.Event, bus: Bus) -> None:
        """Work until `stop` is set."""
        reader: Reader | None = None
        while not stop.is_set():
            try:
                if reader is None:
                    reader = self._read_back(bus.open_reader({MODEL: None}, {}), stop)
                    continue
                self.writers.take(reader.take(_FEW, 0.0))
                if self.step():
                    self._clock.sleep(_PACE)
                self._source.wait(_WAIT)
            except BusError as error:
                _log.warning("the telescope model cannot be read yet: %s", error)
                stop.wait(AGAIN)
            except Exception:  # a mistake of ours must not end the thread
                _log.exception("mirroring failed")
                stop.wait(AGAIN)
        self._source.close()
        if reader is not None:
            reader.close()

    def _read_back(self, reader: Reader, stop: threading.Event) -> Reader:
        """Read what stands on the topic, where only the newest record of each attribute counts."""
        newest: dict[bytes | None, Record] = {}
        while not reader.caught_up(MODEL) and not stop.is_set():
            newest.update((record.key, record) for record in reader.take(_MANY, _WAIT))
        self.recall(newest.values())
        return reader

    def recall(self, records: Iterable[Record]) -> None:
        """Take what mirrors before this one have written: numbers go on behind it."""
        for message in self.writers.take(records):
            self._before[message.name] = message
        self.own = self.own._replace(epoch=self.writers.next_epoch())

    def step(self) -> bool:
        """Do what is due, and never wait; return whether anything came."""
        now = self._clock.monotonic()
        if self._known():
            self._choose(now)
        came = self._source.take()
        for news in came:
            match news:
                case Seen():
                    self._event(news, now)
                case Missed():
                    if (entry := self.entries.get(news.name)) is not None:
                        entry.miss()
                        entry.read_at = now
                        self._call(self._devices[device_of(news.name)], now)
                case Lost():
                    if (device := self._devices.get(news.device)) is not None and not device.is_lost:
                        self._lose(device, news.why, now)
                case Done():
                    self._done(news, now)
                case Found():
                    self._search(news, now)
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

    # What is chosen

    def _choose(self, now: float) -> None:
        self.searches.begin(now)
        if self._version != self._choice.version:
            self._version = self._choice.version
            patterns = dict(self._choice.patterns())
            self.searches.want(patterns, {one: why for one in patterns if (why := self._choice.refusal(one))}, now)
            self._apply(now)
        elif not self._is_chosen and now - self._chosen_at >= APPLY_EACH:
            self._apply(now)

    def _search(self, found: Found, now: float) -> None:
        if self.searches.is_other(found):
            self._is_chosen = False
        for name, at in self.searches.take(found, now):
            device = self._devices.setdefault(name, Device(name))
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
            entry = self.entries.pop(name, None) or Entry(name, self.own, self._before.get(name))
            self._put(entry.end(self._now_us()), now)
            self._said.pop(name, None)
            if entry.newest is not None:
                self._before[name] = entry.newest
            device = self._devices.get(device_of(name))
            if device is not None and name in device.entries:
                del device.entries[name]
                device.leaving.add(name)
                self._call(device, now)

    def _add(self, name: str, now: float) -> None:
        entry = self.entries[name] = Entry(name, self.own, self._before.pop(name, None))
        device = self._devices.setdefault(device_of(name), Device(device_of(name)))
        device.entries[name] = entry
        device.leaving.discard(name)
        device.unread.append(name)
        self._call(device, now)

    # Devices

    def _call(self, device: Device, at: float) -> None:
        """Ask a device at some time, or as soon as it has done what it does."""
        device.due = at
        if not device.is_busy:
            heappush(self._due, (at, device.name))

    def _ask(self, device: Device, now: float) -> None:
        if not self.searches.wants(device.name):
            device.list_at = float("inf")
        if device.is_done_with:
            self._turns.end(device.name)
            del self._devices[device.name]
            return
        self._source.begin(device.job(now))

    def _done(self, done: Done, now: float) -> None:
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
        for seen in done.seen:  # what was read before a subscription is older than its first event
            if (entry := device.entries.get(seen.name)) is not None:
                self._take(entry, seen, "POLL", now)
                if seen.name not in done.pushed:
                    period = CONFIRM if entry.is_doubtful else CHECK
                    entry.read_at = now + (period if entry.is_pushed else entry.period)
        self._call(device, min(device.next_due(now), now + ALIVE))

    def _lose(self, device: Device, why: str, now: float) -> None:
        device.is_lost = True
        for entry in device.entries.values():
            self._put(entry.disconnect(why, self._now_us()), now)
        self._call(device, now + pause_after(device.failures))

    def _event(self, seen: Seen, now: float) -> None:
        entry = self.entries.get(seen.name)
        if entry is None or (device := self._devices[device_of(seen.name)]).is_lost or device.is_deaf:
            return
        self._take(entry, seen, "EVENT", now)
        if seen.time:
            self._latency.note(now, self._clock.now() - seen.time / 1e6)

    # Records

    def _take(self, entry: Entry, seen: Seen, by: By, now: float) -> None:
        self.values += 1
        entry.seen_at = now
        message = entry.see(seen, by, self._now_us())
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
                self._put(entry.overlook(f"not looked at for {silent:.0f} s", self._now_us()), now)
            else:
                self._put(entry.newest, now)

    def _now_us(self) -> int:
        return round(self._clock.now() * 1e6)

    def refused(self) -> dict[str, str]:
        """Return why patterns choose nothing, or not all that they should; from any thread."""
        return self.searches.troubles | self._choice.crowded

    @property
    def has_chosen(self) -> bool:
        """Return whether it is known what is wanted; from any thread."""
        return self._version >= 0

    @property
    def gaps(self) -> int:
        """Count the records that say that values may be missing before them."""
        return self._gaps + self.outbox.gaps

    def latency(self) -> float:
        """Return the longest time from a value to its record of the last seconds [s]; from any thread."""
        return self._latency.longest(self._clock.monotonic())

    def disconnected(self) -> list[Entry]:
        """Return the attributes whose devices do not answer; from any thread."""
        return [entry for entry in list(self.entries.values()) if entry.connection == DISCONNECTED]
