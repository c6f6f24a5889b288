"""``SdpFacade`` without a bus: only Tango can change what is seen of a device, except for its Status.

``python -m tests.support.tango_server INSTANCE [Tango options]`` is the device server itself, with its devices, signals
and log levels; what it would have merged from the bus is made up. Status is another one each time, so events go on.
"""

import sys
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import devices.kernel.server
from devices.kernel.base import FacadeDevice, TangoSink
from facade.kernel.clock import SystemClock
from facade.kernel.config import Settings
from facade.kernel.icd.model import Attribute, Icd
from facade.kernel.reading import Reading, Value
from facade.kernel.runtime.publisher import Publisher

TIME = 1_700_000_000_250_000
"""Time of all values [Unix s]."""
STATE = "ON"
_SAMPLES: dict[str, Value] = {
    "DevDouble": 1e-4, "DevLong": 0, "DevLong64": 0, "DevULong64": 0, "DevString": "text", "DevBoolean": True
}  # fmt: skip
_PAUSE = 0.01
"""Between two looks of the event loop [s]: Tango drops events when a client in Python falls behind."""


def sample(icd: Icd, entry: Attribute) -> Value:
    """Return a value of an attribute, within its limits."""
    value: Any = icd.enums[entry.enum][1] if entry.enum else _SAMPLES[entry.type]
    row = (value, value)
    return (row, row, row) if entry.height else row if entry.length else value


class _EventLoop:
    """Shows one reading of each attribute, and sends events, as the real one does."""

    def __init__(self, icd: Icd, classes: dict[str, str]) -> None:
        self.accounts: dict[str, Any] = {}
        self.publisher = Publisher(icd, classes, TangoSink(), SystemClock())
        self._readings = [
            (device, entry.name, Reading(sample(icd, entry), TIME))
            for device, name in classes.items()
            for entry in icd.classes[name].attributes
        ]
        self._readings += [(device, "State", Reading(STATE, TIME)) for device in classes]
        self._devices = tuple(classes)

    def run(self, stop: threading.Event) -> None:
        count = 0
        while not stop.wait(_PAUSE):
            count += 1
            for reading in self._readings:
                self.publisher.offer(*reading)
            for device in self._devices:
                self.publisher.offer(device, "Status", Reading(f"look {count}", TIME))
            self.publisher.tick()


def _assemble(icd: Icd, settings: Settings, instance: str) -> Any:
    classes = {name: type(device).__name__ for name, device in FacadeDevice.present.items()}
    event_loop = _EventLoop(icd, classes)
    return SimpleNamespace(
        classes=classes,
        event_loop=event_loop,
        publisher=event_loop.publisher,
        metrics=[],
        threads=[],
        find=lambda kind: None,
        has_read=lambda *topics: False,
    )


def main(arguments: Sequence[str]) -> None:
    devices.kernel.server._assemble = _assemble
    devices.kernel.server.end_when_replaced = lambda service, pulse: None  # a successor is heard of on the bus
    devices.kernel.server.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
