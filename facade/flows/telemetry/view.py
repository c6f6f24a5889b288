"""Readings of one windowed topic, from its ledger."""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from facade import sketch
from facade.flows.telemetry.ledger import GroupTotals, WindowLedger, seconds
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import Plan
from facade.flows.telemetry.watermarks import Mark, closed_at
from facade.icd.model import Attribute, DeviceClass, Source
from facade.messages import FieldStatistics, Partial
from facade.reading import Quality, Reading, Value, judge

Number = int | float
_EMPTY = FieldStatistics()


def evaluate(source: Source, partial: Partial, plan: Plan) -> Number | None:
    """Return the value of an attribute from the partial of its window or of all records; None: unknown.

    The rules over sequence numbers are not here: these belong to the totals of a group.
    """
    count, window = partial.count, plan.window
    if count == 0 and source.over == "window":
        return None
    names = plan.first_names
    field = _EMPTY if source.field is None else partial.fields.get(names[source.field], _EMPTY)
    total = field.sum
    match source.rule:
        case "count":
            return count
        case "rate":
            amount = count if source.field is None else total
            return None if amount is None else amount / window.length
        case "sum":  # over no records it is known
            return 0 if count == 0 else total
        case "mean":
            return None if total is None or count == 0 else total / count
        case "std":  # of the population (divided by n, not n - 1): it has all records of the window
            return None if field.m2 is None or count == 0 else math.sqrt(field.m2 / count)
        case "quantile":
            if field.sketch is None or source.q is None or window.quantile_error is None:
                return None
            return sketch.quantile(field.sketch, source.q, window.quantile_error)
        case "fraction":
            whole = sum(partial.fields.get(names[name], _EMPTY).sum or 0 for name in source.of)
            return None if total is None or whole == 0 else total / whole
        case "min" | "max" | "last" as statistic:
            found: Number | None = getattr(field, statistic)
            return found
    raise ValueError(f"rule: expected one of a partial, got {source.rule}")


