"""Moves commands through their states: finds out the events, and does what the table of `command_state` says."""

import logging
import threading
from dataclasses import dataclass, field

import msgspec

from facade import tracing
from facade.controller.api import Controller, Rejected
from facade.controller.call import Call, Device
from facade.controller.command_state import Effect, Event, State, Transition
from facade.controller.execution_state import Cancelled, Execution, Reports
from facade.controller.inbox import ParentOrders
from facade.controller.orders import Orders
from facade.controller.outbox import Outbox
from facade.controller.ownership import KNOWN, PROVEN, Owner, Ownership
from facade.controller.queues import Queues
from facade.errors import FacadeError
from facade.flows.commands.messages import ack_record
from facade.flows.commands.outcomes import ABORTED, BY_FACADE, FINAL
from facade.flows.commands.rules import OBS_STATE, is_transitional, why_not_allowed
from facade.flows.commands.tracker import Tracker
from facade.icd.model import CommandDefinition
from facade.outcome import USED, Suppressed
from facade.runtime.accounts import RunningAccount
from facade.runtime.device_state import STATE

_log = logging.getLogger(__name__)

INTERRUPTED = "interrupted: its controller was killed after accepting it; how much was done is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """Moves commands through their lives; may be used from several threads."""

    controller: Controller
    tracker: Tracker
    queues: Queues
    ownership: Ownership
    outbox: Outbox
    orders: Orders
    parent_orders: ParentOrders
    account: RunningAccount = field(default_factory=RunningAccount)
    """What became of the records on ``commands``."""
    counting: threading.Lock = field(default_factory=threading.Lock)
    """To be held while the account is changed."""

    def happen(self, execution: Execution, event: Event, text: str = "", result: object = None) -> State:
        """Do what the table says of an event; return the state in which the command is then."""
        self.follow(execution, execution.command_state.happen(event), text, result)
        return execution.state

    def follow(self, execution: Execution, step: Transition, text: str = "", result: object = None) -> None:
        """Do what a step says: the effects, then the outcome."""
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
                self.account.settle(Suppressed(step.reason) if step.reason else USED)

    def _repeat(self, execution: Execution) -> None:
        """Write the known outcome again for a client that asks in time, without its states, which may be outdated."""
        known = self.tracker.newest(execution.id)
        if known is not None and known.status not in BY_FACADE and not self.is_late(execution):
            self.outbox.send(msgspec.structs.replace(known, states={}), execution.headers)

    def call_hook(self, device: str, command: str, id: str) -> None:
        """Run the `interrupted` hook for a device whose command will not resume.

        A state on the way, which the command has left, becomes FAULT: no other command would lead out of it.
        """
        _log.warning("command interrupted device=%s command=%s", device, command)
        reports = Reports(device)
        try:
            self.controller.on_interrupted(Device(reports, self.outbox), command)
        except Exception:
            # The command must get its outcome all the same, also after the next start.
            _log.exception("the hook for interrupted commands failed command=%s device=%s", command, device)
        told = self.outbox.states.get(device, OBS_STATE)
        if told is not None and is_transitional(str(told.value)) and told.command in ("", id):
            self.outbox.report_fault(reports, f"{command} was {INTERRUPTED}")
        self.outbox.confirm(reports)

    def _leave_fault(self, execution: Execution, event: Event, text: str) -> None:
        """Report FAULT of a device whose command has failed, unless the handler has said how the device is.

        A transitional state does not count as such a report, also if the handler has refused the command in the end.
        """
        told = self.outbox.states.get(execution.device, OBS_STATE)
        if told is None:  # the device has none
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
        """Return whether the log says that a command is not to be executed; then it is over."""
        known = self.tracker.newest(execution.id)
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
        """Cancel an order that was ended, or whose parent was."""
        if not execution.message.parent or execution.cancel_reason:
            return
        known = self.tracker.newest(execution.id)
        if known is not None and known.status == ABORTED:
            execution.take_back(known.text)
        elif why := self.parent_orders.why_ended(execution.message.parent):
            execution.take_back(why)

    def execute(self, execution: Execution, command: CommandDefinition) -> None:
        """Execute a command whose turn has come, to its outcome."""
        self.take_back(execution)
        if self.is_settled(execution) or self._has_expired(execution):
            return
        if execution.state is State.STARTING and (why := self._why_not_allowed(execution, command)):
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
        """Say why a command is not allowed in the state that was last reported; an empty text when it is."""
        obs_state = self.outbox.states.get(execution.device, OBS_STATE)
        return why_not_allowed(
            command,
            # A missing report of the state is no reason to refuse; an executor has no state.
            state=self.outbox.states.label(execution.device, STATE, next(iter(command.state), "")),
            obs_state=None if obs_state is None else str(obs_state.value),
            under_way=None,
        )

    def _has_expired(self, execution: Execution) -> bool:
        """End a command for which it is too late; return whether it is."""
        if not self.is_late(execution):
            return False
        late = (self.outbox.now_us() - execution.message.not_after) / 1e6
        text = f"{INTERRUPTED}, and now it is too late to begin it again"
        self._end_ours(execution, Event.LATE, text if execution.again else f"expired: it had to begin {late:.3f} s ago")
        return True

    def _end_ours(self, execution: Execution, event: Event, text: str) -> None:
        """End a command unless its partition has moved, as the new owner may have begun it.

        The thread that reads the topics must not call this; see `Ownership.check`.
        """
        owner = Owner.SELF if execution.state is State.OWNED else self.ownership.check(execution)
        if owner is Owner.OTHER:
            self.happen(execution, Event.PARTITION_LOST)
        self.happen(execution, Event.STOP if owner is Owner.UNKNOWN else event, text)

    def _begins(self, execution: Execution) -> bool:
        """Accept a command durably, and check it once more as it begins; False if it must not begin."""
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
        known = self.tracker.newest(execution.id)
        if known is not None and known.status in FINAL:
            self.happen(execution, Event.HAS_OUTCOME)
        elif execution.cancel_reason:
            self.happen(execution, Event.CANCEL, execution.cancel_reason)
        elif not self._has_expired(execution):
            self.happen(execution, Event.BEGIN)
        return execution.runs

    def _accept(self, execution: Execution) -> bool:
        """Write ACCEPTED and have it confirmed; False if the bus was too slow.

        If the command must not be repeated, the partition is proven to be this controller's at the same time. A member
        that gets the partition after the proof reads ACCEPTED, and leaves the command to this controller. The proof is
        renewed if ACCEPTED has taken longer than it holds: another member may have had the partition meanwhile.
        """

        def is_known(max_age: float = 0.0) -> bool:
            """Return whether the owner is known in time; another owner is an event, which the caller finds as well."""
            within = max(execution.message.not_after - self.outbox.now_us(), 0) / 1e6
            return execution.message.repeatable or (
                self.ownership.check(execution, max_age=max_age, within=within) is not Owner.UNKNOWN
            )

        ack = self.outbox.ack(execution.message, "ACCEPTED")
        if not (self.outbox.post(execution, ack_record(ack, execution.headers)) and is_known()):
            return False
        if not self.outbox.confirm(execution, execution.message.not_after):
            return False
        self.tracker.note(ack)
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
            # No other command comes that would say how the device is.
            self.call_hook(execution.device, execution.command, execution.id)
        return event, text, result

    def _handle(self, execution: Execution) -> tuple[Event, str, object]:
        """Call the handler; return the event of its end, with a text and a result."""
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
