"""The health of SDP: what each flow says about it, and what the accounts of all streams say."""

from collections.abc import Iterator, Mapping, Sequence

from facade.bus.port import BusHealth
from facade.icd.model import Attribute, DeviceClass
from facade.reading import Quality, Value, judge
from facade.runtime.accounts import Deviation
from facade.runtime.flow import Fault, FaultKey
from facade.runtime.health import ORIGIN, Complaint, Health
from facade.runtime.stream_accounts import ReaderAccounts, StreamTotals, WorkerAccounts

OK, DEGRADED, FAILED, UNKNOWN = "OK", "DEGRADED", "FAILED", "UNKNOWN"
_NEW_FOR = 60.0
"""How long after the last dead letter of a stream they count as new [s]."""
_EACH, _MOST_LISTED = 4, 20
"""So many complaints about one condition have a line together, with the names of so many sources."""
_DEVIATIONS: Mapping[Deviation, tuple[str, str]] = {
    "overlap": ("streamOverlap", "WARNING"),
    "skipped": ("streamSkipped", "CRITICAL"),
}
"""Condition and severity of what is wrong for good where a position did not agree."""
_CORRECTED = "positionCorrected"
_CONDITIONS = frozenset(
    {"streamUnbalanced", "streamLagging", "deadLetters", _CORRECTED, *(one for one, _ in _DEVIATIONS.values())}
)


