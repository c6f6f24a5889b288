"""Replays a time of an archive into a deployment of its own.

Theory of operation
-------------------
Only inputs are written: records of SDP's side, and records of operators and TM to the same topics through devices.
Workers of the deployment derive the rest again. So these records are left out:

- topics that only the facade writes, such as summaries, and those about processes
(`facade.sdp.replay.inputs`);
- alerts that the intake worker made from packets, if the packets are played as well.

Each record has its key, headers, value, partition and time, and the records of a partition keep their order. Topics
have the settings of the ICD, except that Kafka keeps the time of a record (``CreateTime``) and removes nothing by age.
Workers find late and early records by Kafka's time, so their results do not depend on the time and speed of the replay.
These settings also mark the topics that a replay may write to.

Such a deployment has no controller: commands are there to be read, and are not executed.

The replay ends just after the newest record of the archive of any topic, if that is before the requested end: later
events are unknown. A delay of an alarm that had not ended by then stays open.

The replay writes its position to the topic `replay`, after all older records are confirmed; there it also reads orders
(`facade.kernel.runtime.replay`). It never goes back: the records are on the topics, and workers have used them.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec.structs import replace

from facade.admin.cluster import FoundTopic
from facade.admin.topics import differences
from facade.archive.files import HOUR_US, no_archive
from facade.archive.reading import extent, newest_entries, newest_time, read_partitions, require_disjoint
from facade.archive.reading import topics as topics_of
from facade.archive.stores import Store
from facade.kernel.bus.offsets import Extent
from facade.kernel.bus.port import PartitionColumns
from facade.kernel.clock import NEVER, Clock, Duration, Time, as_duration, as_seconds, from_ms, to_ms, utc_text
from facade.kernel.errors import BusError, ConfigError
from facade.kernel.icd.model import Icd
from facade.kernel.icd.topic_model import Topic
from facade.kernel.runtime.replay import PAUSED, POSITION
from facade.sdp.messages import ReplayOrder, ReplayPosition, ReplayPositionState
from facade.sdp.replay import inputs, replay_topics, why_not

_ALERTS, _PACKETS, _OF_PACKET = "alerts", "alert-packets", "packet"
"""Topics and header of alerts that the intake worker makes from packets."""
_EACH = 2.0
"""Time between two reports [s]."""
_LOOK = 1000
"""Records between two checks of the clock and of failures."""
_TURN = 0.02
"""Longest wait before the next check of orders [s]."""
_RESOLUTION: Final = Duration(1000)
"""Resolution of Kafka's time [us]."""
_TELL = 0.1
"""Time between two positions [s]."""
PATIENCE = 120.0
"""Longest wait of a record for the brokers [s]."""


class CopyWriter(Protocol):
    """Writes unchanged records; see `facade.kernel.bus.kafka.producer.KafkaStreamWriter`."""

    failed: int

    def copy(self, columns: PartitionColumns) -> None:
        """Queue records for their partition, with their timestamps."""

    def poll(self, timeout: float = 0.0) -> None:
        """Serve failures, waiting at most `timeout` [s] for one."""

    def flush(self, timeout: float) -> bool:
        """Wait until all records have a result, at most `timeout` [s]; False: not yet."""


ReplayReport = Callable[[Time, int, float], None]
"""Called with the time reached [Unix us], the number of records, and the records per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The records to play, and the topics that they need."""

    inputs: tuple[str, ...]
    topics: Mapping[str, Topic]
    """All topics of the deployment, by name."""
    begin_us: Time
    end_us: Time


def plan_replay(
    store: Store, icd: Icd, begin_us: Time, end_us: Time, *, prefix: str, only: Collection[str] = ()
) -> ReplayPlan:
    """Return the plan of a replay into a deployment with a prefix; `only`: these topics."""
    has = extent(store)
    if has is None:
        raise no_archive(store)
    if not has[0] <= begin_us < end_us <= has[1]:
        raise ConfigError(
            f"--from, --to: expected a begin before the end, both within the archive, which is from {utc_text(has[0])}"
            f" to {utc_text(has[1])}; got {utc_text(begin_us)} to {utc_text(end_us)}"
        )
    there = topics_of(store)
    playable = [name for name in inputs(icd) if name in there]
    if odd := [name for name in only if name not in playable]:
        what = "nothing of it is in the archive" if odd[0] in inputs(icd) else "no program of SDP writes it"
        raise ConfigError(f"--only: expected some of {', '.join(playable)}; got {odd[0]!r:.100}: {what}")
    chosen = tuple(name for name in playable if name in only or not only)
    for name in chosen:
        require_disjoint(store, name, begin_us, end_us)
    entries = newest_entries(store, there)
    if not prefix or prefix in {one.deployment for one in entries}:
        raise ConfigError(
            f"SDP_TOPIC_PREFIX: expected a prefix that is not the one of the archive's deployment, got {prefix!r}: "
            "choose a new one, such as replay-20270114."
        )
    if next(_runs(store, chosen, begin_us, end_us), None) is None:
        raise ConfigError(
            f"expected records to play from {utc_text(begin_us)} to {utc_text(end_us)}, got none of"
            f" {', '.join(chosen) or 'any topic that a program of SDP writes'}"
        )
    partitions: dict[str, int] = {}
    for one in entries:
        partitions[one.topic] = max(partitions.get(one.topic, 0), one.partition + 1)
    topics = replay_topics(icd)
    for name in inputs(icd):
        topics[name] = replace(topics[name], partitions=max(topics[name].partitions, partitions.get(name, 0)))
    if end_us > has[1] - HOUR_US:  # otherwise it is before the newest hour, whose files would all be opened
        end_us = min(end_us, newest_time(store) + _RESOLUTION)
    return ReplayPlan(inputs=chosen, topics=topics, begin_us=begin_us, end_us=end_us)


