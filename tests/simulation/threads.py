"""Threads, locks and queues of simulated processes, in the place of the standard library's while a site runs.

The modules of the facade name `threading` as any program does. While a site runs, that name stands for this module's
`Threading`: what waits for a lock or an event lets the simulated time pass, and a thread is a task of its process.
"""

import secrets
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from random import Random
from typing import Any
from unittest.mock import patch

from tests.simulation.scheduler import Scheduler, Task


class Waiting:
    """Tasks that wait for the same thing."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._tasks: list[Task] = []

    def wait(self, until: float | None) -> None:
        task = self.scheduler.current
        assert task is not None
        self._tasks.append(task)
        try:
            self.scheduler.pause(until)
        finally:
            self._tasks.remove(task)

    def wake(self) -> None:
        for task in self._tasks:
            self.scheduler.wake(task)


class Lock:
    """See `threading.Lock` and `threading.RLock`: any task may hold it, a second time only if it is re-entrant."""

    def __init__(self, scheduler: Scheduler, *, is_reentrant: bool = False) -> None:
        self._scheduler, self._is_reentrant = scheduler, is_reentrant
        self._waiting = Waiting(scheduler)
        self._holder: Task | None = None
        self._times = 0

    def acquire(self, blocking: bool = True) -> bool:
        """Wait until it is free, and take it; without waiting return whether that was possible."""
        task = self._scheduler.current
        if task is None:  # the scheduler itself looks at something; nothing runs meanwhile
            return True
        if self._holder is task and self._is_reentrant:
            self._times += 1
            return True
        if self._holder is not None and not blocking:
            return False
        while self._holder is not None:
            self._waiting.wait(None)
        self._holder, self._times = task, 1
        return True

    def release(self) -> None:
        if self._scheduler.current is None:
            return
        self._times -= 1
        if self._times <= 0:
            self._holder = None
            self._waiting.wake()

    def free(self) -> int:
        """Give it back as often as it was taken; return that number."""
        times, self._times = self._times, 1
        self.release()
        return times

    def take(self, times: int) -> None:
        """Take it as often as it was given back."""
        self.acquire()
        self._times = times

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """See `threading.Condition`."""

    def __init__(self, scheduler: Scheduler, lock: Lock | None = None) -> None:
        self._scheduler, self._lock = scheduler, lock or Lock(scheduler, is_reentrant=True)
        self._waiting = Waiting(scheduler)

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Let others go on, until one of them tells."""
        times = self._lock.free()
        until = None if timeout is None else self._scheduler.now + timeout
        self._waiting.wait(until)
        self._lock.take(times)
        return until is None or self._scheduler.now < until

    def wait_for(self, predicate: Any, timeout: float | None = None) -> Any:
        until = None if timeout is None else self._scheduler.now + timeout
        while not (found := predicate()) and (until is None or self._scheduler.now < until):
            self.wait(None if until is None else until - self._scheduler.now)
        return found

    def notify_all(self) -> None:
        self._waiting.wake()

    notify = notify_all


class Event:
    """See `threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._waiting = scheduler, Waiting(scheduler)
        self._flag = False
        self._cond = Condition(scheduler)
        """What `threading.Event.wait` looks for, where it was bound before a site ran."""

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        self._waiting.wake()
        self._cond.notify_all()

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        until = None if timeout is None else self._scheduler.now + timeout
        while not self._flag and (until is None or self._scheduler.now < until):
            self._waiting.wait(until)
        return self._flag


class Thread:
    """See `threading.Thread`."""

    def __init__(
        self, scheduler: Scheduler, target: Any = None, args: Any = (), name: str = "", daemon: bool = True
    ) -> None:
        self._scheduler, self._target, self._args, self.name = scheduler, target, args, name
        self._ended = Event(scheduler)
        self._is_started = False

    def start(self) -> None:
        task = self._scheduler.current
        assert task is not None
        self._is_started = True
        task.process.spawn(self._run)

    def _run(self) -> None:
        try:
            self._target(*self._args)
        finally:
            self._ended.set()

    def is_alive(self) -> bool:
        return self._is_started and not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)


class SimpleQueue:
    """See `queue.SimpleQueue`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._waiting = scheduler, Waiting(scheduler)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiting.wake()

    def empty(self) -> bool:
        return not self._items

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        until = None if timeout is None else self._scheduler.now + timeout
        while block and not self._items and (until is None or self._scheduler.now < until):
            self._waiting.wait(until)
        if not self._items:
            raise Empty
        return self._items.popleft()


class Queue(SimpleQueue):
    """See `queue.Queue`."""

    def __init__(self, scheduler: Scheduler, most: int = 0) -> None:
        super().__init__(scheduler)
        self._most = most
        self._room = Waiting(scheduler)

    def put(self, item: Any) -> None:
        while 0 < self._most <= len(self._items):
            self._room.wait(None)
        super().put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        self._room.wake()
        return item

    def get_nowait(self) -> Any:
        """Take the first one out, if there is one."""
        return self.get(block=False)


class Future:
    """See `concurrent.futures.Future`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._done = Event(scheduler)
        self._value: Any = None
        self._error: BaseException | None = None

    def set_result(self, value: Any) -> None:
        self._value = value
        self._done.set()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._done.set()

    def result(self, timeout: float | None = None) -> Any:
        if not self._done.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value


class Secrets:
    """What a module of the facade finds under the name `secrets`: the same numbers for the same seed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._random = Random(f"secrets-{scheduler.seed}")

    def token_hex(self, size: int = 16) -> str:
        return self._random.randbytes(size).hex()

    def randbelow(self, most: int) -> int:
        return self._random.randrange(most)


class Threading:
    """What a module of the facade finds under the name `threading`."""

    local = threading.local

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def Lock(self) -> Any:
        return Lock(self._scheduler)

    def RLock(self) -> Any:
        return Lock(self._scheduler, is_reentrant=True)

    def Condition(self, lock: Any = None) -> Any:
        return Condition(self._scheduler, lock)

    def Event(self) -> Any:
        return Event(self._scheduler)

    def Thread(self, **options: Any) -> Any:
        return Thread(self._scheduler, **options)

    def get_ident(self) -> int:
        return id(self._scheduler.current)

    def current_thread(self) -> Any:
        return self._scheduler.current


@contextmanager
def simulated(scheduler: Scheduler) -> Iterator[None]:
    """Put simulated threads in the place of the standard library's in all modules of the facade."""
    ours = [one for name, one in list(sys.modules.items()) if name.split(".")[0] == "facade"]
    stand_in = Threading(scheduler)
    known = Secrets(scheduler)
    places = [
        *((one, "secrets", known) for one in ours if vars(one).get("secrets") is secrets),
        *((one, "threading", stand_in) for one in ours if vars(one).get("threading") is threading),
        *((one, "SimpleQueue", lambda: SimpleQueue(scheduler)) for one in ours if "SimpleQueue" in vars(one)),
    ]
    places += [(one, "Queue", lambda most=0: Queue(scheduler, most)) for one in ours if "Queue" in vars(one)]
    group = sys.modules.get("facade.kernel.bus.kafka.group")
    if group is not None:
        places.append((group, "Future", lambda: Future(scheduler)))
    patches = [patch.object(module, name, new) for module, name, new in places]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()
