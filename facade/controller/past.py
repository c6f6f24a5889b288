"""What a controller knows of commands before it begins one.

There is no other store: the outcomes are those of ``command-acks``, which a controller reads to its
end before it begins its first command and follows from then on.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from facade.bus.port import Record
from facade.flows.commands.messages import AckMessage, decode_ack
from facade.flows.commands.outcomes import FINAL, TIMED_OUT, UNDELIVERED

_REMEMBERED = 100_000
"""Outcomes kept; a command that is older than so many others has long expired, and is refused for that."""


@dataclass(frozen=True, slots=True)
class Known:
    """The newest acknowledgement of a command; of several outcomes, the first."""

    ack: AckMessage
    logged: bool
    """Whether it came from the log; else it is what was sent and is on its way back."""

    @property
    def final(self) -> bool:
        """Return whether the outcome is known."""
        return self.ack.status in FINAL


class Past:
    """What the log says of each command, by its id; may be used from several threads."""

    def __init__(self) -> None:
        self._open: dict[str, Known] = {}
        self._final: OrderedDict[str, Known] = OrderedDict()
        self._given_up: OrderedDict[str, AckMessage] = OrderedDict()
        """What controllers said last of commands whose outcome the facade has made, while they had none."""
        self._lock = threading.Lock()

    def get(self, command_id: str) -> Known | None:
        """Return what is known of a command; None: nobody has acknowledged it."""
        return self._final.get(command_id) or self._open.get(command_id)

    def fold(self, record: Record) -> AckMessage | None:
        """Take an acknowledgement from the log, and give it; one that cannot be read says nothing."""
        if record.value is None:
            return None
        try:
            ack = decode_ack(record.value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        self._take(Known(ack, logged=True))
        return ack

    def note(self, ack: AckMessage) -> None:
        """Take an acknowledgement that was just sent."""
        self._take(Known(ack, logged=False))

    def left_open(self, origin: str) -> list[AckMessage]:
        """Return the newest acknowledgement of each command that someone began and did not end."""
        return [known.ack for known in self._open.values() if known.ack.origin == origin]

    def given_up(self, origin: str) -> list[AckMessage]:
        """Return the newest acknowledgement of each command that someone began, and that timed out before it ended."""
        return [ack for ack in self._given_up.values() if ack.origin == origin]

    def _take(self, known: Known) -> None:
        with self._lock:
            command_id, status = known.ack.id, known.ack.status
            begun = self._open.get(command_id)
            if status in (TIMED_OUT, UNDELIVERED):
                if begun is not None:
                    self._given_up[command_id] = begun.ack
            elif status in FINAL:
                self._given_up.pop(command_id, None)
            if len(self._given_up) > _REMEMBERED:
                self._given_up.popitem(last=False)
            self._keep(command_id, known)

    def _keep(self, command_id: str, known: Known) -> None:
        before = self._final.get(command_id)
        if before is not None and (before.logged or not known.logged):
            return  # the first outcome holds, and the log says which one that is
        if not known.final:
            if before is None:
                self._open[command_id] = known
            return
        self._open.pop(command_id, None)
        self._final[command_id] = known
        if len(self._final) > _REMEMBERED:
            self._final.popitem(last=False)
