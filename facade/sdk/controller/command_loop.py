"""The loop of a controller: reads commands, queues them, and executes each by the rules of `command_state`.

`step` is called by one thread and `execute_next` by one for each device; a test calls both in turn.
"""

import logging
import math
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from facade.flows.commands.messages import ack_record
from facade.flows.commands.outcomes import ABORTED, BY_FACADE, FINAL
from facade.flows.commands.rules import is_transitional, why_not_allowed
from facade.flows.commands.tracker import Tracker
from facade.kernel import tracing
from facade.kernel.bus.port import GroupMember, Record, Writer
from facade.kernel.bus.signatures import UNSIGNED, Signatures
from facade.kernel.clock import NOTHING, SECOND, Clock, as_seconds
from facade.kernel.errors import BusError, FacadeError
from facade.kernel.icd.model import CommandDefinition, Icd
from facade.kernel.outcome import USED, Suppressed
from facade.kernel.runtime.accounts import RunningAccount
from facade.sdk.controller.api import Controller, Rejected
from facade.sdk.controller.call import Call, Device
from facade.sdk.controller.command_state import Effect, Event, State, Transition
from facade.sdk.controller.execution_state import Cancelled, CommandOffset, Execution, Queues, Reports
from facade.sdk.controller.inbox import CommandHistory, CommandReader, OpenReader, ParentOrders
from facade.sdk.controller.orders import Orders
from facade.sdk.controller.outbox import Outbox, Wait
from facade.sdk.controller.ownership import KNOWN, PROVEN, Owner, Ownership
from facade.sdp.device_state import OBS_STATE, STATE, DeviceStates

