"""Logs and metrics on SdpLogs: the added-up sums, what is shown of them, and their alarms."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from facade.bus.port import BusHealth, Record
from facade.errors import ConfigError
from facade.flows.logs.ledger import LogLedger, Tally
from facade.flows.logs.messages import SUMMARY, LogSummary, decode_summary
from facade.flows.logs.names import ATTRIBUTES
from facade.flows.logs.records import ERROR, LOG_SEVERITIES
from facade.icd.model import DeviceClass
from facade.outcome import INCONSISTENT, USED, Outcome, RecordRejected
from facade.printable import excerpt, listed
from facade.reading import Reading, Value, judge
from facade.runtime.accounts import OVERLAP
from facade.runtime.composition import Server
from facade.runtime.flow import Fault, FaultKey, Flow
from facade.runtime.view import NewestView
from facade.severities import WARNING

RISING, SILENT = "errorsRising", "componentSilent"
_WORST = {"temperature": "nodeTemperature", "diskUsed": "nodeDiskUsed", "memoryUsed": "nodeMemoryUsed"}
"""Attributes that show the largest entry of another one."""
_MOST_NAMES = 8
"""Names in a line of Status."""
CLASS = "SdpLogs"


class LogFlow(Flow):
    """All sums, added up; see `facade.runtime.flow.Flow`."""

    topic = SUMMARY
    durable = True

    def __init__(self) -> None:
        self.ledger = LogLedger()

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Add a summary; see `facade.runtime.flow.Flow`."""
        summary = decode_summary(record.value)
        if not isinstance(summary, LogSummary):
            return summary
        key = f"{summary.stream}/{summary.partition}"
        if record.key != key.encode():
            return RecordRejected(
                INCONSISTENT, "$.stream", excerpt(f"expected the record's key {record.key!r}, got {key}")
            )
        if summary.offset_to < summary.offset_from:
            what = f"expected {summary.offset_from} or more, got {summary.offset_to}"
            return RecordRejected(INCONSISTENT, "$.offset_to", what)
        if count:  # what the snapshot has needs not to be rebuilt
            if trouble := self.ledger.take(summary):
                return RecordRejected(OVERLAP, "$.offset_from", trouble)
            self.ledger.add(summary, self.heard(record))
        return USED

    def find(self, now: float) -> dict[FaultKey, Fault]:
        """Return the components whose errors rise, and those that are silent."""
        rising = sorted(self.ledger.rising(now).items(), key=lambda one: -one[1][0])
        found = {
            (RISING, name): Fault(
                WARNING, f"{recent} errors in 20 s, {before} in the 280 s before", values={"errors": recent}
            )
            for name, (recent, before) in rising
        }
        return found | {
            (SILENT, name): Fault(WARNING, "wrote regularly, and has written nothing for 30 s while others did")
            for name in self.ledger.silent()
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        return self.ledger.as_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the state from a snapshot."""
        self.ledger.restore(state)


class LogsView(NewestView):
    """A view: what the ledger of logs and metrics has."""

    what = "sums"

    def __init__(
        self,
        device: str,
        device_class: DeviceClass,
        ledger: LogLedger,
        health: BusHealth,
        *,
        known: Callable[[], bool],
        version: str,
    ) -> None:
        super().__init__(device, device_class, health, known=known, version=version)
        self._ledger = ledger
        self._silent: list[str] = []
        self._rising: list[str] = []
        self._beyond: list[str] = []
        """Names of what is wrong, as of the last look."""
        self._nodes: dict[str, Reading] = {}
        """What is shown of metrics, as of then."""

    def _look(self, now: float) -> dict[str, Value]:
        ledger = self._ledger
        ledger.forget(now)
        state, rates = ledger.state, ledger.rates(now)
        self._nodes = dict(self._measured(now))
        self._silent, self._rising = ledger.silent(), sorted(ledger.rising(now))
        return {
            "records": sum(state.severities),
            "recordsRate": round(sum(rates), 1),
            "severities": LOG_SEVERITIES,
            "severityRecords": tuple(state.severities),
            "severityRates": rates,
            "errors": sum(state.severities[ERROR:]),
            "errorsRate": round(sum(rates[ERROR:]), 1),
            "components": len(state.components),
            "worstComponents": self._worst_components(now),
            "silentComponents": tuple(self._silent),
            "worstLocations": _worst(state.locations),
            "observations": tuple(
                f"{name}: {one.records} records, {one.errors} errors"
                for name, one in reversed(state.observations.items())
            ),
            "newestErrors": tuple(reversed(state.errors)),
            "firstError": state.first_error,
            "late": state.late,
            "merged": state.merged,
            "holes": state.numbers.holes,
        }

    def _worst_components(self, now: float) -> tuple[str, ...]:
        found = [
            (one.recent(now, 300), one.recent(now, 20), name) for name, one in self._ledger.state.components.items()
        ]
        worst = sorted((one for one in found if one[0]), reverse=True)
        return tuple(f"{name}: {errors} errors of 5 min, {recent} of 20 s" for errors, recent, name in worst)

    def _show(self, values: dict[str, Value], now: float, *, is_known: bool) -> Iterator[tuple[str, Reading]]:
        heard = self._ledger.state.heard
        for name, reading in super()._show(values, now, is_known=is_known):
            stale_after = self._attributes[name].stale_after if name in self._attributes else None
            if stale_after and heard:  # later a rate of 0 may be true or not
                dated = Reading(reading.value, heard, reading.quality)
                yield name, dated.invalid() if now - heard > stale_after else dated
            elif stale_after:
                yield name, reading.invalid()
            else:
                yield name, reading
        if is_known:
            yield from self._nodes.items()

    def _measured(self, now: float) -> Iterator[tuple[str, Reading]]:
        metrics = self._ledger.metrics
        most = self._attributes["nodes"].length or len(metrics)
        hosts = sorted(metrics)
        yield "nodes", self._changes.reading("nodes", tuple(hosts[:most]), now)
        columns: dict[str, tuple[float, ...]] = {}
        times: dict[str, float] = {}
        for name in ATTRIBUTES:
            found = [metrics[host].get(name, {}).values() for host in hosts]
            columns[name] = tuple(max((one.value for one in its), default=math.nan) for its in found)
            times[name] = max((one.time / 1e6 for its in found for one in its), default=0.0)
            shown = columns[name][:most]
            yield name, Reading(shown, times[name]) if times[name] else self._changes.reading(name, (), now)
        self._beyond = []
        for name, by_node in _WORST.items():
            limits = self._attributes[name].limits
            known = [(value, host) for value, host in zip(columns[by_node], hosts, strict=True) if value == value]
            value, host = max(known, default=(math.nan, ""))
            quality = judge(value, limits)
            if quality.name in ("WARNING", "ALARM"):
                self._beyond.append(f"{name} of {host}: {value:.1f}")
            reading = Reading(value, times[by_node] or now, quality)
            yield name, reading if known else self._changes.reading(name, math.nan, now).invalid()

    def _judge(self, now: float) -> tuple[str, list[str]]:
        state = self._ledger.state
        lines = [f"Records of logs: {sum(state.severities)}, of them errors: {sum(state.severities[ERROR:])}."]
        lines += _line("Errors rise", self._rising) + _line("Silent components", self._silent)
        lines += _line("Beyond their limits", self._beyond)
        return "ALARM" if self._rising or self._beyond else "ON", lines


def _worst(tallies: Mapping[str, Tally]) -> tuple[str, ...]:
    worst = sorted(((one.errors, one.records, name) for name, one in tallies.items() if one.errors), reverse=True)
    return tuple(f"{name or '(none)'}: {errors} errors of {records} records" for errors, records, name in worst)


def _line(what: str, names: list[str]) -> list[str]:
    return [f"{what}: {listed(names, _MOST_NAMES)}."] if names else []


def compose(server: Server) -> None:
    """Add logs and metrics to a device server.

    Raises
    ------
    ConfigError
        There are several devices: each fault would be reported twice.
    """
    device, *more = server.devices[CLASS]
    if more:
        raise ConfigError(f"devices of {CLASS} in instance {server.instance}: expected one, got {device} and {more}")
    flow = LogFlow()
    server.flows.append(flow)

    def known() -> bool:
        return server.has_read(flow.topic)

    entry, health = server.icd.classes[CLASS], server.bus.health
    server.views.append(LogsView(device, entry, flow.ledger, health, known=known, version=server.version))
    server.report(flow.find, lambda key: key[0] in (RISING, SILENT), flow.topic, others=device)
