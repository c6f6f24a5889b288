"""What SdpLogs shows: rates and totals, where it goes wrong, and the newest metrics of the nodes."""

import math
from collections.abc import Callable, Iterator, Mapping

from facade.bus.port import BusHealth
from facade.flows.logs.ledger import LogLedger, Tally
from facade.flows.logs.names import ATTRIBUTES
from facade.flows.logs.records import ERROR, LOG_SEVERITIES
from facade.icd.model import DeviceClass
from facade.printable import listed
from facade.reading import Reading, Value, judge
from facade.runtime.view import NewestView

_WORST = {"temperature": "nodeTemperature", "diskUsed": "nodeDiskUsed", "memoryUsed": "nodeMemoryUsed"}
"""Attributes that show the largest entry of another one."""
_MOST_NAMES = 8
"""That Status gives."""


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
            if stale_after and heard:  # whether 0 is true, nobody knows later
                dated = Reading(reading.value, heard, reading.quality)
                yield name, dated.invalid() if now - heard > stale_after else dated
            elif stale_after:
                yield name, reading.invalid()
            else:
                yield name, reading
        if is_known:
            yield from self._nodes.items()

    def _measured(self, now: float) -> Iterator[tuple[str, Reading]]:
        """Return the readings of metrics; their time is that of the newest value."""
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
            # Nobody has dated the metrics of no node.
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
