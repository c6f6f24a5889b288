"""A device of the telescope and its mirrored attributes: their state, their next records, the device's next job."""

from typing import Literal, cast

import msgspec

from facade.flows.mirror.messages import CONNECTED, DISCONNECTED, ENDED, MirrorWriter, TelescopeAttribute, writer_of
from facade.flows.mirror.source import AttributeValue, DeviceJob
from facade.kernel.clock import NEVER, Time
from facade.sdp.messages import TelescopeAttributeConnection, TelescopeAttributeQuality

By = Literal["EVENT", "POLL"]
_LONGEST_LABEL, _LONGEST_ERROR = 200, 500
ALIVE = 2.0
"""Time between two keep-alive requests to a device [s]."""
MOST_AT_ONCE = 50
AGAIN, _LONGEST_PAUSE = 1.0, 30.0
"""Pause after one failed try, and after many [s]."""


class MirroredAttribute:
    """One attribute; `newest` is its newest record, from an earlier mirror: later values were missed."""

    def __init__(self, name: str, own: MirrorWriter, newest: TelescopeAttribute | None = None) -> None:
        self.name, self._own = name, own
        self.newest = newest
        """The newest record; its time is the time of the last read or event."""
        self.is_broken = newest is not None
        """Whether values may have been missed since the newest record."""
        self.is_unsure = False
        """Whether a value may be missing before the next change, as events are lost during a subscription's setup."""
        self.is_doubtful = False
        """Whether the last read differed from the newest event: a later event may be under way, or lost."""
        self.period = 1.0
        """Time between two reads, if the device does not push [s]."""
        self.is_pushed: bool | None = None
        """Whether the device pushes changes; None: unknown, so that values may be missing before the next one."""
        self.read_at, self.push_at = float("inf"), 0.0
        """Times of the next read, and of the next attempt to subscribe [monotonic s]."""
        self.seen_at = float("-inf")
        """Time of the last value, by an event or a read [monotonic s]."""

    @property
    def connection(self) -> str:
        """Return the connection of the newest record; empty: there is none."""
        return self.newest.connection if self.newest is not None else ""

    def see(self, seen: AttributeValue, by: By, now: Time) -> TelescopeAttribute | None:
        """Process a value of this moment, and return its record; None: it is known already."""
        newest, was_doubtful = self.newest, self.is_doubtful
        self.is_doubtful = False
        if newest is not None and newest.connection == CONNECTED:
            # A failed read has no time, and after it the time of the newest record is ours, not the device's.
            if by == "POLL" and self.is_pushed and not newest.error and NEVER < seen.time < newest.time:
                return None  # an event has overtaken it
            same = (newest.value, newest.type, newest.quality) == (seen.value, seen.type, seen.quality)
            is_known = same and newest.error == seen.error[:_LONGEST_ERROR]
            is_timeless = by == "POLL" or not seen.time
            if is_known and (seen.time == newest.time or (is_timeless and not self.is_broken)):
                self.is_broken = self.is_unsure = False
                if not self._is_own:  # no value is missing after the record of the previous mirror
                    return self._say(seen._replace(time=seen.time or now), CONNECTED, by)
                by = newest.by if self.is_pushed else by
                self.newest = msgspec.structs.replace(newest, time=seen.time or now, by=by)
                return None
            if by == "POLL" and self.is_pushed:
                if not (self.is_unsure or self.is_broken or was_doubtful):
                    self.is_doubtful = True
                    return None
                self.is_broken = True  # the value has changed without an event
        if self.is_pushed is None:
            self.miss()
        # A missing value has no time: the time of this finding is used.
        return self._say(seen if seen.time else seen._replace(time=now), CONNECTED, by)

    def miss(self) -> None:
        """Note that values may have been missed."""
        self.is_broken = self.newest is not None

    def disconnect(self, why: str, now: Time) -> TelescopeAttribute | None:
        """Note that its device is away, and return the record; None: it is known."""
        self.is_pushed, self.read_at, self.push_at = None, float("inf"), 0.0
        return None if self.connection == DISCONNECTED and self._is_own else self._leave(DISCONNECTED, why, now)

    def overlook(self, why: str, now: Time) -> TelescopeAttribute:
        """Note that it was not read for long, and return the record."""
        return self._leave(DISCONNECTED, why, now)

    def end(self, now: Time) -> TelescopeAttribute | None:
        """Note that it is not mirrored any more, and return the record; None: it is known."""
        return None if self.connection in ("", ENDED) else self._leave(ENDED, "", now)

    @property
    def _is_own(self) -> bool:
        """Return whether the newest record is of this mirror: only own records are repeated as heartbeats."""
        return self.newest is not None and writer_of(self.newest) == self._own

    def _leave(self, connection: TelescopeAttributeConnection, why: str, now: Time) -> TelescopeAttribute:
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
            time=max(seen.time, NEVER),
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
    """Return the pause after consecutive failures [s]."""
    return min(AGAIN * 2.0 ** min(max(failures - 1, 0), 10), _LONGEST_PAUSE)


class MirroredDevice:
    """One device of the telescope."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[str, MirroredAttribute] = {}
        self.leaving: set[str] = set()
        """Attributes with a subscription that are not wanted any more."""
        self.due = 0.0
        """Time of the next job [monotonic s]."""
        self.is_busy = False
        self.is_lost = True
        """Whether a new connection is needed."""
        self.is_deaf = True
        """Whether events are ignored: they belong to a connection that is being closed, and end one by one."""
        self.unread: list[str] = []
        """Attributes not yet read on this connection."""
        self.failures = 0
        self.list_at = float("inf")
        """Time of the next request for its attributes [monotonic s]."""

    @property
    def is_done_with(self) -> bool:
        """Return whether none of its attributes is wanted."""
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
        # The longest wait comes first: the others may be due again before.
        read = [one.name for one in sorted(entries, key=lambda one: one.read_at) if one.read_at <= now]
        return DeviceJob(
            self.name, tuple(read[:MOST_AT_ONCE]), tuple(one.name for one in subscribe), leave, anew, names
        )

    def next_due(self, now: float) -> float:
        """Return the time of its next job [monotonic s]."""
        if self.unread or self.leaving:
            return now
        return min((min(one.read_at, one.push_at) for one in self.entries.values()), default=self.list_at)
