"""What every controller must do around its handlers, so that no command is lost, doubled or begun late.

- A command is ACCEPTED, durably, before it begins. One that is not *repeatable* is then committed as
  well, before it begins; a repeatable one when its outcome is on the bus.
- What other records, other members of the group or an earlier life of this controller have already
  begun or ended is read from ``command-acks``: a command that has an outcome is not executed, one that
  was cut short is executed again if it is repeatable and has FAILED if it is not.
- A command that could only begin after its ``not_after`` is refused, however long it has waited here.
- A command that *overtakes* cancels what its device executes, and ends what the device has queued.

`step` is called by one thread and `execute_next` by one for each device; a test calls both in turn.
"""

import logging
import threading
from collections import deque
from collections.abc import Mapping

import msgspec

from facade.bus.port import GroupMember, Headers, Record
from facade.clock import Clock
from facade.commands.controller import Call, Cancelled, Controller, Device, Rejected
from facade.commands.intake import Bus, Intake, Memory
from facade.commands.messages import AckMessage, AckStatus
from facade.commands.outbox import Outbox, Wait
from facade.commands.outcomes import TIMED_OUT, UNDELIVERED
from facade.commands.past import Offsets, Past
from facade.commands.rules import OBS_STATE, refusal
from facade.counters import StreamAccount
from facade.device_state import STATE, DeviceStates
from facade.errors import BusError
from facade.icd.model import Command, Icd

_log = logging.getLogger(__name__)

_BATCH = 100
LONGEST_QUEUE = 100
"""Commands of one device that wait here."""
_RETRY = 0.5
"""Pause after the past could not be read [s]."""
_TRACED = ("traceparent", "tracestate")
"""Headers that are handed on from a command to its acknowledgements."""
_KILLED = "interrupted: its controller was killed after accepting it; how much was done is not known"


