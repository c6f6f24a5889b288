"""All devices of a deployment in one process, on the bus in memory: for tests of a Tango client.

::

    log = MemoryLog()
    with MemoryContext(log) as context:
        subarray = context.get_device("mid-sdp/subarray/01")

In a deployment each role of the interface has a device server. Here each role has its own event loop, and all share one
Tango server, without a Tango database. Records that a test writes to the log are shown as if they came over Kafka.
"""

import threading
from collections.abc import Sequence
from typing import Any

import tango
from tango.test_context import MultiDeviceTestContext

from devices.kernel.base import FacadeDevice, TangoSink
from devices.kernel.classes import device_classes
from facade import __version__
from facade.kernel.bus.memory import MemoryBus, MemoryLog
from facade.kernel.clock import SystemClock
from facade.kernel.config import Settings
from facade.kernel.icd.load import load
from facade.kernel.icd.telescope import of_telescope
from facade.kernel.instances import registration
from facade.kernel.names import SERVER
from facade.kernel.reading import Reading
from facade.kernel.runtime.composition import Server

__all__ = ["MemoryContext", "MemoryLog"]


class _Sink(TangoSink):
    """Serializes the readings of several event loops: a device must know of each push to it."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def push(self, device: str, attribute: str, reading: Reading) -> bool:
        """Push change and archive events; return False if Tango refused."""
        with self._lock:
            return super().push(device, attribute, reading)


class MemoryContext(MultiDeviceTestContext):
    """PyTango's test context with the devices of a deployment.

    Parameters
    ----------
    log
        The bus. A test writes to it and reads it.
    classes
        Device classes to serve; by default all of the interface but the mirror, which needs other devices.
    settings
        The deployment, such as its number of nodes and subarrays.
    options
        Further options of PyTango's context, such as `timeout`.
    """

    def __init__(
        self,
        log: MemoryLog,
        classes: Sequence[str] = (),
        *,
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        self._log, self._settings = log, settings or Settings()
        self._icd = of_telescope(load(), self._settings.telescope)
        names = classes or [name for name in self._icd.classes if name != "SdpMirror"]
        self._classes = {made.__name__: made for made in device_classes(self._icd, names)}
        self._instances: dict[str, dict[str, list[str]]] = {}
        for instance, of_instance in registration(self._icd, self._settings)["servers"][SERVER].items():
            if found := {name: [*devices] for name, devices in of_instance.items() if name in self._classes}:
                self._instances[instance] = found
        self._sink, self._stop = _Sink(), threading.Event()
        self._threads: list[threading.Thread] = []
        devices: dict[str, list[str]] = {}
        for found in self._instances.values():
            for name, of_class in found.items():
                devices.setdefault(name, []).extend(of_class)
        info = [
            {"class": self._classes[name], "devices": [{"name": device} for device in of_class]}
            for name, of_class in devices.items()
        ]
        super().__init__(info, process=False, **options)

    def post_init(self) -> None:
        """Start an event loop for each device server of a deployment, once the devices exist."""
        servers: dict[str, Server] = {}
        try:
            for instance, devices in self._instances.items():
                server = self._assemble(instance, devices)
                for name in devices:
                    self._classes[name].service = server
                servers |= dict.fromkeys(server.classes, server)
                runs = [server.event_loop.run, *server.threads]
                self._threads += [threading.Thread(target=self._run, args=(run,), daemon=True) for run in runs]
            FacadeDevice.begin_anew = lambda name, may_tell: servers[name].publisher.begin_anew(name, may_tell)
            for thread in self._threads:
                thread.start()
        except Exception as error:
            self._startup_exception_queue.put(error)
        super().post_init()

    def stop(self) -> None:
        """Stop the event loops, and then the devices that they push to."""
        self._stop.set()
        for thread in self._threads:
            thread.join(self.timeout)
        FacadeDevice.begin_anew = None
        super().stop()
        FacadeDevice.left.clear()

    def _assemble(self, instance: str, devices: dict[str, list[str]]) -> Server:
        return Server(
            self._icd,
            self._settings,
            devices,
            self._sink,
            MemoryBus(self._log),
            instance=f"{SERVER}-{instance}",
            clock=SystemClock(),
            versions={"versionId": __version__},
        )

    def _run(self, run: Any) -> None:
        with tango.EnsureOmniThread():
            run(self._stop)
