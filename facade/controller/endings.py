"""How a controller's commands end: by what the log says, by what the time is, or by their handlers."""

import logging
import threading

import msgspec

from facade.bus.port import Headers
from facade.controller.api import Call, Controller, Device
from facade.controller.offsets import Offsets
from facade.controller.outbox import Outbox
from facade.controller.past import Past
from facade.controller.queues import Queues
from facade.flows.commands.messages import AckMessage, AckStatus
from facade.flows.commands.outcomes import TIMED_OUT, UNDELIVERED
from facade.outcome import USED, Outcome, Suppressed
from facade.runtime.accounts import StreamAccount

_log = logging.getLogger(__name__)

_KILLED = "interrupted: its controller was killed after accepting it; how much was done is not known"


class Endings:
    """Ends commands, each once, and says so in the account; may be used from several threads."""

    def __init__(
        self,
        controller: Controller,
        past: Past,
        outbox: Outbox,
        offsets: Offsets,
        queues: Queues,
        account: StreamAccount,
    ) -> None:
        self._controller = controller
        self._past = past
        self._outbox = outbox
        self._offsets = offsets
        self._queues = queues
        self._account = account
        self.counting = threading.Lock()
        """To be held while the account is changed."""

    def settle(self, call: Call) -> bool:
        """End a command that must not be executed, by what the log says; tell whether it was one.

        It is known afterwards whether the command is to be executed `again`.
        """
        known = self._past.get(call.id)
        if known is not None and known.final:
            in_time = self._outbox.now_us() <= call.message.not_after
            if in_time and known.ack.status not in (TIMED_OUT, UNDELIVERED):
                # Its states may be history by now.
                self._outbox.send(msgspec.structs.replace(known.ack, states={}), call.headers)
            self.finish(call, Suppressed("ended-before"))
            return True
        if known is not None and not call.message.repeatable:
            if known.ack.origin == self._controller.component:
                self.interrupted(known.ack, call.headers)
            self.finish(call, Suppressed("begun-before"))  # another member that began it answers for it
            return True
        call.again = known is not None
        return False

    def hinder(self, call: Call) -> bool:
        """Look once more at the very moment of beginning, as the bus may have been slow to accept."""
        known = self._past.get(call.id)
        if known is not None and known.final:
            self.finish(call, Suppressed("ended-before"))
            return True
        if call.cancelled:
            self.end(call, "ABORTED", call.cancelled)
            return True
        return self.expire(call)

    def expire(self, call: Call) -> bool:
        """End a command for which it is too late; tell whether it is."""
        if not self.is_late(call):
            return False
        if not call.again:
            late = self._outbox.now_us() - call.message.not_after
            self.refuse(call, f"expired: it had to begin {late / 1e6:.3f} s ago")
        elif self._is_ours(call):
            self.put_right(call.device, call.command)
            self.end(call, "FAILED", f"{_KILLED}, and now it is too late to begin it again")
        return True

    def is_late(self, call: Call) -> bool:
        """Return whether it is too late for a command to begin."""
        return self._outbox.now_us() > call.message.not_after

    def refuse(self, call: Call, why: str) -> None:
        """Refuse a command, unless its partition has moved: whoever has it now may have begun it.

        Not for the thread that takes the commands, which would wait here for what only itself can learn.
        """
        if self._is_ours(call):
            self.end(call, "REJECTED", why)

    def _is_ours(self, call: Call) -> bool:
        """Tell, surely, whether a command is ours to end; one that is not is finished here."""
        if call.ours:
            return True
        if not self._outbox.insist(lambda: self._offsets.prove(call)):
            return False
        if call.moved:
            self.finish(call, Suppressed("moved"))
            return False
        return True

    def interrupted(self, begun: AckMessage, headers: Headers = ()) -> None:
        """End a command that an earlier life of this controller began and that must not be repeated."""
        _log.warning("command interrupted id=%s device=%s", begun.id, begun.device)
        self.put_right(begun.device, begun.command)
        ack = msgspec.structs.replace(
            begun, status="FAILED", time=self._outbox.now_us(), text=_KILLED, remaining=None, progress=None
        )
        if self._outbox.send(ack, headers):
            self._past.note(ack)

    def put_right(self, device: str, command: str) -> None:
        """Have the controller see to a device whose command was cut short and will not be gone on with."""
        told = Device(device, self._outbox)
        try:
            self._controller.on_interrupted(told, command)
        except Exception:
            # The command must get its outcome all the same, also after the next start.
            _log.exception("the hook for interrupted commands failed command=%s device=%s", command, device)
        self._outbox.confirm(told)

    def end(self, call: Call, status: AckStatus, text: str, result: object = None) -> None:
        """Write an outcome; only then may the record be committed."""
        ack = self._outbox.ack(call.message, status, text, result)
        if self._outbox.conclude(call, ack):
            self._past.note(ack)
            self.finish(call)

    def finish(self, call: Call, outcome: Outcome = USED) -> None:
        """Be done with a record; its offset may be committed."""
        self._offsets.finish(*call.place)
        self._queues.leave(call)
        with self.counting:
            self._account.in_flight -= 1
            self._account.settle(outcome)
