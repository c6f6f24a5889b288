"""The command path's topics as flows of a device server; what they hold goes to the tracker and the lease."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from facade import tracing
from facade.bus.port import Record
from facade.clock import Clock
from facade.commands.lease import Lease
from facade.commands.messages import (
    ACKS,
    COMMANDS,
    HEARTBEATS,
    HeartbeatMessage,
    decode_ack,
    decode_command,
    decode_heartbeat,
)
from facade.commands.tracker import Tracker
from facade.flow import DeviceReading, LastReadings

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _LogFlow:
    """A topic that is read from its beginning at each start and shows nothing itself."""

    durable = False
    partitions: Sequence[int] | None = None

    def __init__(self, topic: str, take: Callable[[Record], str | None]) -> None:
        self.topic = topic
        self._take = take

    def fold(self, record: Record, *, count: bool) -> str | None:
        """Take one record; see `facade.flow.Flow`."""
        if record.value is None:
            return "-tombstone"
        try:
            return self._take(record)
        except _UNREADABLE as error:
            return f"schema: {error}"

    def readings(self, now: float, last: LastReadings) -> Iterable[DeviceReading]:
        """Give nothing: the panels show it."""
        return ()

    def as_dict(self) -> dict[str, Any]:
        """Give nothing: the log is the state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take nothing: the topic itself is read from its beginning."""


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
        """Give when each controller was last heard of that should not be silent [Unix s]."""
        return {name: at for name, (_, at) in self.newest.items() if now - at > within}

    def alive_for(self, device: str, now: float, within: float) -> bool:
        """Tell whether any controller that is alive executes the commands of a device."""
        return any(device in beat.devices and now - at <= within for beat, at in self.newest.values())


def flows(tracker: Tracker, lease: Lease, components: Components, clock: Clock) -> list[_LogFlow]:
    """Make the flows of the command path."""

    def command(record: Record) -> str | None:
        return tracker.fold_command(decode_command(record.value or b""), record)

    def ack(record: Record) -> str | None:
        message = decode_ack(record.value or b"")
        with tracing.span(f"{message.command} {message.status}", record.headers, id=message.id, device=message.device):
            return tracker.fold_ack(message, clock.monotonic())

    def heartbeat(record: Record) -> str | None:
        beat = decode_heartbeat(record.value or b"")
        lease.fold(beat, record.timestamp_us)
        components.fold(beat, record.timestamp_us / 1e6)
        return None

    return [_LogFlow(COMMANDS, command), _LogFlow(ACKS, ack), _LogFlow(HEARTBEATS, heartbeat)]
