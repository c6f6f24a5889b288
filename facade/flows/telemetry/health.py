"""What windowed telemetry says about the health of SDP: which groups are silent that should speak, or always late."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from facade.flows.telemetry.composition import Telemetry
from facade.flows.telemetry.ledger import Ledger
from facade.flows.telemetry.manifest import MANIFEST
from facade.flows.telemetry.partial import Group
from facade.flows.telemetry.plan import plans
from facade.flows.telemetry.view import read_so_far
from facade.reading import Value
from facade.runtime.composition import Server
from facade.runtime.demand import Wanted, decide
from facade.runtime.health import Complaint, Health
from facade.runtime.metrics import Gauge
from facade.runtime.scans import scans
from facade.runtime.stream_accounts import WorkerAccounts

_LATE_OVER, _MOST_LATE = 10.0, 0.1
"""A group of whose records more than this part came late, in so many seconds, is complained about."""
_STANDS_STILL = 3.0
"""A worker that closes a window so late is complained about [s]."""
_SILENT, _LATE = "streamSilent", "streamLate"


class _Counted(NamedTuple):
    """Records of each group at some time."""

    at: float
    late: Mapping[Group, int]
    used: Mapping[Group, int]


class TelemetryHealth(Health):
    """Which groups are silent or late, and what is shown of all nodes; see `facade.runtime.health.Health`."""

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

    def complaints(self, now: float) -> Iterator[Complaint]:
        """Return which groups are silent or late, and which partitions are not read, one complaint for each."""
        for ledger in self._telemetry.ledgers():
            for partition, mark in ledger.standing_still(now - _STANDS_STILL):
                yield Complaint("DEGRADED", read_so_far(ledger.plan, partition, mark))
        for ledger, reporting in self._expected():
            late, place = dict(self._late(ledger, now)), ledger.plan.place
            for group, (part, whole) in sorted(late.items(), key=lambda one: place(one[0])):
                text = (
                    f"{_name(ledger, group)}: {part} of {whole} records within {_LATE_OVER:g} s came too late for their"
                    " window; look at its clock"
                )
                yield Complaint("DEGRADED", text, (_LATE, ledger.plan.place(group)), "ALARM")
            # Of nodes nothing is known while nobody takes what they say.
            if self._workers():
                silent = ledger.expected - reporting - late.keys()
                silent -= {group for group in silent if any(ledger.standing_still(now - _STANDS_STILL, group))}
                for group, why in self._due(ledger, silent, reporting, now):
                    text = f"{_name(ledger, group)} sends no records while {why}"
                    yield Complaint("DEGRADED", text, (_SILENT, ledger.plan.place(group)), "ALARM")

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

    def _expected(self) -> Iterator[tuple[Ledger, frozenset[Group]]]:
        for ledger, reporting in self._telemetry.over_all():
            if ledger.plan.window.all_expected:
                yield ledger, reporting

    def _due(
        self, ledger: Ledger, silent: frozenset[Group], reporting: frozenset[Group], now: float
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

    def _late(self, ledger: Ledger, now: float) -> Iterator[tuple[Group, tuple[int, int]]]:
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


def _name(ledger: Ledger, group: Group) -> str:
    return f"{ledger.plan.place(group)} ({ledger.plan.noun} {group})"
