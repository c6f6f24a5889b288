"""The one thread of a device server that reads the bus, merges, and pushes events.

It survives every state of the bus: while no broker answers it continues, so that silent attributes turn invalid by the
wall clock; an unusable record becomes a dead letter.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec

from facade.kernel.bus import dead_letters
from facade.kernel.bus.offsets import Extent, is_other
from facade.kernel.bus.port import Reader, Record
from facade.kernel.clock import Clock, Time, as_seconds
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.manifest import Isolation
from facade.kernel.outcome import RecordRejected
from facade.kernel.runtime import snapshots
from facade.kernel.runtime.accounts import RunningAccount
from facade.kernel.runtime.columns import ReadingColumn
from facade.kernel.runtime.delivery import Delivery, EffectsDelivery
from facade.kernel.runtime.flow import VIEW_PERIOD, DeviceReading, Effects, Flow, LastReadings, View
from facade.kernel.runtime.progress import Progress
from facade.kernel.runtime.publisher import Publisher
from facade.kernel.runtime.readers import Bus, open_readers

_log = logging.getLogger(__name__)

_PACE = 0.002
"""Pause while events wait for the publisher's budget [s]."""
_EVENTS_BY, _STATES_BY, _SNAPSHOTS_BY, _END_BY = 1.5, 2.0, 2.5, 3.5
"""Deadlines at the end of the process, from its begin [s]: for events, for records that must be durable before a
snapshot, for the snapshots, and for all records. Tango deletes the devices after 4 s in any case."""
_PATIENCE = 1.0
"""Time for which nothing is read while a snapshot that is due waits for dead letters [s]."""
_MOST_UNCONFIRMED = 64_000_000
"""Size of dead letters without a confirmation beyond which nothing is read [bytes]: the writer must have room for them
when it writes them again."""


class PeriodicTask(Protocol):
    """A periodic task that continues during outages of the bus."""

    def perform(self) -> None:
        """Take one turn; never waits."""

    def end(self) -> None:
        """Take the last turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Periods of the event loop."""

    wait: float = 0.02
    """Longest wait for more records after the first, or while something is under way [s]."""
    idle: float = as_seconds(VIEW_PERIOD)
    """Longest wait for the first record [s]: time alone may change shown values at this rate."""
    batch: int = 500
    """Most records in a cycle: few enough that events leave often, in small bursts."""
    snapshot: float = 2.0
    """Time between snapshots [s]; also the greatest age of its figures at the overview."""
    rebuild: float = 4.0
    """Age of records that are read again to rebuild windows after a restart [s]; more than two windows."""
    retry: float = 1.0
    """Pause after a failure to open the bus [s]."""
    eager: bool = False
    """Whether a cycle ends with the first record instead of waiting for more: for commands, not for bulk."""
    catch_up: float = 3.0
    """Longest silence after a start, until the records already on the bus have been read [s]."""


