"""Weather stations: an example of a flow outside the package."""

from facade.kernel.manifest import Isolation, Manifest, Subcommand, WorkerEntry

MANIFEST = Manifest(
    name="weather",
    summary="Weather stations of the site: the newest reports, and an alert when the wind is too strong.",
    topics={"weather.raw": Isolation.READ_COMMITTED, "weather": Isolation.READ_COMMITTED},
    device_classes={"SdpWeather": "devices.kernel.base:FacadeDevice"},
    compose="sdp_weather.flow:compose",
    workers=(WorkerEntry("weather-worker", ("weather.raw",), ("weather",)),),
    subcommands=(Subcommand(("weather",), "sdp_weather.worker:weather", "Take reports of weather stations."),),
    interface="sdp_weather:interface",
)
