"""What SdpMaster and SdpBus show that comes from no single flow."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from facade.bus.port import BusHealth
from facade.flows.overview.accounts import ReaderAccounts, StreamTotals, WorkerAccounts, reasons_by_stream
from facade.flows.overview.health import FAILED, Condition, judge_health
from facade.icd.model import AccountSource, Attribute, DeviceClass, Figure
from facade.reading import Changes, Quality, Reading, Value, judge
from facade.runtime.admin_mode import ATTRIBUTE as ADMIN_MODE
from facade.runtime.admin_mode import DISABLED
from facade.runtime.device_state import STATE, DeviceStates
from facade.runtime.flow import VIEW_PERIOD, DeviceReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What the views look at."""

    health: BusHealth
    workers: WorkerAccounts
    readers: ReaderAccounts
    states: DeviceStates
    states_known: Callable[[], bool]
    """Whether the settings that were made before the start have been read."""
    silences: Callable[[float], list[str]]
    """Says which controllers are silent at a time [Unix s]."""
    uncontrolled: Callable[[], tuple[str, ...]]
    """Devices that take commands and of which no controller was heard, once that can be known."""
    expected: frozenset[int]
    """Ingest nodes of the deployment."""
    reporting: Callable[[], frozenset[int]]
    """Ingest nodes with heaps in the newest window."""

    def streams(self) -> dict[str, StreamTotals]:
        """Return the accounts of all streams."""
        return {**self.readers.streams, **self.workers.streams}

    def workers_alive(self, now: float, within: float) -> int:
        """Count the workers that gave a sign of life within the last `within` [s]."""
        return sum(now - heard <= within for heard in self.workers.workers.values())


class MasterView:
    """Health, mode, nodes and versions of SDP as a whole."""

    def __init__(self, device: str, bus_class: DeviceClass, sources: Sources, versions: Mapping[str, str]) -> None:
        self._device = device
        self._bus_class = bus_class
        self._sources = sources
        self._versions = versions
        self._changes = Changes()
        self._marker: tuple[object, ...] = ()
        self.state = "UNKNOWN"
        """The Tango State as it was last found; for other threads."""
        self.condition: Condition | None = None
        """What was last known."""

    def readings(self, now: float) -> Iterator[DeviceReading]:
        """Return what SdpMaster provides itself, when something was told of it, or a while has passed."""
        sources = self._sources
        marker = (
            sources.states.version(self._device),
            sources.states_known(),
            sources.reporting(),
            now // VIEW_PERIOD,
        )
        if marker == self._marker:
            return
        values = self._values(now)
        self.state = str(values["State"])
        for name, value in values.items():
            yield self._device, name, self._changes.reading(name, value, now)
        self._marker = marker

    def _values(self, now: float) -> dict[str, Value]:
        sources = self._sources
        reporting = sources.reporting()
        self.condition = self._condition(now, reporting)
        state, reasons = judge_health(self.condition)
        mode = sources.states.label(self._device, ADMIN_MODE) if sources.states_known() else ""
        device_state = self._state(mode, state)
        return {
            "healthState": state,
            "healthInfo": reasons,
            "nodesExpected": len(sources.expected),
            "nodesReporting": len(reporting),
            "nodesSilent": tuple(sorted(sources.expected - reporting)),
            **self._versions,
            "State": device_state,
            "Status": "\n".join(
                (
                    f"The device is in {device_state} state; adminMode is {mode or 'not known yet'};"
                    f" health is {state}.",
                    *reasons,
                )
            ),
        }

    def _state(self, mode: str, health: str) -> str:
        if not mode:
            return "UNKNOWN"
        if mode in DISABLED:
            return "DISABLE"
        commanded = self._sources.states.label(self._device, STATE, "ON")
        return "ALARM" if commanded == "ON" and health == FAILED else commanded

    def _condition(self, now: float, reporting: frozenset[int]) -> Condition:
        sources, streams = self._sources, self._sources.streams()
        return Condition(
            connected=sources.health.connected,
            bus_error=sources.health.last_error,
            workers_alive=sources.workers_alive(now, self._bus_class.stale_after),
            expected=sources.expected,
            reporting=reporting,
            silent_controllers=tuple(sources.silences(now)),
            uncontrolled=sources.uncontrolled(),
            unbalanced=tuple(name for name, stream in streams.items() if stream.account.balance),
            lagging=tuple(
                (stream, streams[stream].lag)
                for stream, attribute in _lag_attributes(self._bus_class)
                if stream in streams and judge(streams[stream].lag, attribute.limits) is not Quality.VALID
            ),
        )


