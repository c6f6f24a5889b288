"""A device of the telescope and its mirrored attributes: their state, their next records, the device's next job."""

from typing import Literal, cast

import msgspec

from facade.flows.mirror.messages import CONNECTED, DISCONNECTED, ENDED, MirrorWriter, TelescopeAttribute, writer_of
from facade.flows.mirror.source import AttributeValue, DeviceJob
from facade.messages import TelescopeAttributeConnection, TelescopeAttributeQuality

By = Literal["EVENT", "POLL"]
_LONGEST_LABEL, _LONGEST_ERROR = 200, 500
ALIVE = 2.0
"""Time between two signs of life of a device [s]."""
MOST_AT_ONCE = 50
"""Attributes that a device is asked for in one job."""
AGAIN, _LONGEST_PAUSE = 1.0, 30.0
"""Pause before something is tried again that did not answer once, and many times [s]."""


class MirroredAttribute:
    """One attribute.

    Parameters
    ----------
    own
        The mirror that writes its records.
    newest
        Its newest record, of a mirror before this one; what came after it was missed.
    """

    def __init__(self, name: str, own: MirrorWriter, newest: TelescopeAttribute | None = None) -> None:
        self.name, self._own = name, own
        self.newest = newest
        """The newest record; its time is that of the newest look."""
        self.is_broken = newest is not None
        """Whether values may have been missed since the newest record."""
        self.is_unsure = False
        """Whether events may be lost yet, as the subscription is being made: the next other value says so."""
        self.is_doubtful = False
        """Whether the last read gave another value than the newest event: the event may be under way yet, or lost."""
        self.period = 1.0
        """Time between two reads, if the device pushes nothing [s]."""
        self.is_pushed: bool | None = None
        """Whether the device pushes its changes; None: not known, so that values may be missing before another one."""
        self.read_at, self.push_at = float("inf"), 0.0
        """When it is to be read next, and when a subscription is to be tried next [monotonic s]."""
        self.seen_at = float("-inf")
        """When a value came last, of an event or a read [monotonic s]."""

    @property
    def connection(self) -> str:
        """Return the connection of the newest record; empty: there is none."""
        return self.newest.connection if self.newest is not None else ""

    def see(self, seen: AttributeValue, by: By, now: int) -> TelescopeAttribute | None:
        """Take a value that has come now [Unix us], and return its record; None: it is known already."""
        newest, was_doubtful = self.newest, self.is_doubtful
        self.is_doubtful = False
        if newest is not None and newest.connection == CONNECTED:
            if by == "POLL" and self.is_pushed and seen.time < newest.time:
                return None  # an event has overtaken it
            same = (newest.value, newest.type, newest.quality) == (seen.value, seen.type, seen.quality)
            is_known = same and newest.error == seen.error[:_LONGEST_ERROR]
            is_timeless = by == "POLL" or not seen.time
            if is_known and (seen.time == newest.time or (is_timeless and not self.is_broken)):
                self.is_broken = self.is_unsure = False
                if not self._is_own:  # nothing is missing behind what the mirror before has written
                    return self._say(seen._replace(time=seen.time or now), CONNECTED, by)
                by = newest.by if self.is_pushed else by
                self.newest = msgspec.structs.replace(newest, time=seen.time or now, by=by)
                return None
            if by == "POLL" and self.is_pushed:
                if not (self.is_unsure or self.is_broken or was_doubtful):
                    self.is_doubtful = True
                    return None
                self.is_broken = True  # it has changed, and no event has told so
        if self.is_pushed is None:
            self.miss()
        # Without a value there is no time of it: it is missing since that was found.
        return self._say(seen if seen.time else seen._replace(time=now), CONNECTED, by)

    def miss(self) -> None:
        """Note that values may have been missed."""
        self.is_broken = self.newest is not None

    def disconnect(self, why: str, now: int) -> TelescopeAttribute | None:
        """Note that its device is away [Unix us], and return the record of it; None: that is known."""
        self.is_pushed, self.read_at, self.push_at = None, float("inf"), 0.0
        return None if self.connection == DISCONNECTED and self._is_own else self._leave(DISCONNECTED, why, now)

    def overlook(self, why: str, now: int) -> TelescopeAttribute:
        """Note that it was not looked at for long [Unix us], and return the record of it."""
        return self._leave(DISCONNECTED, why, now)

    def end(self, now: int) -> TelescopeAttribute | None:
        """Note that it is not mirrored any more [Unix us], and return the record of it; None: that is known."""
        return None if self.connection in ("", ENDED) else self._leave(ENDED, "", now)

    @property
    def _is_own(self) -> bool:
        """Return whether the newest record is of this mirror: only those are repeated as a sign of its life."""
        return self.newest is not None and writer_of(self.newest) == self._own

    def _leave(self, connection: TelescopeAttributeConnection, why: str, now: int) -> TelescopeAttribute:
        last, by = self.newest, "POLL"
        if last is None:
            seen = AttributeValue(self.name, time=now, error=why)
        else:
            seen, by = AttributeValue(self.name, last.value, last.type, "INVALID", last.time, last.label, why), last.by
        said = self._say(seen, connection, cast(By, by))
        self.is_broken = True
        return said

    def _say(self, seen: AttributeValue, connection: TelescopeAttributeConnection, by: By) -> TelescopeAttribute:
        self.newest = TelescopeAttribute(
            name=self.name,
            number=1 if self.newest is None else self.newest.number + 1,
            incarnation=self._own.incarnation,
            epoch=self._own.epoch,
            time=max(seen.time, 0),
            value=seen.value,
            type=seen.type,
            quality=cast(TelescopeAttributeQuality, seen.quality),
            connection=connection,
            by=by,
            gap=self.is_broken or (self.is_unsure and self.newest is not None),
            label=seen.label[:_LONGEST_LABEL],
            error=seen.error[:_LONGEST_ERROR],
        )
        self.is_broken = self.is_unsure = False
        return self.newest