class Execution:
    """Takes the commands of some devices and executes each by the rules.

    Parameters
    ----------
    devices
        Device class by device name.
    wait
        How a handler waits; a test has other things to do meanwhile.
    """

    def __init__(
        self,
        controller: Controller,
        icd: Icd,
        devices: Mapping[str, str],
        member: GroupMember,
        bus: Bus,
        *,
        clock: Clock,
        wait: Wait = threading.Event.wait,
    ) -> None:
        by_class = controller.commands(icd)
        self._commands = {device: by_class[name] for device, name in devices.items()}
        self._controller = controller
        self._name = controller.component
        self._member = member
        self._clock = clock
        self._states = DeviceStates(icd, devices)
        self._past = Past()
        self._memory = Memory(bus, self._past, self._states, component=self._name)
        self._outbox = Outbox(self._name, bus.writer(), self._states, clock=clock, wait=wait)
        self.account = StreamAccount()
        """What became of the records on ``commands``."""
        self._intake = Intake(icd, list(devices), bus.writer(), self.account, by=self._name)
        self._offsets = Offsets()
        self._assignment: Mapping[int, int] = {}
        self._held: list[Record] = []
        """Records taken before the past was known."""
        self.ready = False
        """Whether the past is known, so that commands are executed."""
        self._recovered = False
        self._changed = threading.Condition(threading.RLock())
        self._committing = threading.Lock()
        self._queues: dict[str, deque[Call]] = {device: deque() for device in devices}
        self._running: dict[str, Call] = {}
        self._live: dict[str, Call] = {}
        """Calls that are queued or running, by id."""
        self._stopping = False

    # What one thread does all the time.

    def step(self, timeout: float) -> None:
        """Read what has happened, and queue the commands that have come.

        Raises
        ------
        Fenced
            Another process has taken this controller's name.
        """
        if not self.ready:
            self._catch_up(timeout)
            return
        records = self._member.take(_BATCH, timeout)
        if self._member.assignment != self._assignment:
            self._reassign(self._member.assignment)
            self._held += records
            return
        self._memory.follow(0.0)
        for record in () if self._stopping else records:
            self._take(record)
        self._commit_or_later()

    def stop(self) -> None:
        """Begin no further command; what is queued is left to the next start."""
        with self._changed:
            self._stopping = True
            for queue in self._queues.values():
                queue.clear()
            self._changed.notify_all()

    def interrupt(self) -> None:
        """Cancel what still runs because the process must end; a repeatable command begins anew at the next start."""
        with self._changed:
            for call in self._running.values():
                call.cancel("the controller was stopped while it ran")

    def close(self) -> None:
        """Commit what is done and leave."""
        self._outbox.closed = True
        self._commit_or_later()
        self._memory.close()
        self._member.close()

    # What one thread per device does.

    def await_command(self, device: str) -> bool:
        """Wait until there is something to execute; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._queues[device])
            return not self._stopping

    def execute_next(self, device: str) -> bool:
        """Execute the next command of a device, to its outcome; False when there is none."""
        with self._changed:
            if not self._queues[device]:
                return False
            call = self._running[device] = self._queues[device].popleft()
        try:
            self._execute(call)
        finally:
            with self._changed:
                del self._running[device]
        return True

    # The past, and whose the devices are.

    def _catch_up(self, timeout: float) -> None:
        try:
            if not self._memory.catch_up(timeout):
                return
        except BusError as error:
            _log.warning("what was before cannot be read yet: %s", error)
            self._clock.sleep(_RETRY)
            return
        if not self._recovered:
            self._recover()
            self._recovered = True
        self.ready = True
        held, self._held = self._held, []
        for record in held:
            if record.partition in self._assignment:
                self._take(record)

    def _recover(self) -> None:
        """End what an earlier life of this controller began and must not repeat."""
        for ack in self._past.left_open(self._name):
            command = self._commands.get(ack.device, {}).get(ack.command)
            if command is not None and not command.repeatable:
                self._fail_interrupted(ack)

    def _reassign(self, assignment: Mapping[int, int]) -> None:
        """Leave to others what is theirs now, and see to it that we learn what they did with what is ours."""
        gone = {partition for partition, number in self._assignment.items() if assignment.get(partition) != number}
        with self._changed:
            for partition in gone:
                self._offsets.lose(partition)
            for call in [call for call in self._live.values() if call.place[0] in gone]:
                call.moved = True
                if call in self._queues[call.device]:
                    self._queues[call.device].remove(call)
                    self._finish(call, "moved")
        _log.info("partitions assigned component=%s partitions=%s", self._name, sorted(assignment))
        self._assignment = assignment
        self.ready = False
        self._memory.begin_anew()

    # Commands that come.

    def _take(self, record: Record) -> None:
        place = (record.partition, record.offset)
        with self._changed:
            if not self._offsets.take(*place):
                return
            message = self._intake.read(record)
            live = None if message is None else self._live.get(message.id)
            if message is None or live is not None:
                if live is not None:
                    self.account.suppress("repeated")
                if live is None or live.place != place:  # else its partition was away, and has come back
                    self._offsets.finish(*place)
                return
            headers = tuple(header for header in record.headers if header[0] in _TRACED)
            call = self._live[message.id] = Call(message, headers, place, self._outbox)
            self.account.in_flight += 1
        if not self._is_settled(call):
            self._queue(call)

    def _queue(self, call: Call) -> None:
        command = self._commands[call.device].get(call.command)
        queue = self._queues[call.device]
        if command is None or call.command not in self._controller.handlers:
            known = ", ".join(sorted(self._controller.handlers))
            self._end(call, "REJECTED", f"expected one of the commands that {self._name} knows, {known}")
            return
        if command.overtakes:
            self._overtake(call)
        elif len(queue) >= LONGEST_QUEUE:
            self._end(call, "REJECTED", f"{len(queue)} commands of {call.device} wait already")
            return
        with self._changed:
            queue.append(call)
            self._changed.notify_all()

    def _overtake(self, call: Call) -> None:
        """Cancel what the device executes and end what it has queued."""
        why = f"ended by {call.command} {call.id}"
        with self._changed:
            overtaken = list(self._queues[call.device])
            self._queues[call.device].clear()
            if (running := self._running.get(call.device)) is not None:
                running.cancel(why)
        for other in overtaken:
            if not self._is_settled(other):
                self._end(other, "ABORTED", why)

    # Execution.

    def _execute(self, call: Call) -> None:
        if self._is_settled(call):
            return
        command = self._commands[call.device][call.command]
        if not call.again and (why := self._refusal(call, command)):
            self._end(call, "REJECTED", why)
            return
        if not self._begin(call) or self._is_hindered(call):
            return
        tags = f"transaction_id={call.message.transaction_id} id={call.id} device={call.device}"
        _log.info("command begins %s again=%s", tags, call.again)
        status, text, result = self._handle(call)
        if status is None:
            _log.warning("command left to the next start %s", tags)
            return
        _log.info("command ends %s status=%s text=%s", tags, status, text)
        self._end(call, status, text, result)

    def _begin(self, call: Call) -> bool:
        """Accept a command durably, and commit it if it must not be repeated; False if it must not begin."""
        not_after = call.message.not_after
        if not call.again:
            ack = self._outbox.ack(call.message, "ACCEPTED")
            if not self._outbox.send(ack, call.headers, not_after):
                self._is_late(call)
                return False
            self._past.note(ack)
        if not call.message.repeatable and not self._outbox.insist(lambda: self._commit_early(call), not_after):
            self._is_late(call)
            return False
        if call.moved and not call.committed:
            self._finish(call, "moved")
            return False
        return True

    def _handle(self, call: Call) -> tuple[AckStatus | None, str, object]:
        try:
            return "COMPLETED", "", self._controller.handlers[call.command](call)
        except Rejected as refused:
            # In the table of outcomes nothing is refused any more once it is in progress.
            return "FAILED" if call.in_progress or call.again else "REJECTED", str(refused), None
        except Cancelled as cancelled:
            if not self._stopping:
                return "ABORTED", str(cancelled), None
            return None if call.message.repeatable else "FAILED", f"interrupted: {cancelled}", None
        except Exception as error:
            _log.exception("handler failed id=%s command=%s", call.id, call.command)
            return "FAILED", f"{type(error).__name__}: {error}", None

    def _refusal(self, call: Call, command: Command) -> str:
        obs_state = self._states.get(call.device, OBS_STATE)
        return refusal(
            command,
            # A state that nobody has reported yet is no reason to refuse.
            state=self._states.label(call.device, STATE, command.state[0]),
            obs_state=None if obs_state is None else str(obs_state.value),
            under_way=None,
        )

    # Reasons not to execute.

    def _is_settled(self, call: Call) -> bool:
        """End a command that must not be executed, by what the log says and what the time is."""
        known = self._past.get(call.id)
        if known is not None and known.final:
            in_time = self._outbox.now_us() <= call.message.not_after
            if in_time and known.ack.status not in (TIMED_OUT, UNDELIVERED):
                self._outbox.send(known.ack, call.headers)
            self._finish(call, "ended-before")
            return True
        if known is not None and not call.message.repeatable:
            if known.ack.origin == self._name:
                self._fail_interrupted(known.ack, call.headers)
            self._finish(call, "begun-before")  # another member that began it answers for it
            return True
        call.again = known is not None
        return self._is_late(call)

    def _is_hindered(self, call: Call) -> bool:
        """Look once more at the very moment of beginning, as the bus may have been slow to accept."""
        known = self._past.get(call.id)
        if known is not None and known.final:
            self._finish(call, "ended-before")
            return True
        if call.cancelled:
            self._end(call, "ABORTED", call.cancelled)
            return True
        return self._is_late(call)

    def _is_late(self, call: Call) -> bool:
        late = self._outbox.now_us() - call.message.not_after
        if late <= 0:
            return False
        if call.again:
            self._end(call, "FAILED", f"{_KILLED}, and now it is too late to begin it again")
        else:
            self._end(call, "REJECTED", f"expired: it had to begin {late / 1e6:.3f} s ago")
        return True

    # Outcomes.

    def _end(self, call: Call, status: AckStatus, text: str, result: object = None) -> None:
        """Write an outcome; only then may the record be committed."""
        ack = self._outbox.ack(call.message, status, text, result)
        if self._outbox.send(ack, call.headers):
            self._past.note(ack)
            self._finish(call)

    def _fail_interrupted(self, begun: AckMessage, headers: Headers = ()) -> None:
        _log.warning("command interrupted id=%s device=%s", begun.id, begun.device)
        self._controller.on_interrupted(Device(begun.device, self._outbox), begun.command)
        ack = msgspec.structs.replace(
            begun, status="FAILED", time=self._outbox.now_us(), text=_KILLED, remaining=None, progress=None
        )
        if self._outbox.send(ack, headers):
            self._past.note(ack)

    def _finish(self, call: Call, unused: str = "") -> None:
        """Be done with a record; its offset may be committed."""
        with self._changed:
            self._offsets.finish(*call.place)
            self._live.pop(call.id, None)
            self.account.in_flight -= 1
            if unused:
                self.account.suppress(unused)
            else:
                self.account.used += 1

    # Offsets.

    def _commit_early(self, call: Call) -> None:
        """Commit a command before it begins, which also proves that its partition is still ours."""
        with self._committing:
            with self._changed:
                if call.moved:
                    return
                self._offsets.finish(*call.place)
                partition = call.place[0]
                due = {**self._offsets.due(), partition: self._offsets.reached(partition)}
            self._commit(due)
            call.committed = True

    def _commit_or_later(self) -> None:
        if not self._committing.acquire(blocking=False):
            return  # a command is about to begin, and its thread waits for this one
        try:
            with self._changed:
                due = self._offsets.due()
            if due:
                self._commit(due)
        except BusError as error:
            _log.warning("offsets will be committed later: %s", error)
        finally:
            self._committing.release()

    def _commit(self, offsets: Mapping[int, int]) -> None:
        self._member.commit(offsets)
        with self._changed:
            self._offsets.committed(offsets)
