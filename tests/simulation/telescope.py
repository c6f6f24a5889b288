"""A model of the telescope's Tango devices, in the place of `devices.mirror.TangoSource`.

What a Tango client may see of a device: events that come late, or never, behind a read or before it; a subscription
that fails; a server that goes away and comes back without its subscriptions, of which the client hears much later.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from facade.flows.mirror.choice import matcher
from facade.flows.mirror.messages import device_of
from facade.flows.mirror.source import (
    AttributeValue,
    DeviceJob,
    DeviceLost,
    DeviceSearch,
    EventsMissed,
    JobResult,
    SearchResult,
    SourceEvent,
    SourceTask,
)
from tests.simulation.scheduler import START, Process, Scheduler
from tests.simulation.threads import Event, SimpleQueue

DEVICES = tuple(f"sim-dish/dish/{number}" for number in range(3))
PUSHED, READ = ("azimuth", "elevation"), ("temperature",)
"""Attributes of each device that push their changes, and that are only read."""
_PAUSE = 0.5
"""Longest pause between two new values [s]."""
_THREADS = 4
_NOTICED = 8.65
"""From the death of a server until a client hears that its events have stopped, as measured with Tango 10 [s]."""
_PATIENCE = 3.0
"""A device that hangs is given up after so long [s]."""


class Away(Exception):
    """A device does not answer."""


@dataclass(slots=True)
class Device:
    """One device."""

    name: str
    life: int = 0
    """Grows with each start of its server, which has no subscription."""
    is_away: bool = False


@dataclass(slots=True)
class Session:
    """A connection of one client to one device."""

    device: Device
    life: int
    tell: Callable[[SourceEvent], None]
    names: set[str] = field(default_factory=set)
    """What is subscribed to."""
    missed: set[str] = field(default_factory=set)
    """Attributes of which an event was lost: the next one shows it by its number."""
    next_at: float = 0.0
    """Before that nothing more arrives, as events keep their order [simulated s]."""
    is_closed: bool = False


class Telescope:
    """All devices, and what each has pushed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.is_moving = True
        self.devices = {name: Device(name) for name in DEVICES}
        self.values: dict[str, tuple[list[float], int]] = {}
        """Value and time [Unix us], by attribute."""
        self.pushed: dict[str, list[float]] = {f"{one}/{name}": [] for one in DEVICES for name in PUSHED}
        """What each value that was pushed begins with."""
        self.sessions: list[Session] = []
        self.deaf_until = self.late_until = self.failing_until = self.slow_until = 0.0
        """Until when events are lost, events are late, subscriptions fail, and devices answer slowly [simulated s]."""
        for device in DEVICES:
            for name in (*PUSHED, *READ):
                self._change(f"{device}/{name}")
        scheduler.at(1.0, self._turn)

    def now_us(self) -> int:
        """Return the time of the devices [Unix us]."""
        return round((START + self.scheduler.now) * 1e6)

    def _turn(self) -> None:
        random = self.scheduler.random
        self.scheduler.at(random.random() * _PAUSE, self._turn)
        device = self.devices[random.choice(DEVICES)]
        if self.is_moving and not device.is_away:
            self._change(f"{device.name}/{random.choice((*PUSHED, *READ))}")

    def _change(self, name: str) -> None:
        time = self.now_us()
        self.values[name] = [time / 1e6, float(len(name))], time
        if name not in self.pushed:
            return
        self.pushed[name].append(time / 1e6)
        for session in self.sessions:
            if name in session.names and session.life == session.device.life:
                self._push(session, self.seen(name))

    def _push(self, session: Session, seen: AttributeValue) -> None:
        now, random = self.scheduler.now, self.scheduler.random
        if now < self.deaf_until:
            session.missed.add(seen.name)
            return
        delay = random.random() * (2.0 if now < self.late_until else 0.01)
        session.next_at = max(session.next_at, now + delay)
        news = [EventsMissed(seen.name), seen] if seen.name in session.missed else [seen]
        session.missed.discard(seen.name)
        for one in news:
            self.scheduler.at(session.next_at - now, _arrive, session, one)

    def seen(self, name: str) -> AttributeValue:
        value, time = self.values[name]
        return AttributeValue(name, value, "DevDouble", "VALID", time if name in self.pushed else self.now_us())

    # What goes wrong

    def go_away(self, name: str, seconds: float) -> None:
        """End the server of a device, and start it again after a while [s]."""
        device = self.devices[name]
        if device.is_away:
            return
        device.is_away = True
        device.life += 1
        for session in [one for one in self.sessions if one.device is device and one.names]:
            self.scheduler.at(_NOTICED, _arrive, session, DeviceLost(name, "API_EventTimeout"))
        self.scheduler.at(seconds, self._come_back, device)

    def _come_back(self, device: Device) -> None:
        device.is_away = False
        for name in PUSHED if self.is_moving else ():
            self._change(f"{device.name}/{name}")


