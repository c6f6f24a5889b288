"""How a controller's commands begin: allowed, accepted, and proven to be ours where they must not be repeated."""

from facade.bus.port import GroupMember
from facade.commands.controller import Call
from facade.commands.endings import Endings
from facade.commands.messages import ack_record
from facade.commands.offsets import Offsets
from facade.commands.outbox import Outbox
from facade.commands.past import Past
from facade.commands.rules import OBS_STATE, refusal
from facade.device_state import STATE
from facade.icd.model import Command


class Beginnings:
    """Begins commands, for the threads of the devices."""

    def __init__(self, past: Past, outbox: Outbox, offsets: Offsets, endings: Endings, member: GroupMember) -> None:
        self._past = past
        self._outbox = outbox
        self._offsets = offsets
        self._endings = endings
        self._member = member

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
            self._endings.finish(call, "moved")
            return False
        if not call.message.repeatable:
            call.ours = True
            self._offsets.finish(*call.place)
        return True

    def _accept(self, call: Call) -> bool:
        """Write ACCEPTED; if the command must not be repeated, its partition must be proven to be ours until then.

        Another member that gets the partition later reads that it was accepted, and leaves it to us. None can have
        got it before, unknown to us who stood still, while the proof holds. It is asked for at the same time if there
        is none, and once more if writing took too long.
        """
        not_after = call.message.not_after

        def prove() -> bool:
            return (
                call.message.repeatable
                or self._offsets.proven(call.place[0])
                or self._outbox.insist(lambda: self._offsets.prove(call), not_after)
            )

        ack = self._outbox.ack(call.message, "ACCEPTED")
        if not (self._outbox.post(call, ack_record(ack, call.headers)) and prove()):
            return False
        if not self._outbox.confirm(call, not_after):
            return False
        self._past.note(ack)
        return prove()
