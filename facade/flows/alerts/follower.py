"""Puts the alerts and actions that a client receives in order, without repetitions.

Events may be lost. Each event names the number before it, so the next event shows a gap; and the device shows the
newest number, so the loss of the last event shows as well. The client fetches missing entries with GetAlertsSince. No
I/O here, and no clock.
"""

import heapq
from typing import Any

import msgspec

MOST_HELD = 10_000
"""Events after a gap that are held back; further ones are dropped, and fetched later."""


class FollowedAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert or an action, as in the attribute lastAlert."""

    sequence: int
    """Sequence number."""
    previous: int
    """Sequence number of the entry before it."""
    time: float
    """Append time at the bus [Unix s]."""
    alert: dict[str, Any] | None = None
    """The alert, by the fields of ``alert.schema.json``."""
    action: dict[str, Any] | None = None
    """The operator's action, by the fields of ``alert-action.schema.json``."""


class Page(msgspec.Struct, frozen=True):
    """An answer of GetAlertsSince: all entries after a number, up to the last one here."""

    newest: int
    entries: list[FollowedAlert]
    numbering: str = ""
    """Identity of the sequence numbers; numbers of another identity are not comparable. Empty text: the device has
    none."""


_REFRESH = '{"refresh"'
"""Begin of the events of RefreshAlerts: they are no alerts, and have no sequence number."""
_decode_event = msgspec.json.Decoder(FollowedAlert).decode
_decode_page = msgspec.json.Decoder(Page).decode


class Follower:
    """Returns all entries after a number, in order.

    Numbers continue when the log is created again. If the device has lost its snapshot as well, they begin with 1: an
    answer then has another numbering, or a newest number below `start`.

    Parameters
    ----------
    start
        Number of the last known entry; 0: none.
    """

    def __init__(self, start: int, *, numbering: str = "", most_held: int = MOST_HELD) -> None:
        self.seen = start
        """Number of the last returned entry."""
        self.by_event = self.by_page = 0
        """Returned entries, by way of delivery."""
        self.again = 0
        """Events of known entries."""
        self.overtaken = 0
        """Events that came before earlier entries."""
        self.unusable = 0
        """Unreadable events."""
        self.numbering = numbering
        """As of the newest answer."""
        self.made_anew = 0
        """Number of times that the numbers have begun with 1 again."""
        self._most_held = most_held
        self._known = start
        """Highest known number."""
        self._doubted = False
        """Whether the device has reported a lower number: it is starting, or the log is another one."""
        self._held: dict[int, FollowedAlert] = {}
        self._order: list[int] = []
        """A heap of the numbers held back."""

    def take(self, text: str) -> list[FollowedAlert]:
        """Process an event of lastAlert; return the entries that are in order now."""
        if text.startswith(_REFRESH):
            return []
        try:
            entry = _decode_event(text)
        except (msgspec.MsgspecError, UnicodeError):
            self.unusable += 1  # if it was an alert, the next one shows a gap
            return []
        if entry.sequence <= self.seen or entry.sequence in self._held:
            self.again += 1
            return []
        self._known = max(self._known, entry.sequence)
        if entry.previous > self.seen:
            self._hold(entry)
            return []
        self.by_event += 1
        return self._follow([entry])

    def add_page(self, asked: int, text: str) -> list[FollowedAlert]:
        """Process the answer to GetAlertsSince(`asked`); return the entries that are in order now.

        Raises
        ------
        msgspec.MsgspecError
            It is not such an answer.
        """
        page = _decode_page(text)
        known, self.numbering = self.numbering, page.numbering or self.numbering
        if 0 < page.newest < asked or (known and known != self.numbering):
            self._begin_anew(page.newest)
            return []
        if asked > self.seen:
            return []  # the request was about the former log
        self._doubted = False
        entries = [entry for entry in page.entries if entry.sequence > self.seen]
        self.by_page += len(entries)
        given = self._follow(entries)
        if self.seen >= page.newest and not self._held:
            self._known = self.seen  # a higher number belonged to the former log
        return given

    def announce(self, newest: int) -> None:
        """Process the newest number, from the attribute alertSequence."""
        self._known = max(self._known, newest)
        self._doubted = newest < self.seen

    def doubt(self) -> None:
        """Make a request due at once: the device was away, and its numbers may have changed."""
        self._doubted = True

    def missing(self) -> int | None:
        """Return the argument for GetAlertsSince; None: no entry is known to be missing."""
        return self.seen if self._known > self.seen or self._doubted else None

    def skip(self, sequence: int) -> list[FollowedAlert]:
        """Give up all entries up to a number that is no longer available; return the entries after it."""
        self.seen = max(self.seen, sequence)
        return self._follow([])

    def _hold(self, entry: FollowedAlert) -> None:
        self.overtaken += 1
        if len(self._held) >= self._most_held:
            return  # it is fetched later
        assert entry.sequence > self.seen, f"{entry.sequence} would be held back after {self.seen} was given"
        self._held[entry.sequence] = entry
        heapq.heappush(self._order, entry.sequence)

    def _follow(self, entries: list[FollowedAlert]) -> list[FollowedAlert]:
        if entries:
            self.seen = entries[-1].sequence
        while self._order and self._held[self._order[0]].previous <= self.seen:
            entry = self._held.pop(heapq.heappop(self._order))
            if entry.sequence <= self.seen:
                self.again += 1
                continue
            self.by_event += 1
            self.seen = entry.sequence
            entries.append(entry)
        held, order = len(self._held), len(self._order)
        assert held == order, f"{held} entries are held back, of which {order} would be given"
        return entries

    def _begin_anew(self, newest: int) -> None:
        self.made_anew += 1
        self.seen, self._known, self._doubted = 0, newest, False
        self._held.clear()
        self._order.clear()
