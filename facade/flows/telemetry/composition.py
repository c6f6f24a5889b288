"""What a device server needs for windowed topics: the flows of the attributes that name them, and their health."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from facade.config import Settings
from facade.flows.telemetry.flow import ShownTopic, TelemetryFlow
from facade.flows.telemetry.ledger import WindowLedger
from facade.flows.telemetry.manifest import MANIFEST
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import Plan, plans
from facade.flows.telemetry.view import TelemetryView, read_so_far
from facade.icd.model import Icd
from facade.instances import device_number
from facade.racks import Racks
from facade.reading import Value
from facade.runtime.composition import Server
from facade.runtime.demand import Wanted, decide
from facade.runtime.health_issues import DEGRADED, HealthIssue, HealthSource
from facade.runtime.metrics import Gauge
from facade.runtime.scans import scans
from facade.runtime.stream_accounts import WorkerAccounts
from facade.severities import ALARM

_LATE_OVER, _MOST_LATE = 10.0, 0.1
"""A group of whose records more than this part came late, in so many seconds, is complained about."""
_STANDS_STILL = 3.0
"""A worker that closes a window so late is complained about [s]."""
_SILENT, _LATE = "streamSilent", "streamLate"


def compose(server: Server) -> None:
    """Add the flows for all attributes that name windowed topics to a device server."""
    server.share(Telemetry, lambda: Telemetry(server))


class Telemetry:
    """The flows of a device server, one for each summary topic that one of its devices needs.

    Raises
    ------
    ConfigError
        A device name does not say which group it stands for, or the deployment has no such group.
    """

    def __init__(self, server: Server) -> None:
        by_summary: dict[str, dict[str, Plan]] = {}
        for topic, plan in plans(server.icd).items():
            by_summary.setdefault(plan.window.summary, {})[topic] = plan
        found = (_flow(server, summary, plans_) for summary, plans_ in by_summary.items())
        self._flows = [flow for flow in found if flow is not None]
        server.flows += self._flows

    def ledgers(self) -> Iterator[WindowLedger]:
        """Return what is kept of each topic."""
        for flow in self._flows:
            yield from flow.ledgers.values()

    def over_all(self) -> Iterator[tuple[WindowLedger, frozenset[Group]]]:
        """Return what is kept of each topic that is shown over all groups, with those in the window that is shown."""
        for flow in self._flows:
            yield from ((flow.ledgers[topic], groups) for topic, groups in flow.reporting.items())


def _flow(server: Server, summary: str, known: Mapping[str, Plan]) -> TelemetryFlow | None:
    icd, settings = server.icd, server.settings
    shown: list[ShownTopic] = []
    groups: dict[str, list[Group | None]] = {}
    for class_name, names in server.devices.items():
        device_class = icd.classes[class_name]
        sources = {one.source.topic for one in device_class.attributes if one.source is not None}
        for topic in sorted(known.keys() & sources):
            plan = known[topic]
            for device in names:
                group: Group | None = "" if plan.one_group else None
                if device_class.family:
                    group = device_number(device_class, device, settings)
                shown.append(ShownTopic(device, topic, TelemetryView(device_class, plan, group)))
                groups.setdefault(topic, []).append(group)
    if not shown:
        return None
    kept = {topic: _kept(known[topic], found, settings) for topic, found in groups.items()}
    partitions = _partitions(icd, settings, summary, [(known[topic], found) for topic, found in kept.items()])
    read = range(icd.topics[summary].partitions) if partitions is None else partitions
    ledgers = {
        topic: WindowLedger(
            known[topic],
            kept[topic],
            per_group=any(group is not None for group in found),
            over_all=None in found,
            summaries=read,
        )
        for topic, found in groups.items()
    }
    racks = Racks(settings.rack_size, icd.topics[summary].partitions)
    return TelemetryFlow(summary, known, ledgers, shown, partitions, racks)


def _kept(plan: Plan, groups: Sequence[Group | None], settings: Settings) -> Sequence[Group]:
    """Return the groups that a ledger keeps: the devices' own, or all; none: any."""
    own = [group for group in groups if group is not None]
    return own if len(own) == len(groups) else plan.groups(settings)


def _partitions(
    icd: Icd, settings: Settings, summary: str, kept: Sequence[tuple[Plan, Sequence[Group]]]
) -> list[int] | None:
    """Return the partitions that have the summaries of some groups; None: all."""
    if not all(plan.window.groups == "node" for plan, _ in kept):
        return None
    racks = Racks(settings.rack_size, icd.topics[summary].partitions)
    found = racks.partitions_of(node for _, groups in kept for node in groups if isinstance(node, int))
    return None if len(found) == racks.partitions else found


class _Counted(NamedTuple):
    """Records of each group at some time."""

    at: float
    late: Mapping[Group, int]
    used: Mapping[Group, int]


