"""What a device server with commands does all the time: it ends what is overdue."""

from collections.abc import Callable
from typing import Protocol

from facade.bus.port import Record
from facade.clock import Clock
from facade.flows.commands.lease import TERM, Lease
from facade.flows.commands.messages import ack_record
from facade.flows.commands.tracker import Tracker


class Post(Protocol):
    """Writes records without waiting."""

    def post(self, record: Record) -> None:
        """Queue a record; a failure is counted and logged, not raised."""


class CommandDeadlines:
    """Called by the event loop in each cycle; see `facade.runtime.event_loop`.

    Parameters
    ----------
    origin
        Name of this server in the acknowledgements that it writes.
    caught_up
        Whether all commands and acknowledgements that are on the bus have been read: an outcome that waits there to be
        read is the one that holds, so that nothing is overdue before.
    """

    def __init__(
        self,
        *,
        origin: str,
        post: Post,
        lease: Lease,
        tracker: Tracker,
        caught_up: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._origin, self._post, self._lease, self._tracker = origin, post, lease, tracker
        self._caught_up, self._clock = caught_up, clock

    def perform(self) -> None:
        """Send what is due."""
        monotonic = self._clock.monotonic()
        # Who has not heard its own heartbeats come back for a while has not heard either what controllers say.
        if self._caught_up() and self._lease.held_for(monotonic) >= TERM:
            for ack in self._tracker.due(round(self._clock.now() * 1e6), monotonic, self._origin):
                self._post.post(ack_record(ack))

    def end(self) -> None:
        """Give the lease back: after the last sign of life the next start need not wait for it to lapse."""
        self._lease.release()
