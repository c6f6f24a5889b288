"""The three flows of the observatory, for the kernel, which finds them through the entry points."""

from facade.kernel.manifest import Isolation, Manifest, Subcommand, WorkerEntry

WEATHER = Manifest(
    name="weather",
    summary="Readings of the weather stations, summed up in windows.",
    topics={"weather": Isolation.READ_COMMITTED, "weather-sums": Isolation.READ_COMMITTED},
    device_classes={"ObsWeather": "devices.kernel.base:FacadeDevice"},
    compose="observatory.weather:compose",
    workers=(WorkerEntry("weather-worker", ("weather",), ("weather",)),),
    subcommands=(
        Subcommand(("weather",), "observatory.weather_worker:weather", "Sum up readings, exactly once."),
        Subcommand(("simulate",), "observatory.simulator:simulate", "Send readings of weather stations."),
    ),
)
DOME = Manifest(
    name="dome",
    summary="Commands to the dome, and their outcomes.",
    topics={"commands": Isolation.READ_UNCOMMITTED, "command-acks": Isolation.READ_COMMITTED},
    device_classes={"ObsDome": "observatory.dome_device:DomeDevice"},
    compose="observatory.dome:compose",
    workers=(WorkerEntry("dome-controller", ("commands",), ("dome",)),),
    subcommands=(Subcommand(("dome",), "observatory.dome_controller:dome", "Execute the commands to the dome."),),
)
ALARMS = Manifest(
    name="alarms",
    summary="What an operator must know.",
    topics={"alarms": Isolation.READ_COMMITTED},
    device_classes={"ObsAlarms": "devices.kernel.base:FacadeDevice"},
    compose="observatory.alarms:compose",
)
