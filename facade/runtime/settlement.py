"""Settles what must not be lost: events are sent, states are durable, and only then the place to go on from."""

from collections.abc import Sequence

from facade.bus.port import QueueingWriter, Record
from facade.runtime.flow import Effects


class Settlement:
    """Holds snapshots back until everything that they build on is on all in-sync replicas; never waits.

    Parameters
    ----------
    effects
        Whose states must be durable before a snapshot may count on them.
    """

    def __init__(self, effects: Effects, writer: QueueingWriter) -> None:
        self._effects = effects
        self._writer = writer
        self._prepared: Sequence[Record] = ()
        self._mark = 0
        self._failed = 0
        """Lost states, as of when all were last known to be durable, or asked for again."""

    @property
    def open(self) -> bool:
        """Return whether snapshots are held back."""
        return bool(self._prepared)

    def prepare(self, snapshots: Sequence[Record]) -> None:
        """Take snapshots of now: every event has been sent, and every state is queued."""
        self._prepared, self._mark = snapshots, self._writer.mark()

    def proceed(self) -> None:
        """Send the snapshots if it is time; drop them if a state was lost, which is then written again."""
        if not self._prepared or not self._writer.settled(self._mark):
            return
        failed = self._writer.failures(self._effects.recalls)
        if failed == self._failed:
            for record in self._prepared:
                self._writer.send(record)
        else:
            self._failed = failed
            self._effects.again()
        self._prepared = ()
