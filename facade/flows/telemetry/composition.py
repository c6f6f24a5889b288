"""Windowed topics in a device server: one flow for each summary topic, and the health of the groups."""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from facade.flows.telemetry.consistency import checked, impossible
from facade.flows.telemetry.excesses import Excesses
from facade.flows.telemetry.ledger import WindowLedger
from facade.flows.telemetry.manifest import MANIFEST
from facade.flows.telemetry.partial import FOLLOWS, Group, StreamSummary, Summary
from facade.flows.telemetry.plan import FIGURES, RECENT, Plan, plans
from facade.flows.telemetry.view import TelemetryView, evaluate, read_so_far
from facade.kernel.bus.offsets import Overlap
from facade.kernel.bus.port import Record
from facade.kernel.clock import NOTHING, SECOND, Time, as_seconds
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.config import Settings
from facade.kernel.icd.model import Source
from facade.kernel.instances import device_number, devices_of
from facade.kernel.outcome import INCONSISTENT, USED, Outcome, RecordRejected, Suppressed
from facade.kernel.printable import excerpt
from facade.kernel.reading import Image, Value
from facade.kernel.runtime.accounts import OVERLAP
from facade.kernel.runtime.columns import ReadingColumn
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import DeviceReading, FaultKey, Flow, Gate, Missing
from facade.kernel.runtime.health_issues import DEGRADED, HealthIssue, HealthSource
from facade.kernel.runtime.metrics import MetricFamily
from facade.kernel.windows.frame import Array, FieldArrays
from facade.sdp.demand import Wanted, decide
from facade.sdp.messages import RackSummary, Watermark
from facade.sdp.racks import Racks
from facade.sdp.scans import scans
from facade.sdp.stream_accounts import WorkerAccounts

_RACK = re.compile(rb"([a-z0-9._-]{1,151}/)?([0-9]{1,4})-([0-9]{1,4})")
"""Key of the summary of a rack, with the stream on a shared topic."""
_LONGEST = 17
"""More digits are no offset."""
_OTHER_DEVICE, _OTHER_STREAM = Suppressed("other-device"), Suppressed("other-stream")


