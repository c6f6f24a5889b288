"""The loop of a controller: takes commands, queues them, and executes each by the rules of `command_state`.

`step` is called by one thread and `execute_next` by one for each device; a test calls both in turn.
"""

import logging
import math
import threading
from collections.abc import Mapping

import msgspec

from facade import tracing
from facade.bus.port import GroupMember, Record, Writer
from facade.clock import Clock
from facade.controller.api import Controller
from facade.controller.command_state import Event
from facade.controller.execution_state import CommandOffset, Execution
from facade.controller.handling import INTERRUPTED, Handling
from facade.controller.inbox import CommandReader, History, OpenReader
from facade.controller.orders import Orders
from facade.controller.outbox import Outbox, Wait
from facade.controller.ownership import Ownership
from facade.controller.queues import Queues
from facade.errors import BusError
from facade.flows.commands.tracker import Tracker
from facade.icd.model import Icd
from facade.outcome import Suppressed
from facade.runtime.device_state import DeviceStates

_log = logging.getLogger(__name__)

_BATCH = 100
LONGEST_QUEUE = 100
"""Commands of one device that wait here."""
_REMEMBERED = 60_000
"""Outcomes kept, of all devices together; a command that is older than those of its device has long expired, and is
refused for that."""
_SOON = 0.002
"""Longest wait for records while a command is about to begin [s]: its thread asks this one for a proof."""
_ANSWER = 0.01
"""The same while a handler waits for what becomes of its orders [s]."""
_SPARE = 10.0
"""A member that has no partition after so long is one of too many [s]."""
_LOST_US = 10_000_000
"""After so long nobody is about to write a state that came with an outcome only: its controller was killed [us]."""
_RETRY = 0.5
"""Pause after the history could not be read [s]."""


