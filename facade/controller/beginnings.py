"""How a controller's commands begin: allowed, accepted, and proven to be ours where they must not be repeated."""

from facade.bus.port import GroupMember
from facade.clock import Clock
from facade.controller.api import Call
from facade.controller.endings import Endings
from facade.controller.offsets import Offsets
from facade.controller.outbox import Outbox
from facade.controller.past import Past
from facade.flows.commands.messages import ack_record
from facade.flows.commands.rules import OBS_STATE, refusal
from facade.icd.model import Command
from facade.outcome import Suppressed
from facade.runtime.device_state import STATE

PROVEN = 3.0
"""For so long after it was asked for the proof of a partition holds [s]: half of the time of silence after which the
group gives away what a member has."""


class Beginnings:
    """Begins commands, for the threads of the devices."""

    def __init__(
        self, past: Past, outbox: Outbox, offsets: Offsets, endings: Endings, member: GroupMember, *, clock: Clock
    ) -> None:
        self._past = past
        self._outbox = outbox
        self._offsets = offsets
        self._endings = endings
        self._member = member
        self._clock = clock

    def refusal(self, call: Call, command: Command) -> str:
        """Say why a command is not allowed in the state that was last reported; an empty text when it is."""
        obs_state = self._outbox.states.get(call.device, OBS_STATE)
        return refusal(
            command,
            # A state that nobody has reported yet is no reason to refuse.
            state=self._outbox.states.label(call.device, STATE, command.state[0]),
            obs_state=None if obs_state is None else str(obs_state.value),
            under_way=None,
        )

    def begin(self, call: Call) -> bool:
        """Accept a command durably; False if it must not begin."""
        if not call.again and not self._accept(call):
            self._endings.expire(call)
            return False
        if call.moved or not self._member.holds(call.place[0], call.assigned):
            self._endings.finish(call, Suppressed("moved"))
            return False
        if not call.message.repeatable:
            call.ours = True
            self._offsets.finish(*call.place)
        return True

    def _accept(self, call: Call) -> bool:
        """Write ACCEPTED and, if the command must not be repeated, prove at the same time that its partition is ours.

        Another member that gets the partition later reads that it was accepted, and leaves it to us. That one had got
        it before, unknown to us who stood still, would show in the time that this has taken: then it is asked anew.
        """
        not_after = call.message.not_after

        def prove() -> bool:
            return call.message.repeatable or self._outbox.insist(lambda: self._offsets.prove(call), not_after)

        ack = self._outbox.ack(call.message, "ACCEPTED")
        asked = self._clock.monotonic()
        if not (self._outbox.post(call, ack_record(ack, call.headers)) and prove()):
            return False
        if not self._outbox.confirm(call, not_after):
            return False
        self._past.note(ack)
        return self._clock.monotonic() - asked < PROVEN or prove()
