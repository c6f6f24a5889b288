"""The commands of each device that wait or run, in their order; one that overtakes comes to the front."""

import threading
from collections import deque
from collections.abc import Collection, Iterable

from facade.controller.call import Call
from facade.controller.life import Event, State, Step


class Queues:
    """Calls by device; may be used from several threads."""

    def __init__(self, devices: Iterable[str]) -> None:
        self._waiting: dict[str, deque[Call]] = {device: deque() for device in devices}
        self._lock = threading.RLock()
        self._changed = {device: threading.Condition(self._lock) for device in self._waiting}
        """One for each device: a command wakes its own thread, not those of all devices."""
        self._running: dict[str, Call] = {}
        self._live: dict[str, Call] = {}
        """Calls without an outcome, by id; also those that neither wait nor run yet."""
        self.closed = False

    def enter(self, call: Call) -> Call | None:
        """Let a call in, to be put or to be ended; return the other one of its id if there is one.

        One that has lost its partition counts no more, as its thread will give it up: the partition has come back.
        """
        with self._lock:
            live = self._live.get(call.id)
            if live is not None and live.life.state not in (State.LOST, State.MOVED) and not live.moved:
                return live
            self._live[call.id] = call
            return None

    def has_beginning(self) -> bool:
        """Return whether there is a call that has no outcome and does not run yet."""
        with self._lock:
            return any(call.life.state not in (State.RUNNING, State.IN_PROGRESS) for call in self._live.values())

    def leave(self, call: Call) -> None:
        """Forget a call that has ended."""
        with self._lock:
            if self._live.get(call.id) is call:
                del self._live[call.id]

    def put(self, call: Call, limit: float) -> bool:
        """Have a call wait for its turn; False when as many as `limit` wait already."""
        with self._lock:
            queue = self._waiting[call.device]
            if len(queue) >= limit:
                return False
            call.life.happen(Event.QUEUED)
            queue.append(call)
            self._changed[call.device].notify_all()
            return True

    def overtake(self, call: Call, why: str) -> list[Call]:
        """Cancel what the device executes; return what waited, which is to be ended now.

        A command does not overtake its like: an Abort that is cut short by a second one would leave its device in the
        state in which the second one is refused.
        """
        with self._lock:
            queue = self._waiting[call.device]
            overtaken = [other for other in queue if other.command != call.command]
            self._waiting[call.device] = deque(other for other in queue if other.command == call.command)
            running = self._running.get(call.device)
            cut_short = running is not None and running.command != call.command
            if running is not None and cut_short:
                running.cancel(why)
            if cut_short or overtaken:
                call.life.happen(Event.OVERTOOK)
            return overtaken

    def lose(self, partitions: Collection[int]) -> list[tuple[Call, Step]]:
        """Tell the calls whose partitions are another's now; return what comes of it for those that waited."""
        with self._lock:
            lost = [call for call in self._live.values() if call.place.partition in partitions]
            steps = [(call, call.life.happen(Event.PARTITION_LOST)) for call in lost]
            moved = [(call, step) for call, step in steps if step.reason]
            for call, _ in moved:
                if call in self._waiting[call.device]:
                    self._waiting[call.device].remove(call)
            return moved

    def next(self, device: str) -> Call | None:
        """Return the next call of a device, which then is the one that runs."""
        with self._lock:
            if not self._waiting[device]:
                return None
            call = self._running[device] = self._waiting[device].popleft()
            call.life.happen(Event.TURN)
            return call

    def running(self) -> list[Call]:
        """Return the calls that run."""
        with self._lock:
            return list(self._running.values())

    def done(self, device: str) -> None:
        """Note that the running call has returned."""
        with self._lock:
            del self._running[device]

    def wait(self, device: str) -> bool:
        """Wait until there is a call; False at the end."""
        with self._lock:
            self._changed[device].wait_for(lambda: self.closed or self._waiting[device])
            return not self.closed

    def close(self) -> None:
        """Drop what waits, and wake all who wait for it."""
        with self._lock:
            self.closed = True
            for queue in self._waiting.values():
                queue.clear()
            for changed in self._changed.values():
                changed.notify_all()

    def cancel(self, why: str) -> None:
        """Cancel everything that runs."""
        with self._lock:
            for call in self._running.values():
                call.cancel(why)