class CommandLoop:
    """Takes the commands of some devices and executes each by the rules.

    Parameters
    ----------
    devices
        Device class, or executor, by device name.
    ordered
        The same of all to which orders may be given.
    wait
        How a handler waits; a test has other things to do meanwhile.
    """

    def __init__(
        self,
        controller: Controller,
        icd: Icd,
        devices: Mapping[str, str],
        member: GroupMember,
        open_reader: OpenReader,
        writer: Writer,
        *,
        clock: Clock,
        wait: Wait = threading.Event.wait,
        ordered: Mapping[str, str] = {},
    ) -> None:
        by_class = controller.commands(icd)
        self._commands = {device: by_class[name] for device, name in devices.items()}
        self._controller = controller
        self._name = controller.component
        self._member = member
        self._clock = clock
        known = {**devices, **ordered}
        self._states = DeviceStates(icd, known)
        self._tracker = Tracker(known, keep=_REMEMBERED // max(len(known), 1), acks=0, with_commands=False)
        self._outbox = Outbox(
            self._name,
            writer,
            self._states,
            most_bytes={name: topic.max_bytes for name, topic in icd.topics.items()},
            clock=clock,
            wait=wait,
        )
        self._history = History(
            open_reader, self._tracker, self._states, self._outbox.reported_states, component=self._name
        )
        self._orders = Orders(icd, ordered, self._tracker, self._outbox, component=self._name, clock=clock)
        self._ownership = Ownership(member, self._tracker, clock=clock)
        self._queues = Queues(devices)
        self._handling = Handling(
            controller=controller,
            tracker=self._tracker,
            queues=self._queues,
            ownership=self._ownership,
            outbox=self._outbox,
            orders=self._orders,
            parent_orders=self._history.parent_orders,
        )
        self.account = self._handling.account
        self._reader = CommandReader(list(devices), writer, self.account, by=self._name)
        self._assignment: Mapping[int, int] = {}
        self._held: list[Record] = []
        """Records taken before the history was known."""
        self.ready = False
        """Whether the history is known, so that commands are executed."""
        self._recovered = False
        self._began = clock.monotonic()

    # What one thread does all the time.

    def step(self, timeout: float) -> None:
        """Read what has happened, and queue the commands that have come.

        Raises
        ------
        Fenced
            Another process has taken this controller's name.
        """
        self._outbox.post_left()
        if not self.ready:
            self._catch_up(timeout)
            return
        records = self._member.take(_BATCH, min(timeout, self._pause()))
        if self._member.assignment != self._assignment:
            self._reassign(self._member.assignment)
            self._held += records
            return
        self._history.follow(0.0)
        self._recover_once()
        self._record_again()
        self._take_back()
        for record in records:
            self._take(record)
        self._ownership.commit_or_later(busy=bool(records))

    def _pause(self) -> float:
        """Return the longest wait for records [s]: somebody may wait for this thread."""
        if self._queues.has_beginning():
            return _SOON
        return _ANSWER if self._orders.waiting else math.inf

    def _record_again(self) -> None:
        """Write own states again that are missing on the log, or that are not the last ones there."""
        lost = self._states.unrecorded(self._outbox.now_us() - _LOST_US, self._name)
        self._outbox.record_again([one for one in lost if one.device in self._commands])
        self._outbox.record_again(self._history.overwritten())

    def _take_back(self) -> None:
        """Cancel running orders that have been ended, or whose parent has."""
        for execution in self._queues.running():
            self._handling.take_back(execution)

    def stop(self) -> None:
        """Begin no further command; queued commands are left to the next start."""
        self._queues.close()

    def interrupt(self) -> None:
        """Cancel the running handlers, as the process must end; the next start executes repeatable commands anew."""
        self._queues.cancel("the controller was stopped while it ran")

    def close(self) -> None:
        """Commit finished commands and leave the group."""
        self._outbox.post_left()  # of commands that go on at the next start
        self._outbox.closed = True
        self._ownership.close()
        self._history.close()

    # What one thread per device does.

    def await_command(self, device: str) -> bool:
        """Wait until there is something to execute; False at the end."""
        return self._queues.wait(device)

    def execute_next(self, device: str) -> bool:
        """Execute the next command of a device, to its outcome; False when there is none."""
        execution = self._queues.next(device)
        if execution is None:
            return False
        try:
            self._handling.execute(execution, self._commands[device][execution.command])
        finally:
            self._queues.done(device)
        return True

    # The history, and the partitions of this member.

    def _catch_up(self, timeout: float) -> None:
        try:
            if not self._history.catch_up(timeout):
                return
        except BusError as error:
            _log.warning("what was before cannot be read yet: %s", error)
            self._clock.sleep(_RETRY)
            return
        self._recover_once()
        self._record_again()
        self.ready = True
        held, self._held = self._held, []
        for record in held:
            if record.partition in self._assignment:
                self._take(record)

    def _recover_once(self) -> None:
        """Recover when the group knows this member: an earlier process of its name is out of the group by then."""
        if not self._recovered and (self._assignment or self._clock.monotonic() > self._began + _SPARE):
            self._recovered = True
            self._recover()

    def _recover(self) -> None:
        """End what an earlier life of this controller began and must not repeat, or what has timed out since."""
        given_up = self._tracker.given_up(self._name)  # no controller goes on with them; their devices may wait
        for ack in [*self._tracker.left_open(self._name), *given_up]:
            command = self._commands.get(ack.device, {}).get(ack.command)
            if command is None or (command.repeatable and ack not in given_up):
                continue
            self._handling.call_hook(ack.device, ack.command, ack.id)
            now_us = self._outbox.now_us()
            failed = msgspec.structs.replace(
                ack, status="FAILED", time=now_us, text=INTERRUPTED, remaining=None, progress=None
            )
            if self._outbox.send(failed):
                self._tracker.note(failed)

    def _reassign(self, assignment: Mapping[int, int]) -> None:
        """Leave lost partitions to other members, and read again how they went on with the own ones."""
        gone = {partition for partition, number in self._assignment.items() if assignment.get(partition) != number}
        moved = self._queues.lose(gone)
        for partition in gone:
            self._ownership.lose(partition)
        for execution, step in moved:
            self._handling.follow(execution, step)
        _log.info("partitions assigned component=%s partitions=%s", self._name, sorted(assignment))
        self._assignment = assignment
        self.ready = False
        self._history.close()

    # Commands that come.

    def _take(self, record: Record) -> None:
        offset = CommandOffset(record.partition, record.offset, self._assignment[record.partition])
        self._ownership.take(offset)
        with self._handling.counting:
            message = self._reader.read(record)
        if message is None:
            self._ownership.finish(offset)
            return
        headers = tuple(header for header in record.headers if header[0] in tracing.TRACED)
        command = self._commands[message.device].get(message.command)
        final_state = ("", ()) if command is None else (command.reports, command.targets)
        execution = Execution(message, headers, offset, final_state, proven=self._clock.monotonic())
        live = self._queues.enter(execution)
        if live is not None:
            with self._handling.counting:
                self.account.settle(Suppressed("repeated"))
            if live.offset[:2] != offset[:2]:  # else its partition was away, and has come back
                self._ownership.finish(offset)
            return
        with self._handling.counting:
            self.account.in_flight += 1
        if not self._handling.is_settled(execution):
            self._queue(execution)

    def _queue(self, execution: Execution) -> None:
        command = self._commands[execution.device].get(execution.command)
        if command is None or execution.command not in self._controller.handlers:
            known = ", ".join(sorted(self._controller.handlers))
            self._handling.happen(
                execution, Event.REFUSED, f"expected one of the commands that {self._name} knows, {known}"
            )
            return
        if command.overtakes and not self._handling.is_late(execution):
            why = f"ended by {execution.command} {execution.id}"
            for other in self._queues.overtake(execution, why):
                if not self._handling.is_settled(other) and not self._leave_late(other):
                    self._handling.happen(other, Event.OVERTAKEN, why)
        if not self._leave_late(execution) and not self._queues.put(execution, LONGEST_QUEUE):
            self._handling.happen(
                execution, Event.REFUSED, f"{LONGEST_QUEUE} commands of {execution.device} wait already"
            )

    def _leave_late(self, execution: Execution) -> bool:
        """Leave a late command to the thread of its device, which can wait for the proof that it may be refused."""
        return self._handling.is_late(execution) and self._queues.put(execution, math.inf)
