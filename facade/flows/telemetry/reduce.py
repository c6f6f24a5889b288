"""From columns of records to partials, in numpy: the hot path of a worker.

Pure: no I/O, no clock. What is late or ahead is judged against the time at which the broker
appended the record, so the same log always gives the same answer however it is cut into batches,
and no wrong clock of a sender can drag a window along.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from facade.codec.columns import Column as Column
from facade.codec.plausible import wrong_unit
from facade.flows.telemetry.cells import Cells, partials
from facade.flows.telemetry.groups import UNKNOWN, Groups
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import MICRO, Plan
from facade.messages import Partial
from facade.outcome import RecordRejected
from facade.printable import excerpt

_OTHER_UNIT = 100
"""A time that is by so much smaller than the broker's may be in another unit."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """What some records amount to."""

    partials: dict[Group, list[Partial]]
    used: int
    late: int
    rejected: list[tuple[int, RecordRejected]]
    """Records that are well-formed and still cannot be used, by position in the columns."""


@dataclass(frozen=True, slots=True)
class AppendTimes:
    """When the broker appended some consecutive records; asked one by one only where it decides."""

    first: int
    last: int
    """Times of the first and the last record [Unix us]."""
    at: Callable[[int], int]
    """Gives the time of one record by its position [Unix us]."""


@dataclass(frozen=True, slots=True)
class Sifted:
    """What some records are, before anything is made of them."""

    codes: Column
    """Number of the group of each, see `facade.flows.telemetry.groups`."""
    late: Column | None
    """Which are late; None: none is."""
    rejected: list[tuple[int, RecordRejected]]
    """As in `Reduced`."""


def reduce(columns: Mapping[str, Column], plan: Plan, appended: AppendTimes, groups: Groups) -> Reduced:
    """Reduce the columns of records to one partial per group, epoch and window.

    Parameters
    ----------
    columns
        The fields of valid messages of one partition, each of shape (n,): those of `plan.columns` and the group,
        integers as int64, others as float64, names as objects. In log order, at least those of one group and epoch.
    appended
        When the broker appended them, by position in the columns.
    groups
        The groups that are part of the deployment.
    """
    sifted = sift(columns, plan, appended, groups)
    return combine(columns, plan, sifted, groups, [row for row, _ in sifted.rejected])


