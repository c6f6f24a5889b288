"""SdpMaster and SdpBus: the health of SDP, the views, and the composition."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter

from facade.flows.overview.certificates import watch
from facade.flows.overview.presence import MASTER, MOST_HEARD, Presence
from facade.flows.overview.replicas import Replicas
from facade.kernel.bus.port import BusHealth
from facade.kernel.clock import MINUTE, NEVER, Time, as_duration, as_seconds, utc_seconds
from facade.kernel.findings import ATTENTION, Finding
from facade.kernel.icd.model import AccountSource, Attribute, DeviceClass, Icd
from facade.kernel.icd.topic_model import Figure, Limits
from facade.kernel.manifest import manifests
from facade.kernel.printable import excerpt, listed, printable
from facade.kernel.reading import Quality, Reading, Value, judge
from facade.kernel.runtime.accounts import Deviation
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import DeviceView, Fault, FaultKey
from facade.kernel.runtime.health_issues import (
    DEGRADED,
    FAILED,
    OK,
    ORIGIN,
    UNKNOWN,
    HealthIssue,
    HealthSource,
    HealthState,
)
from facade.kernel.runtime.metrics import Figures, MetricFamily
from facade.kernel.severities import CRITICAL, SEVERITIES, WARNING, Severity
from facade.sdp import judgement
from facade.sdp.admin_mode import ATTRIBUTE as ADMIN_MODE
from facade.sdp.admin_mode import DISABLED, MODE_LOST
from facade.sdp.device_state import SETTINGS, STATE, DeviceStates, states_of
from facade.sdp.device_state import TOPIC as STATES
from facade.sdp.judgement import Judgement
from facade.sdp.stream_accounts import ReaderAccounts, StreamTotals, WorkerAccounts, reasons_by_stream

_log = logging.getLogger(__name__)

_NEW_FOR = MINUTE
"""Time after the last dead letter of a stream in which its dead letters count as new."""
_EACH, _MOST_LISTED = 4, 20
"""Number of further issues of one condition from which all share a line, and the most sources that it names."""
_DEVIATIONS: Mapping[Deviation, str] = {
    "overlap": "streamOverlap",
    "skipped": "streamSkipped",
    "log_cuts": "logCut",
    "wrong_frames": "frameWrong",
}
"""Condition of the alert about figures that disagreed, for deviations without a remedy."""
_UNBALANCED, _LAGGING, _DEAD_LETTERS, _CORRECTED = (
    "streamUnbalanced",
    "streamLagging",
    "deadLetters",
    "positionCorrected",
)
_HANGING = "transactionHanging"
_MOST_ISSUES = 64
"""Issues listed by `healthIssues`; `healthInfo` merges many of one condition."""
_MOST_LINES = 64
_MOST_NAMED = 20
"""Most partitions named by an issue."""
_MOST_REASONS = 64
"""Reasons of dead letters that SdpBus shows."""
_WITHOUT_BROKER = "Start the brokers. If they run, look at the network to them: sdp-facade bus check."
_CONDITIONS = dict.fromkeys(
    (_UNBALANCED, _LAGGING, _DEAD_LETTERS, _CORRECTED, _HANGING, *_DEVIATIONS.values()),
    f"{ORIGIN}/",
)
"""Conditions of the alerts about streams, with the begin of their sources."""
BUS = "SdpBus"


class Overview:
    """Model of the overview's devices."""

    def __init__(
        self,
        icd: Icd,
        bus: BusHealth,
        workers: WorkerAccounts,
        readers: ReaderAccounts,
        flows: Sequence[HealthSource],
        limits: Callable[[Attribute], Limits | None] = attrgetter("limits"),
    ) -> None:
        self.bus = bus
        self.limits = limits
        """Returns the limits of an attribute of SdpBus: those of the ICD, unless an operator has set others."""
        bus_class, self._conditions = icd.classes[BUS], icd.conditions
        self._alerts = next((one.device for one in icd.classes.values() if one.conditions), "")
        accounts = [(one, one.account) for one in bus_class.attributes if one.account is not None]
        self._lags = [(one, source) for one, source in accounts if source.figure in ("lag", "lag_time")]
        self._stale_after = bus_class.stale_after
        windowed = [name for name, topic in icd.topics.items() if topic.window is not None]
        self._starts = {
            topic: worker.start_another
            for one in manifests()
            for worker in one.workers
            for topic in worker.reads(windowed)
        }
        """Command that starts one more worker which reads a topic."""
        self._workers, self._readers, self._flows = workers, readers, flows
        self._counts: dict[tuple[str, str], tuple[int, Time, int]] = {}
        """By kind and stream: last count, time of its last growth, and the count before that growth."""
        self._said: dict[HealthSource, list[HealthIssue]] = {}
        self._failed: set[tuple[HealthSource, type[Exception]]] = set()
        """Failures of flows that have been logged."""
        self._began = self._now = NEVER
        """Times of the first and of the last look at the issues; 0: there was none."""

    def streams(self) -> dict[str, StreamTotals]:
        """Return the accounts of all streams."""
        readers, workers = self._readers.streams, self._workers.streams
        for name in readers.keys() & workers.keys():  # a redrive writes entries for the streams of device servers, too
            readers[name].account.redriven = workers[name].account.redriven
        return {**workers, **readers}

    def issues(self, now: Time) -> list[HealthIssue]:
        """Return all issues, the gravest first; none while no broker answers, as the state is unknown then."""
        if not self.bus.connected:
            return []
        self._began, self._now = min(self._began or now, now), now  # the clock may be set back
        found = [*self._about_streams(now), *(one for flow in self._flows for one in self._ask(flow, now))]
        told = {one.text for one in found}
        found = [one for one in found if not (one.reasons and told.issuperset(one.reasons))]
        return sorted(found, key=lambda one: (-SEVERITIES.index(self._severity(one)), one.health_state != FAILED))

    def _severity(self, issue: HealthIssue) -> Severity:
        condition = self._conditions.get(issue.alarm[0]) if issue.alarm else None
        given = issue.severity or (condition and condition.severity)
        return given or (CRITICAL if issue.health_state == FAILED else WARNING)

    def judge(self, issues: Sequence[HealthIssue]) -> tuple[HealthState, tuple[str, ...]]:
        """Return healthState's label and the reasons for it, the gravest first."""
        if not self.bus.connected:
            return UNKNOWN, (self.no_broker(),)
        lines = [*_in_short(issues)]
        if more := lines[_MOST_LINES - 1 :][1:]:
            lines[_MOST_LINES - 1 :] = [f"and {len(more) + 1} more reasons, see the devices themselves"]
        is_failed = any(one.health_state == FAILED for one in issues)
        return FAILED if is_failed else DEGRADED if issues else OK, tuple(lines)

    def issues_as_dicts(self, issues: Sequence[HealthIssue]) -> list[dict[str, str]]:
        """Return each issue with its alarm, the gravest first, in the form of the attribute healthIssues."""
        if not self.bus.connected:
            severity = {"severity": CRITICAL, "response": _WITHOUT_BROKER}
            return [{"health": UNKNOWN, "text": self.no_broker(), **severity}]
        found = []
        for one in issues[:_MOST_ISSUES]:
            condition, source = one.alarm or ("", "")
            more = {"condition": condition, "source": source, "device": one.device, "response": one.response}
            known = {name: text for name, text in more.items() if text}
            found.append({"health": one.health_state, "text": one.text, "severity": self._severity(one), **known})
        return found

    def judgement(self, health: HealthState, issues: Sequence[dict[str, str]]) -> Judgement:
        """Return what a person should know and do, with the alarms that are known here."""
        alarms = [alarm for flow in self._flows for alarm in flow.alarms()]
        return judgement.judge(health, issues, alarms, self._conditions, alerts=self._alerts)

    def no_broker(self) -> str:
        """Return the text of the issue without a broker."""
        return f"no Kafka broker reachable; last error: {self.bus.last_error or 'none yet'}"

    def values(self, device_class: str) -> dict[str, Value]:
        """Return the attributes of a device of the overview that the flows provide."""
        found: dict[str, Value] = {}
        for flow in self._flows:
            try:
                found |= flow.values(device_class)
            except Exception as error:
                self._log(flow, error)
        return found

    def find(self, now: Time) -> dict[FaultKey, Fault] | None:
        """Return the faults to raise alerts for, by condition and source; None while they are unknown."""
        if not self._began or not self.bus.connected:
            return None
        found: dict[FaultKey, Fault] = {}
        for one in self.issues(now):
            if one.alarm is not None:
                before = found.get(one.alarm)
                text = one.text if before is None else f"{before.text}; {one.text}"
                found[one.alarm] = Fault(text, self._severity(one), values=one.values, host=one.host)
        return found

    def finds(self, key: FaultKey) -> bool:
        """Return whether a fault of this condition and source is found here, or by one of the flows."""
        return _covers(_CONDITIONS, key) or any(_covers(flow.conditions, key) for flow in self._flows)

    def judges(self, key: FaultKey) -> bool:
        """Return whether an absence from the last issues means that all is well; see `HealthSource.judges`."""
        condition, source = key
        if condition in (_DEAD_LETTERS, _CORRECTED):  # the counts from before a start do not say when they grew
            return self._now - self._began > _NEW_FOR
        if condition == _LAGGING:
            stream = self.streams().get(source.removeprefix(f"{ORIGIN}/"))
            return stream is not None and not self.is_stale(stream, self._now)
        return all(flow in self._said and flow.judges(key) for flow in self._flows if _covers(flow.conditions, key))

    def is_stale(self, stream: StreamTotals, now: Time) -> bool:
        """Return whether the lag of a stream is unknown: its readers are silent, or a partition has no worker."""
        return now - stream.heard > as_duration(self._stale_after) or bool(stream.untaken(now, self._stale_after))

    def _ask(self, flow: HealthSource, now: Time) -> list[HealthIssue]:
        """Return the issues of a flow.

        A flow that fails keeps its last ones too, so that their alarms are not cleared.
        """
        try:
            self._said[flow] = list(flow.issues(now))
        except Exception as error:
            self._log(flow, error)
            text = f"the health of {type(flow).__module__} is not known: {type(error).__name__}: {error}"
            do = "Keep the log of the device server control, and report a defect of the facade."
            return [HealthIssue(DEGRADED, excerpt(text), response=do), *self._said.get(flow, [])]
        return self._said[flow]

    def _log(self, flow: HealthSource, error: Exception) -> None:
        if (flow, type(error)) not in self._failed:  # once for each kind
            self._failed.add((flow, type(error)))
            _log.error("health failed flow=%s", type(flow).__module__, exc_info=error)

    def _about_streams(self, now: Time) -> Iterator[HealthIssue]:
        streams = self.streams()
        for name, stream in streams.items():
            if stream.account.balance:
                text = f"account of {name} does not balance: records were lost or counted twice"
                yield HealthIssue(FAILED, text, (_UNBALANCED, f"{ORIGIN}/{name}"))
            yield from self._deviations(name, stream)
            if stream.account.hanging:
                text = f"a transaction does not end: {stream.account.hanging}"
                yield HealthIssue(DEGRADED, text, (_HANGING, f"{ORIGIN}/{name}"), of_bus=True)
            missing = stream.untaken(now, self._stale_after)
            if missing and now - stream.heard <= as_duration(self._stale_after):
                more = f" and {len(missing) - _MOST_NAMED} others" * (len(missing) > _MOST_NAMED)
                text = f"partitions {missing[:_MOST_NAMED]}{more} of {name} have no worker that reads them"
                do = f"If nobody takes them within a minute, start one more worker: {self._start(name)}."
                yield HealthIssue(DEGRADED, text, response=do)
        for name in self._lagging(streams, now):
            yield self._behind(name, streams[name], now)
        for name, stream in streams.items():
            account = stream.account
            if new := self._new("dead letters", name, account.dead_lettered, now):
                text = f"{_count(account.dead_lettered, 'record')} of {name} became dead letters; the newest: "
                values = {"new records": float(new)}
                yield HealthIssue(
                    DEGRADED, text + account.last_error, (_DEAD_LETTERS, f"{ORIGIN}/{name}"), values=values
                )
            if self._new("corrected", name, account.corrected, now):
                text = f"corrected of {name}: {account.deviations.get('corrected', '')}"
                yield HealthIssue(DEGRADED, text, (_CORRECTED, f"{ORIGIN}/{name}"))

    def _start(self, stream: str) -> str:
        return self._starts.get(stream, "its command, with a slot that no running worker has")

    def _behind(self, name: str, stream: StreamTotals, now: Time) -> HealthIssue:
        """Return the issue of a stream whose readers are behind, with the remedy for their kind."""
        if name in self._workers.streams:
            readers, do = "workers read it", f"If it grows, start one more worker: {self._start(name)}."
        else:
            behind = sorted(name for name, one in stream.backlogs.items() if one.records)
            readers = f"read by the device server {listed(behind, MOST_HEARD)}"
            do = "If it grows, find out why the host of the device server is slow; more workers do not help."
        text = f"{name} lags by {_count(stream.lag, 'record')}, {stream.lag_time(now):.0f} s; {readers}"
        return HealthIssue(DEGRADED, text, (_LAGGING, f"{ORIGIN}/{name}"), response=f"Wait while the lag falls. {do}")

    def _deviations(self, name: str, stream: StreamTotals) -> Iterator[HealthIssue]:
        for what, condition in _DEVIATIONS.items():
            if what in stream.account.deviations:
                text = f"{what} of {name}: {stream.account.deviations[what]}"
                yield HealthIssue(DEGRADED, text, (condition, f"{ORIGIN}/{name}"))

    def _lagging(self, streams: Mapping[str, StreamTotals], now: Time) -> list[str]:
        found = []
        for attribute, source in self._lags:
            stream = streams.get(source.stream)
            if (
                stream is not None
                and judge(figure(stream, source.figure, now), self.limits(attribute)) is not Quality.VALID
            ):
                found.append(source.stream)
        return list(dict.fromkeys(found))

    def _new(self, what: str, stream: str, count: int, now: Time) -> int:
        """Return the growth of a count since its last pause; 0 during a pause."""
        before, since, old = self._counts.get((what, stream), (count, NEVER - _NEW_FOR, count))
        since = min(since, now)  # the clock may be set back
        if count > before:
            since, old = now, old if now - since < _NEW_FOR else before
        old = min(old, count)
        self._counts[what, stream] = (count, since, old)
        return count - old if now - since < _NEW_FOR else 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _covers(conditions: Mapping[str, str], key: FaultKey) -> bool:
    return key[0] in conditions and key[1].startswith(conditions[key[0]])


