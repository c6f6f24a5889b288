"""The commands of each device that wait or run, in their order; one that overtakes ends those before it."""

import threading
from collections import deque
from collections.abc import Collection, Iterable

from facade.controller.command_state import Event, State, Transition
from facade.controller.execution_state import Execution


class Queues:
    """Executions by device; may be used from several threads."""

    def __init__(self, devices: Iterable[str]) -> None:
        self._waiting: dict[str, deque[Execution]] = {device: deque() for device in devices}
        self._lock = threading.RLock()
        self._changed = {device: threading.Condition(self._lock) for device in self._waiting}
        """One for each device: a command wakes its own thread, not those of all devices."""
        self._running: dict[str, Execution] = {}
        self._live: dict[str, Execution] = {}
        """Executions without an outcome, by id; also those that neither wait nor run yet."""
        self.closed = False

    def enter(self, execution: Execution) -> Execution | None:
        """Let an execution in, to be put or to be ended; return the other one of its id if there is one.

        One that has lost its partition counts no more, as its thread will give it up: the partition has come back.
        """
        with self._lock:
            live = self._live.get(execution.id)
            if live is not None and live.state not in (State.LOST, State.MOVED) and not live.moved:
                return live
            self._live[execution.id] = execution
            return None

    def has_beginning(self) -> bool:
        """Return whether there is an execution that has no outcome and does not run yet."""
        with self._lock:
            return any(not execution.runs for execution in self._live.values())

    def leave(self, execution: Execution) -> None:
        """Forget an execution that has ended."""
        with self._lock:
            if self._live.get(execution.id) is execution:
                del self._live[execution.id]

    def put(self, execution: Execution, limit: float) -> bool:
        """Have an execution wait for its turn; False when as many as `limit` wait already."""
        with self._lock:
            queue = self._waiting[execution.device]
            if len(queue) >= limit:
                return False
            execution.command_state.happen(Event.QUEUED)
            queue.append(execution)
            self._changed[execution.device].notify_all()
            return True

    def overtake(self, execution: Execution, why: str) -> list[Execution]:
        """Cancel what the device executes; return the waiting commands, which must end now.

        A command does not overtake its like: an Abort that is cut short by a second one would leave its device in the
        state in which the second one is refused.
        """
        with self._lock:
            queue = self._waiting[execution.device]
            overtaken = [other for other in queue if other.command != execution.command]
            self._waiting[execution.device] = deque(other for other in queue if other.command == execution.command)
            running = self._running.get(execution.device)
            cut_short = running is not None and running.command != execution.command
            if running is not None and cut_short:
                running.cancel(why)
            if cut_short or overtaken:
                execution.command_state.happen(Event.OVERTOOK)
            return overtaken

    def lose(self, partitions: Collection[int]) -> list[tuple[Execution, Transition]]:
        """Tell the calls whose partitions are another's now; return the steps of those that waited."""
        with self._lock:
            lost = [execution for execution in self._live.values() if execution.offset.partition in partitions]
            steps = [(execution, execution.command_state.happen(Event.PARTITION_LOST)) for execution in lost]
            moved = [(execution, step) for execution, step in steps if step.reason]
            for execution, _ in moved:
                if execution in self._waiting[execution.device]:
                    self._waiting[execution.device].remove(execution)
            return moved

    def next(self, device: str) -> Execution | None:
        """Return the next execution of a device, which then is the one that runs."""
        with self._lock:
            if not self._waiting[device]:
                return None
            execution = self._running[device] = self._waiting[device].popleft()
            execution.command_state.happen(Event.TURN)
            return execution

    def running(self) -> list[Execution]:
        """Return the calls that run."""
        with self._lock:
            return list(self._running.values())

    def done(self, device: str) -> None:
        """Note that the running execution has returned."""
        with self._lock:
            del self._running[device]

    def wait(self, device: str) -> bool:
        """Wait until there is an execution; False at the end."""
        with self._lock:
            self._changed[device].wait_for(lambda: self.closed or self._waiting[device])
            return not self.closed

    def close(self) -> None:
        """Drop the waiting commands, and wake the threads of the devices."""
        with self._lock:
            self.closed = True
            for queue in self._waiting.values():
                queue.clear()
            for changed in self._changed.values():
                changed.notify_all()

    def cancel(self, why: str) -> None:
        """Cancel everything that runs."""
        with self._lock:
            for execution in self._running.values():
                execution.cancel(why)