def sift(columns: Mapping[str, Column], plan: Plan, appended: AppendTimes, groups: Groups) -> Sifted:
    """Find the group of each record, which are late, and which cannot be used; parameters as of `reduce`."""
    rule = plan.window
    time = columns[rule.time]
    codes = groups.codes(columns, len(time))
    lateness, ahead = round(rule.lateness * MICRO), round(rule.ahead * MICRO)
    if not len(time) or (appended.last - lateness <= time.min() and time.max() <= appended.first + ahead):
        return Sifted(codes, None, list(_strangers(columns, plan, codes)))
    judge = _judges(time, appended, lateness, ahead)
    rejected = list(_strangers(columns, plan, codes))
    for i in np.flatnonzero((time > judge + ahead) & (codes != UNKNOWN)).tolist():
        what = f"{int(time[i] - judge[i]) / MICRO:.3f} s ahead of the broker's clock, at most {rule.ahead} s allowed"
        ahead_of = RecordRejected("time-ahead", f"$.{rule.time}", what)
        rejected.append((i, wrong_unit(int(time[i]), int(judge[i]), f"$.{rule.time}") or ahead_of))
    late = time < judge - lateness
    small = np.flatnonzero((time < judge // _OTHER_UNIT) & (codes != UNKNOWN)).tolist()
    found = ((i, wrong_unit(int(time[i]), int(judge[i]), f"$.{rule.time}")) for i in small)
    rejected.extend((i, why) for i, why in found if why is not None)
    return Sifted(codes, late, rejected)


def combine(
    columns: Mapping[str, Column], plan: Plan, sifted: Sifted, groups: Groups, unused: Sequence[int]
) -> Reduced:
    """Make partials of records that were sifted; parameters as of `reduce`, but for `unused`: which to leave out."""
    rule, time, codes, late = plan.window, columns[plan.window.time], sifted.codes, sifted.late
    kept = {name: columns[name] for name in plan.columns}
    if unused:
        keep = np.ones(len(time), dtype=np.bool_)
        keep[unused] = False
        kept = {name: column[keep] for name, column in kept.items()}
        time, codes, late = time[keep], codes[keep], None if late is None else late[keep]
    if not len(time):
        return Reduced({}, 0, 0, sifted.rejected)
    window = _windows(kept[rule.time], plan.length_us)
    window = window if late is None else np.where(late, 0, window)
    epoch = kept[rule.epoch] if rule.epoch is not None else None
    order, starts = _sort(codes, [window] if epoch is None else [window, epoch])
    first = starts if order is None else order[starts]
    cells = Cells(
        starts,
        np.append(starts[1:], len(time)),
        group=codes[first],
        epoch=np.zeros(len(starts), np.int64) if epoch is None else epoch[first],
        window=window[first] * plan.length_us,
        late=np.zeros(len(starts), np.bool_) if late is None else late[first],
    )
    if order is not None:
        kept = {name: column[order] for name, column in kept.items()}
    late_count = 0 if late is None else int(np.count_nonzero(late))
    return Reduced(partials(kept, plan, cells, groups), len(time) - late_count, late_count, sifted.rejected)


def _windows(time: Column, length_us: int) -> Column:
    """Return the number of each record's window; usually there is one, and a division takes its time."""
    first, last = int(time.min()) // length_us, int(time.max()) // length_us
    return np.broadcast_to(np.int64(first), time.shape) if first == last else time // length_us


def _judges(time: Column, appended: AppendTimes, lateness: int, ahead: int) -> Column:
    """Return the append time to judge each record by: its own wherever another could decide differently.

    Looking up the time of every record would cost as much as a tenth of the whole work on it.
    """
    judge = np.full(len(time), appended.last, dtype=np.int64)
    doubtful = (time >= appended.first - lateness) & (time < appended.last - lateness)
    doubtful |= (time > appended.first + ahead) & (time <= appended.last + ahead)
    for row in np.flatnonzero(doubtful).tolist():
        judge[row] = appended.at(row)
    return judge


def _strangers(columns: Mapping[str, Column], plan: Plan, codes: Column) -> Iterator[tuple[int, RecordRejected]]:
    """Yield the records of groups that the deployment does not have."""
    if not len(codes) or codes.min() > UNKNOWN:
        return
    rule, noun = plan.window, plan.noun
    for i in np.flatnonzero(codes == UNKNOWN).tolist():
        what = f"{noun} {columns[rule.group or ''][i]} is not part of this deployment"
        yield i, RecordRejected(f"unknown-{noun}", f"$.{rule.group}", excerpt(what))


def _sort(group: Column, keys: Sequence[Column]) -> tuple[Column | None, Column]:
    """Return the order by group and keys, stable, and where something else begins in it; None: it stands already."""
    # Late records have window 0, which is far below any other; `unique` keeps the code small.
    code, most = group, int(group.max())
    for key in keys:
        low, high = int(key.min()), int(key.max())
        if low == high:
            continue
        if high - low < 64:
            code, most = code * (high - low + 1) + (key - low), (most + 1) * (high - low + 1)
        else:
            values, inverse = np.unique(key, return_inverse=True)
            code, most = code * len(values) + inverse, (most + 1) * len(values)
    if most < 1 << 16:
        code = code.astype(np.uint16)  # numpy sorts 16-bit keys by radix, in linear time
    order: Column | None = None
    if np.any(code[1:] < code[:-1]):
        order = np.argsort(code, kind="stable")
        code = code[order]
    return order, np.concatenate(([0], np.flatnonzero(code[1:] != code[:-1]) + 1))