def figure(stream: StreamTotals, figure: Figure, now: Time) -> int | float:
    """Return one figure of an account at a time."""
    match figure:
        case "rate":
            return stream.rate.rate(now)
        case "lag":
            return stream.lag
        case "lag_time":
            return round(stream.lag_time(now), 1)
        case "balance":
            return stream.account.balance
    return int(getattr(stream.account, figure))


def _in_short(issues: Sequence[HealthIssue]) -> Iterator[str]:
    """Return the texts; many issues of one condition share a line with their sources."""
    conditions: dict[object, list[HealthIssue]] = {}
    for number, one in enumerate(issues):
        conditions.setdefault(number if one.alarm is None else (one.health_state, one.alarm[0]), []).append(one)
    for first, *others in conditions.values():
        if len(others) < _EACH:
            yield from (one.text for one in (first, *others))
            continue
        sources = dict.fromkeys(one.alarm[1] for one in others if one.alarm is not None)
        listed = ", ".join([*sources][:_MOST_LISTED]) + (" ..." if len(sources) > _MOST_LISTED else "")
        yield f"{first.text}; and {len(others)} more" + (f": {listed}" if sources.keys() - {ORIGIN} else " like it")


class MasterView(DeviceView):
    """Health, mode and versions of SDP as a whole."""

    def __init__(
        self,
        device: str,
        overview: Overview,
        states: DeviceStates,
        states_known: Callable[[], bool],
        versions: Mapping[str, str],
    ) -> None:
        super().__init__(device)
        self._overview, self._versions = overview, versions
        self._states, self._states_known = states, states_known

    def _version(self) -> object:
        return self._states.version(self._device), self._states_known()

    def _readings(self, now: Time) -> Iterator[tuple[str, Reading]]:
        issues = self._overview.issues(now)  # once: each look asks all flows
        (health, reasons), told = self._overview.judge(issues), self._overview.issues_as_dicts(issues)
        mode = self._states.label(self._device, ADMIN_MODE) if self._states_known() else ""
        state = self._state(mode, health)
        judged = self._overview.judgement(health, told)
        waits = ", and an alarm waits for a person" if judged.state == ATTENTION else ""
        says = f"The device is in {state} state; adminMode is {mode or 'not known yet'}; health is {health}{waits}."
        is_lost = self._states_known() and self._states.has_lost(self._device, ADMIN_MODE)
        refused = (f"commands are refused: {MODE_LOST}",) if is_lost else ()
        values = {
            "healthState": health,
            "healthInfo": reasons,
            "healthIssues": tuple(map(json.dumps, told)),
            **self._overview.values("SdpMaster"),
            **self._versions,
            "State": state,
            "Status": "\n".join(map(printable, (says, *refused, *map(_in_words, judged.findings)))),
        }
        return self._dated(values, now)

    def _state(self, mode: str, health: str) -> str:
        if not mode:
            return "UNKNOWN"
        if mode in DISABLED:
            return "DISABLE"
        commanded = self._states.label(self._device, STATE, "UNKNOWN" if self._states.are_lost else "ON")
        return "ALARM" if commanded == "ON" and health == FAILED else commanded


