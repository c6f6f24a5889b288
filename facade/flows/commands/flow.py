"""The command path's topics as flows of a device server; their records go to the tracker and the lease."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from facade.flows.commands.messages import (
    ACKS,
    COMMANDS,
    HELD_COMMANDS,
    ORDERS,
    REFUSALS,
    AckMessage,
    CommandMessage,
    HeartbeatMessage,
    decode_ack,
    decode_command,
    decode_held,
    decode_refusal,
    reported,
)
from facade.flows.commands.refused import Refusals
from facade.flows.commands.tracker import Tracker
from facade.kernel import tracing
from facade.kernel.bus.port import Record
from facade.kernel.bus.signatures import UNSIGNED, Signatures
from facade.kernel.clock import NEVER, Clock, Duration, Time
from facade.kernel.codec.decode import MessageType
from facade.kernel.codec.plausible import wrong_key
from facade.kernel.outcome import USED, Outcome, RecordRejected, Suppressed, Unused
from facade.kernel.recent import Bounded
from facade.kernel.runtime.flow import Flow
from facade.kernel.runtime.heartbeats import MOST_COMPONENTS, SILENT
from facade.sdp.device_state import DeviceStates

if TYPE_CHECKING:
    from facade.flows.commands.admission import OrderAdmission


class _LogFlow(Flow, Generic[MessageType]):
    """A topic that is read from its beginning at each start and shows nothing itself."""

    def __init__(
        self,
        topic: str,
        decode: Callable[[bytes | None], MessageType | Unused],
        take: Callable[[MessageType, Record], Outcome],
        signatures: Signatures = UNSIGNED,
    ) -> None:
        self.topic, self._decode, self._take, self._signatures = topic, decode, take, signatures

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Process one record; see `facade.kernel.runtime.flow.Flow`."""
        message = self._decode(record.value)
        if isinstance(message, Suppressed | RecordRejected):
            return message
        return self._signatures.refusal(record) or self._take(message, record)


class Components:
    """Controllers with heartbeats."""

    def __init__(self) -> None:
        self.newest: Bounded[str, tuple[HeartbeatMessage, Time]] = Bounded(MOST_COMPONENTS)
        """Last heartbeat of each controller, with its time by the broker's clock."""
        self.heard: Bounded[str, None] = Bounded(MOST_COMPONENTS)
        """The controllers with heartbeats, also those that have ended."""
        self._former: Bounded[str, str] = Bounded(MOST_COMPONENTS)
        """Incarnation of each controller before the present one."""
        self._newest = NEVER
        """Time of the last heartbeat of all."""
        self._twice: Bounded[str, Time] = Bounded(MOST_COMPONENTS)
        """Last heartbeat of a controller's former incarnation, while the present one runs."""

    def fold(self, heartbeat: HeartbeatMessage, appended: Time) -> None:
        """Process a heartbeat; after the final one its sender is forgotten."""
        if appended < self._newest - SILENT:  # the broker's clock was set back: no time is in the future
            for name, (beat, at) in list(self.newest.items()):
                self.newest[name] = beat, min(at, appended)
        self._newest = appended
        if heartbeat.role != "controller":
            return
        self.heard[heartbeat.component] = None
        if heartbeat.stopping:
            self.newest.pop(heartbeat.component, None)
        else:
            self._note_incarnation(heartbeat, appended)
            self.newest[heartbeat.component] = (heartbeat, appended)

    def silent(self, now: Time, within: Duration) -> dict[str, Time]:
        """Return the time of the last heartbeat of each silent controller."""
        return {name: at for name, (_, at) in self.newest.items() if now - at > within}

    def devices(self) -> list[str]:
        """Return the devices whose commands controllers execute."""
        return sorted({device for beat, _ in self.newest.values() for device in beat.devices})

    def duplicate_controllers(self, device: str, now: Time, within: Duration) -> list[str]:
        """Return the controllers that each execute every command of a device; none: at most one does.

        Controllers of one consumer group share the commands; two of one name, or of two groups, do not.
        """
        alive = {n: b for n, (b, at) in self.newest.items() if device in b.devices and now - at <= within}
        twice = [f"{name} (twice)" for name in alive if name in self._twice and now - self._twice[name] <= within]
        groups = {beat.group or name for name, beat in alive.items()}
        return twice or (sorted(alive) if len(groups) > 1 else [])

    def _note_incarnation(self, heartbeat: HeartbeatMessage, appended: Time) -> None:
        name = heartbeat.component
        before = self.newest.get(name)
        if before is None or before[0].incarnation == heartbeat.incarnation:
            return
        if self._former.get(name) == heartbeat.incarnation:
            self._twice[name] = appended  # a replaced incarnation is silent, unless it never ended
        self._former[name] = before[0].incarnation

    def alive_for(self, device: str, now: Time, within: Duration) -> bool:
        """Return whether any controller that is alive executes the commands of a device."""
        return any(device in beat.devices and now - at <= within for beat, at in self.newest.values())


def flows(
    tracker: Tracker,
    states: DeviceStates,
    refusals: Refusals,
    admission: "OrderAdmission",
    clock: Clock,
    *,
    holds: bool,
) -> list[_LogFlow[Any]]:
    """Make the flows of the command path; `holds`: commands may wait for a second person."""

    def command(message: CommandMessage, record: Record) -> Outcome:
        if wrong := wrong_key(record.key, message.device, "$.device"):
            return wrong
        admission.note_command(message)
        return tracker.fold_command(message, record)

    def ack(message: AckMessage, record: Record) -> Outcome:
        # On another partition, readers would see it in another order.
        if wrong := wrong_key(record.key, message.device, "$.device"):
            return wrong
        if admission.note_ack(message):
            return USED
        with tracing.span(f"{message.command} {message.status}", record.headers, id=message.id, device=message.device):
            # Before the outcome, so that it never shows without its states.
            outcome = tracker.objection(message) or states.acknowledge(reported(message), record.timestamp_us)
            return tracker.fold_ack(message, clock.monotonic()) if outcome is USED else outcome

    def held(message: CommandMessage | AckMessage, record: Record) -> Outcome:
        if wrong := wrong_key(record.key, message.device, "$.device"):
            return wrong
        if isinstance(message, CommandMessage):
            return tracker.fold_held(message, record)
        if message.status != ("ABORTED" if message.withdrawer else "UNDELIVERED"):
            what = f"expected ABORTED by a withdrawer, or UNDELIVERED, got {message.status} by {message.withdrawer!r}"
            return RecordRejected("status", "$.status", what)
        return tracker.fold_unapproved(message)

    return [
        _LogFlow(COMMANDS, decode_command, command),
        _LogFlow(ORDERS, decode_command, admission.fold, states.signatures),
        _LogFlow(ACKS, decode_ack, ack, states.signatures),
        _LogFlow(REFUSALS, decode_refusal, refusals.fold),
        *([_LogFlow[CommandMessage | AckMessage](HELD_COMMANDS, decode_held, held)] if holds else ()),
    ]