class BusView:
    """The accounts of all streams, one attribute for each figure."""

    def __init__(self, device: str, device_class: DeviceClass, sources: Sources) -> None:
        self._device = device
        self._class = device_class
        self._sources = sources
        self._changes = Changes()
        self._looked_in = -1.0

    def readings(self, now: float) -> Iterator[DeviceReading]:
        """Return everything that SdpBus shows, once in a while: others write their accounts each second or so."""
        if now // VIEW_PERIOD == self._looked_in:
            return
        self._looked_in = now // VIEW_PERIOD
        streams = self._sources.streams()
        troubles: list[tuple[Quality, str]] = []
        for attribute in self._class.attributes:
            if attribute.account is None or attribute.account.stream not in streams:
                continue
            reading = self._figure(attribute, attribute.account, streams[attribute.account.stream], now)
            if reading.quality in (Quality.ALARM, Quality.WARNING):
                troubles.append((reading.quality, f"{attribute.label} is {reading.value}"))
            yield self._device, attribute.name, reading
        for name, value in self._own(streams, troubles, now).items():
            yield self._device, name, self._changes.reading(name, value, now)

    def _figure(self, attribute: Attribute, source: AccountSource, stream: StreamTotals, now: float) -> Reading:
        value = _figure(stream, source.figure, now)
        silent = now - stream.heard > self._class.stale_after
        # Totals stay true in silence; a rate or a lag that nobody measures any more does not.
        stale = silent and source.figure in ("rate", "lag", "in_flight")
        quality = Quality.INVALID if stale else judge(value, attribute.limits)
        return Reading(value, stream.heard, quality)

    def _own(
        self, streams: Mapping[str, StreamTotals], troubles: list[tuple[Quality, str]], now: float
    ) -> dict[str, Value]:
        sources = self._sources
        alive = sources.workers_alive(now, self._class.stale_after)
        lines = [text for _, text in troubles]
        if not sources.health.connected:
            lines.insert(0, f"no Kafka broker reachable; last error: {sources.health.last_error or 'none yet'}")
        elif not alive:
            lines.insert(0, "no aggregate worker alive")
        grave = not sources.health.connected or not alive or any(q is Quality.ALARM for q, _ in troubles)
        state = "ALARM" if grave else "ON"
        return {
            "connected": sources.health.connected,
            "streams": tuple(sorted(streams)),
            "workersAlive": alive,
            "deadLetterReasons": tuple(reasons_by_stream(streams)[:64]),
            "lastError": _last_error(sources.health, streams),
            "State": state,
            "Status": "\n".join((f"The device is in {state} state.", *(lines or ["All streams balance."]))),
        }


def _lag_attributes(device_class: DeviceClass) -> list[tuple[str, Attribute]]:
    return [
        (a.account.stream, a) for a in device_class.attributes if a.account is not None and a.account.figure == "lag"
    ]


def _figure(stream: StreamTotals, figure: Figure, now: float) -> int | float:
    match figure:
        case "rate":
            return stream.rate.rate(now)
        case "lag":
            return stream.lag
        case "balance":
            return stream.account.balance
    return int(getattr(stream.account, figure))


def _last_error(health: BusHealth, streams: Mapping[str, StreamTotals]) -> str:
    """Return the newest error of all, of the connection or of a stream: when, where, what."""
    errors = [
        (stream.account.last_error_at, name, stream.account.last_error)
        for name, stream in streams.items()
        if stream.account.last_error
    ]
    if health.last_error:
        errors.append((round(health.last_error_at * 1e6), "bus", health.last_error))
    if not errors:
        return ""
    at_us, where, what = max(errors, key=lambda error: error[0])
    # A snapshot of an older release does not say when.
    when = datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="seconds") if at_us else "(time not known)"
    return f"{when} {where}: {what}"
