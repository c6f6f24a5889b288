"""A model of the group coordinator: static members, generations, rebalances, and offsets that are committed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaError

from tests.simulation.broker import Broker, Place
from tests.simulation.scheduler import Scheduler

SESSION = 6.0
"""A member that is not heard of for so long has left [s]."""
HEARTBEAT = 1.5
"""Time between two signs of life of a member; their answers tell it of a rebalance [s]."""


@dataclass(slots=True, eq=False)
class Member:
    """One member of a group, by its static name."""

    name: str
    id: str
    """Another one for each process that joins under the name."""
    topics: tuple[str, ...]
    on_revoke: Callable[[], None]
    """Tells the client to give its partitions up and to join again (eager)."""
    on_assign: Callable[[list[Place]], None]
    on_fenced: Callable[[], None]
    is_reachable: Callable[[], bool]
    is_gone: Callable[[], bool]
    """Whether it can hear nothing any more, as its process is dead or its client closed."""
    cooperative: bool = False
    has_joined: bool = True
    partitions: list[Place] = field(default_factory=list)


class Membership:
    """What a producer needs to commit offsets of a group; opaque to its user.

    Parameters
    ----------
    member
        None: somebody who has not joined.
    """

    def __init__(self, group: str, member: Member | None, generation: int) -> None:
        self.group, self.generation = group, generation
        self.name, self.id = ("", "") if member is None else (member.name, member.id)


@dataclass(slots=True)
class Group:
    """What the coordinator knows of a group."""

    generation: int = 0
    is_stable: bool = False
    members: dict[str, Member] = field(default_factory=dict)
    waits: bool = False
    """Whether the end of a rebalance is due."""


class Groups:
    """The coordinator of all groups."""

    def __init__(self, scheduler: Scheduler, broker: Broker, note: Callable[[str, str], None]) -> None:
        self.scheduler, self.broker, self.note = scheduler, broker, note
        self.groups: dict[str, Group] = {}
        self._joined = 0

    def join(self, group: str, member: Member) -> None:
        """Let a process join: under a name that the group knows it gets the partitions of that name at once."""
        known = self.groups.setdefault(group, Group())
        self._joined += 1
        member.id = f"{member.name}-{self._joined}"
        before = known.members.get(member.name)
        if before is None:  # what a member had that was not heard of is others' now
            member.partitions = []
        known.members[member.name] = member
        if before is not None:
            if before.id:
                self._soon(self._fence, known, before)
            if known.is_stable:
                member.partitions = before.partitions
                self._soon(member.on_assign, list(member.partitions))
                return
        self._begin(group, known)

    def _fence(self, known: Group, member: Member) -> None:
        """Tell a member that it has lost its name, with its next sign of life: it may stand still."""
        if member.is_gone():
            return
        if not member.is_reachable():
            self.scheduler.at(HEARTBEAT, self._fence, known, member)
        elif member.name in known.members:
            member.on_fenced()
        else:  # whoever had its name is gone as well
            member.on_revoke()

    def rejoin(self, group: str, member: Member) -> None:
        """Take a member that has given its partitions up for the rebalance that is under way."""
        known = self.groups[group]
        now = known.members.get(member.name)
        if now is None:
            self.join(group, member)
        elif now is not member:
            self._soon(member.on_fenced)
        elif not known.is_stable:
            member.has_joined = True
            member.partitions = []
            self._finish_soon(group, known)

    def rebalance(self, group: str) -> None:
        """Begin a rebalance for no reason that a member could know."""
        if (known := self.groups.get(group)) is not None and known.is_stable:
            self._begin(group, known)

    def give(self, group: str, shares: Mapping[str, list[Place]]) -> None:
        """Share the partitions otherwise, as when members have come or gone."""
        known = self.groups[group]
        known.generation += 1
        known.is_stable = True
        for name, places in shares.items():
            known.members[name].partitions = places
            self._soon(known.members[name].on_assign, list(places))

    def leave(self, group: str, name: str, id: str) -> None:
        """Notice after the session's time-out that a member is not heard of any more, unless it came back."""
        self.scheduler.at(SESSION, self._expire, group, name, id)

    def depart(self, group: str, name: str, id: str) -> None:
        known = self.groups[group]
        if (member := known.members.get(name)) is not None and member.id == id:
            self.note("group", f"{group}: {name} leaves")
            del known.members[name]
            self._begin(group, known)

    def _expire(self, group: str, name: str, id: str) -> None:
        known = self.groups[group]
        member = known.members.get(name)
        if member is not None and member.id == id and not member.is_reachable():
            self.note("group", f"{group}: {name} was not heard of for {SESSION:g} s")
            del known.members[name]
            self._soon(member.on_revoke)  # heard once it goes on
            self._begin(group, known)

    def _begin(self, group: str, known: Group) -> None:
        known.is_stable = False
        for member in known.members.values():
            if member.cooperative or not member.partitions:
                member.has_joined = True
            else:
                member.has_joined = False
                self.scheduler.at(HEARTBEAT * self.scheduler.random.random(), self._revoke, group, member)
        self._finish_soon(group, known)

    def _revoke(self, group: str, member: Member) -> None:
        if self.groups[group].members.get(member.name) is member and not member.has_joined:
            member.on_revoke()

    def _finish_soon(self, group: str, known: Group) -> None:
        if not known.waits and all(member.has_joined for member in known.members.values()):
            known.waits = True
            self.scheduler.at(0.02 + 0.3 * self.scheduler.random.random(), self._finish, group)

    def _finish(self, group: str) -> None:
        known = self.groups[group]
        known.waits = False
        if known.is_stable or not all(member.has_joined for member in known.members.values()):
            return
        known.generation += 1
        known.is_stable = True
        names = sorted(known.members)
        topics = sorted({topic for member in known.members.values() for topic in member.topics})
        places = [
            (topic, number)
            for topic in topics
            if topic in self.broker.topics
            for number in range(len(self.broker.topics[topic].partitions))
        ]
        found = _sticky(known, places) if any(one.cooperative for one in known.members.values()) else {}
        if sum(map(len, found.values())) < len(places) and found:  # those that move are given in the next rebalance
            self.scheduler.at(0.01 + 0.03 * self.scheduler.random.random(), self.rebalance, group)
        found = found or _ranges(names, places)
        self.note("group", f"{group}: generation {known.generation} of {', '.join(names) or 'nobody'}")
        for name, member in known.members.items():
            member.partitions = found[name]
            self._soon(member.on_assign, list(found[name]))

    def _soon(self, call: Callable[..., None], *args: object) -> None:
        self.scheduler.at(0.001 + 0.003 * self.scheduler.random.random(), call, *args)

    def has_members(self, group: str) -> bool:
        return group in self.groups and bool(self.groups[group].members)

    def on_growth(self, topic: str) -> None:
        """Share partitions that were added: members look for them now and then."""
        for name, group in self.groups.items():
            if any(topic in member.topics for member in group.members.values()):
                self.scheduler.at(self.scheduler.random.random(), self.rebalance, name)

    def refusal(self, group: str, name: str, id: str, generation: int) -> int | None:
        """Return why offsets of a member are refused, as an error's code."""
        known = self.groups.get(group)
        member = known.members.get(name) if known is not None else None
        if known is None or member is None:
            return KafkaError.UNKNOWN_MEMBER_ID
        if member.id != id:
            return KafkaError.FENCED_INSTANCE_ID
        if generation != known.generation:
            return KafkaError.ILLEGAL_GENERATION
        return None

    def commit(self, who: Membership, offsets: Mapping[Place, int]) -> int | None:
        """Commit offsets without a transaction: a member's, or anybody's while the group has none."""
        if who.name or self.has_members(who.group):
            refused = self.refusal(who.group, who.name, who.id, who.generation)
            if refused is not None:
                return refused
        self.broker.commit(who.group, offsets)
        return None