def _in_words(finding: Finding) -> str:
    about = "" if finding.about == MASTER else f"{finding.about}: "
    return f"{about}{finding.text}{' -> ' * bool(finding.do)}{finding.do}"


class BusView(DeviceView):
    """The accounts of all streams, one attribute for each figure."""

    def __init__(self, device: str, device_class: DeviceClass, overview: Overview) -> None:
        super().__init__(device)
        self._class, self._overview = device_class, overview
        self.lags: Figures = {}
        """Known lags of the streams, for Prometheus [records]."""
        self.lag_times: Figures = {}
        self.silences: Figures = {}
        """Times since their last records, as of the last look [s]."""

    def _readings(self, now: Time) -> Iterator[tuple[str, Reading]]:
        streams = self._overview.streams()
        known = {(name,): one for name, one in streams.items() if not self._overview.is_stale(one, now)}
        self.lags = {labels: one.lag for labels, one in known.items()}
        self.lag_times = {labels: one.lag_time(now) for labels, one in known.items()}
        self.silences = {(name,): as_seconds(now - one.newest) for name, one in streams.items() if one.newest}
        troubles: list[tuple[Quality, str]] = []
        for attribute in self._class.attributes:
            if attribute.account is None or attribute.account.stream not in streams:
                continue
            reading = self._figure(attribute, attribute.account, streams[attribute.account.stream], now)
            if reading.quality in (Quality.ALARM, Quality.WARNING):
                why = streams[attribute.account.stream].account.deviations.get(attribute.account.figure)
                text = f"{attribute.label} is {reading.value}"
                troubles.append((reading.quality, f"{text}: {why}" if why else text))
            yield attribute.name, reading
        cuts = ((name, stream.account.deviations.get("log_cuts")) for name, stream in streams.items())
        troubles += [(Quality.ALARM, f"totals of {name} are in a new epoch: {text}") for name, text in cuts if text]
        yield from self._dated(self._own(streams, troubles, now), now)

    def metrics(self) -> list[MetricFamily]:
        """Return the metrics of the streams."""
        streams = ("stream",)
        return [
            MetricFamily("sdp_stream_lag_records", "Records that no reader has taken.", streams, lambda: self.lags),
            MetricFamily("sdp_stream_lag_seconds", "Age of the oldest of them.", streams, lambda: self.lag_times),
            MetricFamily("sdp_stream_silence_seconds", "Since the last record.", streams, lambda: self.silences),
        ]

    def _figure(self, attribute: Attribute, source: AccountSource, stream: StreamTotals, now: Time) -> Reading:
        value = figure(stream, source.figure, now)
        silent = now - stream.heard > as_duration(self._class.stale_after)
        # Totals hold during silence; a rate or a lag does not.
        stale = silent and source.figure in ("rate", "in_flight")
        stale = stale or (source.figure in ("lag", "lag_time") and self._overview.is_stale(stream, now))
        quality = Quality.INVALID if stale else judge(value, self._overview.limits(attribute))
        return Reading(value, stream.heard, quality)

    def _own(
        self, streams: Mapping[str, StreamTotals], troubles: list[tuple[Quality, str]], now: Time
    ) -> dict[str, Value]:
        bus = self._overview.bus
        issues = [one for one in self._overview.issues(now) if one.of_bus]
        lines = [self._overview.no_broker()] if not bus.connected else [one.text for one in issues]
        grave = bool(lines) or any(quality is Quality.ALARM for quality, _ in troubles)
        lines += [text for _, text in troubles]
        state = "ALARM" if grave else "ON"
        says = (f"The device is in {state} state.", *(lines or ["All streams balance."]), *_uncounted(streams))
        return {
            "connected": bus.connected,
            "streams": tuple(sorted(streams)),
            **self._overview.values("SdpBus"),
            "deadLetterReasons": tuple(reasons_by_stream(streams)[:_MOST_REASONS]),
            "lastError": _last_error(bus, streams),
            "State": state,
            "Status": "\n".join(map(printable, says)),
        }


