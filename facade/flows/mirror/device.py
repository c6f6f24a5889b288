"""One device of the telescope, as the mirror has it: what it is asked for next, and when."""

from facade.flows.mirror.entry import Entry
from facade.flows.mirror.source import Job

ALIVE = 2.0
"""Time between two signs of life of a device [s]."""
MOST_AT_ONCE = 50
"""Attributes that a device is asked for in one job."""


class Device:
    """One device of the telescope."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[str, Entry] = {}
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

    def job(self, now: float) -> Job:
        """Return what is to be done with it."""
        if self.is_lost:
            self.unread, self.leaving = list(self.entries), set()
            self.is_deaf = True
        anew, self.is_lost = self.is_lost, False
        first = [name for name in self.unread if name in self.entries][:MOST_AT_ONCE]
        self.unread = [name for name in self.unread if name in self.entries][MOST_AT_ONCE:]
        leave, self.leaving = tuple(sorted(self.leaving)), set()
        if first:
            return Job(self.name, tuple(first), (), leave, anew)
        entries = self.entries.values()
        subscribe = [one for one in entries if one.push_at <= now][:MOST_AT_ONCE]
        for one in subscribe:
            one.is_unsure = True
        # Who waits longest comes first: the others may be due again before it had its turn.
        read = [one.name for one in sorted(entries, key=lambda one: one.read_at) if one.read_at <= now]
        return Job(self.name, tuple(read[:MOST_AT_ONCE]), tuple(one.name for one in subscribe), leave, anew)

    def next_due(self, now: float) -> float:
        """Return when it is to be asked next."""
        if self.unread or self.leaving:
            return now
        return min((min(one.read_at, one.push_at) for one in self.entries.values()), default=now + ALIVE)
