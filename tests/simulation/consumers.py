"""What `confluent_kafka.Consumer` gives, on the model of the brokers."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from tests.simulation.broker import Broker, Place
from tests.simulation.groups import Groups, Member, Membership
from tests.simulation.logs import CHANGES, Partition
from tests.simulation.network import LOST, Link, Network
from tests.simulation.scheduler import Process
from tests.support.foreign_headers import are_foreign, give

UP = '{"state":"UP"}'
"""Statistics of a client that is connected, as far as anybody looks at them."""


_AHEAD = 200
"""Records that are fetched before anybody asks for them, at most."""
_BESIDE = 0.3
"""Time between two looks for them [s]."""
_WAKES = 0.02
"""From the end of a stop until the first records come that were asked for since [s]."""
_NOWHERE = -1001
"""The group has committed nothing."""


class SimulatedConsumer:
    """See `confluent_kafka.Consumer`, as far as the facade uses it."""

    def __init__(self, process: Process, broker: Broker, groups: Groups, network: Network, config: dict[str, Any]):
        self._process, self._broker, self._groups = process, broker, groups
        self._scheduler = process.scheduler
        self._config = config
        self._link = Link(network, process, f"{process.name}/{config.get('client.id', 'reader')}")
        self._link.on_drop = self._on_drop
        self._committed_only = config.get("isolation.level", "read_committed") == "read_committed"
        self._tells_end = bool(config.get("enable.partition.eof"))
        self._at: dict[Place, int] = {}
        """Next offset by partition that is read."""
        self._assigned: dict[Place, None] = {}
        """Those of them that cannot be read as well."""
        self._epochs: dict[Place, tuple[int, int]] = {}
        """Leader epochs of the last record and of the broker that the place was last compared with."""
        self._ahead: deque[tuple[Place, Message]] = deque()
        """What was fetched, and not asked for yet."""
        self._ends: dict[Place, tuple[int, int]] = {}
        """First offset, and the one after the newest, of each partition, as the newest answer said."""
        self._told_end: dict[Place, int] = {}
        self._seen: dict[Place, int] = {}
        """State of each partition of which everything has been read."""
        self._idle_since = 0
        """Newest change of any partition when everything had been read of all."""
        self._events: deque[Callable[[], Message | None]] = deque()
        """What the next call of `consume` is to serve."""
        self._waiting: Any = None
        self._spoke = -1.0
        self._member: Member | None = None
        self._group = str(config.get("group.id", ""))
        self._callbacks: dict[str, Any] = {}
        self._has_assigned = False
        self._generation = -1
        """Of the newest assignment that was served."""
        self._left = self._is_fenced = False
        self._scheduler.at(_BESIDE, self._go_ahead)

    # Reading

    def consume(self, limit: int, timeout: float) -> list[Message]:
        """Return messages: as soon as there are `limit`, or when the time is over [s]."""
        self._require_alive()
        until, found = self._scheduler.now + timeout, []
        while True:
            self._speak()
            while self._events:
                if (message := self._events.popleft()()) is not None:
                    found.append(message)
            if len(self._ahead) < limit - len(found) and not self._broker_is_away() and not self._is_waking():
                self._fetch(limit - len(found))
            while self._ahead and len(found) < limit:
                found.append(self._ahead.popleft()[1])
            if len(found) >= limit or self._scheduler.now >= until:
                return found
            self._wait(until, for_records=limit - len(found) <= 1)

    def poll(self, timeout: float) -> Message | None:
        """Return one message, or None when the time is over [s]."""
        return next(iter(self.consume(1, timeout)), None)

    def _wait(self, until: float, *, for_records: bool) -> None:
        self._waiting = self._scheduler.current
        if for_records:
            for name in {place[0]: None for place in self._at}:
                topic = self._broker.topics.get(name)
                if topic is not None and self._wake not in topic.on_append:
                    topic.on_append.append(self._wake)
        try:
            self._scheduler.pause(until)
        finally:
            self._waiting = None

    def _rouse(self) -> None:
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)

    def _wake(self) -> None:
        if self._waiting is not None:
            self._scheduler.at(self._link.network.latency(), self._wake_now, self._waiting)

    def _wake_now(self, task: Any) -> None:
        if self._waiting is task:
            self._scheduler.wake(task)

    def _go_ahead(self) -> None:
        """Fetch while nobody asks, as the client's own threads do: what comes so may be lost before it is read."""
        if not self._link.is_open:
            return
        self._scheduler.at(_BESIDE, self._go_ahead)
        if self._waiting is None and not self._broker_is_away() and not self._is_stopped():
            self._fetch(_AHEAD)

    def _purge(self, places: Collection[Place]) -> None:
        """Forget what was fetched of partitions that are no longer read, or from another place on."""
        self._ahead = deque(one for one in self._ahead if one[0] not in places)

    def _fetch(self, wanted: int) -> None:
        """Fetch what is there, and more than is wanted."""
        if self._idle_since == CHANGES.newest:
            return
        is_idle = True
        limit = max(wanted, _AHEAD) - len(self._ahead)
        for place in list(self._at):
            partition = self._broker.partition(place)
            if partition is None or self._broker.is_full(place):
                continue
            if self._seen.get(place) == partition.state:
                continue
            is_idle = False
            at = self._at[place]
            if at == OFFSET_BEGINNING:
                at = partition.first
            elif at == OFFSET_END:
                at = self._end(partition)
            last, compared = self._epochs.get(place, (-1, -1))
            if compared != partition.leader_epoch:  # the client compares its place whenever a broker leads anew
                self._epochs[place] = last, partition.leader_epoch
                if 0 <= last and (end := partition.end_of(last)) < at:
                    self._misplaced(place, cut_at=end)
                    continue
            if not partition.first <= at <= partition.end:
                self._misplaced(place)
                continue
            self._ends[place] = partition.first, partition.end  # an answer that is an error tells of none
            if limit <= 0:
                break
            entries, at = partition.read(at, limit, committed=self._committed_only)
            self._at[place] = at
            limit -= len(entries)
            if entries:
                self._epochs[place] = entries[-1].leader_epoch, partition.leader_epoch
            self._ahead += [(place, _message(place, one)) for one in entries]
            if limit <= 0 or at < self._end(partition):
                continue
            self._seen[place] = partition.state
            if self._tells_end and self._told_end.get(place) != at:
                self._told_end[place] = at
                self._ahead.append((place, _error(KafkaError._PARTITION_EOF, place, at)))
        if is_idle:
            self._idle_since = CHANGES.newest

    def _misplaced(self, place: Place, cut_at: int = -1) -> None:
        """Go where the settings say; to where the log was cut, if that is known, instead of to its end."""
        reset = self._config.get("auto.offset.reset", "latest")
        if reset != "error":
            end = OFFSET_END if cut_at < 0 else cut_at
            self._at[place] = OFFSET_BEGINNING if reset == "earliest" else end
            self._scheduler.at(self._link.network.latency(), self._rouse)
            return
        at = self._at.pop(place)  # nothing more is read of it
        self._ahead.append((place, _error(KafkaError._AUTO_OFFSET_RESET, place, at)))

    def _end(self, partition: Partition) -> int:
        return partition.stable if self._committed_only else partition.end

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self._require_alive()
        self._at, self._assigned = {}, {}
        self._ahead.clear()
        self._has_assigned = True
        self.incremental_assign(places)

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        if any((one.topic, one.partition) in self._assigned for one in places):
            raise KafkaException(KafkaError(KafkaError._CONFLICT))
        self._has_assigned = True
        self._purge({(one.topic, one.partition) for one in places})
        for one in places:
            place = (one.topic, one.partition)
            at = one.offset
            if at < 0 and at not in (OFFSET_BEGINNING, OFFSET_END):
                at = self._broker.committed.get(self._group, {}).get(place, _NOWHERE)
            self._at[place] = at
            self._assigned[place] = None
            self._epochs[place] = (-1 if one.leader_epoch is None else one.leader_epoch), -1
            self._seen.pop(place, None)
            self._idle_since = 0
            self._told_end.pop(place, None)

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        if any((one.topic, one.partition) not in self._assigned for one in places):
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG))
        self._purge({(one.topic, one.partition) for one in places})
        for one in places:
            self._at.pop((one.topic, one.partition), None)
            self._assigned.pop((one.topic, one.partition), None)

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(*place) for place in self._assigned]

    # Asking

    def get_watermark_offsets(self, place: TopicPartition, timeout: float = 0.0, cached: bool = False) -> Any:
        """Return the first offset and the one after the newest."""
        if not cached:
            asked = (place.topic, place.partition)
            self._ask("ListOffsets", lambda: LOST if self._broker.is_full(asked) else None, timeout or 10.0)
        else:
            return self._ends.get((place.topic, place.partition), (_NOWHERE, _NOWHERE))
        partition = self._broker.topics[place.topic].partitions[place.partition]
        return partition.first, self._end(partition)

    def offsets_for_times(self, places: Sequence[TopicPartition], timeout: float = 10.0) -> list[TopicPartition]:
        """Return where the first record of a time or later is; each time stands in the place of an offset [Unix ms]."""
        if any(self._broker.is_full((one.topic, one.partition)) for one in places):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        def found(one: TopicPartition) -> int:
            if (topic := self._broker.topics.get(one.topic)) is None:
                raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))
            if one.offset in (OFFSET_BEGINNING, OFFSET_END):
                partition = topic.partitions[one.partition]
                return partition.first if one.offset == OFFSET_BEGINNING else self._end(partition)
            entries = topic.partitions[one.partition].entries
            after = (entry.offset for entry in entries if entry.time_us >= one.offset * 1000 and not entry.is_mark)
            return next(after, OFFSET_END)

        return self._ask(
            "ListOffsets", lambda: [TopicPartition(one.topic, one.partition, found(one)) for one in places], timeout
        )

    def list_topics(self, topic: str | None = None, timeout: float = 10.0) -> Any:
        return self._ask("Metadata", lambda: metadata(self._broker, topic), timeout)

    def committed(self, places: Sequence[TopicPartition], timeout: float = 10.0) -> list[TopicPartition]:
        """Return what the group has committed, once no transaction holds offsets of these partitions."""
        until, wanted = self._scheduler.now + timeout, [(one.topic, one.partition) for one in places]
        while True:
            known = self._ask("OffsetFetch", lambda: self._committed(wanted), until - self._scheduler.now)
            if known is not None:
                return [TopicPartition(topic, number, known.get((topic, number), -1001)) for topic, number in wanted]
            tell = self._broker.on_stable.setdefault(self._group, [])
            if self._scheduler.now >= until:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            tell.append(partial(self._scheduler.wake, self._scheduler.current))
            self._scheduler.pause(min(until, self._scheduler.now + 0.2))

    def _committed(self, places: list[Place]) -> dict[Place, int] | None:
        if self._committed_only and self._broker.is_pending(self._group, places):
            return None
        return dict(self._broker.committed.get(self._group, {}))

    def commit(self, offsets: Sequence[TopicPartition], asynchronous: bool = True) -> list[TopicPartition]:
        """Commit offsets of the group, and wait for the answer."""
        if self._is_fenced:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        given = {(one.topic, one.partition): one.offset for one in offsets}
        refused = self._ask("OffsetCommit", lambda: self._groups.commit(self.consumer_group_metadata(), given), 10.0)
        if refused is not None:
            raise KafkaException(KafkaError(refused))
        return list(offsets)

    def _ask(self, what: str, request: Callable[[], Any], timeout: float) -> Any:
        self._require_alive()
        until = self._scheduler.now + timeout
        while (answer := self._link.ask(what, request, until)) is LOST:
            self._scheduler.pause(self._scheduler.now + 0.1)
            if self._scheduler.now >= until:
                break
        if answer is LOST or (answer is None and self._scheduler.now >= until):
            raise KafkaException(KafkaError(KafkaError._TRANSPORT if what == "Metadata" else KafkaError._TIMED_OUT))
        return answer

    # The group

    def subscribe(self, topics: Sequence[str], on_assign: Any = None, on_revoke: Any = None, on_lost: Any = None):
        self._callbacks = {"assign": on_assign, "revoke": on_revoke}
        cooperative = "cooperative" in str(self._config.get("partition.assignment.strategy", ""))
        self._member = Member(
            name=str(self._config["group.instance.id"]),
            id="",
            topics=tuple(topics),
            on_revoke=lambda: self._serve(self._on_revoke),
            on_assign=lambda places: self._serve(partial(self._on_assign, places, self._now())),
            on_fenced=lambda: self._serve(self._on_fenced),
            is_reachable=lambda: not (self._left or self._process.is_dead) and not self._is_stopped(),
            is_gone=lambda: self._left or self._process.is_dead,
            cooperative=cooperative,
        )
        self._process.at_death.append(self._leave)
        self._process.at_stop.append(self._fall_silent)
        self._join()

    def _join(self, answer: Any = None) -> None:
        if (member := self._member) is None:
            return  # it has left since
        if answer is None and not member.id:
            self._link.call("JoinGroup", lambda: self._groups.join(self._group, member) or True, self._join)
        elif answer is LOST and not self._left:
            self._scheduler.at(0.2, self._link.call, "JoinGroup", lambda: self._rejoin() or True, self._join)

    def _rejoin(self) -> None:
        if (member := self._member) is None:
            return
        if member.id:
            self._groups.rejoin(self._group, member)
        else:
            self._groups.join(self._group, member)

    def _leave(self) -> None:
        self._left = True
        self._fall_silent()

    def _fall_silent(self) -> None:
        if self._member is not None and self._member.id:
            self._groups.leave(self._group, self._member.name, self._member.id)

    def _is_waking(self) -> bool:
        """Return whether its process stood still until now: what it knows is from before, until an answer comes."""
        return 0.0 < self._process.stopped_until and self._scheduler.now - self._process.stopped_until < _WAKES

    def _is_stopped(self) -> bool:
        return self._process.stopped_until > self._scheduler.now

    def _serve(self, event: Callable[[], Message | None]) -> None:
        if self._left:
            return
        self._events.append(event)
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)

    def _now(self) -> int:
        known = self._groups.groups.get(self._group)
        return -1 if known is None else known.generation

    def _on_assign(self, places: list[Place], generation: int) -> None:
        self._generation = generation
        given = [TopicPartition(*place) for place in places]
        self._has_assigned = False
        cooperative = self._member is not None and self._member.cooperative
        if cooperative:
            gone = [TopicPartition(*place) for place in self._assigned if place not in places]
            given = [one for one in given if (one.topic, one.partition) not in self._assigned]
            if gone:
                self._callbacks["revoke"](self, gone)
                self.incremental_unassign(gone)
        elif self._assigned and self._callbacks["revoke"] is not None:
            # The coordinator took a request for this member's that the client had given up: the client hears of
            # another generation, and gives up what it has before it asks for more.
            self._callbacks["revoke"](self, self.assignment())
        if self._callbacks["assign"] is not None:
            self._callbacks["assign"](self, given)
        if not self._has_assigned:
            self.incremental_assign(given) if cooperative else self.assign(given)

    def _on_revoke(self) -> None:
        places = [TopicPartition(*place) for place in (self._member.partitions if self._member else ())]
        if self._callbacks["revoke"] is not None:
            self._callbacks["revoke"](self, places)
        self._at, self._assigned = {}, {}
        self._ahead.clear()
        self._link.call("JoinGroup", lambda: self._rejoin() or True, self._join)

    def unsubscribe(self) -> None:
        """Give the partitions up and leave the group, as also a static member does."""
        self._serve(self._on_unsubscribe)

    def memberid(self) -> str:
        """Return the id that the group has given; empty: it is not a member."""
        return "" if self._member is None else self._member.id

    def _on_unsubscribe(self) -> None:
        member = self._member
        if member is not None:
            if self._callbacks["revoke"] is not None:
                self._callbacks["revoke"](self, self.assignment())
            self._at, self._assigned, self._member = {}, {}, None
            leave = partial(self._groups.depart, self._group, member.name, member.id)
            self._link.call("LeaveGroup", lambda: leave() or True, lambda _: None)

    def _on_fenced(self) -> Message:
        self._is_fenced = True
        return _error(KafkaError._FATAL, ("", 0), -1)

    def consumer_group_metadata(self) -> Membership:
        """Return what a producer needs to commit offsets of the group."""
        return Membership(self._group, self._member, self._generation)

    # Being a client

    def close(self) -> None:
        """Leave and close; a static member stays in its group until its session is over."""
        if not self._left:
            if self._assigned and self._callbacks.get("revoke") is not None:
                self._callbacks["revoke"](self, self.assignment())
            self._leave()
        self._link.close()

    def _on_drop(self) -> None:
        if self._broker_is_away() and (tell := self._config.get("error_cb")) is not None:
            self._serve(lambda: tell(KafkaError(KafkaError._ALL_BROKERS_DOWN)))

    def _broker_is_away(self) -> bool:
        return self._link.network.is_down

    def _speak(self) -> None:
        now = self._scheduler.now
        if now - self._spoke >= 1.0:
            self._spoke = now
            self._config["stats_cb"]("" if self._broker_is_away() else UP)

    def _require_alive(self) -> None:
        self._process.require_alive()


def metadata(broker: Broker, name: str | None) -> Any:
    """Return topics in the form of `confluent_kafka.admin.ClusterMetadata`."""
    names = [name] if name is not None else list(broker.topics)
    found = {one: _topic_metadata(broker, one) for one in names}
    return SimpleNamespace(topics=found, cluster_id="simulated", brokers={0: SimpleNamespace(host="broker", port=9092)})


def _topic_metadata(broker: Broker, name: str) -> SimpleNamespace:
    topic = broker.topics.get(name)
    if topic is None:
        return SimpleNamespace(topic=name, error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={})
    return SimpleNamespace(topic=name, error=None, partitions=dict.fromkeys(range(len(topic.partitions))))


def _message(place: Place, entry: Any) -> Message:
    foreign = are_foreign(entry.headers)
    made = Message(
        place[0], place[1], entry.offset, entry.key, entry.value, None if foreign else list(entry.headers) or None,
        None, (2, entry.time_us // 1000), 0.0, entry.leader_epoch,
    )  # fmt: skip
    return give(made, entry.headers) if foreign else made


def _error(code: int, place: Place, offset: int) -> Message:
    return Message(place[0], place[1], offset, None, None, None, KafkaError(code), (0, 0), 0.0, 0)