class EventLoop:
    """Reads, merges, publishes; `run` is the body of the thread."""

    def __init__(
        self,
        bus: Bus,
        flows: Sequence[Flow],
        views: Sequence[View],
        publisher: Publisher,
        *,
        instance: str,
        clock: Clock,
        timing: Timing | None = None,
        periodic_tasks: Sequence[PeriodicTask] = (),
        effects: Effects | None = None,
        isolation: Mapping[str, Isolation] | None = None,
        left_to_others: Collection[str] = (),
    ) -> None:
        self._bus = bus
        self._flows = _by_topic(flows)
        self._isolation = isolation or {}
        self._views = views
        self._publisher = publisher
        for flow in flows:
            for column in flow.columns:
                publisher.adopt(column)
        self._instance = instance
        self._clock = clock
        self._timing = timing or Timing()
        self._periodic_tasks = periodic_tasks
        writer = bus.writer()
        self._delivery = Delivery(writer) if effects is None else EffectsDelivery(writer, publisher, effects)
        make = partial(Progress, keep=self._timing.rebuild, clock=clock)
        self._progress = {one.topic: make(one, sets_aside=one.topic not in left_to_others) for one in flows}
        self._snapshot_at = 0.0
        self._dead_letters = dead_letters.Unconfirmed(writer, clock)
        self._behind: set[str] = set()
        """Topics with unread records from before the start."""
        self._opened_at = 0.0
        self._reader: Reader | None = None
        """The reader of the last cycle."""
        self._may_lack = False
        """Whether the last cycle failed while it read: the reader does not give its records again."""
        self.restored = False
        """Whether the state from before the restart has been restored."""

    @property
    def accounts(self) -> dict[str, RunningAccount]:
        """Return the account of each flow."""
        return {topic: progress.account for topic, progress in self._progress.items()}

    def has_read(self, topic: str) -> bool:
        """Return whether all records of a topic from before the start have been read."""
        return self._opened_at > 0.0 and topic not in self._behind

    def is_at_end(self, topic: str) -> bool:
        """Return whether a topic has no unread records, by the brokers' last report."""
        return self.has_read(topic) and self._reader is not None and not any(self._reader.behind(topic).values())

    def has_read_to(self, topic: str, now: Extent) -> bool:
        """Return whether all records of a topic have been read that it had when the brokers were asked."""
        if self._reader is None or is_other(self._progress[topic].topic_id, now.id):
            return False
        reached = self._reader.reached(topic)
        return all(reached.get(partition, 0) >= end for partition, (_, end) in now.ranges.items())

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set."""
        reader: Reader | None = None
        while not stop.is_set():
            try:
                if reader is not None and (self._may_lack or self.has_moved(reader)):
                    reader.close()
                    reader = None
                if reader is None:
                    reader = self._open()
                self.cycle(reader)
            except BusError as error:
                self._note(str(error))
                self._idle(stop)
            except Exception:
                # A bug must not end the thread and leave clients with values that look alive.
                _log.exception("cycle failed instance=%s", self._instance)
                self._note("internal error, see the log of the device server")
                self._idle(stop)
        self._end(None if self._may_lack else reader)

    def has_moved(self, reader: Reader) -> bool:
        """Return whether the topics must be opened again, as a position is not on its log; never waits."""
        return reader.is_misplaced | any(
            is_other(self._progress[topic].topic_id, now.id) or self._progress[topic].lacks(now.partitions)
            for topic, now in self._bus.watch().step(list(self._progress)).items()
        )

    def cycle(self, reader: Reader) -> None:
        """Read new records, merge them, publish the changes."""
        self._reader = reader
        if self._publisher.queued:
            self._clock.sleep(_PACE)  # records that must not be merged wait on the log rather than here
        elif self._awaits_dead_letters():
            self._clock.sleep(self._timing.wait)
        else:
            self._may_lack = True
            for record in self._read(reader, self._until_due()):
                self._take(record)
            self._may_lack = False
        self._delivery.note_position(reader, self.has_read)
        if self._behind:
            self._behind = {topic for topic in self._behind if not reader.caught_up(topic)}
        failed = self.tick()
        if self._clock.monotonic() - self._snapshot_at >= self._timing.snapshot:
            self.write_snapshots(reader)
        self._delivery.proceed()
        if failed is not None:
            raise failed

    def _end(self, reader: Reader | None) -> None:
        """Send what must not be lost within the remaining time, so that the next start repeats nothing."""
        began = self._clock.monotonic()

        def wait(by: float, is_open: Callable[[], bool], step: Callable[[], None]) -> None:
            while is_open() and self._clock.monotonic() < began + by:
                step()
                self._clock.sleep(_PACE)

        for one in self._periodic_tasks:
            one.end()
        wait(_STATES_BY, self._dead_letters.check, self._delivery.proceed)
        if reader is not None:
            wait(_EVENTS_BY, lambda: bool(self._publisher.queued), self._publisher.tick)
            # Snapshots under way first, or the last ones would have to wait.
            wait(_STATES_BY, self._delivery.is_open, self._delivery.proceed)
            self.write_snapshots(reader)
            wait(_SNAPSHOTS_BY, self._delivery.is_open, self._delivery.proceed)
            reader.close()
        self._bus.writer().close(max(began + _END_BY - self._clock.monotonic(), 0.0))

    def _awaits_dead_letters(self) -> bool:
        """Return whether to read nothing until the dead letters are on the bus.

        Otherwise no snapshot would be written as long as each cycle has an unusable record, and their dead letters
        would fill the memory.
        """
        each = self._timing.snapshot
        is_due = self._snapshot_at + each <= self._clock.monotonic() < self._dead_letters.since + each + _PATIENCE
        if not self._dead_letters or not (is_due or self._dead_letters.size > _MOST_UNCONFIRMED):
            return False
        self._dead_letters.check()
        return True  # also if they are on the bus by now: the snapshot comes before the next record

    def _until_due(self) -> float:
        if self._publisher.waiting:
            return 0.0
        if self._behind or self._delivery.is_open():
            return self._timing.wait
        due = min(self._publisher.due_at, self._snapshot_at + self._timing.snapshot) - self._clock.monotonic()
        return min(max(due, self._timing.wait), self._timing.idle)

    def _read(self, reader: Reader, wait: float) -> list[Record]:
        """Return new records; a loop that is not eager waits for more, for few and large cycles."""
        first = reader.take(1, wait)
        more = 0.0 if self._timing.eager or not first else min(wait, self._timing.wait)
        return [*first, *reader.take(self._timing.batch, more)]

    def tick(self) -> Exception | None:
        """Publish changes, also those by time alone; return the error of a flow or a view."""
        failed = None
        try:
            self._delivery.act(self._clock.now_us())
            # Right after a start a part of the records would make partial values. Restored values stay until all are
            # read.
            if not self._behind or self._clock.monotonic() - self._opened_at > self._timing.catch_up:
                failed = self._look(self._clock.now_us())
        finally:
            # In spite of a failing view, events leave, and the lease by which this server may command is renewed.
            self._publisher.tick()
            for one in self._periodic_tasks:
                one.perform()
        return failed

    def _look(self, now: Time) -> Exception | None:
        looks: list[Callable[[Time], Iterable[DeviceReading | ReadingColumn]]] = [
            flow.readings
            for topic, flow in self._flows.items()
            if flow.durable or self.has_read(topic)  # otherwise the newest settings may be missing
        ]
        failed = None
        for look in (*looks, *(view.readings for view in self._views)):
            try:
                for one in look(now):
                    if isinstance(one, ReadingColumn):
                        self._publisher.offer_column(one)
                    else:
                        self._publisher.offer(*one)
            except Exception as error:
                failed = failed or error
        return failed

    def write_snapshots(self, reader: Reader) -> None:
        """Write the merged state, for the next start."""
        assert not self._may_lack, f"{self._instance}: a snapshot would count records that have not been folded"
        now = self._clock.monotonic()
        if self._delivery.holds_snapshots():
            return
        if self._dead_letters.check():
            return  # a snapshot counts their records: after a kill they would not be written again
        self._snapshot_at = now
        shown = self._delivery.remember(self._publisher.last)
        records = []
        for topic, flow in self._flows.items():
            progress = self._progress[topic]
            reached = reader.reached(topic)
            progress.reach(reached)
            progress.note_behind(reached, reader.behind(topic), is_connected=self._bus.health.connected)
            if topic != snapshots.TOPIC:
                remembered: LastReadings = shown if flow.durable else {}
                snapshot = progress.snapshot(self._instance, remembered, now=self._clock.now_us(), monotonic=now)
                records.append(snapshots.to_record(snapshot))
        self._delivery.write(records)

    def _open(self) -> Reader:
        if not self.restored:
            found, troubles = snapshots.newest(self._bus.read_all(snapshots.TOPIC), self._instance)
            for topic in self._flows:
                if topic in found:
                    try:
                        readings = self._progress[topic].restore(found[topic], self._clock.monotonic())
                        troubles += self._publisher.restore(readings)
                    except (msgspec.ValidationError, ValueError) as error:
                        troubles.append(f"snapshot of {topic} has another form, its topic is read anew: {error}")
            troubles += self._delivery.recall(self._bus)
            for trouble in troubles:
                self._note(trouble)
            self.restored = True
        extents = self._bus.watch().extents(list(self._progress))
        is_restart, start = not self._opened_at, dict[str, dict[int, int]]()
        for topic, progress in self._progress.items():
            if topic in extents:  # the reader reports a topic that does not exist
                for finding in progress.place(extents[topic]):
                    self._note(finding.describe(topic))
            own: Mapping[int, int] = progress.rebuild_from() if is_restart else progress.next
            own = self._delivery.start(topic, own, progress.next, is_restart=is_restart)
            begins = start[topic] = progress.on_log(dict(own))
            left_out = {one for one, at in begins.items() if topic in extents and at > progress.next.get(one, at)}
            assert not left_out, f"{topic}, partitions {left_out}: reading from {begins} on leaves out {progress.next}"
        topics = {topic: flow.partitions for topic, flow in self._flows.items()}
        reader, self._may_lack = open_readers(self._bus, topics, start, self._isolation), False
        _log.info("bus opened instance=%s start=%s", self._instance, start)
        self._behind, self._opened_at = set(self._flows), self._clock.monotonic()
        return reader

    def _take(self, record: Record) -> None:
        progress = self._progress[record.topic]
        outcome = progress.take(record)
        if isinstance(outcome, RecordRejected) and not progress.is_set_aside(record):
            self._dead_letters.write(dead_letters.dead_letter(record, outcome, by=self._instance))

    def _note(self, trouble: str) -> None:
        _log.warning("%s instance=%s", trouble, self._instance)
        self._bus.health.last_error, self._bus.health.last_error_at = trouble, self._clock.now_us()

    def _idle(self, stop: threading.Event) -> None:
        """Wait before the next try, and keep publishing the effects of time."""
        until = self._clock.monotonic() + self._timing.retry
        while not stop.is_set() and self._clock.monotonic() < until:
            try:
                self.tick()
            except Exception:
                _log.exception("tick failed instance=%s", self._instance)
            self._clock.sleep(0.05)


def _by_topic(flows: Sequence[Flow]) -> dict[str, Flow]:
    found: dict[str, Flow] = {}
    for flow in flows:
        if flow.topic in found:
            raise ConfigError(f"topic {flow.topic}: expected one flow of this device server that reads it, got two")
        found[flow.topic] = flow
    return found
