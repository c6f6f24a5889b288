"""The newest alerts and actions in memory, so that a client that missed events can ask for them at any time."""

import threading

LogEntry = tuple[int, bytes]
"""Sequence number and JSON."""


class AlertLog:
    """A bounded list of entries in the order of their sequence numbers; one thread writes, any may read.

    Parameters
    ----------
    most
        Entries kept.
    most_bytes
        Their texts, all together.
    """

    def __init__(self, most: int, most_bytes: int = 256_000_000) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._entries: list[LogEntry] = []
        self._begin = 0
        """Index of the oldest entry that is still kept."""
        self._lock = threading.Lock()
        self.complete_from = 0
        """Everything with a higher sequence number than this is here."""

    @property
    def newest(self) -> int:
        """Return the newest sequence number; 0: there is none."""
        with self._lock:
            return self._entries[-1][0] if self._entries else 0

    def append(self, sequence: int, text: bytes) -> None:
        """Add an entry; its number must be higher than the newest."""
        with self._lock:
            if not self._entries:
                self.complete_from = sequence - 1
            self._entries.append((sequence, text))
            self._bytes += len(text)
            while len(self._entries) - self._begin > self._most or self._bytes > self._most_bytes:
                self.complete_from, oldest = self._entries[self._begin]
                self._entries[self._begin] = (self.complete_from, b"")
                self._bytes -= len(oldest)
                self._begin += 1
            if self._begin > self._most:  # now and then, so that it costs nothing per entry
                del self._entries[: self._begin]
                self._begin = 0

    def since(self, sequence: int, most: int, most_bytes: int = 2**62) -> list[LogEntry]:
        """Return the first entries whose numbers are higher than a given one: one at least, if there is any."""
        with self._lock:
            low, high = self._begin, len(self._entries)
            while low < high:
                middle = (low + high) // 2
                if self._entries[middle][0] <= sequence:
                    low = middle + 1
                else:
                    high = middle
            found = self._entries[low : low + most]
        size = 0
        for index, (_, text) in enumerate(found):
            size += len(text)
            if size >= most_bytes:
                return found[: index + 1]
        return found
