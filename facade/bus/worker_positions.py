"""Where a worker goes on: its own positions, on a compacted topic, beside what the broker's group says.

A position is written in the transaction that also has what came of the records before it. The group's offsets are
in that transaction too; but they can be set by an administrator, expire, or be those of a topic that was made again.
So the worker's own position holds, unless the log itself has changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from facade import messages
from facade.bus.port import Record
from facade.bus.positions import Extent, Finding, Position, Verdict, compare, is_other

POSITIONS = "positions"
"""Topic with the positions of the workers."""
ACCOUNTS = "accounts"
"""Topic with the accounts of the workers, which have the same offsets."""

Place = tuple[str, int]
"""Topic and partition."""
WorkerPosition = messages.WorkerPosition

_NO_ID = "?"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WorkerPosition).decode
_decode_account = msgspec.json.Decoder(messages.StreamAccount).decode


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

    def cut_at(self, kept: int) -> "Ground":
        """Return the log as far as it has what was read; it may begin behind that, see `compare`."""
        return replace(self, end=min(self.end, kept))


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
    known, cuts = id_of(own.log), own.log.partition("#")[2]
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
    return not is_other(id_of(log), topic_id)


def id_of(log: str) -> str:
    """Return the topic's id; empty text: not known."""
    return log.partition("#")[0].replace(_NO_ID, "")


def _log(topic_id: str, cuts: int = 0) -> str:
    return (topic_id or _NO_ID) + (f"#{cuts}" if cuts else "")


def newest(records: Iterable[Record], group: str) -> tuple[dict[Place, WorkerPosition], list[str]]:
    """Return the newest usable position of a group on each partition, and what was wrong with others."""
    found: dict[Place, WorkerPosition] = {}
    troubles: list[str] = []
    for record in records:
        if (
            record.topic != POSITIONS
            or record.key is None
            or record.value is None
            or not record.key.startswith(f"{group}/".encode())
        ):
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


def accounted(records: Iterable[Record], group: str, places: Iterable[Place]) -> dict[Place, list[WorkerPosition]]:
    """Return where transactions ended on some partitions, as the accounts say that they wrote."""
    keys = {f"{topic}/{partition}".encode(): (topic, partition) for topic, partition in places}
    found: dict[Place, list[WorkerPosition]] = {}
    for record in records:
        place = keys.get(record.key or b"")
        if place is None or record.value is None:
            continue
        try:
            one = _decode_account(record.value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # whoever folds accounts sets it aside
        if one.log and one.offset_to >= 0 and (one.stream, one.partition) == place:
            found.setdefault(place, []).append(
                WorkerPosition(
                    group=group, topic=one.stream, partition=one.partition, log=one.log, next=one.offset_to,
                    worker=one.worker, leader_epoch=one.leader_epoch,
                )
            )  # fmt: skip
    return found


def furthest(
    own: Mapping[Place, WorkerPosition],
    counted: Mapping[Place, Sequence[WorkerPosition]],
    grounds: Mapping[Place, Ground],
) -> dict[Place, WorkerPosition]:
    """Return how far the log of each partition, as it is now, was taken; see `Standings.counted`."""
    found = {place: counted[place][-1] if counted.get(place) else own.get(place) for place in grounds}
    return {place: at for place, at in found.items() if at is not None and is_log_of(at.log, grounds[place].topic_id)}


def rank_of(position: WorkerPosition) -> tuple[int, int]:
    """Return what a later position on the same topic has more of."""
    cuts = position.log.partition("#")[2]
    return int(cuts) if cuts.isdecimal() else 0, position.next


def position_record(position: WorkerPosition) -> Record:
    """Return the record of a position; its key makes it replace the one before."""
    return Record(topic=POSITIONS, key=_key(position), value=_encode(position))


def _key(position: WorkerPosition) -> bytes:
    return f"{position.group}/{position.topic}/{position.partition}".encode()
