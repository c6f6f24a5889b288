"""One seeded scheduler: every simulated process is made of greenlets, and time only passes between their steps.

Whatever waits (a client's call, `Clock.sleep`) switches to the scheduler, which takes the next event in the order of
simulated time. There are no threads, and nothing waits in real time.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

START = 1_800_000_000.0
"""Wall-clock time at the beginning of a run [Unix s]."""


class Killed(BaseException):
    """Raised in a process that was killed: it goes no step further, and whatever it still calls does nothing."""


class Task:
    """One thread of a simulated process."""

    __slots__ = ("body", "process", "turn")

    def __init__(self, process: "Process", body: greenlet) -> None:
        self.process, self.body = process, body
        self.turn = 0
        """Grows with each wait, so that what would end an earlier wait does nothing."""

    @property
    def name(self) -> str:
        """Return what a log says of the thread that runs; one of a process that was killed says nothing any more."""
        if self.process.is_dead:
            raise Killed
        return self.process.name


class Process:
    """A simulated process on a host, from its start to its end."""

    def __init__(self, scheduler: "Scheduler", name: str, clock: "HostClock") -> None:
        self.scheduler, self.name, self.clock = scheduler, name, clock
        self.is_dead = False
        self.stopped_until = 0.0
        """Simulated time up to which the process, or its machine, stands still [s]."""
        self.tasks: list[Task] = []
        self.parts: dict[str, Any] = {}
        """What the clients of the process keep in common."""
        self.at_death: list[Callable[[], None]] = []
        """What the rest of the world notices when the process ends."""
        self.at_stop: list[Callable[[], None]] = []
        """What the rest of the world notices when the process stands still."""
        self.on_end: Callable[[BaseException | None], None] = lambda error: None
        """Called when a task has ended by itself, with what it raised."""

    def spawn(self, run: Callable[[], None]) -> None:
        """Start a thread of the process; with the first one it ends."""
        is_first = not self.tasks
        task = Task(self, greenlet(lambda: self._run(run, is_first)))
        self.tasks.append(task)
        self.scheduler.wake(task)

    def require_alive(self) -> None:
        """Raise `Killed` in a process that was killed."""
        if self.is_dead:
            raise Killed

    def stop(self, seconds: float) -> None:
        """Let it stand still, as a machine that is suspended."""
        self.stopped_until = self.scheduler.now + seconds
        for tell in self.at_stop:
            tell()

    def kill(self) -> None:
        """End it as ``kill -9`` does; to be called by the scheduler, from no task."""
        if self.is_dead:
            return
        self.is_dead = True
        for tell in self.at_death:
            tell()
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            while task.body:  # started, and not ended: let it unwind, with no effect on anything
                self.scheduler.current = task
                task.body.throw(Killed)
        self.scheduler.current = None

    def _run(self, run: Callable[[], None], is_first: bool) -> None:
        error: BaseException | None = None
        try:
            run()
        except Killed:
            return
        except BaseException as raised:
            error = raised
        if is_first or error is not None:
            self.scheduler.at(0.0, self.on_end, error)


class Scheduler:
    """Takes events in the order of simulated time; those of one time in the order in which they were made."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, Random(seed)
        self.now = 0.0
        """Simulated time [s]."""
        self.steps = 0
        self.current: Task | None = None
        """The task that runs; None: the scheduler itself."""
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._made = 0
        self._hub = getcurrent()

    def at(self, delay: float, call: Callable[..., object], *args: Any) -> None:
        """Call something after a delay [s]."""
        self._made += 1
        heappush(self._events, (self.now + delay, self._made, call, args))

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let the simulated time pass up to some time [s], or until something is so."""
        while self._events and self._events[0][0] <= until:
            self.now, _, call, args = heappop(self._events)
            self.steps += 1
            call(*args)
            if stop():
                return
        self.now = max(self.now, until)

    def pause(self, until: float | None) -> None:
        """Let the current task wait, up to some simulated time [s] or, with None, until somebody wakes it."""
        task = self.current
        assert task is not None
        if task.process.is_dead:
            raise Killed
        task.turn += 1
        if until is not None:
            self.at(max(until - self.now, 0.0), self._resume, task, task.turn)
        self._hub.switch()
        if task.process.is_dead:
            raise Killed

    def wake(self, task: Task) -> None:
        """End the present wait of a task."""
        self.at(0.0, self._resume, task, task.turn)

    def _resume(self, task: Task, turn: int) -> None:
        process = task.process
        if process.is_dead or task.turn != turn:
            return
        if process.stopped_until > self.now:
            self.at(process.stopped_until - self.now, self._resume, task, turn)
            return
        self.current = task
        task.body.switch()
        self.current = None


class HostClock:
    """The clock of one host, which may be wrong; see `facade.kernel.clock.Clock`."""

    def __init__(self, scheduler: Scheduler, *, skew: float = 0.0, drift: float = 0.0) -> None:
        self._scheduler = scheduler
        self.skew = skew
        """How far the wall clock is ahead [s]."""
        self._pace = 1.0 + drift

    def now(self) -> float:
        """Return the wall-clock time [Unix s]."""
        return START + self._scheduler.now * self._pace + self.skew

    def now_us(self) -> int:
        """Return the same [Unix us]."""
        return round(self.now() * 1e6)

    def monotonic(self) -> float:
        """Return a time that never jumps [s]; not 0 at the beginning, as on any machine."""
        return 100.0 + self._scheduler.now * self._pace

    def sleep(self, seconds: float) -> None:
        """Let the task wait [s]."""
        self._scheduler.pause(self._scheduler.now + max(seconds, 0.0) / self._pace)
