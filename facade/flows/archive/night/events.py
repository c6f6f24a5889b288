"""Commands of a night with their outcomes, refused commands, and restarts and silence of components.

The first final acknowledgement of a command is its outcome. The time of an order is its append time: its id and its
issue time follow from its parent, so that it can be written again.

Workers, device servers and controllers write heartbeats. Each start of a component has another incarnation. An orderly
end has a final heartbeat; without it the process was killed, or its host was lost. While no component writes any
heartbeat, the bus was away, or the archive was not written: the state of all components is unknown.
"""

from dataclasses import dataclass, field
from typing import get_args

from facade.bus.port import Record
from facade.codec.decode import BatchDecoder
from facade.flows.archive.night.span import MICRO
from facade.messages import Command, CommandAck, CommandAckStatus, CommandRefusal
from facade.outcome import USED, Outcome, Suppressed
from facade.runtime.heartbeats import SILENT, TOPIC, HeartbeatMessage, decode_heartbeat

COMMANDS, ACKS, REFUSALS = "commands", "command-acks", "command-refusals"
COMPLETED, OPEN, REFUSED = "COMPLETED", "OPEN", "REFUSED"
"""An outcome; the text for a command without one at the end of the night; the text for a refused command."""
_FINAL = frozenset(get_args(CommandAckStatus)) - {"ACCEPTED", "IN_PROGRESS"}
_AGAIN, _OTHER = Suppressed("again"), Suppressed("not-shown")
_decode_command = BatchDecoder(Command).decode_one
_decode_ack = BatchDecoder(CommandAck).decode_one
_decode_refusal = BatchDecoder(CommandRefusal).decode_one
HEARTBEATS = TOPIC
ALL = "all components"
_MOST_COMPONENTS = 5000
_MOST_EVENTS = 1000
_SILENT_US = round(SILENT * MICRO)


@dataclass(slots=True)
class NightCommand:
    """One command."""

    given_us: int
    device: str
    command: str
    by: str
    """Client, or the command that ordered it."""
    outcome: str = OPEN
    ended_us: int = 0
    text: str = ""

    @property
    def seconds(self) -> float | None:
        """Return the time until the outcome [s]; None: there is none."""
        return (self.ended_us - self.given_us) / MICRO if self.ended_us else None


class Commands:
    """The commands of a night; records of `COMMANDS` come first, then acknowledgements."""

    def __init__(self) -> None:
        self._by_id: dict[str, NightCommand] = {}
        self._refused: list[NightCommand] = []

    @property
    def lines(self) -> list[NightCommand]:
        """Return all commands in the order of issue."""
        return sorted((*self._by_id.values(), *self._refused), key=lambda one: one.given_us)

    def take_command(self, record: Record) -> Outcome:
        """Process a command."""
        found = _decode_command(record.value)
        if not isinstance(found, Command):
            return found
        if found.id in self._by_id:
            return _AGAIN
        given = record.timestamp_us if found.parent else found.issued
        by = f"order of {found.parent}" if found.parent else found.client or found.origin
        self._by_id[found.id] = NightCommand(given, found.device, found.command, by)
        return USED

    def take_ack(self, record: Record) -> Outcome:
        """Process an acknowledgement."""
        found = _decode_ack(record.value)
        if not isinstance(found, CommandAck):
            return found
        line = self._by_id.get(found.id)
        if line is None:
            return _OTHER
        if line.outcome == OPEN and found.status in _FINAL:
            line.outcome, line.ended_us, line.text = found.status, found.time, found.text
        return USED

    def take_refusal(self, record: Record) -> Outcome:
        """Process a refusal."""
        found = _decode_refusal(record.value)
        if not isinstance(found, CommandRefusal):
            return found
        by, text = found.client or found.origin, f"{found.reason}: {found.text}"
        self._refused.append(NightCommand(found.time, found.device, found.command, by, REFUSED, found.time, text))
        return USED


