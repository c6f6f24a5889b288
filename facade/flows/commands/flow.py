"""The command path's topics as flows of a device server; what they hold goes to the tracker and the lease."""

from collections.abc import Callable

from facade import tracing
from facade.bus.port import Record
from facade.clock import Clock
from facade.codec.decode import BatchDecoder
from facade.codec.json_schema import compile_message
from facade.flows.commands.lease import Lease
from facade.flows.commands.messages import (
    ACKS,
    COMMANDS,
    HEARTBEATS,
    HeartbeatMessage,
    decode_ack,
    decode_command,
    decode_heartbeat,
    reported,
)
from facade.flows.commands.tracker import Tracker
from facade.icd.model import Icd
from facade.outcome import USED, Outcome, Rejected, Suppressed
from facade.runtime.device_state import DeviceStates
from facade.runtime.flow import Flow


class _LogFlow(Flow):
    """A topic that is read from its beginning at each start and shows nothing itself."""

    def __init__(self, icd: Icd, topic: str, take: Callable[[Record], Outcome]) -> None:
        self.topic = topic
        self._take = take
        message = icd.topics[topic].message or ""
        self._decoder = BatchDecoder(compile_message(message, icd.messages[message]))

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Take one record; see `facade.runtime.flow.Flow`."""
        # By the whole schema: a time that is no date would stop everything that shows it.
        if isinstance(unused := self._decoder.decode_one(record.value), Suppressed | Rejected):
            return unused
        return self._take(record)


class Components:
    """Who gave a sign of life, and when last."""

    def __init__(self) -> None:
        self.newest: dict[str, tuple[HeartbeatMessage, float]] = {}
        """Last heartbeat of each controller, with its time by the broker's clock [Unix s]."""

    def fold(self, heartbeat: HeartbeatMessage, appended: float) -> None:
        """Take a heartbeat; one that says goodbye makes its sender forgotten."""
        if heartbeat.role != "controller":
            return
        if heartbeat.stopping:
            self.newest.pop(heartbeat.component, None)
        else:
            self.newest[heartbeat.component] = (heartbeat, appended)

    def silent(self, now: float, within: float) -> dict[str, float]:
        """Return when each controller was last heard of that should not be silent [Unix s]."""
        return {name: at for name, (_, at) in self.newest.items() if now - at > within}

    def alive_for(self, device: str, now: float, within: float) -> bool:
        """Return whether any controller that is alive executes the commands of a device."""
        return any(device in beat.devices and now - at <= within for beat, at in self.newest.values())


def flows(
    icd: Icd, tracker: Tracker, states: DeviceStates, lease: Lease, components: Components, clock: Clock
) -> list[_LogFlow]:
    """Make the flows of the command path."""

    def command(record: Record) -> Outcome:
        return tracker.fold_command(decode_command(record.value or b""), record)

    def ack(record: Record) -> Outcome:
        message = decode_ack(record.value or b"")
        with tracing.span(f"{message.command} {message.status}", record.headers, id=message.id, device=message.device):
            # Before the outcome, so that nobody sees that without what it has brought about.
            outcome = tracker.objection(message) or states.acknowledge(reported(message), record.timestamp_us)
            return tracker.fold_ack(message, clock.monotonic()) if outcome is USED else outcome

    def heartbeat(record: Record) -> Outcome:
        beat = decode_heartbeat(record.value or b"")
        lease.fold(beat, record.timestamp_us)
        components.fold(beat, record.timestamp_us / 1e6)
        return USED

    takers = {COMMANDS: command, ACKS: ack, HEARTBEATS: heartbeat}
    return [_LogFlow(icd, topic, take) for topic, take in takers.items()]
