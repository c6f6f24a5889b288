"""How events and snapshots leave a device server; of a flow whose records have effects, none may be lost.

Events of such a flow are sent one by one in the order of the log; the states that they lead to are durable; and only
then is the place written down from which a restart goes on.
"""

from collections.abc import Callable, Mapping, Sequence

from facade.bus.port import QueueingWriter, Reader, Record
from facade.outcome import RecordRejected
from facade.runtime.flow import Effects, Flow, LastReadings
from facade.runtime.publisher import Publisher
from facade.runtime.readers import Bus


class Delivery:
    """Delivery where no flow has effects: snapshots leave at once."""

    must_read_again = False
    """Whether records that were taken and not counted must come again after an internal error."""

    def __init__(self, writer: QueueingWriter, publisher: Publisher) -> None:
        self._writer, self._publisher = writer, publisher

    @property
    def is_open(self) -> bool:
        """Return whether snapshots are held back."""
        return False

    def recall(self, bus: Bus) -> list[str]:
        """Take the state from before a restart; return what of it could not be used."""
        return []

    def start(self, offsets: Mapping[str, Mapping[int, int]], *, is_restart: bool) -> dict[str, dict[int, int]]:
        """Return where to read topics from that need more than what follows the snapshot, by topic."""
        return {}

    def note_position(self, reader: Reader, has_read: Callable[[str], bool]) -> None:
        """Find out whether the newest record of the topic with effects has been taken."""

    def act(self, now: float) -> None:
        """Give the events since the last call to the publisher, and write the states that they lead to."""

    @property
    def holds_snapshots(self) -> bool:
        """Return whether no snapshot may be made now; the cycle that makes an end of that comes here again."""
        return False

    def remember(self, flow: Flow, shown: LastReadings) -> LastReadings:
        """Return what a snapshot of a flow keeps of what is shown, for the moment after a restart."""
        return shown if flow.durable else {}

    def send(self, snapshots: Sequence[Record]) -> None:
        """Send snapshots as soon as they may leave."""
        for record in snapshots:
            self._writer.send(record)

    def proceed(self) -> None:
        """Send what was held back, if it is time."""


class EffectsDelivery(Delivery):
    """Delivery of a flow with effects; holds snapshots back until all in-sync replicas have what they build on.

    It never waits.

    Parameters
    ----------
    effects
        Whose states must be durable before a snapshot may count on them.
    """

    must_read_again = True

    def __init__(self, writer: QueueingWriter, publisher: Publisher, effects: Effects) -> None:
        super().__init__(writer, publisher)
        self._effects = effects
        self._current = False
        """Whether the newest record of the topic has been taken."""
        self._prepared: Sequence[Record] = ()
        self._mark = 0
        self._failed = 0
        """Lost states, as of when all were last known to be durable, or asked for again."""

    @property
    def is_open(self) -> bool:
        """Return whether snapshots are held back."""
        return bool(self._prepared)

    def recall(self, bus: Bus) -> list[str]:
        """Take the state from before a restart; see `Delivery`."""
        return [
            f"state at offset {record.offset} of {record.topic} is not usable: {outcome}"
            for record in bus.read_all(self._effects.recalls)
            if isinstance(outcome := self._effects.recall(record), RecordRejected)
        ]

    def start(self, offsets: Mapping[str, Mapping[int, int]], *, is_restart: bool) -> dict[str, dict[int, int]]:
        """Read further back than the snapshot at a start, which has nothing in memory yet; see `Delivery`."""
        before = self._effects.kept if is_restart else 0
        topic = self._effects.topic
        return {topic: {one: max(0, at - before) for one, at in offsets[topic].items()}}

    def note_position(self, reader: Reader, has_read: Callable[[str], bool]) -> None:
        """Find out whether the newest record has been taken; see `Delivery`."""
        self._current = has_read(self._effects.topic) and not reader.lag(self._effects.topic)

    def act(self, now: float) -> None:
        """Give the events to the publisher, and write the states; see `Delivery`."""
        if not self._publisher.queued:
            for device, attribute, reading in self._effects.events(now, current=self._current):
                self._publisher.append(device, attribute, reading)
        self._publisher.tick()  # before anything else: it is what clients wait for
        for record in self._effects.records(now):
            self._writer.send(record)

    @property
    def holds_snapshots(self) -> bool:
        """Return whether events are still to be sent, or states still to be durable."""
        return bool(self._publisher.queued) or self.is_open

    def remember(self, flow: Flow, shown: LastReadings) -> LastReadings:
        """Leave out what is made of states that are on the bus anyway; see `Delivery`."""
        kept = super().remember(flow, shown)
        device = self._effects.device
        if device not in kept:
            return kept
        return {**kept, device: {name: kept[device][name] for name in self._effects.remembered if name in kept[device]}}

    def send(self, snapshots: Sequence[Record]) -> None:
        """Hold snapshots of now back: every event has been sent, and every state is queued."""
        self._prepared, self._mark = snapshots, self._writer.mark()

    def proceed(self) -> None:
        """Send the snapshots if it is time; drop them if a state was lost, which is then written again."""
        if not self._prepared or not self._writer.settled(self._mark):
            return
        failed = self._writer.failures(self._effects.recalls)
        if failed == self._failed:
            super().send(self._prepared)
        else:
            self._failed = failed
            self._effects.again()
        self._prepared = ()
