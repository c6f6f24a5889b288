"""Puts the alerts and actions that a client receives in order, each once.

Events can get lost on their way. Each one names the number before it, so a gap shows with the next event; and the
device shows the newest number, so the loss of the last event shows as well. The client fetches missing entries with
GetAlertsSince. No I/O here, and no clock.
"""

import heapq
from typing import Any

import msgspec

MOST_HELD = 10_000
"""Events behind a gap that are held back; further ones are dropped, and asked for later."""


class FollowedAlert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert or an action, as in the attribute lastAlert."""

    sequence: int
    """Its number."""
    previous: int
    """Number of the entry before it."""
    time: float
    """Time at which the bus took it [Unix s]."""
    alert: dict[str, Any] | None = None
    """The alert, by the fields of ``alert.schema.json``."""
    action: dict[str, Any] | None = None
    """The operator's action, by the fields of ``alert-action.schema.json``."""


class Page(msgspec.Struct, frozen=True):
    """An answer of GetAlertsSince: everything that followed a number, up to the last entry here."""

    newest: int
    entries: list[FollowedAlert]
    numbering: str = ""
    """Which numbers they are; others have nothing to do with them. Empty text: the device does not say."""


_REFRESH = '{"refresh"'
"""How the events of RefreshAlerts begin: they are no alerts, and have no number of their own."""
_decode_event = msgspec.json.Decoder(FollowedAlert).decode
_decode_page = msgspec.json.Decoder(Page).decode


class Follower:
    """Gives out everything after a number, in order.

    Numbers go on when the log is made again. If the device has lost its snapshot as well, they begin with 1: an answer
    then has another numbering, or a newest number below `start`.

    Parameters
    ----------
    start
        Number of the last known entry; 0: everything is wanted.
    """

    def __init__(self, start: int, *, numbering: str = "", most_held: int = MOST_HELD) -> None:
        self.seen = start
        """Number of the last one that was given out."""
        self.by_event = self.by_page = 0
        """Entries given out, by how they came."""
        self.again = 0
        """Events that came though they were known already."""
        self.overtaken = 0
        """Events that came before others that belong before them."""
        self.dropped = self.unusable = 0
        """Events for which there was no room, and that could not be read."""
        self.numbering = numbering
        """As the newest answer said."""
        self.made_anew = 0
        """How often the numbers have begun with 1 again."""
        self._most_held = most_held
        self._known = start
        """Highest number heard of."""
        self._doubted = False
        """Whether the device has named a lower number: it is starting, or the log is another one."""
        self._held: dict[int, FollowedAlert] = {}
        self._order: list[int] = []
        """A heap of the numbers held."""

    def take(self, text: str) -> list[FollowedAlert]:
        """Take an event of lastAlert; return the entries that are in order now."""
        if text.startswith(_REFRESH):
            return []
        try:
            entry = _decode_event(text)
        except (msgspec.MsgspecError, UnicodeError):
            self.unusable += 1  # if it was an alert, there is a gap before the next one
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
        """Take the answer to GetAlertsSince(`asked`); return the entries that are in order now.

        Raises
        ------
        msgspec.MsgspecError
            It is no such answer.
        """
        page = _decode_page(text)
        known, self.numbering = self.numbering, page.numbering or self.numbering
        if 0 < page.newest < asked or (known and known != self.numbering):
            self._begin_anew(page.newest)
            return []
        if asked > self.seen:
            return []  # asked of the former log
        self._doubted = False
        entries = [entry for entry in page.entries if entry.sequence > self.seen]
        self.by_page += len(entries)
        given = self._follow(entries)
        if self.seen >= page.newest and not self._held:
            self._known = self.seen  # a higher number was of the former log
        return given

    def announce(self, newest: int) -> None:
        """Take the newest number there is, as the attribute alertSequence shows it."""
        self._known = max(self._known, newest)
        self._doubted = newest < self.seen

    def doubt(self) -> None:
        """Make a question due at once: the device was away, and its numbers may have changed."""
        self._doubted = True

    def missing(self) -> int | None:
        """Return the argument for GetAlertsSince; None: nothing is known to be missing."""
        return self.seen if self._known > self.seen or self._doubted else None

    def skip(self, sequence: int) -> list[FollowedAlert]:
        """Give up everything up to a number, which is no longer available; return the entries that follow."""
        self.seen = max(self.seen, sequence)
        return self._follow([])

    def _hold(self, entry: FollowedAlert) -> None:
        self.overtaken += 1
        if len(self._held) >= self._most_held:
            self.dropped += 1
            return
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
        return entries

    def _begin_anew(self, newest: int) -> None:
        self.made_anew += 1
        self.seen, self._known, self._doubted = 0, newest, False
        self._held.clear()
        self._order.clear()
