"""How far a controller is with each partition, when commands end in any order; and what it commits of that.

What is committed is the smallest offset that is not finished: a command that ends early does not carry
away one that still runs.
"""

import logging
import threading
from collections import defaultdict

from facade.bus.port import GroupMember
from facade.clock import Clock
from facade.controller.api import Call
from facade.errors import BusError

_log = logging.getLogger(__name__)

_LATEST = 1.0
"""While commands come, longest time until what is finished is committed [s]."""


class Offsets:
    """The offsets of one member; may be used from several threads."""

    def __init__(self, member: GroupMember, *, clock: Clock) -> None:
        self._member = member
        self._clock = clock
        self._unfinished: dict[int, set[int]] = defaultdict(set)
        self._after: dict[int, int] = {}
        """By partition: the offset behind the newest record taken."""
        self._committed: dict[int, int] = {}
        self._asked = float("-inf")
        """When the newest commit was asked for [monotonic s]."""
        self._lock = threading.Lock()
        self._committing = threading.Lock()

    def take(self, partition: int, offset: int) -> None:
        """Note that a record was taken, perhaps not for the first time."""
        with self._lock:
            if partition not in self._after:
                self._committed[partition] = offset  # it begins where the group has committed
            self._unfinished[partition].add(offset)
            self._after[partition] = max(self._after.get(partition, 0), offset + 1)

    def finish(self, partition: int, offset: int) -> None:
        """Note that a record needs never be taken again."""
        with self._lock:
            self._unfinished[partition].discard(offset)

    def lose(self, partition: int) -> None:
        """Forget a partition that is another's."""
        with self._lock:
            self._unfinished.pop(partition, None)
            self._after.pop(partition, None)
            self._committed.pop(partition, None)

    def prove(self, call: Call) -> None:
        """Find out that a command's partition is still ours, by a commit that leaves the command to be taken again.

        A call that has moved to another member is left as it is.

        Raises
        ------
        BusError
            It is not known whose it is.
        """
        partition, _ = call.place
        with self._committing:
            with self._lock:
                if call.moved:
                    return
                # There may be nothing new to commit, but whose it is must be asked.
                due = {**self._due(), partition: self._reached(partition)}
            self._commit(due)

    def commit_or_later(self, *, busy: bool = False) -> None:
        """Commit what is finished; what fails is tried again the next time. Never waits for another thread.

        Parameters
        ----------
        busy
            A command has just come: its own proof, which commits the rest as well, must not wait behind this.
        """
        if busy and self._clock.monotonic() - self._asked < _LATEST:
            return
        if not self._committing.acquire(blocking=False):
            return  # a command is about to begin, and its thread waits for this one
        try:
            with self._lock:
                due = self._due()
            if due:
                self._commit(due)
        except BusError as error:
            _log.warning("offsets will be committed later: %s", error)
        finally:
            self._committing.release()

    def _commit(self, offsets: dict[int, int]) -> None:
        self._asked = self._clock.monotonic()
        self._member.commit(offsets)
        with self._lock:
            self._committed.update(offsets)

    def _reached(self, partition: int) -> int:
        return min(self._unfinished[partition], default=self._after[partition])

    def _due(self) -> dict[int, int]:
        reached = {partition: self._reached(partition) for partition in self._after}
        return {partition: at for partition, at in reached.items() if at != self._committed.get(partition)}
