"""A live view of a deployment from Tango change events, compared with reads at intervals.

It shows the values of any Tango client, without access to the bus. `sdp_facade_clients.terminal` draws it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Final

from rich.live import Live

from facade.kernel.clock import Clock, as_seconds
from facade.kernel.console import Console
from facade.kernel.icd.model import Icd
from sdp_facade_clients.events import EventPulse, EventRecorder
from sdp_facade_clients.terminal import ALERTS, CALIBRATION, MOST_ROWS, SHOWN, SUBARRAY, Scene, render, rows_in, summary

PLAIN_INTERVAL: Final = 5.0
"""Time between the lines that replace the live view without a terminal [s]."""
_REFRESH: Final = 4.0


class Watch:
    """Watches some devices through a recorder."""

    def __init__(
        self,
        recorder: EventRecorder,
        devices: Mapping[str, Sequence[str]],
        pulse: EventPulse,
        *,
        tango_host: str,
        icd: Icd,
        clock: Clock,
    ) -> None:
        self._recorder, self._devices, self._pulse, self._clock = recorder, devices, pulse, clock
        self._tango_host, self._enums = tango_host, icd.enums

    def step(self) -> None:
        """Compare the next device with a read, if it is due."""
        self._recorder.step(self._pulse.silent())

    def scene(self) -> Scene:
        """Return the present scene."""
        return Scene(
            tango_host=self._tango_host,
            devices=self._devices,
            records=self._recorder.records(),
            silent=self._pulse.silent(),
            now=as_seconds(self._clock.now_us()),
            health_labels=self._enums["HealthState"],
            obs_states=self._enums["ObsState"],
        )

    def live(self, console: Console, *, screen: bool) -> Live:
        """Return the live view; use it in a `with` statement."""
        subarrays, alerts = len(self._devices.get(SUBARRAY, ())), ALERTS in self._devices
        calibrated = len(self._devices.get(CALIBRATION, ()))
        return Live(
            get_renderable=lambda: render(
                self.scene(), rows=rows_in(console.height, subarrays, alerts=alerts, calibrated=calibrated)
            ),
            console=console,
            refresh_per_second=_REFRESH,
            screen=screen,
            vertical_overflow="crop",
        )


def subscribe_shown(recorder: EventRecorder, devices: Mapping[str, Iterable[str]]) -> None:
    """Subscribe to the shown attributes: nodes beyond the last row would only load their servers."""
    for device_class, attributes in SHOWN.items():
        for device in list(devices.get(device_class, ()))[:MOST_ROWS]:
            recorder.subscribe(device, attributes)


def look(watch: Watch, console: Console, *, seconds: float | None, stopped: Callable[[], bool], clock: Clock) -> None:
    """Show the view until it is stopped: live on a terminal, otherwise as plain lines at intervals."""
    begin = printed = clock.monotonic()
    with watch.live(console, screen=True) if console.is_terminal else nullcontext():
        while not stopped() and (seconds is None or clock.monotonic() - begin < seconds):
            if not console.is_terminal and clock.monotonic() - printed >= PLAIN_INTERVAL:
                printed = clock.monotonic()
                print_plain(console, watch.scene())
            watch.step()
            clock.sleep(0.1)
    print_plain(console, watch.scene())


def print_plain(console: Console, scene: Scene) -> None:
    """Print one line at once, also into a pipe."""
    console.print(summary(scene), markup=False, highlight=False, soft_wrap=True)
    console.file.flush()
