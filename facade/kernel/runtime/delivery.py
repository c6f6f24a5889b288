"""The delivery of snapshots, and of effects before them.

An effect is an event that a client must not miss, or a state that others read. Snapshots say from where a restart
continues, so none may be written before the effects of all earlier records are durable.
"""

from collections.abc import Callable, Mapping, Sequence

from facade.kernel.bus.port import QueueingWriter, Reader, Record
from facade.kernel.clock import Time
from facade.kernel.outcome import RecordRejected
from facade.kernel.runtime.flow import Effects, LastReadings
from facade.kernel.runtime.publisher import Publisher
from facade.kernel.runtime.readers import Bus


class Delivery:
    """Delivery of a server whose records have no effects: snapshots are written at once."""

    def __init__(self, writer: QueueingWriter) -> None:
        self._writer = writer

    def is_open(self) -> bool:
        """Return whether snapshots are held back."""
        return False

    def holds_snapshots(self) -> bool:
        """Return whether no snapshot may be made now: events are not sent, or states not durable."""
        return False

    def recall(self, bus: Bus) -> list[str]:
        """Read the states from before a restart; return a text about each unusable one."""
        return []

    def start(
        self, topic: str, own: Mapping[int, int], after: Mapping[int, int], *, is_restart: bool
    ) -> Mapping[int, int]:
        """Return the start offsets for a topic, by those of its flow and those after all records that it has read."""
        return own

    def note_position(self, reader: Reader, has_read: Callable[[str], bool]) -> None:
        """Update whether the newest record of the topic with effects has been read."""

    def act(self, now: Time) -> None:
        """Pass the events since the last call to the publisher, and write the states that they lead to."""

    def remember(self, shown: LastReadings) -> LastReadings:
        """Leave attributes that follow from states on the bus out of a snapshot."""
        return shown

    def write(self, snapshots: Sequence[Record]) -> None:
        """Write snapshots, at once or when all effects before them are durable."""
        for record in snapshots:
            self._writer.send(record)

    def proceed(self) -> None:
        """Write the snapshots that are held back, if they may be written now."""


class EffectsDelivery(Delivery):
    """Delivery of a flow whose records have effects: none of them may be lost. It never waits.

    Events are sent one by one in the order of the log, and the states that they lead to are written. Snapshots wait
    until all in-sync replicas have these states: only then may a restart continue from the snapshot.
    """

    def __init__(self, writer: QueueingWriter, publisher: Publisher, effects: Effects) -> None:
        super().__init__(writer)
        self._publisher, self._effects = publisher, effects
        self._current = False
        """Whether the newest record of the topic has been read."""
        self._prepared: Sequence[Record] = ()
        self._mark = 0
        self._failed = 0
        """Number of lost states at the last time that all were durable, or were requested again."""

    def is_open(self) -> bool:
        """Return whether snapshots wait for states to be durable."""
        return bool(self._prepared)

    def holds_snapshots(self) -> bool:
        """Return whether events are not sent, or states not durable."""
        return bool(self._publisher.queued) or self.is_open()

    def recall(self, bus: Bus) -> list[str]:
        """Let the flow take all states of its compacted topic; return a text about each unusable one."""
        return [
            f"state at offset {record.offset} of {record.topic} is not usable: {outcome}"
            for record in bus.read_all(self._effects.recalls)
            if isinstance(outcome := self._effects.recall(record), RecordRejected)
        ]

    def start(
        self, topic: str, own: Mapping[int, int], after: Mapping[int, int], *, is_restart: bool
    ) -> Mapping[int, int]:
        """Return the start offsets for a topic; after a restart, some records with effects are read again."""
        if topic != self._effects.topic:
            return own
        before = self._effects.kept if is_restart else 0
        return {partition: max(0, at - before) for partition, at in after.items()}

    def note_position(self, reader: Reader, has_read: Callable[[str], bool]) -> None:
        """Update whether the newest record with effects has been read."""
        self._current = has_read(self._effects.topic) and not any(reader.behind(self._effects.topic).values())

    def act(self, now: Time) -> None:
        """Send the events one by one, in the order of the log, and write the states that they lead to."""
        if not self._publisher.queued:
            for device, attribute, reading in self._effects.events(now, current=self._current):
                self._publisher.append(device, attribute, reading)
        self._publisher.tick()  # first of all: clients wait for it
        for record in self._effects.records(now):
            self._writer.send(record)

    def remember(self, shown: LastReadings) -> LastReadings:
        """Leave attributes that follow from states on the bus out of a snapshot."""
        device = self._effects.device
        if device not in shown:
            return shown
        kept = {name: shown[device][name] for name in self._effects.remembered if name in shown[device]}
        return {**shown, device: kept}

    def write(self, snapshots: Sequence[Record]) -> None:
        """Hold snapshots back; every event has been sent, and every state is queued."""
        assert not self._publisher.queued, "a snapshot would leave out events that have not been sent"
        assert not self._prepared, f"{len(self._prepared)} snapshots would be replaced before they were sent"
        self._prepared, self._mark = snapshots, self._writer.mark()

    def proceed(self) -> None:
        """Send the snapshots if all states are durable. If one was lost, drop them and write the states again."""
        if not self._prepared or not self._writer.settled(self._mark):
            return
        failed = self._writer.failures(self._effects.recalls)
        if failed == self._failed:
            for record in self._prepared:
                self._writer.send(record)
        else:
            self._failed = failed
            self._effects.again()
        self._prepared = ()