def _arrive(session: Session, news: SourceEvent) -> None:
    if not session.is_closed:
        session.tell(news)


class SimulatedSource:
    """See `facade.flows.mirror.source.DeviceSource`."""

    most_jobs = _THREADS

    def __init__(self, telescope: Telescope, process: Process) -> None:
        self._telescope, self._process = telescope, process
        self._news: deque[SourceEvent] = deque()
        self._tasks = SimpleQueue(process.scheduler)
        self._arrived = Event(process.scheduler)
        self._sessions: dict[str, Session] = {}
        for _ in range(_THREADS + 1):  # and one for searches
            process.spawn(self._work)

    def begin(self, task: SourceTask) -> None:
        self._tasks.put(task)

    def take(self) -> Sequence[SourceEvent]:
        self._arrived.clear()
        found = list(self._news)
        self._news.clear()
        return found

    def wait(self, timeout: float) -> None:
        self._arrived.wait(timeout)

    def close(self) -> None:
        pass

    def _tell(self, news: SourceEvent) -> None:
        if not self._process.is_dead:
            self._news.append(news)
            self._arrived.set()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            self._tell(self._search(task) if isinstance(task, DeviceSearch) else self._do(task))

    def _search(self, search: DeviceSearch) -> SearchResult:
        self._pause(0.05)
        found = frozenset(filter(matcher(search.pattern), self._telescope.devices))
        return SearchResult(search.pattern, found, found)

    def _do(self, job: DeviceJob) -> JobResult:
        device = self._telescope.devices[job.device]
        session = self._sessions.get(job.device)
        if session is not None and job.anew:
            self._pause(0.2)  # its subscriptions end one by one
            session.is_closed = True
            self._telescope.sessions.remove(session)
            session = None
        try:
            if session is None:
                self._reach(device, device.life)
                session = self._sessions[job.device] = Session(device, device.life, self._tell)
                self._telescope.sessions.append(session)
            session.names -= {*job.leave}
            self._reach(device, session.life)
            seen = tuple(map(self._telescope.seen, job.read))
            pushes = {name: self._subscribe(session, name) for name in job.subscribe}
            names = frozenset(name for name in self._telescope.values if device_of(name) == job.device)
            self._reach(device, session.life)
        except Away as error:
            self._sessions.pop(job.device, None)
            if session is not None:
                self._sessions[job.device] = session
            return JobResult(job, trouble=str(error))
        pushed = frozenset(name for name, is_pushed in pushes.items() if is_pushed)
        failed = frozenset(name for name, is_pushed in pushes.items() if is_pushed is None)
        return JobResult(job, seen, pushed, failed, names=names if job.names else None)

    def _subscribe(self, session: Session, name: str) -> bool | None:
        self._reach(session.device, session.life)
        if self._telescope.scheduler.now < self._telescope.failing_until:
            return None
        if name not in self._telescope.pushed:
            return False
        session.names.add(name)
        return True

    def _reach(self, device: Device, life: int) -> None:
        """Take the time of a call, and raise if the device is not, or no more, the one that was connected to."""
        is_slow = self._telescope.scheduler.now < self._telescope.slow_until
        self._pause(_PATIENCE if is_slow and device.is_away else 1.0 if is_slow else 0.02)
        if device.is_away or device.life != life:
            raise Away("API_CantConnect: nobody answers")

    def _pause(self, longest: float) -> None:
        self._process.clock.sleep(self._telescope.scheduler.random.random() * longest)