def _ranges(names: list[str], places: list[Place]) -> dict[str, list[Place]]:
    """Share the partitions of each topic as Kafka's first choice does: the first members get more."""
    found: dict[str, list[Place]] = {name: [] for name in names}
    for topic in {place[0]: None for place in places}:
        numbers = [number for name, number in places if name == topic]
        least, more = divmod(len(numbers), max(len(names), 1))
        for index, name in enumerate(names):
            begin = index * least + min(index, more)
            found[name] += [(topic, number) for number in numbers[begin : begin + least + (index < more)]]
    return found


def _sticky(group: Group, places: list[Place]) -> dict[str, list[Place]]:
    """Share partitions so that as few as possible move; those that move are nobody's until the next rebalance."""
    found: dict[str, list[Place]] = {}
    least, more = divmod(len(places), max(len(group.members), 1))
    for name, member in sorted(group.members.items(), key=lambda one: (-len(one[1].partitions), one[0])):
        own = [place for place in sorted(member.partitions) if place in places]
        quota = least + (more > 0 and len(own) > least)
        more -= quota > least
        found[name] = own[max(len(own) - quota, 0) :]
    taken = {place for member in group.members.values() for place in member.partitions}
    free = [place for place in places if place not in taken]
    for place in free:
        found[min(sorted(found), key=lambda name: len(found[name]))].append(place)
    return found
