"""The health of SDP: the issues that the flows report, and those of the accounts of all streams."""

import logging
from collections.abc import Iterator, Mapping, Sequence

from facade.bus.port import BusHealth
from facade.icd.model import Attribute, DeviceClass
from facade.icd.topic_model import Figure
from facade.printable import excerpt
from facade.reading import Quality, Value, judge
from facade.runtime.accounts import Deviation
from facade.runtime.flow import Fault, FaultKey
from facade.runtime.health_issues import DEGRADED, FAILED, OK, ORIGIN, UNKNOWN, HealthIssue, HealthSource, HealthState
from facade.runtime.stream_accounts import ReaderAccounts, StreamTotals, WorkerAccounts
from facade.severities import CRITICAL, WARNING, Severity

_log = logging.getLogger(__name__)

_NEW_FOR = 60.0
"""How long after the last dead letter of a stream they count as new [s]."""
_EACH, _MOST_LISTED = 4, 20
"""Issues of one condition from which on they share a line, and the sources that the line names at most."""
_DEVIATIONS: Mapping[Deviation, tuple[str, Severity]] = {
    "overlap": ("streamOverlap", WARNING),
    "skipped": ("streamSkipped", CRITICAL),
    "log_cuts": ("logCut", CRITICAL),
}
"""Condition and severity of the alert about a position that did not agree, for the deviations that cannot be undone."""
_UNBALANCED, _LAGGING, _DEAD_LETTERS, _CORRECTED = (
    "streamUnbalanced",
    "streamLagging",
    "deadLetters",
    "positionCorrected",
)
_HANGING = "transactionHanging"
_MOST_ISSUES = 64
"""Problems that `healthIssues` lists; `healthInfo` puts many of one condition together."""
_MOST_LINES = 64
"""Reasons that `healthInfo` has room for."""
_MOST_NAMED = 20
"""Partitions that one issue names."""
_CONDITIONS = dict.fromkeys(
    (_UNBALANCED, _LAGGING, _DEAD_LETTERS, _CORRECTED, _HANGING, *(one for one, _ in _DEVIATIONS.values())),
    f"{ORIGIN}/",
)
"""Conditions of the alerts about streams, and how their sources begin."""