def require_place(
    plan: ReplayPlan, prefix: str, found: Mapping[str, FoundTopic], extents: Mapping[str, Extent], replicas: int
) -> None:
    """Make sure that any topics of a prefix were made by a replay and are ready for this one."""
    elsewhere = "choose a new SDP_TOPIC_PREFIX, or delete the topics of this one"
    for name, topic in found.items():
        for difference in differences(plan.topics[name], topic, replicas):
            raise ConfigError(
                f"{prefix}{name}: expected no topics, or those that a replay of this archive has made; got another"
                f" one ({difference}): {elsewhere}"
            )
    for name in plan.inputs:
        if name in extents and any(end for _, end in extents[name].ranges.values()):
            raise ConfigError(f"{prefix}{name}: expected no records, got some of an earlier replay: {elsewhere}")


class Steering(Protocol):
    """Publishes the position of a replay and reads orders; see `facade.sdp.replay.ReplayTopic`."""

    def tell(self, position: ReplayPosition) -> None:
        """Write the position."""

    def orders(self) -> Sequence[ReplayOrder]:
        """Return the orders since the last call, without waiting."""


class Course:
    """The present time limit of a replay, by its speed and the orders.

    Parameters
    ----------
    speed
        Speed relative to the clock; infinite: as fast as the workers allow.
    """

    def __init__(self, clock: Clock, begin_us: Time, end_us: Time, speed: float) -> None:
        self._clock, self._end_us, self._speed = clock, end_us, speed
        self.reached_us = begin_us
        """All records before this time are written."""
        self._state: ReplayPositionState = "PLAYING"
        self._order = self._refused = ""
        self._go(end_us)

    def _go(self, goal_us: Time, *, at_once: bool = False, then: ReplayPositionState = "PLAYING") -> None:
        self._goal_us, self._at_once, self._then = goal_us, at_once, then
        self._from = self._clock.monotonic(), self.reached_us

    @property
    def limit_us(self) -> Time:
        """Return the time up to which records may be written now."""
        if self._state == PAUSED and not self._at_once:
            return self.reached_us
        if self._at_once or math.isinf(self._speed):
            return self._goal_us
        since, from_us = self._from
        return min(from_us + as_duration((self._clock.monotonic() - since) * self._speed), self._goal_us)

    def wait_for(self, time_us: Time) -> float:
        """Return the longest wait for a time to come [s]; orders may come earlier."""
        if self._state == PAUSED or math.isinf(self._speed):
            return _TURN
        since, from_us = self._from
        due = since + as_seconds(time_us - from_us) / self._speed
        return min(max(due - self._clock.monotonic(), 1e-6), _TURN)

    def reach(self, time_us: Time) -> None:
        """Note that all records before a time are written."""
        self.reached_us = max(self.reached_us, time_us)
        if self.reached_us >= self._goal_us < self._end_us:
            self._state = self._then
            self._go(self._end_us)

    def take(self, order: ReplayOrder) -> None:
        """Carry out an order, or note the reason of its refusal."""
        self._order, self._refused = order.id, why_not(order, self.position())
        if self._refused:
            return
        if order.action == "SEEK":
            self._go(order.to, at_once=True, then=self._state)
        elif order.action == "STEP":
            self._state = "PLAYING"
            self._go(min(self.reached_us + as_duration(order.seconds), self._end_us - Duration(1)), then="PAUSED")
        else:
            self._state = "PAUSED" if order.action == "PAUSE" else "PLAYING"
            self._go(self._end_us)

    def end(self) -> None:
        """Note that all records are written. The time of a replay is never ahead of the clock, which readers check."""
        now_us = self._clock.now_us()
        self.reached_us, self._state = max(self.reached_us, min(self._end_us, now_us)), "ENDED"

    def position(self) -> ReplayPosition:
        """Return the position."""
        return ReplayPosition(
            id=POSITION,
            time=self.reached_us,
            end=self._end_us,
            speed=0.0 if math.isinf(self._speed) else self._speed,
            state=self._state,
            order=self._order,
            refused=self._refused,
        )