class Overview:
    """What the devices of the overview look at.

    Parameters
    ----------
    bus_class
        The device class with an attribute for each figure of each account, and its limits.
    flows
        What each flow says.
    """

    def __init__(
        self,
        bus_class: DeviceClass,
        bus: BusHealth,
        workers: WorkerAccounts,
        readers: ReaderAccounts,
        flows: Sequence[Health],
    ) -> None:
        self.bus = bus
        self._lags = [
            (one.account.stream, one)
            for one in bus_class.attributes
            if one.account is not None and one.account.figure == "lag"
        ]
        self._stale_after = bus_class.stale_after
        self._workers, self._readers, self._flows = workers, readers, flows
        self._counts: dict[tuple[str, str], tuple[int, float]] = {}
        """Dead letters and corrections of each stream, and since when there are so many [Unix s]."""
        self._has_looked = False

    def streams(self) -> dict[str, StreamTotals]:
        """Return the accounts of all streams."""
        return {**self._readers.streams, **self._workers.streams}

    def complaints(self, now: float) -> list[Complaint]:
        """Return all that is wrong, the gravest first; of a bus that does not answer nothing else is known."""
        if not self.bus.connected:
            return []
        self._has_looked = True
        found = [*self._about_streams(now), *(one for flow in self._flows for one in flow.complaints(now))]
        return sorted(found, key=lambda one: one.severity != FAILED)

    def judge(self, now: float) -> tuple[str, tuple[str, ...]]:
        """Return healthState's label and the reasons for it, the gravest first."""
        if not self.bus.connected:
            return UNKNOWN, (self.no_broker(),)
        complaints = self.complaints(now)
        return complaints[0].severity if complaints else OK, tuple(_in_short(complaints))

    def no_broker(self) -> str:
        """Say that no broker answers."""
        return f"no Kafka broker reachable; last error: {self.bus.last_error or 'none yet'}"

    def values(self, device_class: str) -> dict[str, Value]:
        """Return the attributes of a device of the overview that the flows provide."""
        return {name: value for flow in self._flows for name, value in flow.values(device_class).items()}

    def find(self, now: float) -> dict[FaultKey, Fault] | None:
        """Return what is wrong by condition and source; None while nothing can be known."""
        if not self._has_looked or not self.bus.connected:
            return None
        found = dict(self._stream_faults(now))
        for flow in self._flows:
            found |= flow.faults(now)
            found |= {one.alarm: Fault(one.urgency, one.text) for one in flow.complaints(now) if one.alarm is not None}
        return found

    def finds(self, key: FaultKey) -> bool:
        """Return whether a condition and source are of the kind that is found here, or by one of the flows."""
        own = key[0] in _CONDITIONS and key[1].startswith(f"{ORIGIN}/")
        return own or any(flow.finds(key) for flow in self._flows)

    def _unbalanced(self) -> Iterator[tuple[str, str]]:
        for name, stream in self.streams().items():
            if stream.account.balance:
                yield name, f"account of {name} does not balance: records were lost or counted twice"

    def _lagging(self) -> Iterator[tuple[str, int]]:
        streams = self.streams()
        for name, attribute in self._lags:
            if name in streams and _exceeds(streams[name].lag, attribute):
                yield name, streams[name].lag

    def _deviations(self) -> Iterator[tuple[str, Deviation, str]]:
        for name, stream in self.streams().items():
            for what in _DEVIATIONS:
                if what in stream.account.deviations:
                    yield name, what, stream.account.deviations[what]

    def _about_streams(self, now: float) -> Iterator[Complaint]:
        for _, text in self._unbalanced():
            yield Complaint("FAILED", text)
        for name, what, text in self._deviations():
            yield Complaint("DEGRADED", f"{what} of {name}: {text}")
        for name, stream in self.streams().items():
            missing = stream.untaken(now, self._stale_after)
            if missing and now - stream.heard <= self._stale_after:
                yield Complaint("DEGRADED", f"partitions {missing} of {name} are taken by no worker")
        for name, lag in self._lagging():
            yield Complaint("DEGRADED", f"{name} lags by {lag} records")

    def _stream_faults(self, now: float) -> Iterator[tuple[FaultKey, Fault]]:
        for name, text in self._unbalanced():
            yield ("streamUnbalanced", f"{ORIGIN}/{name}"), Fault("CRITICAL", f"the {text}")
        for name, lag in self._lagging():
            text = f"readers of {name} are {lag} records behind"
            yield ("streamLagging", f"{ORIGIN}/{name}"), Fault("WARNING", text)
        for name, what, text in self._deviations():
            condition, severity = _DEVIATIONS[what]
            yield (condition, f"{ORIGIN}/{name}"), Fault(severity, text)
        for name, stream in self.streams().items():
            account = stream.account
            if self._is_new("dead letters", name, account.dead_lettered, now):
                text = f"{account.dead_lettered} records of {name} could not be used so far; the last one: "
                text += account.last_error
                yield ("deadLetters", f"{ORIGIN}/{name}"), Fault("WARNING", text)
            if self._is_new("corrected", name, account.corrected, now):
                yield (_CORRECTED, f"{ORIGIN}/{name}"), Fault("WARNING", account.deviations.get("corrected", ""))

    def _is_new(self, what: str, stream: str, count: int, now: float) -> bool:
        """Return whether a count has grown lately."""
        before, since = self._counts.get((what, stream), (count, -_NEW_FOR))
        since = now if count > before else since
        self._counts[what, stream] = (count, since)
        return now - since < _NEW_FOR


def _exceeds(lag: int, attribute: Attribute) -> bool:
    return judge(lag, attribute.limits) is not Quality.VALID


def _in_short(complaints: Sequence[Complaint]) -> Iterator[str]:
    """Return the texts; of many about one condition the first one, and the sources of the others."""
    conditions: dict[object, list[Complaint]] = {}
    for number, one in enumerate(complaints):
        conditions.setdefault(number if one.alarm is None else (one.severity, one.alarm[0]), []).append(one)
    for first, *others in conditions.values():
        if len(others) < _EACH:
            yield from (one.text for one in (first, *others))
            continue
        sources = [one.alarm[1] for one in others if one.alarm is not None]
        more = " ..." if len(sources) > _MOST_LISTED else ""
        yield f"{first.text}; and {len(sources)} more: {', '.join(sources[:_MOST_LISTED])}{more}"