INTERRUPTED = "interrupted: its controller was killed after accepting it; how much was done is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """Finds the events of commands, and follows the table; may be used from several threads."""

    controller: Controller
    tracker: Tracker
    queues: Queues
    ownership: Ownership
    outbox: Outbox
    orders: Orders
    parent_orders: ParentOrders
    account: RunningAccount = field(default_factory=RunningAccount)
    """Account of the records on ``commands``."""
    counting: threading.Lock = field(default_factory=threading.Lock)
    """Held while the account is changed."""

    def happen(self, execution: Execution, event: Event, text: str = "", result: object = None) -> State:
        """Follow the table for an event, and return the new state."""
        self.follow(execution, execution.command_state.happen(event), text, result)
        return execution.state

    def follow(self, execution: Execution, step: Transition, text: str = "", result: object = None) -> None:
        """Apply the effects of a step, then write its outcome."""
        for effect in step.effects:
            match effect:
                case Effect.REPEAT:
                    self._repeat(execution)
                case Effect.HOOK:
                    self.call_hook(execution.device, execution.command, execution.id)
                case Effect.COMMIT:
                    self.ownership.finish(execution.offset)
        if step.outcome is not None:
            _log.info(
                "command ends id=%s device=%s status=%s text=%s", execution.id, execution.device, step.outcome, text
            )
            ack = self.outbox.ack(execution.message, step.outcome, text, result)
            confirmed = self.outbox.conclude(execution, ack)
            if confirmed:
                self.tracker.note(ack)
            self.happen(execution, Event.CONFIRM if confirmed else Event.STOP)
        elif step.reason or step.state is State.ENDED:
            self.queues.leave(execution)
            with self.counting:
                self.account.in_flight -= 1
                assert self.account.in_flight >= 0, f"{execution.id} ends for the second time, as {step.state}"
                self.account.settle(Suppressed(step.reason) if step.reason else USED)

    def _repeat(self, execution: Execution) -> None:
        """Write the known outcome again for a client that asks in time, without its states, which may be outdated."""
        known = self.tracker.newest(execution.device, execution.id)
        if known is None or known.status in BY_FACADE:
            return
        if self.is_late(execution):
            return
        self.outbox.conclude(Reports(execution.device, headers=execution.headers), known)

    def call_hook(self, device: str, command: str, id: str) -> None:
        """Run the `interrupted` hook for a device whose command will not resume.

        A transitional state left by the command becomes FAULT: no other command would lead out of it.
        """
        _log.warning("command interrupted device=%s command=%s", device, command)
        reports = Reports(device, id)  # a newer command, such as Abort, has not taken effect by this
        # At the end of the process the outcome is left to the next start as well, which calls the hook again.
        with suppress(Cancelled):
            try:
                self.controller.on_interrupted(Device(reports, self.outbox), command)
            except Exception:
                # The command gets its outcome in spite of that.
                _log.exception("the hook for interrupted commands failed command=%s device=%s", command, device)
            told = self.outbox.states.get(device, OBS_STATE)
            if told is not None and is_transitional(str(told.value)) and told.command in ("", id):
                self.outbox.report_fault(reports, f"{command} was {INTERRUPTED}")
            self.outbox.confirm(reports)

    def _leave_fault(self, execution: Execution, event: Event, text: str) -> None:
        """Report FAULT of a device whose command has failed, unless the handler has reported a stable state."""
        told = self.outbox.states.get(execution.device, OBS_STATE)
        if told is None:  # the device has no obsState
            return
        is_told = event is Event.REFUSED or told.command == execution.id
        if is_transitional(str(told.value)) or not is_told:
            try:
                self.ownership.require(execution)
                self.outbox.report_fault(execution, text)
            except Cancelled as cancelled:
                _log.warning("fault not reported id=%s device=%s: %s", execution.id, execution.device, cancelled)

    def is_late(self, execution: Execution) -> bool:
        """Return whether it is too late for a command to begin."""
        return self.outbox.now_us() > execution.message.not_after

    def is_settled(self, execution: Execution) -> bool:
        """Return whether the log forbids the execution of a command; then the command ends."""
        known = self.tracker.newest(execution.device, execution.id)
        if known is None:
            return False
        if known.status in FINAL:
            self.happen(execution, Event.HAS_OUTCOME)
        elif execution.message.repeatable:
            self.happen(execution, Event.BEGUN_BEFORE)
        elif known.origin == self.controller.component:
            self.happen(execution, Event.BEGUN_HERE, INTERRUPTED)
        else:
            self.happen(execution, Event.BEGUN_ELSEWHERE)
        return execution.is_over

    def take_back(self, execution: Execution) -> None:
        """Cancel an order that has ended, or whose parent has."""
        if not execution.message.parent or execution.cancel_reason:
            return
        known = self.tracker.newest(execution.device, execution.id)
        if known is not None and known.status == ABORTED:
            execution.take_back(known.text)
        elif why := self.parent_orders.why_ended(execution.message.parent):
            execution.take_back(why)

    def execute(self, execution: Execution, command: CommandDefinition) -> None:
        """Execute a command whose turn has come, to its outcome."""
        self.take_back(execution)
        if self.is_settled(execution) or self._has_expired(execution):
            return
        if execution.state in (State.STARTING, State.ALLOWED) and (why := self._why_not_allowed(execution, command)):
            self._end_ours(execution, Event.REFUSED, why)
            return
        if execution.state is State.STARTING:
            self.happen(execution, Event.PERMITTED)
        if self._begins(execution):
            tags = f"transaction_id={execution.message.transaction_id} id={execution.id} device={execution.device}"
            _log.info("command begins %s again=%s", tags, execution.again)
            if self.happen(execution, *self._ended(execution, *self._handle(execution))) is State.LEFT:
                _log.warning("command left to the next start %s", tags)

    def _why_not_allowed(self, execution: Execution, command: CommandDefinition) -> str:
        """Return the reason why the last reported state forbids a command; empty: it is allowed.

        A command that has ended others is allowed in any obsState: it was given in an obsState that they have left. Off
        may have taken effect meanwhile.
        """
        has_overtaken = execution.state is State.ALLOWED
        obs_state = None if has_overtaken else self.outbox.states.get(execution.device, OBS_STATE)
        return why_not_allowed(
            command,
            # A missing report of the state is no reason to refuse; an executor has no state.
            state=self.outbox.states.label(execution.device, STATE, next(iter(command.state), "")),
            obs_state=None if obs_state is None else str(obs_state.value),
        )

    def _has_expired(self, execution: Execution) -> bool:
        if not self.is_late(execution):
            return False
        late = as_seconds(self.outbox.now_us() - execution.message.not_after)
        text = f"{INTERRUPTED}, and now it is too late to begin it again"
        self._end_ours(
            execution,
            Event.LATE,
            text if execution.again else f"not begun: the latest time to begin was {late:.3f} s ago",
        )
        return True

    def _end_ours(self, execution: Execution, event: Event, text: str) -> None:
        """End a command unless its partition has moved, as the new owner may have begun it; see `Ownership.check`."""
        owner = Owner.SELF if execution.state is State.OWNED else self.ownership.check(execution)
        if owner is Owner.OTHER:
            self.happen(execution, Event.PARTITION_LOST)
        self.happen(execution, Event.STOP if owner is Owner.UNKNOWN else event, text)

    def _begins(self, execution: Execution) -> bool:
        """Accept a command durably, and check it again before it begins; False if it must not begin."""
        if execution.state is State.ALLOWED and not self._accept(execution):
            if not self._has_expired(execution):
                self.happen(execution, Event.STOP)
            return False
        if not execution.is_over and self.ownership.check(execution, max_age=KNOWN) is Owner.OTHER:
            self.happen(execution, Event.PARTITION_LOST)
        if not (execution.is_over or execution.again):
            self.happen(execution, Event.ACCEPT if execution.message.repeatable else Event.PROVE)
        if execution.is_over:
            return False
        known = self.tracker.newest(execution.device, execution.id)
        if known is not None and known.status in FINAL:
            self.happen(execution, Event.HAS_OUTCOME)
        elif execution.cancel_reason:
            self.happen(execution, Event.CANCEL, execution.cancel_reason)
        elif not self._has_expired(execution):
            self.happen(execution, Event.BEGIN)
        return execution.runs

    def _accept(self, execution: Execution) -> bool:
        """Write ACCEPTED and wait for the confirmation; False if the bus was too slow.

        For a command that must not be repeated, a commit proves at the same time that the partition is this
        controller's. A later owner reads ACCEPTED, and leaves the command alone. The proof is renewed if ACCEPTED took
        longer than it holds.
        """

        def is_known(max_age: float = 0.0) -> bool:
            # Another owner is an event, which the caller finds as well.
            within = as_seconds(max(execution.message.not_after - self.outbox.now_us(), NOTHING))
            return execution.message.repeatable or (
                self.ownership.check(execution, max_age=max_age, within=within) is not Owner.UNKNOWN
            )

        ack = self.outbox.ack(execution.message, "ACCEPTED")
        if not (self.outbox.write(execution, [ack_record(ack, execution.headers)]) and is_known()):
            return False
        if not self.outbox.confirm(execution, execution.message.not_after):
            return False
        return is_known(PROVEN)

    def _ended(self, execution: Execution, event: Event, text: str, result: object) -> tuple[Event, str, object]:
        """End the orders of a command that has not completed, and report its fault; return its last event."""
        if event in (Event.FAIL, Event.REFUSED) and not execution.moved:
            self._leave_fault(execution, event, text)
        if execution.moved:
            return Event.MOVE, "", None
        if event in (Event.CANCEL, Event.FAIL, Event.REFUSED):
            self.orders.abort(execution, f"{execution.command} {execution.id}, which had given it, has ended")
        if event is Event.CANCEL and execution.taken_back:
            # No later command would report the state of the device.
            self.call_hook(execution.device, execution.command, execution.id)
        return event, text, result

    def _handle(self, execution: Execution) -> tuple[Event, str, object]:
        """Call the handler; return the event of its end, with a text and a result; see `Controller.command`."""
        try:
            with tracing.span(
                f"{self.controller.component} {execution.command}",
                execution.headers,
                id=execution.id,
                device=execution.device,
            ):
                call = Call(execution, self.outbox, self.orders, self.ownership)
                return Event.RETURN, "", self.controller.handlers[execution.command](call)
        except Rejected as refused:
            return Event.REFUSED, str(refused), None
        except Cancelled as cancelled:
            if not self.queues.closed:
                return Event.CANCEL, str(cancelled), None
            return Event.STOP if execution.message.repeatable else Event.FAIL, f"interrupted: {cancelled}", None
        except Exception as error:
            unforeseen = not isinstance(error, FacadeError)
            _log.warning(
                "handler failed id=%s command=%s: %s", execution.id, execution.command, error, exc_info=unforeseen
            )
            return Event.FAIL, f"{type(error).__name__}: {error}", None


_log = logging.getLogger(__name__)

_BATCH = 100
LONGEST_QUEUE = 100
"""Most waiting commands of one device."""
_REMEMBERED = 60_000
"""Outcomes kept, for all devices together; an older command has long expired, and is refused for that."""
_SOON = 0.002
"""Longest wait for records while a command is about to begin [s]: its thread waits for a commit of this thread."""
_ANSWER = 0.01
"""The same while a handler waits for the outcomes of its orders [s]."""
_SPARE = 10.0
"""Time after which a member without a partition is superfluous [s]."""
_LOST = 10 * SECOND
"""Age at which a state known only from an outcome counts as lost: its controller was killed [us]."""
_RETRY = 0.5
"""Pause after a failure to read the history [s]."""


class CommandLoop:
    """Reads the commands of some devices and executes each by the rules.

    Parameters
    ----------
    devices
        Device class, or executor, by device name.
    ordered
        Device class, or executor, of the devices for orders.
    wait
        Wait function for handlers; a test works meanwhile.
    signatures
        By which states and acknowledgements are checked.
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
        signatures: Signatures = UNSIGNED,
    ) -> None:
        by_class = controller.commands(icd)
        self._commands = {device: by_class[name] for device, name in devices.items()}
        self._controller = controller
        self._name = controller.component
        self._member = member
        self._clock = clock
        known = {**devices, **ordered}
        self._states = DeviceStates(icd, known, signatures)
        self._tracker = Tracker(known, keep=_REMEMBERED // max(len(known), 1), acks=0, with_commands=False)
        self._outbox = Outbox(
            self._name,
            writer,
            self._states,
            most_bytes={name: topic.max_bytes for name, topic in icd.topics.items()},
            clock=clock,
            wait=wait,
        )
        self._history = CommandHistory(
            open_reader, self._tracker, self._states, self._outbox.reported_states, component=self._name
        )
        self._orders = Orders(
            icd, ordered, self._tracker, self._outbox, component=self._name, clock=clock, signatures=signatures
        )
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
        self._reader = CommandReader(list(devices), self.account)
        self._assignment: Mapping[int, int] = {}
        self._held: list[Record] = []
        """Records read before the history was known."""
        self.ready = False
        """Whether the history is known, so that commands are executed."""
        self._recovered = False
        self._began = clock.monotonic()

    def step(self, timeout: float) -> None:
        """Read new events, and queue new commands.

        Raises
        ------
        Fenced
            Another process uses this controller's name.
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
        for execution in self._queues.running():
            self._handling.take_back(execution)
        for record in records:
            self._take(record)
        self._ownership.commit_or_later(busy=bool(records))

    def _pause(self) -> float:
        if self._queues.has_beginning():
            return _SOON
        return _ANSWER if self._orders.waiting else math.inf

    def _record_again(self) -> None:
        lost = self._states.unrecorded(self._outbox.now_us() - _LOST, self._name)
        self._outbox.record_again([one for one in lost if one.device in self._commands])
        self._outbox.record_again(self._history.overwritten())

    def leave_when(self, stopped: Callable[[], bool]) -> None:
        """Let this thread, which calls `step`, leave what the bus does not confirm to the next start once it must stop.

        The threads of the devices continue, so that executed commands get their outcome.
        """
        reader = threading.get_ident()
        self._outbox.stopping = lambda: stopped() and threading.get_ident() == reader

    def stop(self) -> None:
        """Begin no further command; queued commands are left to the next start."""
        self._queues.close()

    def interrupt(self) -> None:
        """Cancel the running handlers, as the process must end; the next start repeats repeatable commands."""
        self._queues.cancel("the controller was stopped while it ran")

    def close(self) -> None:
        """Commit finished commands and leave the group."""
        self._outbox.post_left()  # of commands that continue at the next start
        self._outbox.closed = True
        self._ownership.close()
        self._history.close()

    def await_command(self, device: str) -> bool:
        """Wait until there is a command to execute; False at the end."""
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
        """Recover when the group knows this member, as an earlier process of its name has then left the group."""
        if not self._recovered and (self._assignment or self._clock.monotonic() > self._began + _SPARE):
            self._recovered = True
            self._recover()

    def _recover(self) -> None:
        """End commands of an earlier run of this controller that must not be repeated, or have timed out since."""
        given_up = self._tracker.given_up(self._name)  # no controller continues them; their devices may wait
        for ack in [*self._tracker.left_open(self._name), *given_up]:
            command = self._commands.get(ack.device, {}).get(ack.command)
            if command is None or (command.repeatable and ack not in given_up):
                continue
            self._handling.call_hook(ack.device, ack.command, ack.id)
            now_us = self._outbox.now_us()
            failed = msgspec.structs.replace(
                ack, status="FAILED", time=now_us, text=INTERRUPTED, remaining=None, progress=None
            )
            if self._outbox.conclude(Reports(ack.device), failed):
                self._tracker.note(failed)

    def _reassign(self, assignment: Mapping[int, int]) -> None:
        """Leave lost partitions to other members, and read again how those have continued with the own ones."""
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
            if live.offset[:2] != offset[:2]:  # otherwise its partition was away, and has come back
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
        """Leave a late command to the thread of its device, which can wait for the proof of the partition."""
        return self._handling.is_late(execution) and self._queues.put(execution, math.inf)
