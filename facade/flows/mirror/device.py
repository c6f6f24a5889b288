"""One device of the telescope, as the mirror has it: what it is asked for next, and when."""

from facade.flows.mirror.entry import Entry
from facade.flows.mirror.source import Job

ALIVE = 2.0
"""Time between two signs of life of a device [s]."""
MOST_AT_ONCE = 50
"""Attributes that a device is asked for in one job."""
AGAIN, _LONGEST_PAUSE = 1.0, 30.0
"""Pause before something is tried again that did not answer once, and many times [s]."""


def pause_after(failures: int) -> float:
    """Return how long to leave alone what did not answer so often one after the other [s]."""
    return min(AGAIN * 2.0 ** min(max(failures - 1, 0), 10), _LONGEST_PAUSE)


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
        self.failures = 0
        """How often it did not answer, one after the other."""
        self.list_at = float("inf")
        """When it is to name its attributes [monotonic s]."""

    @property
    def is_done_with(self) -> bool:
        """Return whether nothing is wanted of it."""
        return not self.entries and not self.leaving and self.list_at == float("inf")

    def job(self, now: float) -> Job:
        """Return what is to be done with it."""
        if self.is_lost:
            self.unread, self.leaving = list(self.entries), set()
            self.is_deaf = True
        anew, self.is_lost = self.is_lost, False
        first = [name for name in self.unread if name in self.entries][:MOST_AT_ONCE]
        self.unread = [name for name in self.unread if name in self.entries][MOST_AT_ONCE:]
        leave, self.leaving = tuple(sorted(self.leaving)), set()
        names = self.list_at <= now
        if first:
            return Job(self.name, tuple(first), (), leave, anew, names)
        entries = self.entries.values()
        subscribe = [one for one in entries if one.push_at <= now][:MOST_AT_ONCE]
        for one in subscribe:
            one.is_unsure = True
        # Who waits longest comes first: the others may be due again before it had its turn.
        read = [one.name for one in sorted(entries, key=lambda one: one.read_at) if one.read_at <= now]
        return Job(self.name, tuple(read[:MOST_AT_ONCE]), tuple(one.name for one in subscribe), leave, anew, names)

    def next_due(self, now: float) -> float:
        """Return when it is to be asked next."""
        if self.unread or self.leaving:
            return now
        return min((min(one.read_at, one.push_at) for one in self.entries.values()), default=self.list_at)
