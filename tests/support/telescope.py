"""A device of the telescope for tests: its values are set by a command, and pushed, but for one that is only read.

Run as a program it is the device server ``Dish``.
"""

import json
import sys
import time
from enum import IntEnum
from pathlib import Path
from typing import Any

import tango
from tango.server import Device, attribute, command, run

from facade.flows.mirror.messages import MODEL, MirrorRule, TelescopeAttribute, decode_attribute, rule_record
from facade.kernel.bus.kafka.bus import KafkaBus
from tests.support.deployment import Deployment
from tests.support.processes import Running
from tests.support.waiting import HANG, until


class Band(IntEnum):
    NONE = 0
    B1 = 1
    B2 = 2


PUSHED: dict[str, Any] = {
    "azimuth": 1.5,
    "source": "Vela",
    "band": 1,
    "achievedPointing": [0.0, 181.25, 45.5],
    "beam": [[1, 2, 3], [4, 5, 6]],
    "flags": [True, False],
}


class Dish(Device):
    azimuth = attribute(dtype=float, unit="deg")
    source = attribute(dtype=str)
    band = attribute(dtype=Band)
    achievedPointing = attribute(dtype=(float,), max_dim_x=3)
    beam = attribute(dtype=((int,),), max_dim_x=8, max_dim_y=8)
    flags = attribute(dtype=(bool,), max_dim_x=8)
    blob = attribute(dtype="DevEncoded")
    temperature = attribute(dtype=float)
    broken = attribute(dtype=float)

    def init_device(self) -> None:
        super().init_device()
        self._values = {**PUSHED, "temperature": 20.0}
        self.set_state(tango.DevState.ON)
        for name in (*PUSHED, "State"):
            self.set_change_event(name, True, False)

    def read_azimuth(self):
        return self._values["azimuth"]

    def read_source(self):
        return self._values["source"]

    def read_band(self):
        return self._values["band"]

    def read_achievedPointing(self):
        return self._values["achievedPointing"]

    def read_beam(self):
        return self._values["beam"]

    def read_flags(self):
        return self._values["flags"]

    def read_blob(self):
        return "raw", b"\x00\x01\xff"

    def read_temperature(self):
        time.sleep(self._values.get("slowness", 0.0))
        return self._values["temperature"]

    def read_broken(self):
        raise RuntimeError("the sensor is broken")

    @command(dtype_in=str)
    def Set(self, argument):
        for name, value in json.loads(argument).items():
            if name == "State":
                self.set_state(getattr(tango.DevState, value))
                self.push_change_event("State")
                continue
            self._values[name] = value
            if name in PUSHED:
                self.push_change_event(name, value)


class Mirrored:
    """What was written about the telescope, by name and in its order."""

    def __init__(self, deployment: Deployment) -> None:
        self.bus = KafkaBus(deployment.connection, client="reader")
        self._reader = self.bus.open_reader({MODEL: None}, {})
        self._all: dict[str, list[TelescopeAttribute]] = {}

    def take(self) -> dict[str, list[TelescopeAttribute]]:
        for record in self._reader.take(1000, 0.05):
            message = decode_attribute(record.value)
            assert isinstance(message, TelescopeAttribute), message
            assert record.key == message.name.encode()
            self._all.setdefault(message.name, []).append(message)
        return self._all

    def rule(self, name: str, *patterns: str) -> None:
        rule = MirrorRule(rule=name, patterns=list(patterns), period=0.5, time=1, origin="test")
        self.bus.writer().send_durably(rule_record(rule), HANG)

    def close(self) -> None:
        self._reader.close()


def add_dish(deployment: Deployment, name: str, instance: str = "") -> None:
    """Make a device of the telescope known to the Tango database of a deployment; by default it has its own server."""
    host, _, port = deployment.tango_host.partition(":")
    info = tango.DbDevInfo()
    info.server, info._class, info.name = f"Dish/{instance or name.rpartition('/')[2]}", "Dish", name
    tango.Database(host, int(port)).add_device(info)


def start_dish(deployment: Deployment, name: str, instance: str = "") -> Running:
    """Start the server of a device, and wait until it answers."""
    path = str(Path(__file__).parents[2])
    process = deployment.start(
        name.replace("/", "-"), [sys.executable, __file__, instance or name.rpartition("/")[2]], PYTHONPATH=path
    )
    deployment.forget_proxies()
    until(lambda: deployment.read_one(name, "azimuth") is not None, f"{name} answers")
    return process


if __name__ == "__main__":
    run((Dish,), args=["Dish", *sys.argv[1:]], raises=True)
