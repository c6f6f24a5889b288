"""The data of a command during its execution, of its reports and of its orders, without any access to the bus.

All modules of the controller share these classes. A handler gets a `facade.sdk.controller.call.Call` instead.
"""

import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from facade.flows.commands.messages import CommandMessage
from facade.kernel.bus.port import Headers, Receipt, Record
from facade.kernel.clock import Time
from facade.kernel.errors import FacadeError
from facade.sdk.controller.command_state import CommandState, Event, State, Transition
from facade.sdp.device_state import StateMessage


class Cancelled(BaseException):
    """The command was aborted, or the process ends.

    It is not an `Exception`, so that a handler's own ``except Exception`` does not catch it.
    """


class CommandOffset(NamedTuple):
    """Position of the record of a command on its topic."""

    partition: int
    offset: int
    assigned: int = 0
    """The number with which the partition was assigned; see `facade.kernel.bus.port.GroupMember`."""


@dataclass(slots=True)
class Posted:
    """Records that were posted together, and may be unconfirmed."""

    records: Sequence[Record]
    receipt: Receipt | None
    """None: they must be posted again."""
    states: Sequence[StateMessage] = ()


class OrderOutcome(NamedTuple):
    """The outcome of an order."""

    device: str
    command: str
    id: str
    status: str
    """COMPLETED, FAILED, ABORTED, REJECTED, TIMED_OUT or UNDELIVERED."""
    text: str = ""
    result: Any = None

    @property
    def completed(self) -> bool:
        """Whether the status is COMPLETED."""
        return self.status == "COMPLETED"

    def __str__(self) -> str:
        return f"{self.device}: {self.status}" + (f" {self.text}" if self.text else "")


class NotFollowed(FacadeError):
    """Some orders did not end as COMPLETED. The text names them, with their reasons and the number of the others."""


@dataclass(slots=True, eq=False)
class Order:
    """An order that was given."""

    message: CommandMessage
    undelivered: str = ""
    """Why the bus did not confirm the order; empty if it has."""

    @property
    def id(self) -> str:
        """Id of the order."""
        return self.message.id


class Reports:
    """The reports about one device that are under way to the bus."""

    def __init__(self, device: str, cause: str = "", headers: Headers = ()) -> None:
        self.device = device
        self.cause = cause
        """Id of the command that causes the reports."""
        self.headers = headers
        """Headers of the command that its records pass on, such as the trace."""
        self.posted: list[Posted] = []
        """Records that the bus has not confirmed, in order."""

    def reaches(self, values: Mapping[str, str]) -> bool:
        """Return whether values have the final state of a command; without a command there is none."""
        return False


class Execution(Reports):
    """One execution of a command, from its record to its outcome."""

    def __init__(
        self,
        message: CommandMessage,
        headers: Headers,
        offset: CommandOffset,
        final_state: tuple[str, tuple[str, ...]] = ("", ()),
        *,
        proven: float = 0.0,
    ) -> None:
        super().__init__(message.device, message.id, headers)
        self.message = message
        """The command as it is on the bus, with its times."""
        self.offset = offset
        self.final_state = final_state
        """The final state by the ICD: an attribute, and its possible labels."""
        self.command_state = CommandState()
        self.deadline = message.deadline
        """When clients stop waiting for the outcome [Unix us]. Progress moves it."""
        self.order_counts: dict[tuple[str, str], int] = {}
        """Number of orders given so far, by device and command. The ids of orders follow from it."""
        self.given: list[Order] = []
        self.taken_back = False
        """Whether it is an order that its giver has ended."""
        self.proven = proven
        """Time of the broker's last confirmation that its partition is this controller's [monotonic s]."""
        self.moved = False
        """Whether another controller may have begun it."""
        self.cancelled = threading.Event()
        self.cancel_reason = ""
        """Reason why the command must end now; empty while it may continue."""

    @property
    def id(self) -> str:
        """Id of the command."""
        return self.message.id

    @property
    def command(self) -> str:
        """Name of the command."""
        return self.message.command

    @property
    def state(self) -> State:
        """State of the command."""
        return self.command_state.state

    @property
    def again(self) -> bool:
        """Whether the command was begun before, and a crash interrupted it."""
        return self.command_state.again

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return self.command_state.over

    @property
    def runs(self) -> bool:
        """Whether its handler has been called and has not returned."""
        return self.state in (State.RUNNING, State.IN_PROGRESS)

    def reaches(self, values: Mapping[str, str]) -> bool:
        """Return whether values have the final state of the command."""
        attribute, labels = self.final_state
        return values.get(attribute) in labels

    def cancel(self, reason: str) -> None:
        """Ask the handler to end: its next `check` raises `Cancelled`, and a wait ends at once."""
        self.cancel_reason = self.cancel_reason or reason
        self.cancelled.set()

    def take_back(self, reason: str) -> None:
        """End an order after its giver has ended it."""
        self.taken_back = True
        self.cancel(f"taken back: {reason}")

    def check(self) -> None:
        """Raise `Cancelled` if the command must end."""
        if self.cancel_reason:
            raise Cancelled(self.cancel_reason)

    def extend(self, deadline: Time) -> None:
        """Move the deadline, up to the ceiling; it never comes nearer."""
        self.deadline = min(max(self.deadline, deadline), max(self.message.ceiling, self.message.deadline))


