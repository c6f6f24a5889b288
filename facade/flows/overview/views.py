"""What SdpMaster and SdpBus show that comes from no single flow."""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from facade.bus.port import BusHealth
from facade.flows.overview.health import Overview, figure
from facade.icd.model import AccountSource, Attribute, DeviceClass
from facade.printable import printable
from facade.reading import Changes, Quality, Reading, Value, judge
from facade.runtime.admin_mode import ATTRIBUTE as ADMIN_MODE
from facade.runtime.admin_mode import DISABLED
from facade.runtime.device_state import STATE, DeviceStates
from facade.runtime.flow import VIEW_PERIOD, DeviceReading
from facade.runtime.health_issues import FAILED
from facade.runtime.stream_accounts import StreamTotals, reasons_by_stream

_MOST_REASONS = 64


class MasterView:
    """Health, mode and versions of SDP as a whole."""

    def __init__(
        self,
        device: str,
        overview: Overview,
        states: DeviceStates,
        states_known: Callable[[], bool],
        versions: Mapping[str, str],
    ) -> None:
        self._device, self._overview, self._versions = device, overview, versions
        self._states, self._states_known = states, states_known
        self._changes = Changes()
        self._marker: tuple[object, ...] = ()

    def readings(self, now: float) -> Iterator[DeviceReading]:
        """Return what SdpMaster provides itself, when something was reported of it, or a while has passed."""
        marker = (self._states.version(self._device), self._states_known(), now // VIEW_PERIOD)
        if marker == self._marker:
            return
        for name, value in self._values(now).items():
            yield self._device, name, self._changes.reading(name, value, now)
        self._marker = marker

    def _values(self, now: float) -> dict[str, Value]:
        health, reasons = self._overview.judge(now)
        mode = self._states.label(self._device, ADMIN_MODE) if self._states_known() else ""
        state = self._state(mode, health)
        says = f"The device is in {state} state; adminMode is {mode or 'not known yet'}; health is {health}."
        return {
            "healthState": health,
            "healthInfo": reasons,
            "healthIssues": tuple(json.dumps(issue) for issue in self._overview.issues_as_dicts(now)),
            **self._overview.values("SdpMaster"),
            **self._versions,
            "State": state,
            "Status": "\n".join(map(printable, (says, *reasons))),
        }

    def _state(self, mode: str, health: str) -> str:
        if not mode:
            return "UNKNOWN"
        if mode in DISABLED:
            return "DISABLE"
        commanded = self._states.label(self._device, STATE, "ON")
        return "ALARM" if commanded == "ON" and health == FAILED else commanded


class BusView:
    """The accounts of all streams, one attribute for each figure."""

    def __init__(self, device: str, device_class: DeviceClass, overview: Overview) -> None:
        self._device = device
        self._class = device_class
        self._overview = overview
        self._changes = Changes()
        self._looked_in = -1.0

    def readings(self, now: float) -> Iterator[DeviceReading]:
        """Return everything that SdpBus shows, once in a while: others write their accounts each second or so."""
        if now // VIEW_PERIOD == self._looked_in:
            return
        self._looked_in = now // VIEW_PERIOD
        streams = self._overview.streams()
        troubles: list[tuple[Quality, str]] = []
        for attribute in self._class.attributes:
            if attribute.account is None or attribute.account.stream not in streams:
                continue
            reading = self._figure(attribute, attribute.account, streams[attribute.account.stream], now)
            if reading.quality in (Quality.ALARM, Quality.WARNING):
                why = streams[attribute.account.stream].account.deviations.get(attribute.account.figure)
                text = f"{attribute.label} is {reading.value}"
                troubles.append((reading.quality, f"{text}: {why}" if why else text))
            yield self._device, attribute.name, reading
        cuts = ((name, stream.account.deviations.get("log_cuts")) for name, stream in streams.items())
        troubles += [(Quality.ALARM, f"totals of {name} are in a new epoch: {text}") for name, text in cuts if text]
        for name, value in self._own(streams, troubles, now).items():
            yield self._device, name, self._changes.reading(name, value, now)

    def _figure(self, attribute: Attribute, source: AccountSource, stream: StreamTotals, now: float) -> Reading:
        value = figure(stream, source.figure, now)
        silent = now - stream.heard > self._class.stale_after
        # Totals stay true in silence; a rate or a lag does not.
        stale = silent and source.figure in ("rate", "lag", "lag_time", "in_flight")
        # The lag of a partition without a worker is not known.
        is_lag = source.figure in ("lag", "lag_time")
        stale = stale or (is_lag and bool(stream.untaken(now, self._class.stale_after)))
        quality = Quality.INVALID if stale else judge(value, attribute.limits)
        return Reading(value, stream.heard, quality)

    def _own(
        self, streams: Mapping[str, StreamTotals], troubles: list[tuple[Quality, str]], now: float
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
    """Name the records that are in no total: those before the first account that is left of a partition."""
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
