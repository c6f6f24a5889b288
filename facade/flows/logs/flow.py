"""Logs and metrics on SdpLogs: totals, recent errors, silence, newest values of nodes, and their alarms.

Time is the brokers': a component is silent when others have written long after it. So a stopped worker makes no
component silent, and a restart judges as before.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from facade.flows.logs.export import NAMESPACE
from facade.flows.logs.messages import SUMMARY, LogCount, LogSummary, decode_summary
from facade.flows.logs.names import ATTRIBUTES
from facade.flows.logs.records import ERROR, LOG_SEVERITIES
from facade.flows.logs.sums import OTHER
from facade.kernel.bus.offsets import CountedOffsets, Gap, Overlap
from facade.kernel.bus.port import Record
from facade.kernel.clock import NEVER, Time, as_seconds, as_time, utc_seconds
from facade.kernel.icd.topic_model import Limits
from facade.kernel.numbers import Seconds
from facade.kernel.outcome import INCONSISTENT, USED, Outcome, RecordRejected
from facade.kernel.printable import excerpt, listed
from facade.kernel.reading import Quality, Reading, Value, judge
from facade.kernel.runtime.accounts import OVERLAP
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import Fault, FaultKey, Flow, Missing
from facade.kernel.runtime.view import NewestView
from facade.kernel.severities import ALARM, WARNING

MOST_SHIPPERS: Final = 2000
"""Most shippers; a new one displaces the shipper that has been silent longest, if that was long enough."""
MOST_MISSING: Final = 10
"""Runs of missing numbers of a shipper that may still come."""
_RESTART: Final = 1
"""Number of a starting shipper (RFC 5424), also after its largest one."""

NumberRange = tuple[int, int]


class Shipper(msgspec.Struct):
    """The sequence numbers of one shipper."""

    newest: int
    missing: list[NumberRange] = []
    """Runs of missing numbers, ascending; the newest ones."""
    heard: float = 0.0
    """Brokers' time of its newest records [Unix s]."""

    def fill(self, first: int, last: int) -> int:
        """Remove a run of numbers from the missing ones; return how many of them were missing."""
        left: list[NumberRange] = []
        for low, high in self.missing:
            left += [run for run in ((low, min(high, first - 1)), (max(low, last + 1), high)) if run[0] <= run[1]]
        filled = _size(self.missing) - _size(left)
        self.missing = left
        return filled


class ShipperNumbers(msgspec.Struct):
    """Counts gaps in the numbers of all shippers."""

    shippers: dict[str, Shipper] = {}
    holes: int = 0

    def add(self, name: str, runs: Sequence[NumberRange], at: float, *, silent_since: float) -> None:
        """Count runs of numbers in the order of arrival, at a time [Unix s].

        `silent_since`: a shipper whose last record is older may be forgotten for another one [Unix s].
        """
        if name not in self.shippers and len(self.shippers) >= MOST_SHIPPERS:
            silent_longest = next(iter(self.shippers))
            if self.shippers[silent_longest].heard >= silent_since:
                return
            del self.shippers[silent_longest]
        for first, last in runs:
            found = self.shippers.get(name)
            if found is None or first == _RESTART:
                self.shippers[name] = Shipper(last)
            elif first > found.newest:
                if first > found.newest + 1:
                    self.holes += first - found.newest - 1
                    found.missing = [*found.missing, (found.newest + 1, first - 1)][-MOST_MISSING:]
                found.newest = last
            else:
                # Some came by another way, or again, as the shipper was not sure of their arrival.
                self.holes -= found.fill(first, last)
                found.newest = max(found.newest, last)
        if (found := self.shippers.pop(name, None)) is not None:
            found.heard = at
            self.shippers[name] = found  # moved to the end: the first one has been silent longest


def _size(runs: Sequence[NumberRange]) -> int:
    return sum(high - low + 1 for low, high in runs)