def pause_after(failures: int) -> float:
    """Return how long to leave alone what did not answer so often one after the other [s]."""
    return min(AGAIN * 2.0 ** min(max(failures - 1, 0), 10), _LONGEST_PAUSE)


class MirroredDevice:
    """One device of the telescope."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[str, MirroredAttribute] = {}
        self.leaving: set[str] = set()
        """Attributes that are subscribed to, and are not wanted any more."""
        self.due = 0.0
        """When it is asked next [monotonic s]."""
        self.is_busy = False
        self.is_lost = True
        """Whether the connection is to be made anew."""
        self.is_deaf = True
        """Whether events are of no use: they are of a connection that is being given up, and end one by one."""
        self.unread: list[str] = []
        """Attributes that were not read yet on this connection."""
        self.failures = 0
        """How often it did not answer, one after the other."""
        self.list_at = float("inf")
        """When it is to name its attributes [monotonic s]."""

    @property
    def is_done_with(self) -> bool:
        """Return whether nothing is wanted of it."""
        return not self.entries and not self.leaving and self.list_at == float("inf")

    def job(self, now: float) -> DeviceJob:
        """Return its next job."""
        if self.is_lost:
            self.unread, self.leaving = list(self.entries), set()
            self.is_deaf = True
        anew, self.is_lost = self.is_lost, False
        first = [name for name in self.unread if name in self.entries][:MOST_AT_ONCE]
        self.unread = [name for name in self.unread if name in self.entries][MOST_AT_ONCE:]
        leave, self.leaving = tuple(sorted(self.leaving)), set()
        names = self.list_at <= now
        if first:
            return DeviceJob(self.name, tuple(first), (), leave, anew, names)
        entries = self.entries.values()
        subscribe = [one for one in entries if one.push_at <= now][:MOST_AT_ONCE]
        for one in subscribe:
            one.is_unsure = True
        # The longest wait comes first: others may be due again before it had its turn.
        read = [one.name for one in sorted(entries, key=lambda one: one.read_at) if one.read_at <= now]
        return DeviceJob(
            self.name, tuple(read[:MOST_AT_ONCE]), tuple(one.name for one in subscribe), leave, anew, names
        )

    def next_due(self, now: float) -> float:
        """Return when to ask it next [monotonic s]."""
        if self.unread or self.leaving:
            return now
        return min((min(one.read_at, one.push_at) for one in self.entries.values()), default=self.list_at)