class TelemetryFlow(Flow):
    """All partials of one summary topic, of the windowed topics in `plans`; see `facade.kernel.runtime.flow.Flow`."""

    durable = True

    def __init__(
        self,
        topic: str,
        plans: Mapping[str, Plan],
        ledgers: Mapping[str, WindowLedger],
        views: Sequence[TelemetryView],
        partitions: Sequence[int] | None,
        racks: Racks,
    ) -> None:
        self.topic, self.partitions, self._racks = topic, partitions, racks
        self._plans, self.ledgers, self.views = plans, ledgers, views
        self.columns = [column for view in views for column in view.columns]
        first = next(iter(plans.values()))
        self._only = None if first.is_shared else first.topic
        """The windowed topic of all summaries; None: each summary names it."""
        self._decode = BatchDecoder[Summary | RackSummary | Watermark](first.form, RackSummary, Watermark).decode_one
        self._is_foreign = lru_cache(1024)(self._names_others)
        self._gate = Gate()
        self._folded: set[str] = set()
        """Streams with summaries or watermarks since the last look."""
        self.reporting: dict[str, frozenset[Any]] = {}
        """Groups in the window shown over all groups, without those that have fallen silent, by windowed topic."""

    def fold(self, record: Record, *, count: bool) -> Outcome:
        """Merge a summary; see `facade.kernel.runtime.flow.Flow`."""
        if self._is_foreign(record.key):
            return _OTHER_DEVICE
        summary = self._decode(record.value)
        if isinstance(summary, RackSummary):
            return self._fold_rack(summary, record, count=count)
        if isinstance(summary, Watermark):
            return self._fold_watermark(summary, record, count=count)
        if not isinstance(summary, Summary):
            return summary
        stream = summary.stream if isinstance(summary, StreamSummary) else self._only
        plan = self._plans.get(stream or "")
        if plan is None:
            return _OTHER_STREAM  # it may be of a newer worker
        try:
            group = plan.group(summary.group)
        except ValueError:
            return RecordRejected(INCONSISTENT, "$.group", f"expected a number, got {summary.group!r:.80}")
        # First the check that all servers do alike: one of them writes the dead letter, for all.
        frames = checked(summary, record.timestamp_us, plan)
        if isinstance(frames, RecordRejected):
            return frames
        ledger = self.ledgers.get(plan.topic)
        if ledger is None or not ledger.keeps(group):
            return _OTHER_DEVICE
        heard = self.heard(record)
        if overlap := ledger.take(group, summary, heard, follows=_follows(record), count=count):
            return _refused(plan, summary, overlap)
        ledger.hear(group, summary.partition, heard)
        for rows in frames:
            ledger.fold(ledger.of_group(group, rows), heard, partition=summary.partition, count=count)
        self._folded.add(plan.topic)
        return USED

    def _fold_rack(self, summary: RackSummary, record: Record, *, count: bool) -> Outcome:
        plan = self._plans.get(summary.stream)
        if plan is None:
            return _OTHER_STREAM
        key = plan.rack_key(summary.first, summary.last)
        if record.key != key.encode():
            return RecordRejected(
                INCONSISTENT, "$.first", excerpt(f"expected the rack of the key {record.key!r}, got {key}")
            )
        frames = checked(summary, record.timestamp_us, plan)
        if isinstance(frames, RecordRejected):
            return frames
        nodes = self._racks.nodes(self._racks.rack(summary.first))
        if (summary.first, summary.last) != (nodes[0], nodes[-1]):
            text = f"expected a rack of nodes {nodes[0]} to {nodes[-1]}, as rack_size is {self._racks.size}, got {key}"
            return RecordRejected(
                INCONSISTENT, "$.first", f"{text}: workers and device servers must have one rack_size"
            )
        ledger = self.ledgers.get(plan.topic)
        if ledger is None or not ledger.keeps_any(range(summary.first, summary.last + 1)):
            return _OTHER_DEVICE
        heard = self.heard(record)
        if overlap := ledger.take_rack(summary, heard, count=count):
            return _refused(plan, summary, overlap)
        rows = ledger.of_nodes(frames[0]) if summary.node else None
        if rows is not None:
            ledger.fold(rows, heard, partition=summary.partition, count=count)
            self._folded.add(plan.topic)
        return USED if rows is not None or not summary.node else _OTHER_DEVICE

    def _fold_watermark(self, watermark: Watermark, record: Record, *, count: bool) -> Outcome:
        plan = self._plans.get(watermark.stream)
        if plan is None:
            return _OTHER_STREAM
        key = plan.watermark_key(watermark.partition)
        if record.key != key.encode():
            return RecordRejected(
                INCONSISTENT, "$.partition", excerpt(f"expected that of the key {record.key!r}, got {key}")
            )
        if rejected := impossible(watermark, record.timestamp_us, plan):
            return rejected
        ledger = self.ledgers.get(plan.topic)
        if ledger is None:
            return USED  # of no use here; as "other-device" it would outnumber the others
        ledger.take_watermark(watermark, record.partition, count=count)
        self._folded.add(plan.topic)
        return USED

    def lost_before(self) -> Iterator[Missing]:
        """Return the records whose summaries are missing; see `facade.kernel.runtime.flow.Flow`."""
        for stream, ledger in self.ledgers.items():
            for partition, gap in ledger.taken_gaps():
                where = f"{stream}, partition {partition}: offsets {gap.first} to {gap.after - 1}"
                what = f"up to {gap.records} records are missing from totals"
                yield Missing(gap.records, f"{where} have lost summaries: {what}")

    def _names_others(self, key: bytes | None) -> bool:
        # Most summaries belong to racks of other servers, as a partition has several racks. They are not decoded. A
        # server that keeps all nodes checks all summaries, and writes the dead letters of bad ones.
        found = _RACK.fullmatch(key or b"")
        if found is None:
            return False
        stream = found[1].decode()[:-1] if found[1] else self._only
        ledger = self.ledgers.get(stream or "")
        return ledger is not None and not ledger.keeps_any(range(int(found[2]), int(found[3]) + 1))

    def readings(self, now: Time) -> Iterator[DeviceReading | ReadingColumn]:
        """Return the changed columns, and the changed State and Status of devices."""
        streams, self._folded = self._folded, set()
        if self._gate.passes(now):
            streams = set(self.ledgers)
        for view in self.views:
            if (stream := view.plan.topic) not in streams:
                continue
            ledger = self.ledgers[stream]
            if view.is_over_all:
                shown = ledger.shown_over_all()
                self.reporting[stream] = ledger.live(shown.groups if shown else (), now, view.stale_after)
            if view.changed(ledger, now):
                yield from view.columns
                yield from view.state(ledger, now)

    def as_dict(self) -> dict[str, Any]:
        """Return the state of all ledgers for a snapshot."""
        return {"streams": {stream: ledger.as_dict() for stream, ledger in self.ledgers.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of all ledgers."""
        stored = msgspec.convert(state, _State).streams
        # All or nothing: everything that can fail comes before the first change.
        found = {stream: ledger.parse(stored.get(stream, _NOTHING)) for stream, ledger in self.ledgers.items()}
        for stream, restored in found.items():
            self.ledgers[stream].restore(restored)


def _follows(record: Record) -> int:
    stated = dict(record.headers).get(FOLLOWS, b"")
    return int(stated) if stated.isdigit() and len(stated) < _LONGEST else 0


def _refused(plan: Plan, summary: Summary | RackSummary, overlap: Overlap) -> RecordRejected:
    came = f"offsets {summary.offset_from} to {summary.offset_to - 1}, part {summary.part}"
    return RecordRejected(OVERLAP, "$.offset_from", f"{plan.topic}, partition {summary.partition}, {came}: {overlap}")


_NOTHING: dict[str, Any] = {"groups": {}}
"""State of a ledger that is missing in a snapshot: its stream is new."""


class _State(msgspec.Struct):
    """A flow in a snapshot."""

    streams: dict[str, dict[str, Any]]


_MOST_LATE = 0.1
"""Share of late records within `RECENT` above which a group has an issue."""
_STEADY, _OVER = 2.0, 3
"""Change of the delay of late records that shows a trend [s], and seconds without any after which they have ended."""
_STANDS_STILL = 3 * SECOND
"""Delay of a window above which its worker has an issue."""
_SILENT_FOR = 2 * SECOND
"""Least silence of a group, read to its end: one window without records may be the last before its worker stops."""
_SILENT, _LATE, _BEYOND = "streamSilent", "streamLate", "nodeDegraded"


def compose(server: Server) -> None:
    """Add the flows for all attributes that name windowed topics to a device server."""
    server.share(Telemetry, lambda: Telemetry(server))


class Telemetry:
    """The flows of a device server, one for each summary topic that one of its devices needs."""

    def __init__(self, server: Server) -> None:
        by_summary: dict[str, dict[str, Plan]] = {}
        for topic, plan in plans(server.icd).items():
            by_summary.setdefault(plan.window.summary, {})[topic] = plan
        found = (_flow(server, summary, plans_) for summary, plans_ in by_summary.items())
        self._flows = [flow for flow in found if flow is not None]
        server.flows += self._flows
        views = [view for flow in self._flows for view in flow.views]
        self.excesses = Excesses((column for view in views for column in view.columns), server.clock)
        server.complaints.append(self.excesses.complaints)

    def ledgers(self) -> Iterator[WindowLedger]:
        """Return the ledgers of all topics."""
        for flow in self._flows:
            yield from flow.ledgers.values()

    def over_all(self) -> Iterator[tuple[WindowLedger, frozenset[Group]]]:
        """Return the ledgers with windows over all groups, and the groups in the shown window of each."""
        for flow in self._flows:
            yield from ((flow.ledgers[topic], groups) for topic, groups in flow.reporting.items())


def _flow(server: Server, summary: str, known: Mapping[str, Plan]) -> TelemetryFlow | None:
    icd, settings = server.icd, server.settings
    views: list[TelemetryView] = []
    groups: dict[str, list[Group | None]] = {}
    for class_name, names in server.devices.items():
        device_class = icd.classes[class_name]
        sources = {one.source.topic for one in device_class.attributes if one.source is not None}
        for topic in sorted(known.keys() & sources):
            plan = known[topic]
            devices: dict[str, Group | None] = {}
            for device in names:
                devices[device] = "" if plan.one_group else None
                if device_class.family:
                    devices[device] = device_number(device_class, device, settings)
            views.append(TelemetryView(device_class, plan, devices))
            groups.setdefault(topic, []).extend(devices.values())
    if not views:
        return None
    kept = {topic: _kept(known[topic], found, settings) for topic, found in groups.items()}
    racks = Racks(settings.rack_size, icd.topics[summary].partitions)
    partitions: list[int] | None = None
    if all(known[topic].window.groups == "node" for topic in kept):
        needed = racks.partitions_of(node for mine in kept.values() for node in mine if isinstance(node, int))
        partitions = needed if len(needed) < racks.partitions else None
    read = range(racks.partitions) if partitions is None else partitions
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
    return TelemetryFlow(summary, known, ledgers, views, partitions, racks)


def _kept(plan: Plan, groups: Sequence[Group | None], settings: Settings) -> Sequence[Group]:
    """Return the groups that a ledger keeps: the devices' groups, or all; none: any."""
    own = [group for group in groups if group is not None]
    return own if len(own) == len(groups) else plan.groups(settings)


class _Counted(NamedTuple):
    """Number of records of each group, by its number, at some time."""

    at: Time
    late: Array
    used: Array
    heard: Array
    """Time of the last summary of each group [Unix us]; 0: never."""
    sums: Mapping[str, Array]
    """Of the fields, by the names that these have in summaries."""
    delays: dict[int, float]
    """Of groups with many late records since the last count: how old the newest one was when the broker took it [s]."""

    def late_since(self, before: "_Counted") -> Iterator[tuple[int, int, int]]:
        """Return groups with many late records since an earlier count, each with its late records and all records."""
        late = self.late - before.late
        whole = late + self.used - before.used
        for number in np.flatnonzero(late > _MOST_LATE * whole).tolist():
            yield number, int(late[number]), int(whole[number])

    def figures_since(self, before: "_Counted", sources: Sequence[Source], plan: Plan) -> Iterator[Array]:
        """Return the values of attributes over the records since an earlier count, of all groups; NaN: unknown.

        A rate is that between the last summaries of the two counts: it is right as well while this server catches up.
        """
        late, since = self.late - before.late, as_seconds(self.heard - before.heard)
        all_of_them = late + self.used - before.used
        fields = {name: FieldArrays(sum=now - before.sums.get(name, 0)) for name, now in self.sums.items()}
        for one in sources:
            count = late if one.rule == "late" else all_of_them
            if one.rule not in ("late", "rate"):
                yield evaluate(one, count, fields, plan)
                continue
            rate = np.divide(count, since, out=np.zeros(len(count)), where=since > 0)
            yield np.where(before.heard > 0, rate, np.nan)


class _Late(NamedTuple):
    """Late records of a group within `RECENT`, of all its records, and their delays in the order of time [s].

    No delays: the group had late records, and its newest ones are in time.
    """

    part: int
    whole: int
    delays: Sequence[float]

    @property
    def catches_up(self) -> bool:
        """Whether the group sends records that it held back, so its delay falls; a slow clock cannot cause that."""
        return self.delays[-1] < max(self.delays) - _STEADY

    def advice(self, others: int) -> str:
        delay = f"{self.delays[-1]:.0f} s behind its time"
        if self.delays[-1] > min(self.delays) + _STEADY:
            return f"{delay}, and more every second; look at the network to the brokers, then at the brokers"
        if others:
            return f"{delay}, as {others} others; look at the brokers and the network, then at the time servers"
        return f"always {delay}; look at its clock"


class TelemetryHealth(HealthSource):
    """Health of groups: silent, late, and with values beyond limits; numbers of groups and workers for the overview."""

    def __init__(self, server: Server) -> None:
        self._telemetry = server.share(Telemetry, lambda: Telemetry(server))
        self._classes, self._heartbeats = server.icd.classes, server.heartbeats()
        expected = [plan for plan in plans(server.icd).values() if plan.window.all_expected]
        places = {plan.place(0).removesuffix("0000") for plan in expected}
        self.conditions: Mapping[str, str] = {one: place for one in (_SILENT, _LATE, _BEYOND) for place in places}
        own = next(server.icd.classes[name].instance for name in server.devices)
        shown = {
            (device, plan.place(device_number(one, device, server.settings))): server.instance.removesuffix(own) + name
            for plan in expected
            for one in self._classes.values()
            if one.state_source == plan.topic
            for name, devices in devices_of(one, server.settings).items()
            for device in devices
        }
        self._places = dict(shown.keys())
        """Sources of the alerts about groups, by the devices of these."""
        self._shown_by = {place: component for (_, place), component in shown.items()}
        """Device servers of these devices, by the sources."""
        self._scans = scans(server)
        self._counted: dict[str, deque[_Counted]] = {}
        self._unread: set[str] = set()
        """Places of groups whose partition no worker reads: whether they send is not known."""
        self._partitions = {topic: server.icd.topics[topic].partitions for topic in plans(server.icd)}
        self._clock = server.clock
        self._streams = server.share(WorkerAccounts).streams
        self._wanted = Wanted(0)
        about = "Workers that the records of their topics need."
        names = [worker.name for worker in MANIFEST.workers]
        server.metrics.append(
            MetricFamily(
                "sdp_workers_wanted", about, ("worker",), lambda: {(name,): self._wanted.workers for name in names}
            )
        )

    def issues(self, now: Time) -> Iterator[HealthIssue]:
        """Return an issue for each group that is silent, late or beyond a limit, and for each unread partition."""
        self._unread.clear()
        yield from self._beyond()
        for ledger in self._telemetry.ledgers():
            for partition, mark in ledger.standing_still(now - _STANDS_STILL):
                text = f"{read_so_far(ledger.plan, partition, mark)}: the worker that has it is behind or has stopped"
                do = "Wait if it catches up. Otherwise see which workers run, and read the ends of their logs."
                yield HealthIssue(DEGRADED, text, response=do)
        for ledger, reporting in self._expected():
            late, place = dict(self._late(ledger, now)), ledger.plan.place
            for group, one in sorted(late.items(), key=lambda one: place(one[0])):
                if len(one.delays) < _OVER:
                    continue  # its records are in time again, or it is too early to tell whether the delay grows
                over = as_seconds(RECENT)
                within = f"{one.part} of {one.whole} records within {over:g} s came too late for their window"
                text = f"{_name(ledger, group)}: {within}: "
                if one.catches_up:
                    text += "it sends what it held back, and catches up"
                    yield HealthIssue(DEGRADED, text, response="Wait until it has caught up. Totals have all records.")
                    continue
                heard = int((ledger.totals.heard > 0).sum())
                others = len(late) - 1 if 2 * len(late) > heard else 0
                yield HealthIssue(DEGRADED, text + one.advice(others), (_LATE, place(group)))
            # Without workers the state of nodes is unknown.
            if self._workers():
                silent = ledger.expected - reporting - late.keys()
                # At once, not when the worker has an issue itself: else its nodes would be silent until then.
                unread = {group for group in silent if any(ledger.standing_still(now, group))}
                self._unread.update(map(place, unread))
                lasting = {one for one in silent - unread if ledger.is_silent(one, _SILENT_FOR)}
                for group, why in self._due(ledger, lasting, reporting, now):
                    text = f"{_name(ledger, group)} sends no records while {why}"
                    yield HealthIssue(DEGRADED, text, (_SILENT, ledger.plan.place(group)))

    def judges(self, key: FaultKey) -> bool:
        """Return whether workers read the group, and a window has closed; see `HealthSource`."""
        is_told = key[0] != _BEYOND or self._heartbeats.alive(self._shown_by.get(key[1], ""))
        return is_told and self._workers() > 0 and any(self._expected()) and key[1] not in self._unread

    def values(self, device_class: str) -> Mapping[str, Value]:
        """Return figures of the groups and of the workers."""
        self._wanted = self._decide(self._clock.now_us())
        found: dict[str, Value] = {"workersAlive": self._workers(), "workersWanted": self._wanted.workers}
        for ledger, reporting in self._expected():
            noun, silent = ledger.plan.noun, (ledger.expected - reporting)
            found |= {f"{noun}sExpected": len(ledger.expected), f"{noun}sReporting": len(reporting)}
            found[f"{noun}sSilent"] = tuple(sorted(group for group in silent if isinstance(group, int)))
            found[f"{noun}Figures"] = self._figures(ledger)
        return {one.name: found[one.name] for one in self._classes[device_class].attributes if one.name in found}

    def _figures(self, ledger: WindowLedger) -> Image:
        """Return a row for each of `FIGURES`, and one for the silence [s]; columns are the numbers of the groups."""
        counted = self._counted.get(ledger.plan.topic, deque())
        own = next((one for one in self._classes.values() if one.state_source == ledger.plan.topic), None)
        if len(counted) < 2 or own is None:
            return ()
        known = {one.name: one.source for one in own.attributes}
        sources = [source for name in FIGURES if (source := known[name])]
        newest, numbers = counted[-1], [int(group) for group in ledger.groups]
        silence = np.where(newest.heard > 0, as_seconds(newest.at - newest.heard), np.nan)
        found = np.full((len(sources) + 1, max(numbers) + 1), np.nan)
        found[:, numbers] = [*newest.figures_since(counted[0], sources, ledger.plan), silence]
        return tuple(map(tuple, found.tolist()))

    def _decide(self, now: Time) -> Wanted:
        before = self._wanted if self._wanted.workers else Wanted(self._workers())
        streams = {topic: one for topic, one in self._streams.items() if topic in self._partitions}
        if not before.workers or not streams:
            return before  # unknown
        needs = [one.work.need(now, one.lag) for one in streams.values()]
        most = max(one.shape[0] or self._partitions[topic] for topic, one in streams.items())
        return decide(before, None if None in needs else sum(need for need in needs if need), most, now)

    def _workers(self) -> int:
        return sum(len(self._heartbeats.alive_of(worker.name)) for worker in MANIFEST.workers)

    def _expected(self) -> Iterator[tuple[WindowLedger, frozenset[Group]]]:
        for ledger, reporting in self._telemetry.over_all():
            if ledger.plan.window.all_expected:
                yield ledger, reporting

    def _due(
        self, ledger: WindowLedger, silent: Set[Group], reporting: frozenset[Group], now: Time
    ) -> Iterator[tuple[Group, str]]:
        # A group of a scan must send while its subarray scans.
        scanning = self._scans.scanning(now)
        for group in sorted(silent, key=ledger.plan.place):
            mine = self._scans.subarray(int(ledger.totals.epoch[ledger.number(group)]))
            if mine in scanning:
                yield group, f"{mine} scans"
            elif not mine and reporting:
                yield group, f"{len(reporting)} others do"
            elif not mine and scanning:
                yield group, f"{', '.join(scanning)} scan{'s' if len(scanning) == 1 else ''}"

    def _beyond(self) -> Iterator[HealthIssue]:
        """Return an issue for each device with an excess: of this server, and of those that show the groups."""
        for one in self._telemetry.excesses.complaints():
            do = f"Look at what these attributes of {one.device} measure."
            yield HealthIssue(DEGRADED, one.reasons[0], device=one.device, response=do)
        for component in filter(self._heartbeats.alive, dict.fromkeys(self._shown_by.values())):
            for one in self._heartbeats.newest[component].heartbeat.complaints:
                if one.reasons and (place := self._places.get(one.device)):
                    yield HealthIssue(DEGRADED, one.reasons[0], (_BEYOND, place), device=one.device)

    def _late(self, ledger: WindowLedger, now: Time) -> Iterator[tuple[Group, _Late]]:
        counted = self._counted.setdefault(ledger.plan.topic, deque())
        if counted and not NOTHING <= now - counted[-1].at < RECENT:
            counted.clear()  # after a long pause, or a change of the clock
        if not counted or now - counted[-1].at >= SECOND:
            totals = ledger.totals
            sums = {name: column.copy() for name, column in totals.sums.items()}
            counted.append(_Counted(now, totals.late.copy(), totals.count.copy(), totals.heard.copy(), sums, {}))
            for number, *_ in counted[-1].late_since(counted[-2]) if len(counted) > 1 else ():
                read_to = ledger.read_to(ledger.groups[number])
                counted[-1].delays[number] = as_seconds(read_to - Time(totals.late_us[number]))
        while now - counted[0].at > RECENT:
            counted.popleft()
        for number, part, whole in counted[-1].late_since(counted[0]):
            found = [one.delays.get(number) for one in counted]
            have_ended = set(found[-_OVER:]) == {None}
            delays = [] if have_ended else [one for one in found if one is not None]
            yield ledger.groups[number], _Late(part, whole, delays)


def _name(ledger: WindowLedger, group: Group) -> str:
    return f"{ledger.plan.place(group)} ({ledger.plan.noun} {group})"