DeviceReadings = Mapping[str, Reading]
Marker = tuple[int, ...]
NamedReading = tuple[str, Reading]
_LATE_OVER, _LATE_PART = 10.0, 0.01
"""Period of the count of late records [s], and the share of them from which the Status mentions them."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """The state of a ledger at an update."""

    window: Partial | None
    is_whole: bool
    """Whether it has every expected group, and no record came after its closing."""
    totals: list[GroupTotals]
    silence: float
    """Time since the last summary [s]."""
    age: float
    """Time since the shown window was closed [s]."""


class TelemetryView:
    """The readings of one device by one windowed topic; without a group, of all groups together."""

    def __init__(self, device_class: DeviceClass, plan: Plan, group: Group | None) -> None:
        self._plan, self.group = plan, group
        self._sources = [
            (one, one.source) for one in device_class.attributes if one.source and one.source.topic == plan.topic
        ]
        self._limits = {one.name: stale_after(device_class, one) for one, _ in self._sources}
        self._edges = sorted(set(self._limits.values()) - {0.0})
        self.stale_after = max(self._edges, default=device_class.stale_after)
        """Silence after which only totals are valid [s]."""
        self._closed = 0.0
        """Time at which the shown window was closed, perhaps before a restart [Unix s]."""
        self._counted: deque[tuple[float, int, int]] = deque()
        """Time [Unix s], late records and all records, in the last seconds."""
        self._says_state = device_class.state_source == plan.topic
        # Totals grow within a window: for a short window an update at its end suffices.
        self._follows_totals = not plan.is_rebuilt and any(source.over == "total" for _, source in self._sources)

    def marker(self, ledger: WindowLedger, now: float) -> Marker:
        """Return a value that changes whenever `readings` would change."""
        looked = self._look(ledger, now)
        seen = (looked.window.window, looked.window.count) if looked.window else (-1, 0)
        late = sum(totals.late for totals in looked.totals)
        used = sum(totals.count for totals in looked.totals) if self._follows_totals else 0
        over = sum((looked.silence > edge) + (looked.age > edge) for edge in self._edges)
        return (*seen, looked.is_whole, late, used, over)

    def readings(self, ledger: WindowLedger, now: float, last: DeviceReadings) -> Iterator[NamedReading]:
        """Return the readings of the device, without unknown attributes.

        They are ATTR_WARNING where the window is not whole: expected groups are missing, or records came too late.

        Parameters
        ----------
        now
            Wall-clock time [Unix s], used only to find silent senders and workers that stand still.
        last
            The last readings, perhaps from before a restart: valid until the first window.
        """
        looked = self._look(ledger, now)
        heard = max((totals.heard for totals in looked.totals), default=0.0)
        if not heard:
            return
        whole = ledger.overall() if self.group is None else looked.totals[0].as_partial()
        for attribute, source in self._sources:
            name, limit = attribute.name, self._limits[attribute.name]
            is_window = source.over == "window"
            partial, silence = (looked.window, looked.age) if is_window else (whole, looked.silence)
            if partial is None:
                if name in last:
                    self._closed = max(self._closed, _closed_at(self._plan, last[name].time))
                    is_stale = bool(limit) and now - self._closed > limit
                    yield name, last[name].invalid() if is_stale else last[name]
                continue
            is_stale = bool(limit) and silence > limit
            value = _value(attribute, source, partial, looked.totals, self._plan)
            if value is None:
                continue
            quality = Quality.INVALID if is_stale else judge(value, attribute.limits)
            if quality is Quality.VALID and is_window and not looked.is_whole:
                quality = Quality.WARNING
            yield name, Reading(value, seconds(partial.time_max) or heard, quality)

    def state(self, ledger: WindowLedger, now: float) -> Iterator[NamedReading]:
        """Return State and Status, if the ICD names this topic as their source."""
        if not self._says_state or self.group is None:
            return
        totals, rule = ledger.totals[self.group], self._plan.window
        who = f"{self._plan.noun.capitalize()} {self.group}"
        what = self._plan.title[:1].lower() + self._plan.title[1:]
        if now - totals.heard <= self.stale_after:
            epoch = f" of {rule.epoch} {totals.epoch}" if rule.epoch is not None else ""
            state, status = "ON", f"{who} sends {what}s{epoch}."
        else:
            since = "the start"
            if totals.heard:
                since = datetime.fromtimestamp(totals.heard, UTC).isoformat(timespec="seconds")
            state, status = "STANDBY", f"{who} is silent since {since}: no {what} for {self.stale_after:g} s."
        late, whole = self._lateness(totals, now)
        if late > _LATE_PART * whole:
            within = f"{late} of {whole} records within {_LATE_OVER:g} s"
            status += f"\n{within} came too late for their window: they are in totals, but no window shows them."
        for partition, mark in ledger.standing_still(now, self.group):
            status += f"\n{read_so_far(self._plan, partition, mark)}"
        for partition, one in ledger.epochs(self.group):
            lacks = f"offsets 0 to {one.begin - 1} are in no total of it, which begin behind them"
            begun = f"totals are of epoch {one.epoch}, which began at offset {one.begin} after the log was cut"
            status += f"\n{self._plan.topic}, partition {partition}: {begun if one.epoch > 1 else lacks}"
        yield "State", Reading(state, totals.heard or now)
        yield "Status", Reading(status, totals.heard or now)

    def _lateness(self, totals: GroupTotals, now: float) -> tuple[int, int]:
        counted = self._counted
        if not counted or not 0.0 <= now - counted[-1][0] < 1.0:
            counted.append((now, totals.late, totals.late + totals.count))
        while counted[-1][0] - counted[0][0] > _LATE_OVER or counted[-1][2] < counted[0][2]:
            counted.popleft()
        (_, late_before, before), (_, late, whole) = counted[0], counted[-1]
        return late - late_before, whole - before

    def _look(self, ledger: WindowLedger, now: float) -> _Looked:
        shown, everyone = ledger.shown(self.group), self.group is None
        if shown is not None:
            self._closed = seconds(closed_at(self._plan, shown.partial.window))
        is_whole = shown is not None and not shown.is_torn
        if shown is not None and everyone and self._plan.window.all_expected:
            is_whole &= shown.groups == ledger.expected
        totals = [*ledger.totals.values()] if self.group is None else [ledger.totals[self.group]]
        heard = max((one.heard for one in totals), default=0.0)
        return _Looked(shown and shown.partial, is_whole, totals, now - heard, now - self._closed)


def read_so_far(plan: Plan, partition: int, mark: Mark) -> str:
    """Return a text about the newest watermark of a partition."""
    time = datetime.fromtimestamp(seconds(mark.read_to), UTC).isoformat(timespec="seconds")
    return f"partition {partition} of {plan.topic} was read up to {time} by aggregate-{mark.worker}"


def _closed_at(plan: Plan, time: float) -> float:
    """Return the closing time of the window of a data time, if workers read all the time [Unix s]."""
    return time - time % plan.window.length + plan.window.length + plan.window.disorder


def stale_after(device_class: DeviceClass, attribute: Attribute) -> float:
    """Return the silence after which an attribute is ATTR_INVALID [s]; 0: never."""
    return device_class.stale_after if attribute.stale_after is None else attribute.stale_after


def _value(
    attribute: Attribute, source: Source, partial: Partial, totals: list[GroupTotals], plan: Plan
) -> Value | None:
    match source.rule:
        case "gaps":
            return sum(one.seen.missing for one in totals)
        case "duplicates":
            return sum(one.seen.duplicates for one in totals)
        case "late":
            return sum(one.late for one in totals)
    value = evaluate(source, partial, plan)
    return round(value) if value is not None and attribute.type != "DevDouble" else value
