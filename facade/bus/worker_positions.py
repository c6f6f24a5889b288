"""Where a worker goes on: its own positions, on a compacted topic, beside what the broker's group says.

A position is written in the transaction that also has what came of the records before it. The group's offsets are
in that transaction too; but they can be set by an administrator, expire, or be those of a topic that was made again.
So the worker's own position holds, unless the log itself has changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from facade import messages
from facade.bus.port import Record, Span
from facade.bus.positions import Extent, Finding, Position, Verdict, compare, is_other

POSITIONS = "positions"
"""Topic with the positions of the workers."""

Place = tuple[str, int]
"""Topic and partition."""
WorkerPosition = messages.WorkerPosition

_NO_ID = "?"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WorkerPosition).decode


@dataclass(frozen=True, slots=True)
class Ground:
    """What the brokers say of a partition and of the place of a group on it."""

    topic_id: str
    """Empty text: the brokers give no ids."""
    first: int
    """First offset on the log."""
    end: int
    """Offset after the newest record; of a log that was cut and has grown again, where it was cut."""
    group: int = -1
    """Offset that the group has committed; -1: none."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where to go on, and what is to be said about it."""

    log: str
    """See `facade.bus.port.Span`."""
    offset: int
    note: str = ""
    """Empty text: position, group and log agree."""
    skipped: int = 0
    """Records, at most, that were removed from the log before they were taken."""
    leader_epoch: int = -1
    """Of the record before the offset; -1: not known."""


def begin(place: Place, own: WorkerPosition | None, ground: Ground) -> Beginning:
    """Compare a worker's own position with the group's and with the log."""
    if own is None:
        return _without_own(place, ground)
    topic, partition = place
    known, cuts = _topic_id(own.log), own.log.partition("#")[2]
    now = Extent(ground.topic_id, {partition: (ground.first, ground.end)})
    start, findings = compare(Position(known, {partition: own.next}), now)
    verdicts = {finding.verdict for finding in findings}
    times = 0 if Verdict.MADE_AGAIN in verdicts else int(cuts or 0) + (Verdict.CUT in verdicts)
    note = "; ".join(finding.describe(topic) for finding in findings)
    if not findings and ground.group != own.next:
        says = "has no position" if ground.group < 0 else f"says {ground.group}"
        note = f"{topic}, partition {partition}: the group {says}; the worker goes on from its own position {own.next}"
    skipped = sum(finding.count for finding in findings if finding.verdict is Verdict.HOLE)
    epoch = -1 if findings else own.leader_epoch
    return Beginning(_log(ground.topic_id or known, times), start[partition], note, skipped, epoch)


def _without_own(place: Place, ground: Ground) -> Beginning:
    """Take the group's word where there is no own position: at the first start, or after an upgrade."""
    topic, partition = place
    offset, note, skipped = max(ground.group, ground.first), "", 0
    if 0 <= ground.group < ground.first:
        hole = Finding(Verdict.HOLE, partition, ground.group, ground.first)
        note, skipped = hole.describe(topic), hole.count
    elif ground.group > ground.end:
        offset = ground.first
        note = (
            f"{topic}, partition {partition}: the group says {ground.group}, behind the end {ground.end}, as of another"
            f" log; this one is read from its beginning {ground.first}"
        )
    return Beginning(_log(ground.topic_id), offset, note, skipped)


def is_log_of(log: str, topic_id: str) -> bool:
    """Return whether a log is that of the topic with an id; what is not known is no difference."""
    return not is_other(_topic_id(log), topic_id)


def _topic_id(log: str) -> str:
    """Return the topic's id; empty text: not known."""
    return log.partition("#")[0].replace(_NO_ID, "")


def _log(topic_id: str, cuts: int = 0) -> str:
    return (topic_id or _NO_ID) + (f"#{cuts}" if cuts else "")


