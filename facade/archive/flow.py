"""The device of an archive worker: fresh reports of the worker, and orders to a replay."""

from collections.abc import Iterator

from facade.archive.recording import record
from facade.archive.reports import REPORTS
from facade.kernel.clock import NEVER, Clock, Time, as_duration, utc_seconds
from facade.kernel.errors import CommandRefused, ConfigError
from facade.kernel.reading import Quality, Reading, Value
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import DeviceReading
from facade.kernel.runtime.replay import ReplayClock, ReplayFlow
from facade.kernel.runtime.view import NewestView
from facade.sdp.device_state import DeviceStates
from facade.sdp.durations import parse_time
from facade.sdp.messages import ReplayOrderAction
from facade.sdp.replay import ReplayStatus, make_order, replay_record, why_not

CLASS = "SdpArchive"
_ALWAYS = "writeRate"
"""Attribute of each report."""
LONGEST_STEP = 86_400
"""[s]"""
_NOT_ALLOWED, _FAILED = "API_CommandNotAllowed", "API_CommandFailed"


class ArchiveStates(DeviceStates):
    """A flow: the workers' reports. `ArchiveView` shows them, as it knows which ones are stale."""

    topic = REPORTS

    def readings(self, now: Time, topic: str = REPORTS) -> Iterator[DeviceReading]:
        """Return nothing."""
        return iter(())


class ArchiveView(NewestView):
    """A view: one worker."""

    what = "states"

    def __init__(self, device: str, server: Server, states: ArchiveStates) -> None:
        super().__init__(device, server, states.topic)
        self._states = states

    def _look(self, now: Time) -> dict[str, Value]:
        return {}

    def _judge(self, now: Time) -> tuple[str, list[str]]:
        told = self._states.get(self._device, _ALWAYS)
        if told is None:
            return "ALARM", ["No worker has reported yet."]
        if self._is_stale(told.appended_us, now):
            return "ALARM", [f"The worker has not reported since {utc_seconds(told.appended_us)}."]
        return "ON", []

    def _show(self, values: dict[str, Value], now: Time, *, is_known: bool) -> Iterator[tuple[str, Reading]]:
        yield from super()._show(values, now, is_known=is_known)
        for name, attribute in self._attributes.items():
            told = self._states.get(self._device, name)
            if is_known and told is not None:
                is_stale = attribute.stale_after is None and self._is_stale(told.appended_us, now)
                yield name, Reading(told.value, told.time, Quality.INVALID if is_stale else Quality.VALID)

    def _is_stale(self, appended_us: Time, now: Time) -> bool:
        return now - appended_us > as_duration(self._class.stale_after)


class ReplayControl:
    """Gives orders to the replay."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._clock: Clock = server.clock

    def give(self, command: str, *, seconds: int = 1, time: str | None = None) -> str:
        """Write an order to the bus, and return its id; `CommandRefused` if no replay can do it."""
        where, clock = f"SdpArchive.{command}", self._clock
        if not 0 < seconds <= LONGEST_STEP:
            raise CommandRefused(_FAILED, f"expected 1 to {LONGEST_STEP} s, got {seconds}", where)
        try:
            to = NEVER if time is None else parse_time(time, "argument")
        except ConfigError as error:
            raise CommandRefused(_FAILED, str(error), where) from error
        if not isinstance(clock, ReplayClock):
            why = "expected a deployment that shows a replay, got one whose setting replay is not true"
            raise CommandRefused(_NOT_ALLOWED, why, where)
        actions: dict[str, ReplayOrderAction] = {"Pause": "PAUSE", "Resume": "RESUME", "Step": "STEP", "Seek": "SEEK"}
        today, origin = clock.today.now_us(), self._server.instance
        order = make_order(actions[command], origin, now=today, seconds=float(seconds), to=to)
        if why := why_not(order, clock.position):
            raise CommandRefused(_NOT_ALLOWED, why, where)
        self._server.send_durably(replay_record(order))
        return order.id


def compose(server: Server) -> None:
    """Add a replay's time and the history to any device server, and the devices of workers to their server."""
    if isinstance(clock := server.clock, ReplayClock):
        # Before the history, as the record of Status has the devices' own text.
        server.sink = status = ReplayStatus(server.sink, list(server.classes), clock)
        server.flows.append(ReplayFlow(clock))
        server.views.append(status)
        server.heard_at = lambda written: min(written, clock.now_us())
    record(server)
    if not (devices := server.devices.get(CLASS)):
        return
    server.share(ReplayControl, lambda: ReplayControl(server))
    states = ArchiveStates(server.icd, dict.fromkeys(devices, CLASS))
    server.flows.append(states)
    server.views += [ArchiveView(device, server, states) for device in devices]
