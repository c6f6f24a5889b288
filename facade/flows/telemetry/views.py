"""From ledgers to readings: the attributes of SdpIngestNode and the totals of SdpMaster."""

from collections.abc import Iterator, Mapping

from facade.flows.telemetry.ledger import NodeTotals, NotificationLedger, seconds
from facade.flows.telemetry.partial import Partial
from facade.flows.telemetry.plan import Plan
from facade.flows.telemetry.rules import evaluate
from facade.icd.model import Attribute, DeviceClass, Source
from facade.reading import Quality, Reading, Value, judge

LastReadings = Mapping[str, Reading]
Marker = tuple[int, ...]
NamedReading = tuple[str, Reading]
"""Attribute name and what it shows."""


class NodeView:
    """What one device of a class with per-node sources shows."""

    def __init__(self, device_class: DeviceClass, plan: Plan) -> None:
        self._plan = plan
        self.stale_after = device_class.stale_after
        self._sources = _sources(device_class, plan.topic)

    def marker(self, ledger: NotificationLedger, node: int, now: float) -> Marker:
        """Return something that changes whenever `readings` would say something new."""
        totals, window = ledger.totals[node], ledger.windows[node].shown(now)
        seen = (window.window, window.count) if window else (-1, 0)
        return (*seen, totals.late, int(now - totals.heard > self.stale_after))

    def readings(self, ledger: NotificationLedger, node: int, now: float, last: LastReadings) -> Iterator[NamedReading]:
        """Return the readings of one node; attributes about which nothing can be said are left out.

        Parameters
        ----------
        now
            Wall-clock time [Unix s]; it only says whether the node has fallen silent.
        last
            What was shown before, perhaps before a restart: it stands until there is a window.
        """
        totals = ledger.totals[node]
        if not totals.heard:
            return
        window = ledger.windows[node].shown(now)
        silence = now - totals.heard
        whole = totals.as_partial()
        for attribute, source in self._sources:
            partial = whole if source.over == "total" else window
            if partial is None:
                if attribute.name in last:
                    yield attribute.name, _aged(last[attribute.name], silence, self.stale_after)
                continue
            value = _value(attribute, source, partial, [totals], self._plan)
            if value is not None:
                yield attribute.name, _reading(attribute, value, partial, silence, self.stale_after)


class AllNodesView:
    """What a device with sources over all nodes shows."""

    def __init__(self, device_class: DeviceClass, plan: Plan) -> None:
        self._plan = plan
        self.stale_after = device_class.stale_after
        self._sources = _sources(device_class, plan.topic)

    def marker(self, ledger: NotificationLedger, now: float) -> Marker:
        """Return something that changes whenever `readings` would say something new."""
        shown = ledger.all_nodes.shown(now, self.stale_after)
        heard = max((totals.heard for totals in ledger.totals.values()), default=0.0)
        seen = (shown[0].window, shown[0].count) if shown else (-1, 0)
        late = sum(totals.late for totals in ledger.totals.values())
        return (*seen, late, int(now - heard > self.stale_after))

    def readings(self, ledger: NotificationLedger, now: float, last: LastReadings) -> Iterator[NamedReading]:
        """Return the readings over all nodes, ATTR_WARNING where expected nodes are missing from a window."""
        heard = max((totals.heard for totals in ledger.totals.values()), default=0.0)
        if not heard:
            return
        shown = ledger.all_nodes.shown(now, self.stale_after)
        complete = shown is not None and shown[1] == ledger.nodes
        whole = ledger.overall()
        for attribute, source in self._sources:
            partial = whole if source.over == "total" else shown[0] if shown else None
            if partial is None:
                if attribute.name in last:
                    yield attribute.name, _aged(last[attribute.name], now - heard, self.stale_after)
                continue
            value = _value(attribute, source, partial, list(ledger.totals.values()), self._plan)
            if value is None:
                continue
            reading = _reading(attribute, value, partial, now - heard, self.stale_after)
            if not complete and source.over == "window" and reading.quality is Quality.VALID:
                reading = Reading(reading.value, reading.time, Quality.WARNING)
            yield attribute.name, reading


def _aged(reading: Reading, silence: float, stale_after: float) -> Reading:
    return reading.invalid() if silence > stale_after else reading


def _sources(device_class: DeviceClass, topic: str) -> list[tuple[Attribute, Source]]:
    return [(a, a.source) for a in device_class.attributes if a.source is not None and a.source.topic == topic]


def _value(
    attribute: Attribute, source: Source, partial: Partial, totals: list[NodeTotals], plan: Plan
) -> Value | None:
    match source.rule:
        case "gaps":
            return sum(node.seen.missing for node in totals)
        case "duplicates":
            return sum(node.seen.duplicates for node in totals)
        case "late":
            return sum(node.late for node in totals)
    value = evaluate(source, partial, plan)
    return round(value) if value is not None and attribute.type != "DevDouble" else value


def _reading(attribute: Attribute, value: Value, partial: Partial, silence: float, stale_after: float) -> Reading:
    limit = stale_after if attribute.stale_after is None else attribute.stale_after
    quality = Quality.INVALID if limit and silence > limit else judge(value, attribute.limits)
    return Reading(value, seconds(partial.time_max), quality)