class Overview:
    """What the devices of the overview look at.

    Parameters
    ----------
    bus_class
        The device class with an attribute for each figure of each account, and its limits.
    flows
        One for each flow that knows about the health of SDP.
    """

    def __init__(
        self,
        bus_class: DeviceClass,
        bus: BusHealth,
        workers: WorkerAccounts,
        readers: ReaderAccounts,
        flows: Sequence[HealthSource],
    ) -> None:
        self.bus = bus
        accounts = [(one, one.account) for one in bus_class.attributes if one.account is not None]
        self._lags = [(one, source) for one, source in accounts if source.figure in ("lag", "lag_time")]
        self._stale_after = bus_class.stale_after
        self._workers, self._readers, self._flows = workers, readers, flows
        self._counts: dict[tuple[str, str], tuple[int, float, int]] = {}
        """Dead letters and corrections of each stream, since when there are so many [Unix s], and how many were old."""
        self._said: dict[HealthSource, list[HealthIssue]] = {}
        """Issues of each flow by its last answer."""
        self._failed: set[tuple[HealthSource, type[Exception]]] = set()
        """Failures of flows that are in the log of the device server."""
        self._has_looked = False

    def streams(self) -> dict[str, StreamTotals]:
        """Return the accounts of all streams."""
        readers, workers = self._readers.streams, self._workers.streams
        for name in readers.keys() & workers.keys():  # a redrive writes entries for the streams of device servers, too
            readers[name].account.redriven = workers[name].account.redriven
        return {**workers, **readers}

    def issues(self, now: float) -> list[HealthIssue]:
        """Return all issues, the gravest first; none while no broker answers, as nothing is known then."""
        if not self.bus.connected:
            return []
        self._has_looked = True
        found = [*self._about_streams(now), *(one for flow in self._flows for one in self._ask(flow, now))]
        told = {one.text for one in found}
        found = [one for one in found if not (one.reasons and told.issuperset(one.reasons))]
        return sorted(found, key=lambda one: one.health_state != FAILED)

    def judge(self, now: float) -> tuple[HealthState, tuple[str, ...]]:
        """Return healthState's label and the reasons for it, the gravest first."""
        if not self.bus.connected:
            return UNKNOWN, (self.no_broker(),)
        issues = self.issues(now)
        lines = [*_in_short(issues)]
        if more := lines[_MOST_LINES - 1 :][1:]:
            lines[_MOST_LINES - 1 :] = [f"and {len(more) + 1} more reasons, see the devices themselves"]
        return issues[0].health_state if issues else OK, tuple(lines)

    def issues_as_dicts(self, now: float) -> list[dict[str, str]]:
        """Return each issue with its alarm, the gravest first, in the form of the attribute healthIssues."""
        if not self.bus.connected:
            return [{"health": UNKNOWN, "text": self.no_broker()}]
        found = []
        for one in self.issues(now)[:_MOST_ISSUES]:
            alarm = {} if one.alarm is None else {"condition": one.alarm[0], "source": one.alarm[1]}
            device = {"device": one.device} if one.device else {}
            found.append({"health": one.health_state, "text": one.text, **alarm, **device})
        return found

    def no_broker(self) -> str:
        """Say that no broker answers."""
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

    def find(self, now: float) -> dict[FaultKey, Fault] | None:
        """Return the faults to raise alerts for, by condition and source; None while nothing can be known."""
        if not self._has_looked or not self.bus.connected:
            return None
        found: dict[FaultKey, Fault] = {}
        for one in self.issues(now):
            if one.alarm is not None:
                before = found.get(one.alarm)
                text = one.text if before is None else f"{before.text}; {one.text}"
                found[one.alarm] = Fault(one.alert_severity, text, values=one.values)
        return found

    def finds(self, key: FaultKey) -> bool:
        """Return whether a condition and source are of the kind that is found here, or by one of the flows."""
        condition, source = key
        kinds = (_CONDITIONS, *(flow.conditions for flow in self._flows))
        return any(condition in kind and source.startswith(kind[condition]) for kind in kinds)

    def _ask(self, flow: HealthSource, now: float) -> list[HealthIssue]:
        """Return the issues of a flow; of a flow that fails its last ones too, so that their alarms are not cleared."""
        try:
            self._said[flow] = list(flow.issues(now))
        except Exception as error:
            self._log(flow, error)
            text = f"the health of {type(flow).__module__} is not known: {type(error).__name__}: {error}"
            return [HealthIssue(DEGRADED, excerpt(text)), *self._said.get(flow, [])]
        return self._said[flow]

    def _log(self, flow: HealthSource, error: Exception) -> None:
        if (flow, type(error)) not in self._failed:  # not at each look
            self._failed.add((flow, type(error)))
            _log.error("health failed flow=%s", type(flow).__module__, exc_info=error)

    def _about_streams(self, now: float) -> Iterator[HealthIssue]:
        streams = self.streams()
        for name, stream in streams.items():
            if stream.account.balance:
                text = f"account of {name} does not balance: records were lost or counted twice"
                yield HealthIssue(FAILED, text, (_UNBALANCED, f"{ORIGIN}/{name}"), CRITICAL)
            yield from self._deviations(name, stream)
            if stream.account.hanging:
                text = f"a transaction does not end: {stream.account.hanging}"
                yield HealthIssue(DEGRADED, text, (_HANGING, f"{ORIGIN}/{name}"), of_bus=True)
            missing = stream.untaken(now, self._stale_after)
            if missing and now - stream.heard <= self._stale_after:
                more = f" and {len(missing) - _MOST_NAMED} others" * (len(missing) > _MOST_NAMED)
                yield HealthIssue(
                    DEGRADED, f"partitions {missing[:_MOST_NAMED]}{more} of {name} have no worker that reads them"
                )
        for name in self._lagging(streams, now):
            text = f"{name} lags by {streams[name].lag} records, {streams[name].lag_time(now):.0f} s"
            yield HealthIssue(DEGRADED, text, (_LAGGING, f"{ORIGIN}/{name}"))
        for name, stream in streams.items():
            account = stream.account
            if new := self._new("dead letters", name, account.dead_lettered, now):
                text = f"{account.dead_lettered} records of {name} became dead letters; the newest: "
                values = {"new records": float(new)}
                yield HealthIssue(
                    DEGRADED, text + account.last_error, (_DEAD_LETTERS, f"{ORIGIN}/{name}"), values=values
                )
            if self._new("corrected", name, account.corrected, now):
                text = f"corrected of {name}: {account.deviations.get('corrected', '')}"
                yield HealthIssue(DEGRADED, text, (_CORRECTED, f"{ORIGIN}/{name}"))

    def _deviations(self, name: str, stream: StreamTotals) -> Iterator[HealthIssue]:
        for what, (condition, severity) in _DEVIATIONS.items():
            if what in stream.account.deviations:
                text = f"{what} of {name}: {stream.account.deviations[what]}"
                yield HealthIssue(DEGRADED, text, (condition, f"{ORIGIN}/{name}"), severity)

    def _lagging(self, streams: Mapping[str, StreamTotals], now: float) -> list[str]:
        found = []
        for attribute, source in self._lags:
            stream = streams.get(source.stream)
            if stream is not None and _exceeds(figure(stream, source.figure, now), attribute):
                found.append(source.stream)
        return list(dict.fromkeys(found))

    def _new(self, what: str, stream: str, count: int, now: float) -> int:
        """Return by how much a count has grown since it last stood still for a while; 0 once it does."""
        before, since, old = self._counts.get((what, stream), (count, -_NEW_FOR, count))
        if count > before:
            since, old = now, old if now - since < _NEW_FOR else before
        old = min(old, count)
        self._counts[what, stream] = (count, since, old)
        return count - old if now - since < _NEW_FOR else 0


def figure(stream: StreamTotals, figure: Figure, now: float) -> int | float:
    """Return one figure of an account at a time [Unix s]."""
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


def _exceeds(lag: float, attribute: Attribute) -> bool:
    return judge(lag, attribute.limits) is not Quality.VALID


def _in_short(issues: Sequence[HealthIssue]) -> Iterator[str]:
    """Return the texts; of many about one condition the first one, and the sources of the others."""
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