def play(
    store: Store,
    plan: ReplayPlan,
    writer: CopyWriter,
    clock: Clock,
    *,
    speed: float = math.inf,
    report: ReplayReport,
    steering: Steering | None = None,
) -> int:
    """Write the records of a plan; return their number after all are confirmed.

    Raises
    ------
    BusError
        A record was not confirmed by the brokers.
    """
    count, counted, newest_us = 0, 0, NEVER
    look_at = _LOOK
    reported, tell_at = clock.monotonic(), -math.inf
    course: Course | None = None

    def settle() -> None:
        if not writer.flush(PATIENCE) or writer.failed:
            raise _unconfirmed(writer.failed)

    def look(course: Course) -> None:
        nonlocal reported, counted, tell_at
        writer.poll()
        if writer.failed:
            raise _unconfirmed(writer.failed)
        now = clock.monotonic()
        for order in () if steering is None else steering.orders():
            course.take(order)
            tell_at = -math.inf
        if steering is not None and now >= tell_at:
            settle()
            steering.tell(course.position())
            tell_at = clock.monotonic() + _TELL
        if now - reported >= _EACH:
            report(newest_us, count, (count - counted) / (now - reported))
            reported, counted = now, count

    for run in _runs(store, plan.inputs, plan.begin_us, plan.end_us):
        times, begin = run.timestamps, 0
        if course is None:
            course = Course(clock, from_ms(times[0]), plan.end_us, speed)
            look(course)
        while begin < len(times):
            limit, next_us = course.limit_us, from_ms(times[begin])
            if next_us > limit:
                course.reach(limit)
                look(course)
                if next_us > course.limit_us:
                    clock.sleep(course.wait_for(next_us))
                continue
            end = bisect_right(times, to_ms(limit), begin + 1)
            newest_us = from_ms(times[end - 1])
            course.reach(newest_us)
            writer.copy(run.part(begin, end))
            count, begin = count + end - begin, end
            if count >= look_at:
                look(course)
                look_at = count + _LOOK
    settle()
    if steering is not None and course is not None:
        course.end()
        steering.tell(course.position())
    report(newest_us, count, (count - counted) / max(clock.monotonic() - reported, 1e-3))
    return count


def _unconfirmed(failed: int) -> BusError:
    return BusError(
        f"the replay is not whole: {failed or 'some'} records were not confirmed by the brokers, see the log;"
        " delete its topics, or choose a new SDP_TOPIC_PREFIX, and play again"
    )


def _runs(store: Store, topics: Collection[str], begin_us: Time, end_us: Time) -> Iterator[PartitionColumns]:
    """Return the inputs among the records of some topics in the order of time, with runs for each partition.

    The times of a run ascend.
    """
    sources = [
        _ascending(_inputs(found, topics))
        for name in topics
        for found in read_partitions(store, name, begin_us, end_us)
    ]
    heads = [
        (columns.timestamps[0], number, 0, columns)
        for number, source in enumerate(sources)
        if (columns := next(source, None))
    ]
    heapq.heapify(heads)
    while heads:
        _, number, begin, columns = heapq.heappop(heads)
        times = columns.timestamps
        end = bisect_right(times, heads[0][0], begin + 1) if heads else len(times)
        yield columns.part(begin, end)
        if end < len(times):
            heapq.heappush(heads, (times[end], number, end, columns))
        elif following := next(sources[number], None):
            heapq.heappush(heads, (following.timestamps[0], number, 0, following))


def _ascending(found: Iterator[PartitionColumns]) -> Iterator[PartitionColumns]:
    """Divide records where their times go back, as the clock of a broker may."""
    for columns in found:
        times, begin = columns.timestamps, 0
        if times != sorted(times):
            for at in range(1, len(times)):
                if times[at] < times[at - 1]:
                    yield columns.part(begin, at)
                    begin = at
        yield columns.part(begin, len(times))


def _inputs(found: Iterator[PartitionColumns], topics: Collection[str]) -> Iterator[PartitionColumns]:
    for columns in found:
        if columns.topic != _ALERTS or _PACKETS not in topics:
            yield columns
            continue
        for at, headers in enumerate(columns.headers):
            if _OF_PACKET not in dict(headers):
                yield columns.part(at, at + 1)
