"""The account of the mirror: each value that a device pushed is on the bus, or its absence is told there. No I/O."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from facade.flows.mirror.messages import CONNECTED, TelescopeAttribute, writer_of


class MirrorFound(msgspec.Struct, kw_only=True):
    """Counts of the values of one attribute, or of several."""

    pushed: int = 0
    """Values that its device pushed from the first one that was mirrored to the last."""
    mirrored: int = 0
    """Values of these that are on the bus."""
    said: int = 0
    """Values that are not, where a record says that some may be missing."""
    unsaid: int = 0
    """Values that are missing without a word."""
    foreign: int = 0
    """Records of values that no device pushed."""
    misnumbered: int = 0
    """Records whose number neither repeats nor follows the one before, and that have no `gap`."""
    gaps: int = 0
    """Records that say that values may be missing."""

    def __add__(self, other: "MirrorFound") -> "MirrorFound":
        both = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        return MirrorFound(**both)


def account_of(pushed: Sequence[float], records: Iterable[TelescopeAttribute]) -> MirrorFound:
    """Hold what a device pushed of an attribute against the records of it, in their order.

    Parameters
    ----------
    pushed
        The time that each value begins with, rising.
    """
    found, seen, said = MirrorFound(), set[int](), set[int]()
    before: TelescopeAttribute | None = None
    last: int | None = None
    for record in records:
        step = 1 if before is None else record.number - before.number
        is_same = before is None or writer_of(before) == writer_of(record)
        # In a long outage of the bus only the newest record is kept: it says that others are missing before it. What
        # a mirror that was killed had under way may have the number that the next one begins with.
        fits = step in (0, 1) or (step > 1 and record.gap) if is_same else step == 1 or record.gap
        found.misnumbered += not fits
        is_repeated = before is not None and is_same and record.number == before.number
        before = record
        if record.connection != CONNECTED or is_repeated:
            continue
        index = _index(pushed, record.value)
        if index is None:
            found.foreign += 1
            continue
        seen.add(index)
        if record.gap:
            found.gaps += 1
            said.update(range(index if last is None else last + 1, index))
        last = index
    if seen:
        every = set(range(min(seen), max(seen) + 1))
        found.pushed, found.mirrored = len(every), len(seen)
        found.said, found.unsaid = len((every - seen) & said), len(every - seen - said)
    return found


def newest_wrong(
    pushed: Mapping[str, Sequence[float]], records: Mapping[str, Sequence[TelescopeAttribute]]
) -> list[str]:
    """Return the attributes whose newest record is not the value that was pushed last."""
    return [
        name
        for name, times in pushed.items()
        if not records.get(name)
        or records[name][-1].connection != CONNECTED
        or _index(times, records[name][-1].value) != len(times) - 1
    ]


def _index(pushed: Sequence[float], value: object) -> int | None:
    if not isinstance(value, list) or not value or not isinstance(value[0], float):
        return None
    index = bisect_left(pushed, value[0])
    return index if index < len(pushed) and pushed[index] == value[0] else None