def newest(records: Iterable[Record], group: str) -> tuple[dict[Place, WorkerPosition], list[str]]:
    """Return the newest usable position of a group on each partition, and what was wrong with others."""
    found: dict[Place, WorkerPosition] = {}
    troubles: list[str] = []
    for record in records:
        if record.key is None or record.value is None or not record.key.startswith(f"{group}/".encode()):
            continue
        try:
            one = _decode(record.value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            troubles.append(f"position at offset {record.offset} is not usable: {error}")
            continue
        if record.key == _key(one):
            found[one.topic, one.partition] = one
        else:
            troubles.append(f"position at offset {record.offset} is not usable: its key is not {_key(one).decode()}")
    return found, troubles


@dataclass(slots=True)
class _Standing:
    """Where a worker stands on one partition."""

    span: Span
    group: int
    """What the group has committed."""
    own: tuple[str, int] | None
    """Log and offset of the worker's own newest position."""


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

    @property
    def spans(self) -> Mapping[Place, Span]:
        """Return what the open transaction covers, of each partition that the worker has."""
        return {place: standing.span for place, standing in self._at.items()}

    def begin(self, own: Mapping[Place, WorkerPosition], grounds: Mapping[Place, Ground]) -> list[str]:
        """Begin on new partitions, or again after a transaction that was given up; give what is to be said."""
        self._at = {}
        for place, ground in grounds.items():
            start = begin(place, own.get(place), ground)
            written = _written(own.get(place))
            note = start.note + self._doubt(place, written, start.log, ground.end)
            epoch = start.leader_epoch
            span = Span(start.log, start.offset, start.offset, epoch, note=note)
            self._at[place] = _Standing(span, ground.group, written)
        return [standing.span.note for standing in self._at.values() if standing.span.note]

    def _doubt(self, place: Place, written: tuple[str, int] | None, log: str, end: int) -> str:
        """Say what was read since the topic surely was the former one, if it can be of the one that it is now."""
        sure, offset = self._sure.get(place, ("", 0))
        if written is None or sure != written[0] or not is_other(_topic_id(sure), _topic_id(log)):
            return ""
        after = min(written[1], end)
        return f"; {Finding(Verdict.DOUBT, place[1], offset, after).describe(place[0])}" if offset < after else ""

    def confirm(self, topic: str, topic_id: str) -> bool:
        """Take the answer to what was asked after the last call: the topic's id; give whether it is still the same."""
        places = [place for place in self._at if place[0] == topic]
        if any(is_other(_topic_id(self._at[place].span.log), topic_id) for place in places):
            return False
        for place in places:
            span = self._at[place].span
            self._sure[place] = self._asked.get(place, (span.log, span.begin))
            self._asked[place] = (span.log, span.end)
        return True

    def forget(self) -> None:
        """Stand nowhere: partitions were taken away, or the transaction was given up."""
        self._at = {}

    def take(self, place: Place, after: int, epoch: int = -1) -> None:
        """Note that the records before an offset were taken, and the leader epoch of the last one."""
        span = self._at[place].span
        span.end, span.leader_epoch = after, epoch

    def records(self) -> list[Record]:
        """Return the positions to be written in the transaction."""
        moved = [at for at in self._at.items() if at[1].own != (at[1].span.log, at[1].span.end)]
        positions = [
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
        return [position_record(one) for one in positions]

    def offsets(self) -> dict[Place, int]:
        """Return what the group is to commit in the transaction."""
        return {place: at.span.end for place, at in self._at.items() if at.group != at.span.end}

    def committed(self) -> None:
        """Begin the next transaction where this one ended."""
        for at in self._at.values():
            at.group, at.own = at.span.end, (at.span.log, at.span.end)
            at.span = Span(at.span.log, at.span.end, at.span.end, at.span.leader_epoch)


def _written(position: WorkerPosition | None) -> tuple[str, int] | None:
    return None if position is None else (position.log, position.next)


def position_record(position: WorkerPosition) -> Record:
    """Return the record of a position; its key makes it replace the one before."""
    return Record(topic=POSITIONS, key=_key(position), value=_encode(position))


def _key(position: WorkerPosition) -> bytes:
    return f"{position.group}/{position.topic}/{position.partition}".encode()
