"""What a replay writes and takes, and how a deployment shows it; its time is in `facade.kernel.runtime.replay`."""

import secrets
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, Clock, Time, utc_text
from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import Topic
from facade.kernel.reading import Reading
from facade.kernel.runtime.columns import ReadingColumn
from facade.kernel.runtime.flow import DeviceReading
from facade.kernel.runtime.publisher import EventSink
from facade.kernel.runtime.readers import Bus
from facade.kernel.runtime.replay import ENDED, MOST, TOPIC, ReplayClock, decode
from facade.sdp.messages import ReplayOrder, ReplayOrderAction, ReplayPosition

_DERIVED: Final = frozenset({"accounts", "dead-letters", "heartbeats", TOPIC})
"""SDP's side also writes these topics, but their records concern the processes and offsets of the original."""
_RETENTION: Final = "retention.ms"
_EACH: Final = 1.0
"""Least time between two texts of Status, unless the replay pauses or resumes [s]."""
_STATUS: Final = "Status"
_PATIENCE: Final = 120.0
"""Longest wait of a position for the brokers [s]."""


def inputs(icd: Icd) -> list[str]:
    """Return the topics that can be replayed: topics of SDP's side, or of people."""
    ours = {name for name, role in icd.roles.items() if role.side == "facade"}
    found = [name for name, topic in icd.topics.items() if topic.of_people or {*topic.writers} - ours]
    return [name for name in found if name not in _DERIVED]


def replay_topics(icd: Icd) -> dict[str, Topic]:
    """Return the topics of the interface as a replay creates them, by name."""
    played = {*inputs(icd)}
    return {
        name: replace(
            topic,
            retention=None,
            config={**topic.config, _RETENTION: "-1"},
            timestamp="CreateTime" if name in played else topic.timestamp,
        )
        for name, topic in icd.topics.items()
    }


def why_refused(clock: Clock) -> str:
    """Return the reason why commands are refused; an empty text: this deployment shows no replay."""
    if not isinstance(clock, ReplayClock):
        return ""
    return f"this deployment shows a replay ({clock.describe()}): commands are shown there and never executed"


def why_not(order: ReplayOrder, position: ReplayPosition | None) -> str:
    """Return the reason why a replay cannot carry out an order; an empty text: it can."""
    if position is None or position.state == ENDED:
        return f"the replay {'has not begun' if position is None else 'has ended'}"
    if order.action == "SEEK" and not position.time <= order.to < position.end:
        return (
            f"expected a time from {utc_text(position.time)}, which the replay has reached, to its end at"
            f" {utc_text(position.end)}; got {utc_text(order.to)}. A replay does not go back: start another one, with a"
            " new SDP_TOPIC_PREFIX"
        )
    return ""


def make_order(
    action: ReplayOrderAction, origin: str, *, now: Time, seconds: float = 1.0, to: Time = NEVER
) -> ReplayOrder:
    """Make an order; `now`: today's time."""
    id = f"{action.lower()}-{secrets.token_hex(8)}"
    return ReplayOrder(id=id, action=action, seconds=seconds, to=to, time=now, origin=origin)


def replay_record(message: ReplayPosition | ReplayOrder) -> Record:
    """Return the record of a position or an order."""
    return Record(topic=TOPIC, key=message.id.encode(), value=msgspec.json.encode(message))


def newest_position(bus: Bus) -> ReplayPosition | None:
    """Return the newest position that a replay has written; None: there is none.

    Raises
    ------
    BusError
        The brokers do not answer, or the topic does not exist.
    """
    found = (decode(record.value) for record in reversed(bus.read_all(TOPIC)))
    return next((one for one in found if isinstance(one, ReplayPosition)), None)


class ReplayTopic:
    """The topic on which a replay writes its position and reads orders.

    Parameters
    ----------
    bus
        Opens reader and writer.
    """

    def __init__(self, bus: Bus) -> None:
        self._writer = bus.writer()
        self._reader = bus.open_reader({TOPIC: None}, {})

    def tell(self, position: ReplayPosition) -> None:
        """Write a position.

        Raises
        ------
        BusError
            The brokers do not confirm it.
        """
        self._writer.send_durably(replay_record(position), _PATIENCE)

    def orders(self) -> Sequence[ReplayOrder]:
        """Return the orders since the last call."""
        found = (decode(record.value) for record in self._reader.take(MOST, 0.0))
        return [one for one in found if isinstance(one, ReplayOrder)]


class ReplayStatus:
    """Puts the state of the replay before the Status of each device: a sink, and the view that updates the text.

    Parameters
    ----------
    sink
        Shows and pushes.
    devices
        Names of the devices.
    """

    def __init__(self, sink: EventSink, devices: Sequence[str], clock: ReplayClock) -> None:
        self._sink, self._clock = sink, clock
        self._own = {device: Reading("No data from the bus yet.", NEVER) for device in devices}
        self._text, self._state, self._told_at = "", "", float("-inf")

    def show(self, device: str, attribute: str, reading: Reading) -> bool:
        """Show a reading; see `facade.kernel.runtime.publisher.EventSink`."""
        if attribute == _STATUS:
            self._own[device] = reading
            reading = self._marked(reading)
        return self._sink.show(device, attribute, reading)

    def show_column(self, column: ReadingColumn) -> Sequence[bool]:
        """Show a column; see `facade.kernel.runtime.publisher.EventSink`."""
        return self._sink.show_column(column)

    def push(self, device: str, attribute: str, reading: Reading) -> bool:
        """Send a reading; see `facade.kernel.runtime.publisher.EventSink`."""
        return self._sink.push(device, attribute, self._marked(reading) if attribute == _STATUS else reading)

    def readings(self, now: Time) -> Iterator[DeviceReading]:
        """Update the text of all devices if it has changed; see `facade.kernel.runtime.flow.View`."""
        text, monotonic = self._clock.describe(), self._clock.monotonic()
        state = "" if self._clock.position is None else self._clock.position.state
        if text != self._text and (state != self._state or monotonic - self._told_at >= _EACH):
            self._text, self._state, self._told_at = text, state, monotonic
            for device, reading in self._own.items():
                if self._sink.show(device, _STATUS, self._marked(reading)):
                    self._sink.push(device, _STATUS, self._marked(reading))
        return iter(())

    def _marked(self, reading: Reading) -> Reading:
        return Reading(f"{self._text or self._clock.describe()}\n{reading.value}", reading.time, reading.quality)