class Queues:
    """Executions by device; may be used from several threads."""

    def __init__(self, devices: Iterable[str]) -> None:
        self._waiting: dict[str, deque[Execution]] = {device: deque() for device in devices}
        self._lock = threading.RLock()
        self._changed = {device: threading.Condition(self._lock) for device in self._waiting}
        """One for each device: a command wakes its own thread only."""
        self._running: dict[str, Execution] = {}
        self._live: dict[str, Execution] = {}
        """Executions without an outcome, by id; also those that neither wait nor run yet."""
        self.closed = False

    def enter(self, execution: Execution) -> Execution | None:
        """Admit an execution; return another live one with its id. One that has lost its partition does not count."""
        with self._lock:
            live = self._live.get(execution.id)
            if live is not None and live.state not in (State.LOST, State.MOVED) and not live.moved:
                return live
            self._live[execution.id] = execution
            return None

    def has_beginning(self) -> bool:
        """Return whether an execution has no outcome and does not run yet."""
        with self._lock:
            return any(not execution.runs for execution in self._live.values())

    def leave(self, execution: Execution) -> None:
        """Forget an ended execution."""
        with self._lock:
            if self._live.get(execution.id) is execution:
                del self._live[execution.id]

    def put(self, execution: Execution, limit: float) -> bool:
        """Queue an execution; False when `limit` are waiting already."""
        with self._lock:
            queue = self._waiting[execution.device]
            if len(queue) >= limit:
                return False
            execution.command_state.happen(Event.QUEUED)
            queue.append(execution)
            self._changed[execution.device].notify_all()
            return True

    def overtake(self, execution: Execution, why: str) -> list[Execution]:
        """Cancel the running command of the device; return the waiting commands, which must end now.

        An Abort does not overtake an Abort: the device would stay in a state that refuses the second one.
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
        """Move the executions of lost partitions; return the steps of the waiting ones."""
        with self._lock:
            lost = [execution for execution in self._live.values() if execution.offset.partition in partitions]
            steps = [(execution, execution.command_state.happen(Event.PARTITION_LOST)) for execution in lost]
            moved = [(execution, step) for execution, step in steps if step.reason]
            for execution, _ in moved:
                if execution in self._waiting[execution.device]:
                    self._waiting[execution.device].remove(execution)
            return moved

    def next(self, device: str) -> Execution | None:
        """Return the next execution of a device, and note it as running."""
        with self._lock:
            if not self._waiting[device]:
                return None
            running = self._running.get(device)
            assert running is None, f"{device} would execute two commands, beside {running and running.id}"
            execution = self._running[device] = self._waiting[device].popleft()
            execution.command_state.happen(Event.TURN)
            return execution

    def running(self) -> list[Execution]:
        """Return the running executions."""
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
        """Cancel all running executions."""
        with self._lock:
            for execution in self._running.values():
                execution.cancel(why)
