"""A controller's position on each partition of ``commands``, and the proof that a command's partition is still its own.

The group gives each partition to one member at a time, and each device's commands are on one partition. A suspended
member does not know of changes in the group. `Ownership.check` is the only place that finds them:

- The client learns of a revoked partition before another member can get it. A command that has not begun by then is
  lost: the other member may begin it.
- The broker refuses a commit of an expelled member. An answered commit is therefore a proof, and holds for `PROVEN` s,
  in which the group cannot give the partition to another member.
"""

import logging
import math
import threading
from collections import defaultdict
from enum import Enum

from facade.flows.commands.outcomes import BY_FACADE, FINAL
from facade.flows.commands.tracker import Tracker
from facade.kernel.bus.port import GroupMember
from facade.kernel.clock import Clock
from facade.kernel.errors import BusError
from facade.sdk.controller.command_state import State
from facade.sdk.controller.execution_state import CommandOffset, Execution

_log = logging.getLogger(__name__)

PROVEN = 3.0
"""Time for which the proof of a partition holds [s]: half of the session time-out of the group."""
KNOWN = math.inf
"""Age of a proof for `Ownership.check` without a request to the broker."""
_AWAY = 10.0
"""Time for which a running command waits for its partition to come back [s]."""
_RETRY = 0.2
"""Pause before the broker is asked again [s]."""
_LATEST = 1.0
"""Longest time until finished offsets are committed, while commands come [s]."""


class Owner(Enum):
    """The member of the group that has the partition of a command."""

    SELF = "this controller has it, and no other one can have begun the command since"
    OTHER = "another member has it, or may have had it"
    UNKNOWN = "the broker has not answered in time"


class Ownership:
    """The partitions of one member; may be used from several threads.

    Commands end in any order. The smallest unfinished offset is committed: a command that ends early does not commit
    one that still runs.
    """

    def __init__(self, member: GroupMember, tracker: Tracker, *, clock: Clock) -> None:
        self._member = member
        self._tracker = tracker
        self._clock = clock
        self._unfinished: dict[int, set[int]] = defaultdict(set)
        self._after: dict[int, int] = {}
        """By partition: the offset after the newest record read."""
        self._committed: dict[int, int] = {}
        self._asked = float("-inf")
        """Time of the newest commit request [monotonic s]."""
        self._closed = False
        self._lock = threading.Lock()
        self._committing = threading.Lock()

    def check(self, execution: Execution, *, max_age: float = 0.0, within: float = math.inf) -> Owner:
        """Find the member that has the partition of a command; see the module.

        A command whose handler runs continues when its partition has come back. The thread that reads the topics must
        call this only with `KNOWN`, as it would wait for an answer that only itself can read.

        Parameters
        ----------
        max_age
            Greatest sufficient age of a proof [s].
        within
            Longest wait for a silent broker [s].
        """
        partition, _, assigned = execution.offset
        until = self._clock.monotonic() + within
        while execution.state is not State.LOST and (not (own := self._member.assignment) or partition in own):
            now, held = self._clock.monotonic(), self._member.holds(partition, assigned)
            if held and now - execution.proven < max_age:
                return Owner.SELF
            if not held and not execution.runs:
                return Owner.OTHER
            try:
                self._prove(partition)
            except BusError as error:
                if self._closed or self._clock.monotonic() > until:
                    return Owner.UNKNOWN
                _log.warning("not known whose partition %s is, asking again: %s", partition, error)
                self._clock.sleep(_RETRY)
            else:
                execution.proven = now
                return Owner.OTHER if execution.runs and self._has_outcome(execution) else Owner.SELF
        return Owner.OTHER

    def require(self, execution: Execution) -> None:
        """Make sure, before a report, that no other controller can have begun the command.

        A command that is not repeatable stays with the controller that has begun it. Another controller begins a
        repeatable one again after it has got the partition.

        Raises
        ------
        Cancelled
            Another controller owns it: its partition has moved while this process was suspended.
        """
        if execution.message.repeatable and not execution.moved:
            execution.moved = self.check(execution, max_age=PROVEN, within=_AWAY) is not Owner.SELF
            if execution.moved:
                execution.cancel("its partition is another controller's")
        if execution.moved:
            execution.check()

    def _has_outcome(self, execution: Execution) -> bool:
        known = self._tracker.newest(execution.device, execution.id)
        return known is not None and known.status in FINAL - BY_FACADE

    def take(self, offset: CommandOffset) -> None:
        """Note that a record was read, perhaps not for the first time."""
        with self._lock:
            if offset.partition not in self._after:
                self._committed[offset.partition] = offset.offset  # the partition begins at the committed offset
            self._unfinished[offset.partition].add(offset.offset)
            self._after[offset.partition] = max(self._after.get(offset.partition, 0), offset.offset + 1)

    def finish(self, offset: CommandOffset) -> None:
        """Note that a record need not be read again."""
        with self._lock:
            self._unfinished[offset.partition].discard(offset.offset)

    def lose(self, partition: int) -> None:
        """Forget a partition that has moved to another member."""
        with self._lock:
            self._unfinished.pop(partition, None)
            self._after.pop(partition, None)
            self._committed.pop(partition, None)

    def commit_or_later(self, *, busy: bool = False) -> None:
        """Commit finished offsets; a failed commit is repeated the next time. Never waits for another thread.

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

    def close(self) -> None:
        """Commit finished offsets and leave the group; later checks send no request."""
        self._closed = True
        self.commit_or_later()
        self._member.close()

    def _prove(self, partition: int) -> None:
        """Have the broker confirm a partition, by a commit that excludes unfinished commands."""
        with self._committing:
            with self._lock:
                if partition not in self._after:
                    raise BusError(f"partition {partition} is another member's")
                # There may be nothing new to commit, but a request is needed.
                due = {**self._due(), partition: self._reached(partition)}
            self._commit(due)

    def _commit(self, offsets: dict[int, int]) -> None:
        self._asked = self._clock.monotonic()
        self._member.commit(offsets)
        with self._lock:
            self._committed.update(offsets)

    def _reached(self, partition: int) -> int:
        after = self._after[partition]
        reached = min(self._unfinished[partition], default=after)
        assert reached <= after, f"partition {partition}: offset {reached} would be committed, and {after} is next"
        return reached

    def _due(self) -> dict[int, int]:
        reached = {partition: self._reached(partition) for partition in self._after}
        return {partition: at for partition, at in reached.items() if at != self._committed.get(partition)}
