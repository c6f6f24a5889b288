"""Readings of one windowed topic, from its ledger: for all devices of a class at once, as columns."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from facade import sketch
from facade.clock import utc_seconds
from facade.flows.telemetry.ledger import WindowLedger, seconds
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import MICRO, Plan
from facade.flows.telemetry.watermarks import Mark
from facade.icd.model import Attribute, DeviceClass, Source
from facade.icd.topic_model import Limits
from facade.reading import Quality, Reading
from facade.windows.frame import Array, FieldArrays
from facade.windows.newest import ShownWindow

DeviceReadings = Mapping[str, Reading]
NamedReading = tuple[str, Reading]
_LATE_OVER, _LATE_PART = 10.0, 0.01
"""Period of the count of late records [s], and the share of them from which the Status mentions them."""
_NOTHING = FieldArrays()
_QUALITIES = (Quality.VALID, Quality.WARNING, Quality.ALARM, Quality.INVALID)
_VALID, _WARNING, _ALARM, _INVALID = range(4)


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
        self._plan, self._devices = plan, list(devices)
        self._groups = [group for group in devices.values() if group is not None]
        self._sources = [
            (one, one.source) for one in device_class.attributes if one.source and one.source.topic == plan.topic
        ]
        self._limits = {one.name: stale_after(device_class, one) for one, _ in self._sources}
        self._edges = sorted(set(self._limits.values()) - {0.0})
        self.stale_after = max(self._edges, default=device_class.stale_after)
        """Silence after which only totals are valid [s]."""
        self._closed = np.zeros(len(self._devices))
        """Time at which the shown window of each device was closed, perhaps before a restart [Unix s]."""
        self._counted: deque[tuple[float, Array, Array]] = deque()
        """Time [Unix s], late records and all records of each device, in the last seconds."""
        self._says_state = device_class.state_source == plan.topic
        # Totals grow within a window: for a short window an update at its end suffices.
        self._follows_totals = not plan.is_rebuilt and any(source.over == "total" for _, source in self._sources)
        self._marks: Array | None = None
        """What was shown of each device; see `changed`."""
        self._last_look: Look | None = None

    @property
    def is_over_all(self) -> bool:
        """Return whether the view is of all groups together."""
        return not self._groups

    def changed(self, ledger: WindowLedger, now: float) -> "Look | None":
        """Return the state of the ledger, if any reading may have changed since the last call; None: none has."""
        look = self._look(ledger)
        late = look.totals("late")
        used = look.totals("count") if self._follows_totals else 0 * late
        silence, age = now - look.heard, now - self._closed
        over = sum(((silence > edge).astype(np.int64) + (age > edge) for edge in self._edges), 0 * late)
        marks = np.array([look.window, look.count, look.is_whole, late, used, over])
        before, self._marks = self._marks, marks
        look.chosen = np.arange(len(late)) if before is None else np.flatnonzero((marks != before).any(axis=0))
        return look if len(look.chosen) else None

    def _look(self, ledger: WindowLedger) -> "Look":
        look, shown = self._last_look, self._shown(ledger)
        if look is None or look.shown is not shown:
            look = self._last_look = Look(self._plan, ledger, self._groups, shown)
            for one in look.places:
                self._closed[one.places] = seconds(self._plan.rule.closed_at(one.window))
        look.hear()
        return look

    def _shown(self, ledger: WindowLedger) -> Sequence[ShownWindow]:
        if self._groups:
            return ledger.shown()
        found = ledger.shown_over_all()
        return () if found is None else found.shown

    def readings(
        self, look: "Look", now: float, last: Mapping[str, DeviceReadings]
    ) -> Iterator[tuple[str, str, Reading]]:
        """Return the readings of the changed devices, without unknown attributes.

        They are ATTR_WARNING where the window is not whole: expected groups are missing, or records came too late.

        Parameters
        ----------
        now
            Wall-clock time [Unix s], used only to find silent senders and workers that stand still.
        last
            The last readings by device, perhaps from before a restart: valid until the first window.
        """
        for attribute, source in self._sources:
            limit = self._limits[attribute.name]
            if source.over == "window":
                age = now - self._closed
                for positions, values, times in look.of_windows(source):
                    floor = np.where(look.is_whole[positions], _VALID, _WARNING)
                    yield from self._read(attribute, positions, values, times, age[positions] > limit, floor)
                yield from self._left(attribute, look, now, last)
            else:
                values, times = look.of_totals(source)
                is_stale = now - look.heard[look.chosen] > limit
                floor = np.zeros(len(values), dtype=np.int64)
                yield from self._read(attribute, look.chosen, values, times, is_stale, floor)

    def _read(
        self, attribute: Attribute, positions: Array, values: Array, times: Array, is_stale: Array, floor: Array
    ) -> Iterator[tuple[str, str, Reading]]:
        quality = np.maximum(judged(values, attribute.limits), floor)
        if self._limits[attribute.name]:
            quality = np.where(is_stale, _INVALID, quality)
        known = ~np.isnan(values) if values.dtype.kind == "f" else np.ones(len(values), dtype=np.bool_)
        if attribute.type != "DevDouble" and values.dtype.kind == "f":
            values = np.rint(np.where(known, values, 0)).astype(np.int64)
        columns = (one[known].tolist() for one in (positions, values, times, quality))
        for position, value, time, at in zip(*columns, strict=True):
            yield self._devices[position], attribute.name, Reading(value, time, _QUALITIES[at])

    def _left(
        self, attribute: Attribute, look: "Look", now: float, last: Mapping[str, DeviceReadings]
    ) -> Iterator[tuple[str, str, Reading]]:
        """Return the last readings of devices without a window."""
        limit = self._limits[attribute.name]
        for position in look.chosen[look.window[look.chosen] < 0].tolist():
            device = self._devices[position]
            reading = last.get(device, {}).get(attribute.name)
            if reading is not None and look.heard[position]:
                self._closed[position] = max(self._closed[position], _closed_at(self._plan, reading.time))
                is_stale = bool(limit) and now - self._closed[position] > limit
                yield device, attribute.name, reading.invalid() if is_stale else reading

    def state(self, look: "Look", ledger: WindowLedger, now: float) -> Iterator[tuple[str, str, Reading]]:
        """Return State and Status of the changed devices, if the ICD names this topic as their source."""
        if not self._says_state or self.is_over_all:
            return
        late, whole = self._lateness(look, now)
        for position in look.chosen.tolist():
            group, device = self._groups[position], self._devices[position]
            heard = float(look.heard[position])
            is_current = bool(now - self._closed[position] <= self.stale_after)
            behind = [] if is_current else [*ledger.standing_still(now, group)]
            epoch = int(look.totals("epoch")[position])
            state, lines = self._say(group, heard, epoch, now, is_current=is_current, is_read=not behind)
            if late[position] > _LATE_PART * whole[position]:
                within = f"{late[position]} of {whole[position]} records within {_LATE_OVER:g} s"
                lines.append(f"{within} came too late for their window: they are in totals, but no window shows them.")
            lines += [f"{read_so_far(self._plan, partition, mark)}." for partition, mark in behind]
            for partition, one in ledger.epochs(group):
                lacks = f"offsets 0 to {one.begin - 1} are in no total of it, which begin behind them"
                begun = f"totals are of epoch {one.epoch}, which began at offset {one.begin} after the log was cut"
                lines.append(f"{self._plan.topic}, partition {partition}: {begun if one.epoch > 1 else lacks}")
            yield device, "State", Reading(state, heard or now)
            yield device, "Status", Reading("\n".join(lines), heard or now)

    def _say(
        self, group: Group, heard: float, number: int, now: float, *, is_current: bool, is_read: bool
    ) -> tuple[str, list[str]]:
        """Return State and the begin of Status: they tell of the group only what its values tell, too."""
        rule, what = self._plan.window, self._plan.title[:1].lower() + self._plan.title[1:]
        who = f"{self._plan.noun.capitalize()} {group}"
        if not is_read:
            worker = "The worker that reads it is behind or has stopped"
            return "UNKNOWN", [f"{who} is not known: its values are old. {worker}; the {self._plan.noun} may be well."]
        if not is_current and now - heard <= self.stale_after:
            return "UNKNOWN", [f"{who} sends {what}s, but no window of the last {self.stale_after:g} s shows any."]
        if now - heard <= self.stale_after:
            epoch = f" of {rule.epoch} {number}" if rule.epoch is not None else ""
            return "ON", [f"{who} sends {what}s{epoch}."]
        since = utc_seconds(heard) if heard else "the start"
        return "STANDBY", [f"{who} is silent since {since}: no {what} for {self.stale_after:g} s."]

    def _lateness(self, look: "Look", now: float) -> tuple[Array, Array]:
        counted, late = self._counted, look.totals("late")
        if not counted or not 0.0 <= now - counted[-1][0] < 1.0:
            counted.append((now, late, late + look.totals("count")))
        while counted[-1][0] - counted[0][0] > _LATE_OVER or (counted[-1][2] < counted[0][2]).any():
            counted.popleft()
        (_, late_before, before), (_, late, whole) = counted[0], counted[-1]
        return late - late_before, whole - before


@dataclass(frozen=True, slots=True)
class ShownRows:
    """The rows of a shown window that belong to devices of a view."""

    window: int
    """Begin [Unix us]."""
    places: Array
    """Positions of the devices."""
    count: Array
    times: Array
    """Newest data times [Unix s]."""
    fields: Mapping[str, FieldArrays]


class Look:
    """The state of a ledger at an update; its arrays have an entry for each device of a view.

    Parameters
    ----------
    groups
        The groups of the devices; none: all groups together.
    shown
        The shown windows.
    """

    def __init__(self, plan: Plan, ledger: WindowLedger, groups: Sequence[Group], shown: Sequence[ShownWindow]) -> None:
        self._plan, self._totals, self._all = plan, ledger.totals, not groups
        self.shown = shown
        self._numbers = np.array([ledger.number(group) for group in groups], dtype=np.int64)
        size = max(len(groups), 1)
        self.chosen = np.arange(size)
        """Positions of the devices to read."""
        self.window, self.count = np.full(size, -1, dtype=np.int64), np.zeros(size, dtype=np.int64)
        self.is_whole = np.zeros(size, dtype=np.bool_)
        """Whether the window has every expected group, and no record came after its closing."""
        self.heard = np.zeros(size)
        """Time of the last summary [Unix s]; 0: never."""
        place = np.full(max(len(self._totals.heard), 1), 0 if self._all else -1, dtype=np.int64)
        place[self._numbers] = np.arange(len(self._numbers))
        self.places: list[ShownRows] = []
        for one in shown:
            mine = place[one.rows.group] >= 0
            rows, torn = (one.rows, one.is_torn) if mine.all() else (one.rows.take(mine), one.is_torn[mine])
            places = place[rows.group]
            self.places.append(ShownRows(one.window, places, rows.count, rows.time_max / MICRO, rows.fields))
            self.window[places], self.count[places], self.is_whole[places] = one.window, rows.count, ~torn
        if self._all and plan.window.all_expected and (found := ledger.shown_over_all()) is not None:
            self.is_whole &= found.groups == ledger.expected

    def hear(self) -> None:
        """Update the times of the last summaries."""
        heard = self._totals.heard
        self.heard = np.array([heard.max()]) if self._all else heard[self._numbers]

    def totals(self, name: str) -> Array:
        """Return a total of each device."""
        column: Array = getattr(self._totals, name)
        return np.array([column.sum()]) if self._all else column[self._numbers]

    def of_windows(self, source: Source) -> Iterator[tuple[Array, Array, Array]]:
        """Return positions, values, and times [Unix s] of the chosen devices, for each shown window."""
        is_chosen = np.zeros(len(self.window), dtype=np.bool_)
        is_chosen[self.chosen] = True
        for one in self.places:
            values, kept = evaluate(source, one.count, one.fields, self._plan), is_chosen[one.places]
            yield (one.places, values, one.times) if kept.all() else (one.places[kept], values[kept], one.times[kept])

    def of_totals(self, source: Source) -> tuple[Array, Array]:
        """Return values and times [Unix s] of the chosen devices."""
        totals = self._totals
        newest = np.array([totals.newest_us.max()]) if self._all else totals.newest_us[self._numbers]
        times = np.where(newest > 0, newest / MICRO, self.heard)[self.chosen]
        match source.rule:
            case "gaps" | "duplicates" | "late" as rule:
                values = self.totals({"gaps": "missing", "duplicates": "duplicates", "late": "late"}[rule])
            case _:
                fields = {name: FieldArrays(sum=self._sum(name)) for name in totals.sums}
                values = evaluate(source, self.totals("count") + self.totals("late"), fields, self._plan)
        return np.where(self.heard[self.chosen] > 0, values[self.chosen], np.nan), times

    def _sum(self, name: str) -> Array:
        values, known = self._totals.sums[name], self._totals.has_sum[name]
        if self._all:
            return np.array([values.sum()]) if known.any() else np.full(1, np.nan)
        known = known[self._numbers]
        return values[self._numbers] if known.all() else np.where(known, values[self._numbers], np.nan)


def judged(values: Array, limits: Limits | None) -> Array:
    """Return the qualities of values as `facade.reading.judge` does, by their numbers."""
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
    """Return a text about the newest watermark of a partition."""
    time = utc_seconds(seconds(mark.read_to))
    return f"aggregate-{mark.worker} has read partition {partition} of {plan.topic} up to {time}"


def _closed_at(plan: Plan, time: float) -> float:
    """Return the closing time of the window of a data time, if workers read all the time [Unix s]."""
    return time - time % plan.window.length + plan.window.length + plan.window.disorder


def stale_after(device_class: DeviceClass, attribute: Attribute) -> float:
    """Return the silence after which an attribute is ATTR_INVALID [s]; 0: never."""
    return device_class.stale_after if attribute.stale_after is None else attribute.stale_after
