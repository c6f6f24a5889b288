"""How a command is executed: this module finds out what happens to it, `facade.controller.life` says what comes of it.

The duties around a handler are those of `facade.controller.execution`.
"""

import logging
import threading
from dataclasses import dataclass, field

import msgspec

from facade import tracing
from facade.bus.port import GroupMember
from facade.clock import Clock
from facade.controller.api import Controller, Rejected
from facade.controller.call import Call
from facade.controller.device import Cancelled, Device
from facade.controller.inbox import Offsets
from facade.controller.life import Effect, Event, State, Step
from facade.controller.outbox import Outbox
from facade.controller.parents import Parents
from facade.controller.queues import Queues
from facade.errors import BusError, FacadeError
from facade.flows.commands.messages import ack_record
from facade.flows.commands.outcomes import ABORTED, BY_FACADE, FINAL
from facade.flows.commands.rules import OBS_STATE, is_transitional, why_not_allowed
from facade.flows.commands.tracker import Tracker
from facade.icd.model import Command
from facade.outcome import USED, Suppressed
from facade.runtime.accounts import StreamAccount
from facade.runtime.device_state import STATE

_log = logging.getLogger(__name__)

PROVEN = 3.0
"""For so long after it was asked for the proof of a partition holds [s]: half of the time of silence after which the
group gives away what a member has."""
_AWAY = 10.0
"""For so long a command that runs waits for its partition to come back [s]."""
_RETRY = 0.2
"""Pause before it is looked for again [s]."""
INTERRUPTED = "interrupted: its controller was killed after accepting it; how much was done is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """Moves commands through their lives; may be used from several threads."""

    controller: Controller
    tracker: Tracker
    queues: Queues
    offsets: Offsets
    outbox: Outbox
    member: GroupMember
    clock: Clock
    parents: Parents
    account: StreamAccount = field(default_factory=StreamAccount)
    """What became of the records on ``commands``."""
    counting: threading.Lock = field(default_factory=threading.Lock)
    """To be held while the account is changed."""

    def happen(self, call: Call, event: Event, text: str = "", result: object = None) -> State:
        """Do what the table says of an event; return the state in which the command is then."""
        self.follow(call, call.life.happen(event), text, result)
        return call.life.state

    def follow(self, call: Call, step: Step, text: str = "", result: object = None) -> None:
        """Do what a step says: the effects, then the outcome."""
        for effect in step.effects:
            match effect:
                case Effect.REPEAT:
                    self._repeat(call)
                case Effect.HOOK:
                    self.call_hook(call.device, call.command, call.id)
                case Effect.COMMIT:
                    self.offsets.finish(call.place)
        if step.outcome is not None:
            _log.info("command ends id=%s device=%s status=%s text=%s", call.id, call.device, step.outcome, text)
            ack = self.outbox.ack(call.message, step.outcome, text, result)
            confirmed = self.outbox.conclude(call, ack)
            if confirmed:
                self.tracker.note(ack)
            self.happen(call, Event.CONFIRM if confirmed else Event.STOP)
        elif step.reason or step.state is State.ENDED:
            self.queues.leave(call)
            with self.counting:
                self.account.in_flight -= 1
                self.account.settle(Suppressed(step.reason) if step.reason else USED)

    def _repeat(self, call: Call) -> None:
        """Write the outcome that a controller has given again, for who asks in time; its states may be history."""
        known = self.tracker.newest(call.id)
        if known is not None and known.status not in BY_FACADE and not self.is_late(call):
            self.outbox.send(msgspec.structs.replace(known, states={}), call.headers)

    def call_hook(self, device: str, command: str, id: str) -> None:
        """Run the `interrupted` hook for a device whose command will not resume.

        A state on the way, which the command has left, becomes FAULT: no other command would lead out of it.
        """
        _log.warning("command interrupted device=%s command=%s", device, command)
        known = Device(device, self.outbox)
        try:
            self.controller.on_interrupted(known, command)
        except Exception:
            # The command must get its outcome all the same, also after the next start.
            _log.exception("the hook for interrupted commands failed command=%s device=%s", command, device)
        told = self.outbox.states.get(device, OBS_STATE)
        if told is not None and is_transitional(str(told.value)) and told.command in ("", id):
            self.outbox.report_fault(known, f"{command} was {INTERRUPTED}")
        self.outbox.confirm(known)

    def _leave_fault(self, call: Call, event: Event, text: str) -> None:
        """Report FAULT of a device whose command has failed, unless the handler has said how the device is.

        A state on the way is no such word, be it that of a command that was refused in the end.
        """
        told = self.outbox.states.get(call.device, OBS_STATE)
        if told is None:  # the device has none
            return
        is_told = event is Event.REFUSED or told.command == call.id
        if is_transitional(str(told.value)) or not is_told:
            try:
                self.outbox.report_fault(call, text)
            except Cancelled as cancelled:
                _log.warning("fault not reported id=%s device=%s: %s", call.id, call.device, cancelled)

    def is_ours(self, call: Call) -> bool:
        """Return whether no other controller has begun a command that runs, as far as can be known now.

        One that must not be repeated stays with who has begun it. Another controller begins a repeatable one again
        once it has the partition. A process that was suspended cannot know this, so the broker is asked.
        """
        now, place = self.clock.monotonic(), call.place
        if not call.message.repeatable:
            return True
        if self.member.holds(place.partition, place.assigned) and now - call.proven < PROVEN:
            return True
        if not self._has_again(place.partition):
            return False
        call.proven = now
        known = self.tracker.newest(call.id)
        return known is None or known.status not in FINAL - BY_FACADE

    def _has_again(self, partition: int) -> bool:
        """Find out that a partition is ours, also when all were away for a while."""
        until = self.clock.monotonic() + _AWAY
        while not (others := self.member.assignment) or partition in others:
            try:
                self.offsets.ask(partition)
            except BusError as error:
                if self.outbox.closed or self.clock.monotonic() > until:
                    return False
                _log.warning("not known whose partition %s is, asking again: %s", partition, error)
                self.clock.sleep(_RETRY)
            else:
                return True
        return False

    def is_late(self, call: Call) -> bool:
        """Return whether it is too late for a command to begin."""
        return self.outbox.now_us() > call.message.not_after

    def is_settled(self, call: Call) -> bool:
        """Return whether the log says that a command is not to be executed; then it is over."""
        known = self.tracker.newest(call.id)
        if known is None:
            return False
        if known.status in FINAL:
            self.happen(call, Event.HAS_OUTCOME)
        elif call.message.repeatable:
            self.happen(call, Event.BEGUN_BEFORE)
        elif known.origin == self.controller.component:
            self.happen(call, Event.BEGUN_HERE, INTERRUPTED)
        else:
            self.happen(call, Event.BEGUN_ELSEWHERE)
        return call.life.over

    def take_back(self, call: Call) -> None:
        """Cancel an order that nobody wants any more: it was ended, or what it belongs to was."""
        if not call.message.parent or call.cancelled:
            return
        known = self.tracker.newest(call.id)
        if known is not None and known.status == ABORTED:
            call.take_back(known.text)
        elif why := self.parents.why_ended(call.message.parent):
            call.take_back(why)

    def execute(self, call: Call, command: Command) -> None:
        """Execute a command whose turn has come, to its outcome."""
        self.take_back(call)
        if self.is_settled(call) or self._has_expired(call):
            return
        if call.life.state is State.STARTING and (why := self._why_not_allowed(call, command)):
            self._end_ours(call, Event.REFUSED, why)
            return
        if call.life.state is State.STARTING:
            self.happen(call, Event.PERMITTED)
        if self._begins(call):
            tags = f"transaction_id={call.message.transaction_id} id={call.id} device={call.device}"
            _log.info("command begins %s again=%s", tags, call.again)
            if self.happen(call, *self._ended(call, *self._handle(call))) is State.LEFT:
                _log.warning("command left to the next start %s", tags)

    def _why_not_allowed(self, call: Call, command: Command) -> str:
        """Say why a command is not allowed in the state that was last reported; an empty text when it is."""
        obs_state = self.outbox.states.get(call.device, OBS_STATE)
        return why_not_allowed(
            command,
            # A state that nobody has reported yet is no reason to refuse; an executor has none.
            state=self.outbox.states.label(call.device, STATE, next(iter(command.state), "")),
            obs_state=None if obs_state is None else str(obs_state.value),
            under_way=None,
        )

    def _has_expired(self, call: Call) -> bool:
        """End a command for which it is too late; return whether it is."""
        if not self.is_late(call):
            return False
        late = (self.outbox.now_us() - call.message.not_after) / 1e6
        text = f"{INTERRUPTED}, and now it is too late to begin it again"
        self._end_ours(call, Event.LATE, text if call.again else f"expired: it had to begin {late:.3f} s ago")
        return True

    def _end_ours(self, call: Call, event: Event, text: str) -> None:
        """End a command unless its partition has moved: whoever has it now may have begun it.

        Not for the thread that reads the topics, which would wait here for what only itself can learn.
        """
        if call.life.state is State.OWNED or self.outbox.insist(lambda: self.offsets.prove(call)):
            self.happen(call, event, text)
        else:
            self.happen(call, Event.STOP)

    def _begins(self, call: Call) -> bool:
        """Accept a command durably, and look once more at the very moment of beginning; False if it must not begin."""
        if call.life.state is State.ALLOWED and not self._accept(call):
            if not self._has_expired(call):
                self.happen(call, Event.STOP)
            return False
        if not call.life.over and not self.member.holds(call.place.partition, call.place.assigned):
            self.happen(call, Event.PARTITION_LOST)
        if not (call.life.over or call.again):
            self.happen(call, Event.ACCEPT if call.message.repeatable else Event.PROVE)
        if call.life.over:
            return False
        known = self.tracker.newest(call.id)
        if known is not None and known.status in FINAL:
            self.happen(call, Event.HAS_OUTCOME)
        elif call.cancelled:
            self.happen(call, Event.CANCEL, call.cancelled)
        elif not self._has_expired(call):
            self.happen(call, Event.BEGIN)
        return call.life.state in (State.RUNNING, State.IN_PROGRESS)

    def _accept(self, call: Call) -> bool:
        """Write ACCEPTED and, if the command must not be repeated, prove at the same time that its partition is ours.

        Another member that gets the partition later reads that it was accepted, and leaves it to us. That one had got
        it before, unnoticed by a controller that stood still, would show in the time that this has taken: then it is
        asked anew.
        """
        not_after = call.message.not_after

        def prove() -> bool:
            return call.message.repeatable or self.outbox.insist(lambda: self.offsets.prove(call), not_after)

        ack = self.outbox.ack(call.message, "ACCEPTED")
        asked = self.clock.monotonic()
        if not (self.outbox.post(call, ack_record(ack, call.headers)) and prove()):
            return False
        if not self.outbox.confirm(call, not_after):
            return False
        self.tracker.note(ack)
        return self.clock.monotonic() - asked < PROVEN or prove()

    def _ended(self, call: Call, event: Event, text: str, result: object) -> tuple[Event, str, object]:
        """See to it that nothing goes on of a command that has not completed; return what has come of it."""
        if event in (Event.FAIL, Event.REFUSED) and not call.moved:
            self._leave_fault(call, event, text)
        if call.moved:
            return Event.MOVE, "", None
        if event in (Event.CANCEL, Event.FAIL, Event.REFUSED):
            call.abort_orders(f"{call.command} {call.id}, which had given it, has ended")
        if event is Event.CANCEL and call.taken_back:
            self.call_hook(call.device, call.command, call.id)  # no other command comes that would say how it is
        return event, text, result

    def _handle(self, call: Call) -> tuple[Event, str, object]:
        """Call the handler; return what came of it, with a text and a result."""
        try:
            with tracing.span(
                f"{self.controller.component} {call.command}", call.headers, id=call.id, device=call.device
            ):
                return Event.RETURN, "", self.controller.handlers[call.command](call)
        except Rejected as refused:
            return Event.REFUSED, str(refused), None
        except Cancelled as cancelled:
            if not self.queues.closed:
                return Event.CANCEL, str(cancelled), None
            return Event.STOP if call.message.repeatable else Event.FAIL, f"interrupted: {cancelled}", None
        except Exception as error:
            unforeseen = not isinstance(error, FacadeError)
            _log.warning("handler failed id=%s command=%s: %s", call.id, call.command, error, exc_info=unforeseen)
            return Event.FAIL, f"{type(error).__name__}: {error}", None
