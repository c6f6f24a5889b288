"""Where a worker stands on each of its partitions, within its open transaction."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from facade.bus.port import Record, Span
from facade.bus.positions import Finding, Verdict, is_other
from facade.bus.worker_positions import (
    ACCOUNTS,
    POSITIONS,
    Beginning,
    Ground,
    Place,
    WorkerPosition,
    begin,
    id_of,
    is_log_of,
    position_record,
    rank_of,
)

_REMEMBERED = 500
"""A worker remembers the ends of so many of its transactions, of each partition."""


def _replay(own: WorkerPosition | None, ends: Sequence[WorkerPosition], start: Beginning, first: int) -> list[int]:
    """Return where the transactions have to end that take again what follows a position older than what was counted.

    Whoever folds refuses a range as a whole, so none may begin with what is counted and end with what is not.
    """
    if own is None or not ends or ends[-1].log != own.log or not is_log_of(start.log, id_of(own.log)):
        return []
    begin = max(own.next, first)
    stops = [one.next for one in ends if begin < one.next < start.offset]
    return [*stops, start.offset] if begin < start.offset else []


@dataclass(slots=True)
class _Standing:
    """Where a worker stands on one partition."""

    span: Span
    group: int
    """What the group has committed."""
    own: tuple[str, int] | None
    """Log and offset of the worker's own newest position."""
    log: str
    """Which log it is behind the last of the stops."""
    stops: list[int] = field(default_factory=list)
    """Offsets at which a transaction has to end."""

    @property
    def is_at_stop(self) -> bool:
        """Return whether the transaction has to end here."""
        return bool(self.stops) and self.span.end >= self.stops[0]


