"""A whole facade under load: workers, device servers, and the stream of notifications, as real processes."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import tango

from devices.registration import register
from facade.config import Settings
from facade.exports.tango_db import SERVER, instances
from facade.icd.model import DeviceClass
from facade.instances import devices_of
from proving.bench import gauges
from proving.bench.load import METRICS, TABLE, Stream
from proving.testbed import BenchError, Running, Stage

WORKERS = 2

_COMMAND = "facade.cli"
SERVER_PROGRAM = "from devices.server import main; main()"


@dataclass(slots=True)
class Deployment:
    """What runs; use `deployment`."""

    stage: Stage
    settings: Settings
    processes: dict[str, Running] = field(default_factory=dict)

    def devices(self, *classes: str) -> list[str]:
        """Return the devices of some classes of the ICD, of all of them by default."""
        icd = self.stage.icd
        chosen: list[DeviceClass] = [icd.classes[name] for name in classes or icd.classes]
        return [
            device
            for device_class in chosen
            for devices in devices_of(device_class, self.settings).values()
            for device in devices
        ]

    def stream(self, rate: float) -> Stream:
        """Start the notifications."""
        stream = Stream(self.stage, self.settings, rate)
        self.processes["simulate"] = stream.process
        stream.until_sending()
        return stream

    def large(self) -> str:
        """Let large things come instead of the notifications: metrics, and tables that are assembled; gives what."""
        if (stream := self.processes.pop("simulate", None)) is not None:
            stream.kill()
        program = [sys.executable, "-m", _COMMAND]
        quality = ["simulate", "quality", f"--megabytes-per-second={METRICS:g}"]
        for name, argv in (("assemble", ["tables", "assemble"]), ("quality-simulator", quality)):
            self.processes[name] = self.stage.start(name, [*program, *argv], self.settings)
        self.processes["send-tables"] = self.stage.play("send-tables", self.settings)
        self.stage.until_ready(self.processes["send-tables"])
        return f"{METRICS:g} MB/s of metrics, {TABLE // 1_000_000} MB tables"

    def cpu(self) -> dict[str, float]:
        """Return the processor time of each process so far [s]."""
        found = {name: gauges.cpu(process.pid) for name, process in self.processes.items()}
        return {**found, "kafka": gauges.cpu(self.stage.broker_pid())}

    def memory(self) -> dict[str, float]:
        """Return the resident memory of each process [MB]."""
        return {name: round(gauges.resident(process.pid), 1) for name, process in self.processes.items()}

    def require_all(self) -> None:
        """Make sure that every process still runs.

        Raises
        ------
        BenchError
            One has ended.
        """
        for name, process in self.processes.items():
            if not process.is_alive:
                raise BenchError(f"{name} ended; its output ends:\n{process.log_end()}")


@contextmanager
def deployment(stage: Stage, settings: Settings, *, within: float = 60.0) -> Iterator[Deployment]:
    """Start the workers and all device servers of a deployment; they end with the context."""
    made = Deployment(stage, settings)
    partitions = stage.icd.topics["ingest.heaps"].partitions
    with stage.topics(settings, partitions):
        count = register(stage.icd, settings, stage.tango_host)
        stage.say(f"  {count} devices registered; starting {', '.join(instances(stage.icd, settings))}")
        try:
            for instance in instances(stage.icd, settings):
                made.processes[instance] = stage.start(
                    instance, [sys.executable, "-c", SERVER_PROGRAM, instance], settings
                )
            for slot in map(str, range(WORKERS)):
                argv = [sys.executable, "-m", _COMMAND, "aggregate", "--slot", slot]
                made.processes[f"aggregate-{slot}"] = stage.start(f"aggregate-{slot}", argv, settings)
            for instance in instances(stage.icd, settings):
                stage.until(lambda i=instance: _answers(made, i), f"the device server {instance}", within)  # type: ignore[misc]
            yield made
        finally:
            for process in made.processes.values():
                process.kill()


def cores_used(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return how much of a core each process used meanwhile."""
    return {name: round((after[name] - used) / seconds, 3) for name, used in before.items() if name in after}


def in_words(cores: Mapping[str, float]) -> str:
    """List processor use, the largest first."""
    parts = [f"{name} {used:.2f}" for name, used in sorted(cores.items(), key=lambda item: -item[1])]
    return f"cores used: {', '.join(parts)}; together {sum(cores.values()):.2f}"


def _answers(made: Deployment, instance: str) -> bool:
    made.require_all()
    try:
        # A proxy of its own each time: one that has failed waits before it tries again.
        proxy = tango.DeviceProxy(f"tango://{made.stage.tango_host}/dserver/{SERVER}/{instance}")
        return bool(proxy.ping() > 0)
    except tango.DevFailed:
        return False