def _uncounted(streams: Mapping[str, StreamTotals]) -> list[str]:
    """Name the uncounted records: those before the first account of a partition."""
    return [
        f"{name}, partition {number}: "
        + (
            f"totals are of epoch {one.epoch}, which began at offset {one.begin} after the log was cut"
            if one.epoch > 1
            else f"offsets 0 to {one.begin - 1} are in no total, which begins behind them"
        )
        for name, stream in sorted(streams.items())
        for number, one in sorted(stream.partitions.items())
        if one.begin or one.epoch > 1
    ]


def _last_error(health: BusHealth, streams: Mapping[str, StreamTotals]) -> str:
    """Return the newest error of the connection or of a stream: time, place, text."""
    errors = [
        (stream.account.last_error_at, name, stream.account.last_error)
        for name, stream in streams.items()
        if stream.account.last_error
    ]
    if health.last_error:
        errors.append((health.last_error_at, "bus", health.last_error))
    if not errors:
        return ""
    at_us, where, what = max(errors, key=lambda error: error[0])
    # A snapshot of an older release has no time.
    when = utc_seconds(at_us) if at_us else "(time not known)"
    return f"{when} {where}: {what}"


def compose(server: Server) -> None:
    """Add the overview to a device server."""
    workers, readers = server.share(WorkerAccounts), ReaderAccounts()
    server.flows += [workers, readers]
    replicas = Replicas(server, server.icd.classes[BUS], tuple(server.devices.get(BUS, ())))
    server.views.append(replicas)
    if not server.settings.replay:
        watch(server, lambda: replicas.brokers)
    flows = [Presence(server, readers.newest_us), replicas, *server.health_sources()]
    limits = partial(server.limits, next(iter(server.devices.get(BUS, ())), ""))
    overview = Overview(server.icd, server.bus.health, workers, readers, flows, limits)
    for device in server.devices.get(BUS, ()):
        view = BusView(device, server.icd.classes[BUS], overview)
        server.views.append(view)
        server.metrics += view.metrics()
    for device in server.devices.get(MASTER, ()):
        known = partial(server.has_read, STATES, SETTINGS)
        server.views.append(MasterView(device, overview, states_of(server), known, server.versions))
    if server.devices.get(MASTER):
        topics = STATES, workers.topic, readers.topic
        server.report(overview.find, overview.finds, *topics, judges=overview.judges)