class TelemetryHealth(HealthSource):
    """Groups that are silent or late, and the numbers of groups and workers that the overview shows."""

    def __init__(self, server: Server) -> None:
        self._telemetry = server.share(Telemetry, lambda: Telemetry(server))
        self._classes, self._heartbeats = server.icd.classes, server.heartbeats()
        expected = [plan for plan in plans(server.icd).values() if plan.window.all_expected]
        places = {plan.place(0).removesuffix("0000") for plan in expected}
        self.conditions: Mapping[str, str] = {one: place for one in (_SILENT, _LATE) for place in places}
        self._scans = scans(server)
        self._counted: dict[str, deque[_Counted]] = {}
        self._partitions = {topic: server.icd.topics[topic].partitions for topic in plans(server.icd)}
        self._clock = server.clock
        self._streams = server.share(WorkerAccounts).streams
        self._wanted = Wanted(0)
        about = "Workers that the records of their topics need."
        server.gauges += [
            Gauge("sdp_workers_wanted", about, {"worker": worker.name}, lambda: self._wanted.workers)
            for worker in MANIFEST.workers
        ]

    def issues(self, now: float) -> Iterator[HealthIssue]:
        """Return which groups are silent or late, and which partitions are not read, one issue for each."""
        for ledger in self._telemetry.ledgers():
            for partition, mark in ledger.standing_still(now - _STANDS_STILL):
                yield HealthIssue(DEGRADED, read_so_far(ledger.plan, partition, mark))
        for ledger, reporting in self._expected():
            late, place = dict(self._late(ledger, now)), ledger.plan.place
            for group, (part, whole) in sorted(late.items(), key=lambda one: place(one[0])):
                text = (
                    f"{_name(ledger, group)}: {part} of {whole} records within {_LATE_OVER:g} s came too late for their"
                    " window; look at its clock"
                )
                yield HealthIssue(DEGRADED, text, (_LATE, ledger.plan.place(group)), ALARM)
            # Of nodes nothing is known while nobody takes what they say.
            if self._workers():
                silent = ledger.expected - reporting - late.keys()
                silent -= {group for group in silent if any(ledger.standing_still(now - _STANDS_STILL, group))}
                for group, why in self._due(ledger, silent, reporting, now):
                    text = f"{_name(ledger, group)} sends no records while {why}"
                    yield HealthIssue(DEGRADED, text, (_SILENT, ledger.plan.place(group)), ALARM)

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return the groups of the topics that all are expected in, and how many workers there are and should be."""
        self._wanted = self._decide(self._clock.now())
        found: dict[str, Value] = {"workersAlive": self._workers(), "workersWanted": self._wanted.workers}
        for ledger, reporting in self._expected():
            noun, silent = ledger.plan.noun, (ledger.expected - reporting)
            found |= {f"{noun}sExpected": len(ledger.expected), f"{noun}sReporting": len(reporting)}
            found[f"{noun}sSilent"] = tuple(sorted(group for group in silent if isinstance(group, int)))
        return {one.name: found[one.name] for one in self._classes[device_class].attributes if one.name in found}

    def _decide(self, now: float) -> Wanted:
        """Return how many workers are wanted: at the beginning as many as there are."""
        before = self._wanted if self._wanted.workers else Wanted(self._workers())
        streams = {topic: one for topic, one in self._streams.items() if topic in self._partitions}
        if not before.workers or not streams:
            return before  # nothing is known yet
        needs = [one.work.need(now, one.lag) for one in streams.values()]
        most = max(one.shape[0] or self._partitions[topic] for topic, one in streams.items())
        return decide(before, None if None in needs else sum(need for need in needs if need), most, now)

    def _workers(self) -> int:
        return sum(len(self._heartbeats.alive_of(worker.group)) for worker in MANIFEST.workers)

    def _expected(self) -> Iterator[tuple[WindowLedger, frozenset[Group]]]:
        for ledger, reporting in self._telemetry.over_all():
            if ledger.plan.window.all_expected:
                yield ledger, reporting

    def _due(
        self, ledger: WindowLedger, silent: frozenset[Group], reporting: frozenset[Group], now: float
    ) -> Iterator[tuple[Group, str]]:
        """Return who of the silent should speak, and why: one that took part in a scan rests when its subarray does."""
        scanning = self._scans.scanning(now)
        for group in sorted(silent, key=ledger.plan.place):
            mine = self._scans.subarray(ledger.totals[group].epoch)
            if mine in scanning:
                yield group, f"{mine} scans"
            elif not mine and reporting:
                yield group, f"{len(reporting)} others do"
            elif not mine and scanning:
                yield group, f"{', '.join(scanning)} scan{'s' if len(scanning) == 1 else ''}"

    def _late(self, ledger: WindowLedger, now: float) -> Iterator[tuple[Group, tuple[int, int]]]:
        """Return late records and all records of each group of which too many are late."""
        counted = self._counted.setdefault(ledger.plan.topic, deque())
        if counted and not 0.0 <= now - counted[-1].at < _LATE_OVER:
            counted.clear()  # nobody looked for long, or the clock was set
        if not counted or now - counted[-1].at >= 1.0:
            totals = ledger.totals
            late, used = ({g: getattr(one, name) for g, one in totals.items()} for name in ("late", "count"))
            counted.append(_Counted(now, late, used))
        while now - counted[0].at > _LATE_OVER:
            counted.popleft()
        first, last = counted[0], counted[-1]
        for group, count in last.late.items():
            late_now = count - first.late.get(group, 0)
            whole = late_now + last.used[group] - first.used.get(group, 0)
            if late_now > _MOST_LATE * whole:
                yield group, (late_now, whole)


def _name(ledger: WindowLedger, group: Group) -> str:
    return f"{ledger.plan.place(group)} ({ledger.plan.noun} {group})"