@dataclass(slots=True)
class ComponentLine:
    """One component."""

    name: str
    role: str
    incarnation: str
    at_us: int
    """Time of its last heartbeat."""
    former: set[str] = field(default_factory=set)
    is_stopped: bool = False
    is_twice: bool = False
    """Whether a process continued after another one of its name had begun."""
    restarts: int = 0
    unsaid: int = 0
    """Restarts without a final heartbeat before."""
    silences: int = 0
    silent: float = 0.0
    """Time in which it was away or silent [s]."""


class NightComponents:
    """All components with heartbeats."""

    def __init__(self) -> None:
        self._known: dict[str, ComponentLine] = {}
        self._first_us = self._newest_us = self._back_us = 0
        self.accidents: list[tuple[int, str, str]] = []
        """Interruptions: time [Unix us], component and text."""
        self.left_out = 0
        """Interruptions beyond the limit."""

    @property
    def lines(self) -> list[ComponentLine]:
        """Return the components in the order of roles and names."""
        return sorted(self._known.values(), key=lambda one: (one.role, one.name))

    def take(self, record: Record) -> Outcome:
        """Process a heartbeat."""
        beat, at_us = decode_heartbeat(record.value), record.timestamp_us
        if not isinstance(beat, HeartbeatMessage):
            return beat
        self._first_us = self._first_us or at_us
        if self._newest_us and at_us - self._newest_us > _SILENT_US:
            away = (at_us - self._newest_us) / MICRO
            why = "the bus was away, or the archive was not written"
            self._tell(self._newest_us, ALL, f"no sign of life of any component for {away:.1f} s: {why}")
            self._back_us = at_us
        self._newest_us = max(self._newest_us, at_us)
        line = self._known.get(beat.component)
        if line is not None:
            self._follow(line, beat, at_us)
        elif len(self._known) < _MOST_COMPONENTS:
            self._known[beat.component] = ComponentLine(
                beat.component, beat.role, beat.incarnation, at_us, is_stopped=beat.stopping
            )
            if at_us - self._first_us > _SILENT_US:
                self._tell(at_us, beat.component, "heard for the first time")
        return USED

    def end(self) -> None:
        """Note the components that were missing at the end."""
        for line in self._known.values():
            if line.is_stopped:
                self._tell(line.at_us, line.name, "ended in order, and was not started again")
            elif self._newest_us - line.at_us > _SILENT_US:
                line.silences += 1
                line.silent += (self._newest_us - line.at_us) / MICRO
                self._tell(line.at_us, line.name, "silent from then until the end")
        self.accidents.sort()

    def _follow(self, line: ComponentLine, beat: HeartbeatMessage, at_us: int) -> None:
        if beat.incarnation in line.former:  # a replaced process, which stops or continues
            if not beat.stopping:
                line.at_us = at_us
                if not line.is_twice:
                    line.is_twice = True
                    self._tell(at_us, line.name, "two processes give signs of life under this name")
            return
        away = (at_us - line.at_us) / MICRO
        if beat.incarnation != line.incarnation:
            how = "after an orderly end" if line.is_stopped else "without an orderly end before"
            self._tell(at_us, line.name, f"restarted {how}; away for {away:.1f} s")
            line.restarts += 1
            line.unsaid += not line.is_stopped
            line.silent += away
            line.former.add(line.incarnation)
        elif at_us - max(line.at_us, self._back_us) > _SILENT_US:
            self._tell(line.at_us, line.name, f"silent for {away:.1f} s; the same process went on")
            line.silences += 1
            line.silent += away
        line.incarnation, line.at_us, line.is_stopped = beat.incarnation, at_us, beat.stopping

    def _tell(self, at_us: int, component: str, text: str) -> None:
        if len(self.accidents) < _MOST_EVENTS:
            self.accidents.append((at_us, component, text))
        else:
            self.left_out += 1