class Standings:
    """Where one worker stands on each of its partitions, within its open transaction.

    Parameters
    ----------
    group
        Consumer group, without the deployment's prefix.
    """

    def __init__(self, group: str, worker: str) -> None:
        self._group, self._worker = group, worker
        self._at: dict[Place, _Standing] = {}
        self._sure: dict[Place, tuple[str, int]] = {}
        self._asked: dict[Place, tuple[str, int]] = {}
        """Log and offset when the topic surely was the one of the log, and when that was last asked."""
        self._ends: dict[Place, deque[WorkerPosition]] = {}
        """Where transactions of this worker ended, as the brokers may forget it."""

    @property
    def spans(self) -> Mapping[Place, Span]:
        """Return what the open transaction covers, of each partition that the worker has."""
        return {place: standing.span for place, standing in self._at.items()}

    def counted(
        self,
        own: Mapping[Place, WorkerPosition],
        accounts: Mapping[Place, Sequence[WorkerPosition]],
        grounds: Mapping[Place, Ground],
    ) -> tuple[dict[Place, WorkerPosition], dict[Place, list[WorkerPosition]]]:
        """Return the oldest position that the bus has of each partition, and where transactions ended behind it.

        A broker that loses the end of a log loses it on `positions` or on `accounts`; one that loses the state of a
        transaction may commit it on the one, and abort it on the other.

        Parameters
        ----------
        accounts
            See `accounted`.
        """
        oldest, found = dict(own), {}
        for place, ground in grounds.items():
            at, said = own.get(place), accounts.get(place, ())
            if at is None and ground.group < 0:  # a group that begins: what others have counted is not its own
                said = ()
            known = {
                rank_of(one): one
                for one in (*said, *self._ends.get(place, ()), *filter(None, [at]))
                if is_log_of(one.log, ground.topic_id) and (at is None or is_log_of(at.log, id_of(one.log)))
            }
            newest = max(said, key=rank_of, default=None)
            if at is not None and newest is not None and newest.log == at.log and newest.next < at.next:
                oldest[place] = at = newest
            found[place] = [one for rank, one in sorted(known.items()) if at is None or rank > rank_of(at)]
        return oldest, found

    def begin(
        self,
        own: Mapping[Place, WorkerPosition],
        grounds: Mapping[Place, Ground],
        counted: Mapping[Place, Sequence[WorkerPosition]] | None = None,
    ) -> list[str]:
        """Begin on new partitions, or again after a transaction that was given up; give what is to be said.

        Parameters
        ----------
        counted
            See the method of that name.
        """
        self._at = {}
        for place, ground in grounds.items():
            mine, ends = own.get(place), (counted or {}).get(place, ())
            start = begin(place, ends[-1] if ends else mine, ground)
            written = _written(mine)
            note = start.note + self._doubt(place, written, start.log, ground.end)
            span = Span(start.log, start.offset, start.offset, note=note, leader_epoch=start.leader_epoch)
            stops = _replay(mine, ends, start, ground.first)
            if mine is not None and stops:
                first = max(mine.next, ground.first)
                again = (
                    f"{place[0]}, partition {place[1]}: offsets {first} to {stops[-1] - 1} are taken again, as the end"
                    f" of `{POSITIONS}` or `{ACCOUNTS}` was lost; what is counted of them is refused"
                )
                note = "; ".join(filter(None, (again, note)))
                span = Span(mine.log, first, first, note=note, leader_epoch=mine.leader_epoch)
            self._at[place] = _Standing(span, ground.group, written, start.log, stops)
        return [standing.span.note for standing in self._at.values() if standing.span.note]

    def _doubt(self, place: Place, written: tuple[str, int] | None, log: str, end: int) -> str:
        """Say what was read since the topic surely was the former one, if it can be of the one that it is now."""
        sure, offset = self._sure.get(place, ("", 0))
        if written is None or sure != written[0] or not is_other(id_of(sure), id_of(log)):
            return ""
        after = min(written[1], end)
        return f"; {Finding(Verdict.DOUBT, place[1], offset, after).describe(place[0])}" if offset < after else ""

    def confirm(self, topic: str, topic_id: str) -> bool:
        """Take the answer to what was asked after the last call: the topic's id; give whether it is still the same."""
        places = [place for place in self._at if place[0] == topic]
        if any(is_other(id_of(self._at[place].span.log), topic_id) for place in places):
            return False
        for place in places:
            span = self._at[place].span
            self._sure[place] = self._asked.get(place, (span.log, span.begin))
            self._asked[place] = (span.log, span.end)
        return True

    def forget(self) -> None:
        """Stand nowhere: partitions were taken away, or the transaction was given up."""
        self._at = {}

    @property
    def is_at_stop(self) -> bool:
        """Return whether the open transaction has to end before more is taken."""
        return any(at.is_at_stop for at in self._at.values())

    def stop(self, place: Place) -> float:
        """Return before which offset the open transaction has to end; infinite: wherever it likes."""
        stops = self._at[place].stops
        return stops[0] if stops else math.inf

    def take(self, place: Place, after: int, epoch: int = -1, appended: int = 0) -> None:
        """Note that the records before an offset were taken, and the leader epoch and append time of the last one."""
        span = self._at[place].span
        span.end, span.leader_epoch = after, epoch
        span.read_to = max(span.read_to, appended)

    def is_read(self, place: Place, time: int) -> None:
        """Note that everything is taken that was appended before a time [Unix us]."""
        span = self._at[place].span
        span.read_to = max(span.read_to, time)

    def take_up_to_stop(self, place: Place) -> None:
        """Note that there is nothing more before the place where the transaction has to end."""
        at = self._at[place]
        at.span.end = at.stops[0]

    def records(self) -> list[Record]:
        """Return the positions to be written in the transaction."""
        return [position_record(one) for one in self._moved()]

    def _moved(self) -> list[WorkerPosition]:
        moved = [at for at in self._at.items() if at[1].own != (at[1].span.log, at[1].span.end)]
        return [
            WorkerPosition(
                group=self._group,
                topic=topic,
                partition=partition,
                log=at.span.log,
                next=at.span.end,
                worker=self._worker,
                leader_epoch=at.span.leader_epoch,
            )
            for (topic, partition), at in moved
        ]

    def offsets(self) -> dict[Place, int]:
        """Return what the group is to commit in the transaction."""
        return {place: at.span.end for place, at in self._at.items() if at.group != at.span.end}

    def committed(self) -> None:
        """Begin the next transaction where this one ended."""
        for one in self._moved():
            self._ends.setdefault((one.topic, one.partition), deque(maxlen=_REMEMBERED)).append(one)
        for at in self._at.values():
            at.group, at.own = at.span.end, (at.span.log, at.span.end)
            if at.is_at_stop:
                del at.stops[0]
            log = at.span.log if at.stops else at.log
            epoch, read_to = at.span.leader_epoch, at.span.read_to
            at.span = Span(log, at.span.end, at.span.end, leader_epoch=epoch, read_to=read_to)


def _written(position: WorkerPosition | None) -> tuple[str, int] | None:
    return None if position is None else (position.log, position.next)
