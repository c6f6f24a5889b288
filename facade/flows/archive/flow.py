"""The device of an archive worker: the states that the worker reports, as long as they are fresh."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from facade.bus.port import BusHealth
from facade.flows.archive.control import ReplayControl
from facade.flows.archive.recording import record
from facade.icd.model import DeviceClass
from facade.reading import Quality, Reading, Value
from facade.runtime.composition import Server
from facade.runtime.device_state import DeviceStates
from facade.runtime.flow import DeviceReading, LastReadings
from facade.runtime.view import NewestView

CLASS = "SdpArchive"
_ALWAYS = "writeRate"
"""Attribute of each report."""


class ArchiveStates(DeviceStates):
    """A flow: the workers' reports. `ArchiveView` shows them, as it knows which ones are stale."""

    def readings(self, now: float, last: LastReadings) -> Iterator[DeviceReading]:
        """Return nothing."""
        return iter(())


class ArchiveView(NewestView):
    """A view: one worker."""

    what = "states"

    def __init__(
        self,
        device: str,
        device_class: DeviceClass,
        states: ArchiveStates,
        health: BusHealth,
        *,
        known: Callable[[], bool],
        version: str,
    ) -> None:
        super().__init__(device, device_class, health, known=known, version=version)
        self._states, self._stale_after = states, device_class.stale_after

    def _look(self, now: float) -> dict[str, Value]:
        return {}

    def _judge(self, now: float) -> tuple[str, list[str]]:
        told = self._states.get(self._device, _ALWAYS)
        if told is None:
            return "ALARM", ["No worker has reported yet."]
        if self._is_stale(told.appended_us, now):
            at = datetime.fromtimestamp(told.appended_us / 1e6, UTC).isoformat(timespec="seconds")
            return "ALARM", [f"The worker has not reported since {at}."]
        return "ON", []

    def _show(self, values: dict[str, Value], now: float, *, is_known: bool) -> Iterator[tuple[str, Reading]]:
        yield from super()._show(values, now, is_known=is_known)
        for name, attribute in self._attributes.items():
            told = self._states.get(self._device, name)
            if is_known and told is not None:
                is_stale = attribute.stale_after is None and self._is_stale(told.appended_us, now)
                yield name, Reading(told.value, told.time, Quality.INVALID if is_stale else Quality.VALID)

    def _is_stale(self, appended_us: int, now: float) -> bool:
        return now - appended_us / 1e6 > self._stale_after


def compose(server: Server) -> None:
    """Add the history to any device server, and the devices of workers to their server."""
    record(server)
    if not (devices := server.devices.get(CLASS)):
        return
    server.share(ReplayControl, lambda: ReplayControl(server))
    states = ArchiveStates(server.icd, dict.fromkeys(devices, CLASS))
    server.flows.append(states)

    def known() -> bool:
        return server.has_read(states.topic)

    for device in devices:
        entry, health = server.icd.classes[CLASS], server.bus.health
        server.views.append(ArchiveView(device, entry, states, health, known=known, version=server.version))
