"""Readings of one windowed topic, from its ledger: for all devices of a class at once, as columns, when wanted."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from facade.flows.telemetry.ledger import WindowLedger
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import RECENT, Plan
from facade.flows.telemetry.watermarks import Mark
from facade.kernel import sketch
from facade.kernel.clock import NEVER, NOTHING, SECOND, Duration, Time, as_duration, as_seconds, utc_seconds
from facade.kernel.icd.model import Attribute, DeviceClass, Rule, Source
from facade.kernel.icd.topic_model import Limits
from facade.kernel.reading import QUALITIES, Quality, Reading
from facade.kernel.runtime.columns import UNKNOWN, ColumnArrays, ReadingColumn, nothing
from facade.kernel.windows.frame import Array, FieldArrays
from facade.kernel.windows.newest import ShownWindow

_LATE_PART = 0.01
"""Share of late records from which the Status mentions them."""
_NOTHING = FieldArrays()
_VALID, _WARNING, _ALARM, _INVALID = map(
    QUALITIES.index, (Quality.VALID, Quality.WARNING, Quality.ALARM, Quality.INVALID)
)
_TOTALS = ("count", "late", "missing", "duplicates", "epoch", "newest_us", "heard")
"""Totals of a group that readings need, beside sums; see `facade.kernel.windows.totals`."""
_NEWEST = frozenset({"epoch", "newest_us", "heard"})
"""Totals whose value over all groups is the largest of them; others are added."""
_USED = 0
"""Row of `TelemetryView._marks` with the records in shown totals."""
_SETTLED = 2
"""Windows without another reading after which totals are shown that have grown since."""
_OF_SEQUENCES: Mapping[Rule, str] = {"gaps": "missing", "duplicates": "duplicates", "late": "late"}
"""Names of totals by the rules over sequence numbers."""


def evaluate(source: Source, count: Array, fields: Mapping[str, FieldArrays], plan: Plan) -> Array:
    """Return the values of an attribute from partial sums, one for each row; NaN: unknown.

    The rules over sequence numbers are not here: these belong to the totals of a group.

    Parameters
    ----------
    count
        Number of records of each row, of shape (rows,).
    fields
        Statistics by the names of fields in summaries.
    """
    names, unknown = plan.first_names, np.full(len(count), np.nan)
    field = _NOTHING if source.field is None else fields.get(names[source.field], _NOTHING)
    total = unknown if field.sum is None else field.sum
    match source.rule:
        case "count":
            return count
        case "rate":
            rate: Array = (count if source.field is None else total) / plan.window.length
            return rate
        case "sum":  # over no records it is known
            return np.where(count == 0, 0, total)
        case "mean":
            return _ratio(total, count)
        case "std":  # of the population (divided by n, not n - 1): it has all records of the window
            return unknown if field.m2 is None else np.sqrt(_ratio(field.m2, count))
        case "quantile":
            error = plan.window.quantile_error
            if field.sketch is None or source.q is None or error is None:
                return unknown
            found = field.sketch
            return sketch.quantiles(found.row, found.bucket, found.count, rows=len(count), q=source.q, error=error)
        case "fraction":
            parts = (fields.get(names[name], _NOTHING).sum for name in source.of)
            return _ratio(total, sum((part for part in parts if part is not None), np.zeros(len(count))))
        case "min" | "max" | "last" as statistic:
            values: Array | None = getattr(field, statistic)
            return unknown if values is None else values
    raise ValueError(f"rule: expected one of a partial, got {source.rule}")


def _ratio(part: Array, whole: Array) -> Array:
    found: Array = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole != 0)
    return found


class TelemetryView:
    """The readings of some devices by one windowed topic.

    Parameters
    ----------
    devices
        The devices with their groups. The group None is all groups together, and then stands alone.
    """

    def __init__(self, device_class: DeviceClass, plan: Plan, devices: Mapping[str, Group | None]) -> None:
        self.plan, self._devices = plan, list(devices)
        self._groups = [group for group in devices.values() if group is not None]
        self._numbers: Array | None = None
        """Numbers of the groups in the ledger; None: not known yet."""
        sources = [
            (one, one.source) for one in device_class.attributes if one.source and one.source.topic == plan.topic
        ]
        limits = {one.name: stale_after(device_class, one) for one, _ in sources}
        self._edges = sorted(set(limits.values()) - {NOTHING})
        self.stale_after = max(self._edges, default=as_duration(device_class.stale_after))
        """Silence after which only totals are valid."""
        self.columns = [TelemetryColumn(self, self._devices, one, source, limits[one.name]) for one, source in sources]
        self.closed = np.zeros(len(self._devices), dtype=np.int64)
        """Time at which the shown window of each device was closed, perhaps before a restart [Unix us]."""
        self._counted: deque[tuple[Time, Array, Array]] = deque()
        """Time, late records and all records of each device, in the last seconds."""
        self._says_state = device_class.state_source == plan.topic
        # Totals grow within a window: for a short window an update at its end suffices.
        self._follows_totals = not plan.is_rebuilt and any(source.over == "total" for _, source in sources)
        self._windows: _Windows | None = None
        self._marks: Array | None = None
        """State of each device that was shown last; see `changed`."""
        self._late, self._same_until = -1, NEVER
        """Late records at the last look, and the time until which no reading can turn ATTR_INVALID."""
        self._looked = np.zeros(len(self._devices), dtype=np.int64)
        """Time of the newest reading of each device [Unix us]."""
        self._settled_at = NEVER
        """Time of the next look for totals that have grown since; see `_settled`."""
        self._read: tuple[object, bool] | None = None
        """Partitions that stand still, and whether any worker has read, at the last look; only State depends on it."""
        self._said: tuple[object, Array] | None = None
        """What the State and Status of all devices, and of each one, were made of."""
        self.look: Look | None = None
        """The newest state of the ledger with another reading; any thread may read it."""

    @property
    def is_over_all(self) -> bool:
        """Return whether the view is of all groups together."""
        return not self._groups

    def changed(self, ledger: WindowLedger, now: Time) -> bool:
        """Look at a ledger; return whether any reading, State or Status may have changed since the last call.

        `now`: wall-clock time, used only to find silent senders and workers that stand still.
        """
        shown, late = self._shown(ledger), int(ledger.totals.late.sum())
        windows = self._windows
        if windows is None or windows.shown is not shown:
            windows = self._windows = self._of(shown, ledger)
            for one in windows.places:
                self.closed[one.places] = self.plan.rule.closed_at(one.window)
        elif late == self._late and now < min(self._same_until, self._settled_at) and not self._follows_totals:
            return False
        totals, sums = self._totals(ledger)
        heard, self._late = totals["heard"], late
        silence, age = now - heard, now - self.closed
        over = sum(((silence > edge).astype(np.int64) + (age > edge) for edge in self._edges), 0 * windows.window)
        oldest = min(Time(heard.min()), Time(self.closed.min()), now)
        self._same_until = NEVER if over.any() or not self._edges else oldest + self._edges[0]
        self._settled_at = now + self.plan.length_us
        used = totals["count"]
        shown_used = used if self._marks is None else np.where(self._settled(now), used, self._marks[_USED])
        marks = np.array([shown_used, windows.window, windows.count, windows.is_whole, totals["late"], over])
        is_chosen, before = np.ones(len(over), dtype=np.bool_), self._read
        self._read = ([*ledger.standing_still(now)], ledger.read_to() > NEVER) if self._says_state else None
        if self._marks is not None and self.look is not None:
            is_chosen = (marks != self._marks).any(axis=0)
            if not is_chosen.any() and self._read == before:
                return False
            if not is_chosen.all():  # the others keep their shown values
                totals, sums = _kept(is_chosen, totals, self.look.totals), _kept(is_chosen, sums, self.look.sums)
        marks[_USED] = np.where(is_chosen, used, shown_used)
        self._marks, self._looked[is_chosen] = marks, now
        self.look = Look(now, windows.places, windows.is_whole, self.closed.copy(), heard, totals, sums)
        return True

    def _settled(self, now: Time) -> Array:
        """Return of which devices the totals are shown, although their shown windows and late records are as before.

        The records of an open window are shown when it is closed. Those of a window that is not kept any more would
        never be shown if they were the last ones, so the totals of a device without another reading catch up.
        """
        return np.abs(now - self._looked) >= (0 if self._follows_totals else _SETTLED * self.plan.length_us)

    def _shown(self, ledger: WindowLedger) -> Sequence[ShownWindow]:
        if self._groups:
            return ledger.shown()
        found = ledger.shown_over_all()
        return () if found is None else found.shown

    def _of(self, shown: Sequence[ShownWindow], ledger: WindowLedger) -> "_Windows":
        size, total = len(self._devices), len(ledger.totals.heard)
        place = np.full(total, 0 if self.is_over_all else -1, dtype=np.int64)
        place[self._of_devices(ledger)] = np.arange(size)
        found = _Windows(shown, [], np.full(size, -1), np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.bool_))
        for one in shown:
            mine = place[one.rows.group] >= 0
            rows, torn = (one.rows, one.is_torn) if mine.all() else (one.rows.take(mine), one.is_torn[mine])
            at = place[rows.group]
            found.places.append(ShownRows(one.window, at, rows.count, rows.time_max, rows.fields))
            found.window[at], found.count[at], found.is_whole[at] = one.window, rows.count, ~torn
        places = sum(len(one.places) for one in found.places)
        assert places <= size, f"{self.plan.topic}: {size} devices have {places} shown windows"
        if self.is_over_all and self.plan.window.all_expected and (over_all := ledger.shown_over_all()) is not None:
            found.is_whole[:] &= over_all.groups == ledger.expected
        return found

    def _of_devices(self, ledger: WindowLedger) -> Array:
        """Return the numbers of the devices' groups in the ledger; none: all groups together."""
        if self._numbers is None:
            self._numbers = np.array([ledger.number(group) for group in self._groups], dtype=np.int64)
        return self._numbers

    def _totals(self, ledger: WindowLedger) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the totals of each device by their names, and the sums by the names of fields in summaries."""
        mine, totals = self._of_devices(ledger), ledger.totals
        found = {name: getattr(totals, name) for name in _TOTALS}
        if self.is_over_all:
            whole = {name: np.array([one.max() if name in _NEWEST else one.sum()]) for name, one in found.items()}
            return whole, {
                name: np.array([totals.sums[name].sum() if there.any() else np.nan])
                for name, there in totals.has_sum.items()
            }
        sums = {
            name: totals.sums[name][mine] if there.all() else np.where(there, totals.sums[name], np.nan)[mine]
            for name, there in totals.has_sum.items()
        }
        return {name: one[mine] for name, one in found.items()}, sums

    def state(self, ledger: WindowLedger, now: Time) -> Iterator[tuple[str, str, Reading]]:
        """Return the changed State and Status of devices, if the ICD names this topic as their source."""
        if not self._says_state or self.is_over_all or (look := self.look) is None:
            return
        late, whole = self._lateness(look.totals, now)
        is_late = late > _LATE_PART * whole
        is_silent, is_current = now - look.heard > self.stale_after, now - self.closed <= self.stale_after
        is_known = (look.heard > NEVER) | (ledger.read_to() > NEVER)
        said = np.array([is_silent, is_current, is_known, look.totals["epoch"], late * is_late, whole * is_late])
        behind = [(partition, mark.read_to, mark.worker) for partition, mark in ledger.standing_still(now)]
        epochs = [(partition, one.first, one.begin, one.epoch) for partition, one in ledger.epochs()]
        before, self._said = self._said, ((behind, epochs), said)
        is_new = np.ones(len(late), dtype=np.bool_)
        if before is not None and before[0] == self._said[0]:
            is_new = (said != before[1]).any(axis=0)
        for position in np.flatnonzero(is_new).tolist():
            group, device = self._groups[position], self._devices[position]
            heard = Time(look.heard[position])
            current = bool(is_current[position])
            mine = [] if current else [*ledger.standing_still(now, group)]
            epoch = int(look.totals["epoch"][position])
            is_read = not mine and bool(is_known[position])
            state, lines = self._say(group, heard, epoch, now, is_current=current, is_read=is_read)
            if is_late[position]:
                within = f"{late[position]} of {whole[position]} records within {as_seconds(RECENT):g} s"
                lines.append(f"{within} came too late for their window: they are in totals, but no window shows them.")
            lines += [f"{read_so_far(self.plan, partition, mark)}." for partition, mark in mine]
            for partition, one in ledger.epochs(group) if epochs else ():
                lacks = f"offsets 0 to {one.begin - 1} are in no total of it, which begin behind them"
                begun = f"totals are of epoch {one.epoch}, which began at offset {one.begin} after the log was cut"
                lines.append(f"{self.plan.topic}, partition {partition}: {begun if one.epoch > 1 else lacks}")
            yield device, "State", Reading(state, heard or now)
            yield device, "Status", Reading("\n".join(lines), heard or now)

    def _say(
        self, group: Group, heard: Time, number: int, now: Time, *, is_current: bool, is_read: bool
    ) -> tuple[str, list[str]]:
        """Return State and the begin of Status, which say no more of the group than its values."""
        rule, what = self.plan.window, self.plan.title[:1].lower() + self.plan.title[1:]
        who, limit = f"{self.plan.noun.capitalize()} {group}", as_seconds(self.stale_after)
        if not is_read:
            worker = "The worker that reads it is behind or has stopped" if heard else "No worker has read it yet"
            return "UNKNOWN", [f"{who} is not known: its values are old. {worker}; the {self.plan.noun} may be well."]
        if not is_current and now - heard <= self.stale_after:
            return "UNKNOWN", [
                f"{who} sends {what}s, but no window of the last {as_seconds(self.stale_after):g} s shows any."
            ]
        if now - heard <= self.stale_after:
            epoch = f" of {rule.epoch.removesuffix('_id')} {number}" if rule.epoch is not None else ""
            return "ON", [f"{who} sends {what}s{epoch}."]
        since = utc_seconds(heard) if heard else "the start"
        return "STANDBY", [f"{who} is silent since {since}: no {what} for {limit:g} s."]

    def _lateness(self, totals: Mapping[str, Array], now: Time) -> tuple[Array, Array]:
        counted, late = self._counted, totals["late"]
        if counted and now < counted[-1][0]:  # the clock was set back
            counted.clear()
        if not counted or now - counted[-1][0] >= SECOND:
            counted.append((now, late, late + totals["count"]))
        while counted[-1][0] - counted[0][0] > RECENT or (counted[-1][2] < counted[0][2]).any():
            counted.popleft()
        (_, late_before, before), (_, late, whole) = counted[0], counted[-1]
        return late - late_before, whole - before


def _kept(is_chosen: Array, new: Mapping[str, Array], before: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.where(is_chosen, one, before.get(name, one)) for name, one in new.items()}


@dataclass(frozen=True, slots=True)
class ShownRows:
    """The rows of a shown window that belong to devices of a view."""

    window: Time
    """Begin."""
    places: Array
    """Positions of the devices."""
    count: Array
    times: Array
    """Newest data times [Unix us]."""
    fields: Mapping[str, FieldArrays]


@dataclass(frozen=True, slots=True)
class _Windows:
    """What a ledger shows of the windows of devices; the arrays have an entry for each device."""

    shown: Sequence[ShownWindow]
    places: list[ShownRows]
    window: Array
    """Begin [Unix us]; -1: none."""
    count: Array
    is_whole: Array
    """Whether the window has every expected group, and no record came after its closing."""


@dataclass(frozen=True, slots=True)
class Look:
    """A state of a ledger, as its view shows it; nothing changes its arrays, which have an entry for each device."""

    now: Time
    """Wall-clock time."""
    places: Sequence[ShownRows]
    is_whole: Array
    closed: Array
    """Time at which the shown window was closed [Unix us]."""
    heard: Array
    """Time of the last summary [Unix us]; 0: never."""
    totals: Mapping[str, Array]
    sums: Mapping[str, Array]
    """Sums over all records, by the names of fields in summaries."""


class TelemetryColumn(ReadingColumn):
    """The readings of one attribute, made of the newest look of its view when somebody wants them.

    They are ATTR_WARNING where the window is not whole: expected groups are missing, or records came too late. Where an
    attribute is unknown, as in a device without a window, the last known reading stays, perhaps from before a restart.
    """

    def __init__(
        self, view: TelemetryView, devices: Sequence[str], attribute: Attribute, source: Source, limit: Duration
    ) -> None:
        super().__init__(attribute.name, devices)
        self._view, self._entry, self._source = view, attribute, source
        self.limits = attribute.limits
        self._limit = limit
        """Age from which a reading is ATTR_INVALID; 0: never."""
        self._made: tuple[Look | None, ColumnArrays] = None, nothing(len(devices))

    def arrays(self) -> ColumnArrays:
        """Return the newest readings; see `ReadingColumn`."""
        look, (made_of, found) = self._view.look, self._made
        if look is not None and look is not made_of:
            found = self._read(look, found)
            self._made = look, found
        return found

    def restore(self, position: int, reading: Reading) -> None:
        """Take over a reading; see `ReadingColumn`."""
        if isinstance(reading.value, str | tuple):
            raise TypeError(f"expected a number, got {reading.value!r:.80}")
        made_of, (values, times, qualities) = self._made
        kind = np.float64 if self._entry.type == "DevDouble" else np.int64
        values, times, qualities = values.astype(kind), times.copy(), qualities.copy()
        values[position], times[position] = reading.value, reading.time
        qualities[position] = QUALITIES.index(reading.quality)
        self._made = made_of, ColumnArrays(values, times, qualities)
        if self._source.over == "window":
            closed = _closed_at(self._view.plan, reading.time)
            self._view.closed[position] = max(self._view.closed[position], closed)

    def _read(self, look: Look, before: ColumnArrays) -> ColumnArrays:
        is_double, size = self._entry.type == "DevDouble", len(self.devices)
        values = np.zeros(size, dtype=np.float64 if is_double else np.int64)
        times, qualities = np.zeros(size, dtype=np.int64), np.full(size, UNKNOWN)
        for places, found, at in self._of_windows(look) if self._source.over == "window" else self._of_totals(look):
            judged_ = judged(found, self.limits)
            if found.dtype.kind == "f":
                is_unknown = np.isnan(found)
                judged_[is_unknown] = UNKNOWN
                found = found if is_double else np.rint(np.where(is_unknown, 0, found))
            values[places], times[places], qualities[places] = found, at, judged_
        is_window, limit = self._source.over == "window", self._limit
        is_known, is_stale = qualities != UNKNOWN, np.zeros(size, dtype=np.bool_)
        if is_window:
            qualities[is_known & ~look.is_whole & (qualities == _VALID)] = _WARNING
        if limit:
            is_stale = look.now - (look.closed if is_window else look.heard) > limit
        qualities[is_known & is_stale] = _INVALID
        if not is_known.all():  # the last known reading, which grows old
            values, times = np.where(is_known, values, before.values), np.where(is_known, times, before.times)
            if limit and is_window:
                is_stale = look.now - _closed_at(self._view.plan, times) > limit
            old = np.where(is_stale & (before.qualities != UNKNOWN), _INVALID, before.qualities)
            qualities = np.where(is_known, qualities, old)
        return ColumnArrays(values, times, qualities)

    def _of_windows(self, look: Look) -> Iterator[tuple[Array, Array, Array]]:
        """Return positions, values, and times [Unix us] for each shown window."""
        for one in look.places:
            yield one.places, evaluate(self._source, one.count, one.fields, self._view.plan), one.times

    def _of_totals(self, look: Look) -> Iterator[tuple[Array, Array, Array]]:
        """Return positions, values, and times [Unix us] of the devices with a summary."""
        totals = look.totals
        if self._source.rule in _OF_SEQUENCES:
            values = totals[_OF_SEQUENCES[self._source.rule]]
        else:
            fields = {name: FieldArrays(sum=one) for name, one in look.sums.items()}
            values = evaluate(self._source, totals["count"] + totals["late"], fields, self._view.plan)
        times = np.where(totals["newest_us"] > 0, totals["newest_us"], look.heard)
        there = np.flatnonzero(look.heard > 0)
        yield there, values[there], times[there]


def judged(values: Array, limits: Limits | None) -> Array:
    """Return the qualities of values as `facade.kernel.reading.judge` does, by their numbers."""
    found = np.zeros(len(values), dtype=np.int64)
    if limits is None:
        return found
    for quality, low, high in (
        (_WARNING, limits.min_warning, limits.max_warning),
        (_ALARM, limits.min_alarm, limits.max_alarm),
    ):
        if low is not None:
            found[values <= low] = quality
        if high is not None:
            found[values >= high] = quality
    return found


def read_so_far(plan: Plan, partition: int, mark: Mark) -> str:
    """Return a text about the newest watermark of a partition; another worker may have the partition since then."""
    time = utc_seconds(mark.read_to)
    return f"Partition {partition} of {plan.topic} is read up to {time}, last by aggregate-{mark.worker}"


def _closed_at(plan: Plan, time: Any) -> Any:
    """Return the closing time of the window of a data time, if workers read all the time [Unix us]."""
    return plan.rule.closed_at(time - time % plan.length_us)


def stale_after(device_class: DeviceClass, attribute: Attribute) -> Duration:
    """Return the silence after which an attribute is ATTR_INVALID; 0: never."""
    return as_duration(device_class.stale_after if attribute.stale_after is None else attribute.stale_after)
