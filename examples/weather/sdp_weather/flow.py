"""What SdpWeather shows: the strongest wind of all stations, and an alert when it is too strong."""

from collections.abc import Iterator
from typing import Any

from facade.kernel.bus.port import Record
from facade.kernel.clock import Time, as_duration
from facade.kernel.codec.decode import BatchDecoder
from facade.kernel.codec.json_schema import compile_message
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import USED, Outcome
from facade.kernel.reading import Reading, judge
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.flow import DeviceReading, Fault, FaultKey
from facade.kernel.runtime.projection import Projection

CLASS, TOPIC = "SdpWeather", "weather"


class WeatherFlow(Projection[Any]):
    """The newest report of each station."""

    topic = TOPIC

    def __init__(self, icd: Icd, device: str) -> None:
        self._device, self._entry = device, icd.classes[CLASS]
        self._limits = next(one.limits for one in self._entry.attributes if one.name == "windSpeed")
        self._decoder = BatchDecoder(compile_message("weather", icd.messages["weather"]))
        self._newest: dict[str, tuple[Time, float]] = {}
        """Time and wind [m/s] by station."""

    def _read(self, record: Record) -> Any:
        return self._decoder.decode_one(record.value)

    def _take(self, report: Any, record: Record) -> Outcome:
        self._newest[report.station] = (report.time, report.wind_speed)
        return USED

    def _remove(self, key: str) -> None:
        self._newest.pop(key, None)

    def readings(self, now: Time) -> Iterator[DeviceReading]:
        """Return the strongest wind of the stations that report, and their number; in silence neither is to be used."""
        if self._newest:
            limit, heard = as_duration(self._entry.stale_after), max(time for time, _ in self._newest.values())
            live = [report for report in self._newest.values() if now - report[0] <= limit]
            time, wind = max(live or self._newest.values(), key=lambda report: report[1])
            speed, stations = Reading(wind, time, judge(wind, self._limits)), Reading(len(live), heard)
            yield self._device, "windSpeed", speed if live else speed.invalid()
            yield self._device, "stations", stations if live else stations.invalid()
            yield self._device, "State", Reading("ON" if live else "STANDBY", heard)

    def find(self, now: Time) -> dict[FaultKey, Fault]:
        """Return the stations with too strong a wind."""
        too_strong = self._limits.max_alarm if self._limits and self._limits.max_alarm is not None else float("inf")
        return {
            ("windHigh", f"weather/{station}"): Fault(f"expected less than {too_strong} m/s, got {wind} m/s")
            for station, (time, wind) in self._newest.items()
            if wind >= too_strong and now - time <= as_duration(self._entry.stale_after)
        }


def compose(server: Server) -> None:
    """Add the weather to a device server."""
    for device in server.devices[CLASS]:
        flow = WeatherFlow(server.icd, device)
        server.flows.append(flow)
        server.report(flow.find, lambda key: key[0] == "windHigh", TOPIC)
