"""What the mirror writes, as fast as the bus takes it; while it does not, only the newest of each attribute is kept."""

from collections import deque

from msgspec.structs import replace

from facade.bus.port import QueueingWriter
from facade.flows.mirror.messages import MODEL, TelescopeAttribute, attribute_record
from facade.flows.mirror.streaming import Forms, no_forms

MOST_UNDER_WAY = 5000
"""Records that may wait for the bus to confirm them."""


class Outbox:
    """Writes records of attributes; never waits.

    Parameters
    ----------
    forms
        Makes further records of each.
    """

    def __init__(self, writer: QueueingWriter, forms: Forms = no_forms) -> None:
        self._writer, self._forms = writer, forms
        self._held: dict[str, TelescopeAttribute] = {}
        """What is to be written, by name."""
        self._queue: list[TelescopeAttribute] = []
        self._under_way: deque[tuple[int, int]] = deque()
        """Marks, and how many records stand between each and the one before."""
        self.records = 0
        """Records written."""
        self.gaps = 0
        """Records that say that others before them were not written."""

    @property
    def waiting(self) -> int:
        """Count the records that the bus has not confirmed."""
        return len(self._queue) + len(self._held) + sum(count for _, count in list(self._under_way))

    @property
    def failed(self) -> int:
        """Count the records that the bus did not take."""
        return self._writer.failures(MODEL)

    def put(self, message: TelescopeAttribute | None) -> None:
        """Take a record."""
        if message is not None:
            self._queue.append(message)

    def send(self) -> None:
        """Write what may be written now."""
        while self._under_way and self._writer.settled(self._under_way[0][0]):
            self._under_way.popleft()
        room = MOST_UNDER_WAY - sum(count for _, count in self._under_way)
        if self._held or len(self._queue) > room:
            self._hold()
            if room <= 0:
                return
        ready = [self._held.pop(name) for name in list(self._held)[:room]] + self._queue
        self._queue = []
        if not ready:
            return
        for message in ready:
            self._writer.send(attribute_record(message))
            for record in self._forms(message):
                self._writer.send(record)
        self.records += len(ready)
        self._under_way.append((self._writer.mark(), len(ready)))

    def _hold(self) -> None:
        for message in self._queue:
            before = self._held.get(message.name)
            skips = before is not None and before.number != message.number
            self.gaps += skips
            # The sign of life of a record that stands here says nothing of what was left out before that record.
            is_gap = skips or (before is not None and before.gap)
            self._held[message.name] = replace(message, gap=True) if is_gap else message
        self._queue = []