MOST_COMPONENTS: Final = 1000
"""Most components; a new one displaces the component that has been silent longest, if it is not awaited any more."""
MOST_LOCATIONS: Final = 2000
MOST_OBSERVATIONS: Final = 64
MOST_HOSTS: Final = 2000
MOST_INSTANCES: Final = 100
MOST_ERRORS: Final = 32
BUCKET: Final = 10
"""Length of the buckets of errors and heartbeats [s]."""
BUCKETS: Final = 30
REGULAR: Final = 5
"""Number of the newest ten buckets in which a regular component has written."""
SILENT: Final = 30.0
"""Time after the newest heartbeat of a regular component from which it is silent, if others are not [s]."""
FORGOTTEN: Final = 3600.0
"""Time after it from which the component is not awaited any more [s]."""
SERIES: Final = 60.0
"""Longest time between errors of one series [s]."""
_OF_OURS: Final = f"{NAMESPACE}/"
METRICS_FOR: Final = 60.0
"""Time for which a metric is shown [s]."""


class Component(msgspec.Struct):
    """The log of one component."""

    records: int = 0
    errors: int = 0
    heard: float = 0.0
    """Brokers' time of its newest record [Unix s]."""
    is_regular: bool = False
    wrote: list[int] = []
    """The newest buckets in which it wrote, ascending; enough to judge whether it writes regularly."""
    failed: dict[int, int] = {}

    def recent(self, now: float, over: float) -> int:
        """Return the errors of the last `over` seconds, at the resolution of a bucket."""
        first = int((now - over) // BUCKET)
        return sum(count for bucket, count in self.failed.items() if bucket > first)


class Tally(msgspec.Struct):
    """Records and errors of a location or an execution block."""

    records: int = 0
    errors: int = 0


class NodeValue(msgspec.Struct):
    """The newest value of a metric."""

    time: Time
    """Time of the measurement."""
    heard: float
    """Arrival, by the brokers' time [Unix s]."""
    value: float


class LogState(msgspec.Struct):
    """The state of the flow in a snapshot, which has times as Unix times [s]."""

    severities: list[int] = msgspec.field(default_factory=lambda: [0] * len(LOG_SEVERITIES))
    recent: dict[int, list[int]] = {}
    """Records in time by severity, by second of the brokers' time; as many as rates need."""
    components: dict[str, Component] = {}
    locations: dict[str, Tally] = {}
    observations: dict[str, Tally] = {}
    errors: list[str] = []
    """The newest errors as lines, the newest last."""
    first_error: str = ""
    last_error: float = 0.0
    """Brokers' time of the newest error [Unix s]."""
    late: int = 0
    merged: int = 0
    numbers: ShipperNumbers = msgspec.field(default_factory=ShipperNumbers)
    heard: Seconds = 0.0
    """Brokers' time of the newest summary of logs [Unix s]."""
    counted: dict[str, CountedOffsets] = {}


RATE_OVER: Final = 10
"""Period of rates [s]."""
_CONDITIONS = RISING, COMPONENT_SILENT, DISK_FILLS = "errorsRising", "componentSilent", "diskFills"
Faults = dict[FaultKey, Fault]


class LogFlow(Flow):
    """A flow: all summaries, added up in `state`; see `facade.kernel.runtime.flow.Flow`."""

    topic = SUMMARY
    durable = True

    def __init__(self) -> None:
        self.state = LogState()
        self.metrics: dict[str, dict[str, dict[str, NodeValue]]] = {}
        """By host, metric and instance; without a snapshot, as they soon come again."""
        self.missing: list[Missing] = []
        """Records without a summary, found since the last call of `lost_before`."""

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Add a summary; see `facade.kernel.runtime.flow.Flow`."""
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
        for at, sequence in enumerate(summary.sequences):
            if wrong := [run for run in sequence.runs if run[0] > run[1]]:
                what = f"expected the first number of a run and then its last one, got {wrong[0][0]}, {wrong[0][1]}"
                return RecordRejected(INCONSISTENT, f"$.sequences[{at}].runs", what)
        if count:  # the snapshot has the others
            if trouble := self.take(summary):
                return RecordRejected(OVERLAP, "$.offset_from", trouble)
            self.add(summary, as_seconds(self.heard(record)))
        return USED

    def lost_before(self) -> list[Missing]:
        """Return the records whose summaries are missing; see `facade.kernel.runtime.flow.Flow`."""
        found, self.missing = self.missing, []
        return found

    def find(self, now: Time) -> Faults:
        """Return the components with rising errors, and the silent ones."""
        rising = sorted(self.rising(as_seconds(now)).items(), key=lambda one: -one[1][0])
        found = {
            (RISING, name): Fault(f"{recent} errors in 20 s, {before} in the 280 s before", values={"errors": recent})
            for name, (recent, before) in rising
        }
        return found | {
            (COMPONENT_SILENT, name): Fault("wrote regularly, and has written nothing for 30 s while others did")
            for name in self.silent()
        }

    def take(self, summary: LogSummary) -> str:
        """Count the offsets of a summary; return the reason of a refusal, or empty text."""
        place, first = f"{summary.stream}/{summary.partition}", summary.offset_from
        counted = self.state.counted.setdefault(place, CountedOffsets(summary.log, first, first, -1))
        found = counted.take(summary.log, first, summary.offset_to, summary.part)
        if isinstance(found, Overlap):
            return f"{place}, offsets {first} to {summary.offset_to - 1}, part {summary.part}: {found}"
        if isinstance(found, Gap) and summary.contiguous:
            where = f"{summary.stream}, partition {summary.partition}"
            self.missing.append(Missing(found.records, f"{where}: {found}"))
        return ""

    def add(self, summary: LogSummary, at: float) -> None:
        """Add a summary that was written at a time [Unix s]."""
        state = self.state
        state.merged += summary.merged
        if summary.counts:
            state.heard = max(state.heard, at)
        for one in summary.counts:
            self._count(one, at)
        for sequence in summary.sequences:
            state.numbers.add(sequence.shipper, sequence.runs, at, silent_since=at - FORGOTTEN)
        for error in summary.errors:
            where = f"{error.component} on {error.host}" if error.host else error.component
            line = f"{utc_seconds(error.time)} {LOG_SEVERITIES[error.severity]} {where}: {error.text}"
            if not state.first_error or at - state.last_error > SERIES:
                state.first_error = line
            state.last_error = at
            state.errors = [*state.errors, line][-MOST_ERRORS:]
        for metric in summary.metrics:
            self._measure(metric.host, metric.metric, metric.instance, NodeValue(metric.time, at, metric.value))

    def _count(self, one: LogCount, at: float) -> None:
        state = self.state
        errors = one.count if one.severity >= ERROR else 0
        on_time = one.count - one.late
        state.severities[one.severity] += one.count
        state.late += one.late
        if on_time:
            self._second(at)[one.severity] += on_time
        component = self._component(one)
        component.records += one.count
        component.errors += errors
        if on_time:
            component.heard = max(component.heard, at)
            if errors:
                _into(component.failed, at, on_time)
            wrote, bucket = component.wrote, int(at // BUCKET)
            if not wrote or bucket > wrote[-1]:
                component.wrote = [*wrote, bucket][-REGULAR:]
                component.is_regular |= len(wrote) >= REGULAR - 1 and bucket - component.wrote[0] < 2 * REGULAR
        place = "/".join(part for part in (one.rack, one.host) if part)
        _tally(state.locations, place, MOST_LOCATIONS, one.count, errors)
        if one.observation:
            # The newest blocks matter: an old one makes room.
            found = state.observations.pop(one.observation, Tally())
            state.observations[one.observation] = Tally(found.records + one.count, found.errors + errors)
            if len(state.observations) > MOST_OBSERVATIONS:
                del state.observations[next(iter(state.observations))]

    def _second(self, at: float) -> list[int]:
        recent, second = self.state.recent, int(at)
        if second not in recent:
            recent[second] = [0] * len(LOG_SEVERITIES)
            for old in [one for one in recent if one < max(recent) - RATE_OVER]:
                del recent[old]
        return recent.get(second, [0] * len(LOG_SEVERITIES))

    def _component(self, one: LogCount) -> Component:
        components = self.state.components
        name = one.component or "(none)"
        if name not in components and len(components) >= MOST_COMPONENTS and name != OTHER:
            components[OTHER] = components.pop(OTHER, Component())
            silent_longest = next(iter(components))
            if self.state.heard - components[silent_longest].heard > FORGOTTEN:
                self._merge(components.pop(silent_longest))
            else:
                self.state.merged += one.count
                name = OTHER
        components[name] = components.pop(name, Component())  # moved to the end: the first one has been silent longest
        return components[name]

    def _merge(self, forgotten: Component) -> None:
        other = self.state.components[OTHER]
        other.records += forgotten.records
        other.errors += forgotten.errors
        self.state.merged += forgotten.records

    def _measure(self, host: str, metric: str, instance: str, value: NodeValue) -> None:
        metrics = self.metrics
        if host not in metrics and len(metrics) >= MOST_HOSTS:
            self.state.merged += 1
            return
        found = metrics.setdefault(host, {}).setdefault(metric, {})
        if instance not in found and len(found) >= MOST_INSTANCES:
            self.state.merged += 1
            return
        if (before := found.get(instance)) is None or value.time >= before.time:
            found[instance] = value

    def forget(self, now: float) -> None:
        """Forget metrics that are not shown any more, and components that stay silent."""
        for host in list(self.metrics):
            kinds = self.metrics[host]
            for found in kinds.values():
                for instance in [one for one, its in found.items() if now - its.heard > METRICS_FOR]:
                    del found[instance]
            if not any(kinds.values()):
                del self.metrics[host]
        for one in self.state.components.values():
            if self.state.heard - one.heard > FORGOTTEN:
                one.is_regular = False

    def silent(self) -> list[str]:
        """Return the silent components, by name. The facade's own log rarely, but write heartbeats."""
        heard = self.state.heard
        return sorted(
            name
            for name, one in self.state.components.items()
            if one.is_regular and SILENT < heard - one.heard <= FORGOTTEN and not name.startswith(_OF_OURS)
        )

    def rising(self, now: float) -> dict[str, tuple[int, int]]:
        """Return the components with rising errors: with errors of the last 20 s, and of the 280 s before."""
        found = {}
        for name, one in self.state.components.items():
            recent = one.recent(now, 2 * BUCKET)
            before = one.recent(now, BUCKETS * BUCKET) - recent
            # Half an error a second, and five times the rate before.
            if recent >= BUCKET and recent / (2 * BUCKET) >= 5 * before / ((BUCKETS - 2) * BUCKET):
                found[name] = recent, before
        return found

    def rates(self, now: float) -> tuple[float, ...]:
        """Return records per second by severity, over the last 10 s."""
        first = int(now) - RATE_OVER
        seconds = [counts for second, counts in self.state.recent.items() if first <= second < int(now)]
        return tuple(round(sum(column) / RATE_OVER, 1) for column in zip(*seconds, strict=True)) or (0.0,) * len(
            LOG_SEVERITIES
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        found: dict[str, Any] = msgspec.to_builtins(self.state)
        return found

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a snapshot."""
        self.state = msgspec.convert(state, LogState, strict=False)


def _into(buckets: dict[int, int], at: float, count: int) -> None:
    bucket = int(at // BUCKET)
    buckets[bucket] = buckets.get(bucket, 0) + count
    if len(buckets) > BUCKETS:
        for old in [one for one in buckets if one <= max(buckets) - BUCKETS]:
            del buckets[old]


def _tally(tallies: dict[str, Tally], name: str, most: int, records: int, errors: int) -> None:
    found = tallies.pop(name, Tally())
    tallies[name] = Tally(found.records + records, found.errors + errors)
    if len(tallies) > most:  # the one that has been silent longest makes room
        other = tallies.pop(OTHER, Tally())
        forgotten = tallies.pop(next(iter(tallies)))
        tallies[OTHER] = Tally(other.records + forgotten.records, other.errors + forgotten.errors)


_DISKS = "nodeDiskUsed"
_WORST = {"temperature": "nodeTemperature", "diskUsed": _DISKS, "memoryUsed": "nodeMemoryUsed"}
"""Attributes with the largest entry of another attribute."""
_MOST_NAMES = 8
"""Names in a line of Status."""
CLASS = "SdpLogs"


class LogsView(NewestView):
    """A view: what has been added up of logs and metrics."""

    what = "sums"

    def __init__(self, device: str, server: Server, flow: LogFlow) -> None:
        super().__init__(device, server, flow.topic)
        self._flow = flow
        self._silent: list[str] = []
        self._rising: list[str] = []
        self._beyond: list[str] = []
        """Names of the faults, as of the last update."""
        self._nodes: dict[str, Reading] = {}
        """Readings of metrics, as of the last update."""

    def _look(self, now: Time) -> dict[str, Value]:
        flow, at = self._flow, as_seconds(now)
        flow.forget(at)
        state, rates = flow.state, flow.rates(at)
        self._nodes = dict(self._measured(now))
        self._silent, self._rising = flow.silent(), sorted(flow.rising(at))
        return {
            "records": sum(state.severities),
            "recordsRate": round(sum(rates), 1),
            "severities": LOG_SEVERITIES,
            "severityRecords": tuple(state.severities),
            "severityRates": rates,
            "errors": sum(state.severities[ERROR:]),
            "errorsRate": round(sum(rates[ERROR:]), 1),
            "components": len(state.components),
            "worstComponents": self._worst_components(at),
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
        found = [(one.recent(now, 300), one.recent(now, 20), name) for name, one in self._flow.state.components.items()]
        worst = sorted((one for one in found if one[0]), reverse=True)
        return tuple(f"{name}: {errors} errors of 5 min, {recent} of 20 s" for errors, recent, name in worst)

    def _show(self, values: dict[str, Value], now: Time, *, is_known: bool) -> Iterator[tuple[str, Reading]]:
        heard = self._flow.state.heard
        for name, reading in super()._show(values, now, is_known=is_known):
            stale_after = self._attributes[name].stale_after if name in self._attributes else None
            if stale_after and heard:  # later a rate of 0 may be wrong
                dated = Reading(reading.value, as_time(heard), reading.quality)
                yield name, dated.invalid() if as_seconds(now) - heard > stale_after else dated
            elif stale_after:
                yield name, reading.invalid()
            else:
                yield name, reading
        if is_known:
            yield from self._nodes.items()

    def _measured(self, now: Time) -> Iterator[tuple[str, Reading]]:
        metrics = self._flow.metrics
        most = self._attributes["nodes"].length or len(metrics)
        hosts = sorted(metrics)
        yield "nodes", self._changes.reading("nodes", tuple(hosts[:most]), now)
        columns: dict[str, tuple[float, ...]] = {}
        times: dict[str, Time] = {}
        for name in ATTRIBUTES:
            found = [metrics[host].get(name, {}).values() for host in hosts]
            columns[name] = tuple(max((one.value for one in its), default=math.nan) for its in found)
            times[name] = max((one.time for its in found for one in its), default=NEVER)
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

    def _judge(self, now: Time) -> tuple[str, list[str]]:
        state = self._flow.state
        lines = [f"Records of logs: {sum(state.severities)}, of them errors: {sum(state.severities[ERROR:])}."]
        lines += _line("Errors rise", self._rising) + _line("Silent components", self._silent)
        lines += _line("Beyond their limits", self._beyond)
        return "ALARM" if self._rising or self._beyond else "ON", lines


def _worst(tallies: Mapping[str, Tally]) -> tuple[str, ...]:
    worst = sorted(((one.errors, one.records, name) for name, one in tallies.items() if one.errors), reverse=True)
    return tuple(f"{name or '(none)'}: {errors} errors of {records} records" for errors, records, name in worst)


def _line(what: str, names: list[str]) -> list[str]:
    return [f"{what}: {listed(names, _MOST_NAMES)}."] if names else []


def filling(metrics: Mapping[str, Mapping[str, Mapping[str, NodeValue]]], limits: Limits | None) -> Faults:
    """Return the hosts, also those of brokers, with a disk that has reached the limits of diskUsed."""
    found = {}
    for host, kinds in metrics.items():
        value, disk = max(((one.value, name) for name, one in kinds.get(_DISKS, {}).items()), default=(0.0, ""))
        if (quality := judge(value, limits)) is not Quality.VALID:
            severity = ALARM if quality is Quality.ALARM else WARNING
            text = f"{value:.0f} % of {disk or 'a disk'} is used"
            found[DISK_FILLS, host] = Fault(text, severity, values={"used": value})
    return found


def compose(server: Server) -> None:
    """Add logs and metrics to a device server."""
    device = server.only_device(CLASS)
    flow = LogFlow()
    server.flows.append(flow)
    server.views.append(LogsView(device, server, flow))
    (disk,) = [one for one in server.icd.classes[CLASS].attributes if one.name == "diskUsed"]

    def find(now: Time) -> Faults:
        return flow.find(now) | filling(flow.metrics, server.limits(device, disk))

    def judges(key: FaultKey) -> bool:
        # A host that has fallen silent may have a full disk.
        return key[0] != DISK_FILLS or key[1] == device or bool(flow.metrics.get(key[1], {}).get(_DISKS))

    server.report(find, lambda key: key[0] in _CONDITIONS, flow.topic, judges=judges, others=device)
