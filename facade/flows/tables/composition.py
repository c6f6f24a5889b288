"""SdpCalibration in a device server: the tables, their view, their bytes, and alerts about lost tables."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from facade.flows.tables.contents import Contents
from facade.flows.tables.flow import TablesFlow, describe, products_of
from facade.flows.tables.messages import place
from facade.flows.tables.places import parse_roots
from facade.flows.tables.references import References
from facade.flows.tables.summaries import PointingSummary, SolutionSummary
from facade.kernel.clock import MINUTE, Time, as_seconds, utc_text
from facade.kernel.errors import IcdError
from facade.kernel.icd.model import Icd
from facade.kernel.instances import classes_of
from facade.kernel.printable import listed
from facade.kernel.reading import Image, Quality, Reading, Value, judge
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import Fault, FaultKey
from facade.kernel.runtime.view import NewestView
from facade.sdp.messages import Table

TABLE_LOST = "tableLost"

_MADE_GOOD = 10 * MINUTE
"""Longest time after which a repaired loss is still reported: alarms at rest are remembered as long."""


class Losses:
    """Finds the lost tables: announced as failed, until a newer one of the product is complete.

    The losses follow from ``tables`` alone, so a restart finds the same. A loss that was repaired before its report
    stays until it has been reported.

    Parameters
    ----------
    is_ours
        Returns whether this server reports the losses of a product.
    """

    def __init__(
        self, flow: TablesFlow, is_ours: Callable[[str], bool], has_reported: Callable[[FaultKey, Time], bool]
    ) -> None:
        self._flow = flow
        self._is_ours = is_ours
        self._has_reported = has_reported

    def is_loss(self, key: FaultKey) -> bool:
        """Return whether a fault of this condition and source is a loss that this server reports."""
        condition, product = key
        return condition == TABLE_LOST and self._is_ours(product)

    def find(self, now: Time) -> dict[FaultKey, Fault]:
        """Return the losses by condition and product."""
        found = {}
        for table in self._flow.failed.values():
            key = (TABLE_LOST, table.product)
            is_news = now - table.time < _MADE_GOOD and not self._has_reported(key, table.time)
            if self.is_loss(key) and (is_news or not self._is_made_good(table)):
                why = table.reason or "no reason given"
                text = f"table {table.table} of {table.product} never became complete: {why}"
                found[key] = Fault(text, began=table.time)
        return found

    def _is_made_good(self, table: Table) -> bool:
        complete = self._flow.complete.get(table.product)
        newer = None if complete is None else complete.table
        # If the producer's clock is ahead, the completion counts as the time of sending.
        return newer is not None and (newer.time > table.time or min(newer.sent_at, newer.time) > table.sent_at)


_POINTING = "pointing_cal_"
_ALWAYS = frozenset({"assembling", "tablesComplete", "lastFailure", "connected", "versionId", "State", "Status"})
"""Attributes that do not expire with a solution."""


class CalibrationView(NewestView):
    """A view: the tables of the products ``subarray/NN/...``."""

    what = "tables"

    def __init__(self, device: str, server: Server, flow: TablesFlow) -> None:
        super().__init__(device, server, flow.topic)
        self._flow, self.prefix = flow, products_of(device)
        self._values: dict[str, Value] = {}
        self._seen = -1
        """Number of changes of the flow at the last update."""
        self._solution: tuple[Table, SolutionSummary] | None = None
        self._pointed: set[str] = set()
        """Attributes of the offsets that a complete table has."""
        self._strange: list[str] = []
        """Dishes without an attribute for their offsets."""

    def _show(self, values: dict[str, Value], now: Time, *, is_known: bool) -> Iterator[tuple[str, Reading]]:
        self._values |= values
        expired = self._is_expired(now)
        for name, value in self._values.items():
            quality = self._quality(name, value, expired=expired)
            yield name, self._changes.reading(name, value, now, quality)

    def _quality(self, name: str, value: Value, *, expired: bool) -> Quality:
        attribute = self._attributes.get(name)
        quality = judge(value, None if attribute is None else attribute.limits)
        is_pointing = name.startswith(_POINTING)
        ages = name not in _ALWAYS and not is_pointing
        has_gone = name not in self._pointed if is_pointing else ages and self._solution is None
        if value is math.nan or has_gone:
            return Quality.INVALID  # the table has none, or has gone
        return Quality.WARNING if expired and ages and quality is Quality.VALID else quality

    def _is_expired(self, now: Time) -> bool:
        until = None if self._solution is None else self._solution[1].valid_until
        return until is not None and Time(until) < now

    def _look(self, now: Time) -> dict[str, Value]:
        values = {} if self._seen == self._flow.changes else self._tables()
        if self._solution is not None:
            values["age"] = round(max(0.0, as_seconds(now - self._solution[0].time)), 1)
        return values

    def _tables(self) -> dict[str, Value]:
        self._seen, self._solution = self._flow.changes, None
        mine = [one for one in self._flow.complete.values() if one.table.product.startswith(self.prefix)]
        mine.sort(key=lambda one: one.table.time)
        values: dict[str, Value] = {"tablesComplete": len(mine)}
        under_way = (one for one in self._flow.assembling.values() if one.product.startswith(self.prefix))
        values["assembling"] = tuple(_text(describe(one)) for one in under_way)
        failed = [one for one in self._flow.failed.values() if one.product.startswith(self.prefix)]
        values["lastFailure"] = _text(describe(max(failed, key=lambda one: one.time))) if failed else ""
        pointing: dict[str, Value] = {}
        for one in mine:
            if isinstance(one.summary, SolutionSummary):
                self._solution = one.table, one.summary
            elif isinstance(one.summary, PointingSummary):
                pointing |= self._pointing(one.summary)
        self._pointed = {*pointing}
        values |= pointing
        return values if self._solution is None else values | _solution(*self._solution)

    def _pointing(self, summary: PointingSummary) -> dict[str, Value]:
        offsets = {f"{_POINTING}{dish}": three for dish, three in summary.pointing.items()}
        self._strange = sorted(name.removeprefix(_POINTING) for name in offsets.keys() - self._attributes.keys())
        return {name: three for name, three in offsets.items() if name in self._attributes}

    def _judge(self, now: Time) -> tuple[str, list[str]]:
        lines = []
        expired = self._is_expired(now)
        if self._solution is None:
            lines.append("No solution has come yet.")
        elif expired:
            solution = _id_of(*self._solution)
            lines.append(
                f"The solution {solution} is no longer valid, and the pipeline has sent no newer one. A scan needs one."
            )
        if self._strange:
            lines.append(f"Pointing offsets of dishes that the ICD does not have: {listed(self._strange, 8)}.")
        return "ALARM" if expired else "ON", lines


def _id_of(table: Table, summary: SolutionSummary) -> str:
    return summary.solution_id or table.table


def _solution(table: Table, summary: SolutionSummary) -> dict[str, Value]:
    begin, end = (None if one is None else Time(one) for one in (summary.valid_from, summary.valid_until))
    return {
        "solutionId": _id_of(table, summary),
        "product": table.product,
        "kind": table.kind,
        "sourceModel": summary.source_model,
        "validFrom": _seconds(begin),
        "validUntil": _seconds(end),
        "validFromUtc": "" if begin is None else utc_text(begin),
        "validUntilUtc": "" if end is None else utc_text(end),
        "antennas": tuple(summary.antennas),
        "channels": summary.channels,
        "polarisations": tuple(summary.polarisations),
        "flaggedFraction": summary.flagged_fraction,
        "snr": _number(summary.snr),
        "gainAmplitude": _image(summary.amplitude),
        "gainPhase": _image(summary.phase),
        "channelFrequencies": tuple(summary.channel_frequencies),
        "antennaAmplitude": _numbers(summary.antenna_amplitude),
        "antennaPhaseRms": _numbers(summary.antenna_phase_rms),
        "antennaFlagged": tuple(summary.antenna_flagged),
        "digest": table.sha256,
        "location": _text(place(table)),
        "size": table.size,
        "transferTime": as_seconds(table.time - table.sent_at),
    }


def _seconds(time: Time | None) -> float:
    return math.nan if time is None else as_seconds(time)


def _number(value: float | None) -> float:
    # Always the same object: two readings with it are then equal, though NaN is not equal to itself.
    return math.nan if value is None else value


def _numbers(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(map(_number, values))


def _image(rows: Sequence[Sequence[float | None]]) -> Image:
    return tuple(map(_numbers, rows))


def _text(content: Mapping[str, Any]) -> str:
    return msgspec.json.encode(content).decode()


CLASS = "SdpCalibration"
_PATIENCE = 10.0
"""Longest time to read a small table by its reference [s]."""


def compose(server: Server) -> None:
    """Add the tables to a device server."""
    devices, icd, clock = server.devices[CLASS], server.icd, server.clock
    prefixes = [products_of(device) for device in devices]
    flow = server.share(TablesFlow, TablesFlow)
    server.flows.append(flow)
    losses: Losses  # it and the reporter need each other
    reporter = server.report(lambda now: losses.find(now), lambda key: losses.is_loss(key), flow.topic)
    shown = tuple(map(products_of, classes_of(icd, server.settings, [CLASS])))

    def is_ours(product: str) -> bool:
        """Return whether a device of this server shows a product; the first one's server has those of no device."""
        return product.startswith(tuple(prefixes)) or (shown[0] in prefixes and not product.startswith(shown))

    losses = Losses(flow, is_ours, reporter.has_reported)
    server.views += [CalibrationView(device, server, flow) for device in devices]
    contents = server.share(
        Contents,
        lambda: Contents(
            flow,
            prefixes,
            server.bus,
            most=largest(icd),
            references=References(parse_roots(server.settings.table_roots), clock=clock, patience=_PATIENCE),
            known=lambda: server.has_read(flow.topic),
            clock=clock,
        ),
    )
    server.threads.append(contents.run)


def largest(icd: Icd) -> int:
    """Return the size of the largest table that a device returns [bytes]."""
    sizes = [query.max_bytes for query in icd.classes[CLASS].queries if query.max_bytes]
    if not sizes:
        raise IcdError(f"{CLASS}.toml: queries: expected one with the result DevEncoded, got none")
    return max(sizes)
