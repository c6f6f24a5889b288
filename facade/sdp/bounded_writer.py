"""A writer for records that may be dropped: it knows how many of them have no result yet."""

from collections import deque

from facade.kernel.bus.port import QueueingWriter, Record

MOST_UNDER_WAY = 5000
"""Records without a result from which the writer has no room."""


class BoundedWriter:
    """Counts the records without a result. It never waits, so the sender checks `room` first."""

    def __init__(self, writer: QueueingWriter, topic: str) -> None:
        self._writer, self._topic = writer, topic
        self._marks: deque[tuple[int, int]] = deque()
        """Marks, and the number of records before each since the previous one."""
        self._unmarked = 0
        self.waiting = 0
        """Records without a result; from any thread."""
        self.records = 0
        """Records sent so far."""

    @property
    def room(self) -> int:
        """Return the number of records that may be sent; not positive: none."""
        return MOST_UNDER_WAY - self.waiting

    @property
    def failed(self) -> int:
        """Count the records on the topic whose delivery failed."""
        return self._writer.failures(self._topic)

    def send(self, *forms: Record) -> None:
        """Queue a record, with its other forms, which count as one."""
        assert self.room > 0, f"{self._topic}: a record is sent though {self.waiting} have no result"
        for record in forms:
            self._writer.send(record)
        self._unmarked += 1
        self.waiting += 1
        self.records += 1

    def settle(self) -> None:
        """Look for results."""
        if self._unmarked:
            self._marks.append((self._writer.mark(), self._unmarked))
            self._unmarked = 0
        while self._marks and self._writer.settled(self._marks[0][0]):
            self.waiting -= self._marks.popleft()[1]
        is_open = bool(self._marks)
        assert is_open == (self.waiting > 0), f"{self._topic}: {self.waiting} wait, for {len(self._marks)} marks"
