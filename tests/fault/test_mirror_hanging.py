"""Ten devices that stand still, are silent, refuse, send garbage or are slow cost the good ones beside them nothing."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from facade.infra.ports import HOST
from tests.conftest import Deploy
from tests.support.deployment import Deployment
from tests.support.ports import nobody
from tests.support.telescope import Mirrored, add_dish, start_dish
from tests.support.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.tango]

GOOD = [f"mid-dish/good/{number}" for number in range(3)]
STOPPED = {f"stopped-{one}": [f"mid-dish/stopped/{one}{number}" for number in range(2)] for one in "ab"}
SLOW = "mid-dish/slow/0"
VALUES = 110
"""Values of each good device while the bad ones stand still. Tango looks each 10 s for servers that send no events."""
PAUSE = 0.1
"""[s]"""


class Server:
    """Listens where a device server should be; `answer` is what each connection gets."""

    def __init__(self, answer: bytes) -> None:
        self.connections = 0
        self._answer = answer
        self._kept: list[socket.socket] = []
        self._socket = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                found, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._kept.append(found)
            if self._answer:
                found.sendall(self._answer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for one in self._kept:
            one.close()


def at(address: str, name: str) -> str:
    """Return the name of a device that no database has."""
    return f"tango://{address}/mid-dish/{name}#dbase=no"


@contextmanager
def others() -> Iterator[tuple[Server, list[str]]]:
    """Give a server that answers nothing, and five devices: silent, of garbage, refusing."""
    with (
        closing(Server(b"")) as silent,
        closing(Server(os.urandom(4096))) as garbage,
        nobody() as refusing,
    ):
        of = [(silent.address, "silent"), (garbage.address, "garbage")]
        yield silent, [at(one, f"{name}/{n}") for one, name in of for n in range(2)] + [at(refusing, "refusing/0")]


class Model(Mirrored):
    """What was said last of connections, and each value."""

    def connections(self, devices: list[str], attribute: str = "azimuth") -> set[str]:
        """Return what was said last of the connections to some devices."""
        found = self.take()
        return {found[name][-1].connection if (name := f"{one}/{attribute}") in found else "" for one in devices}

    def values(self, name: str) -> list[Any]:
        return [one.value for one in self.take().get(name, ()) if one.connection == "CONNECTED"]


def set_values(deployment: Deployment, device: str, **values: object) -> None:
    deployment.proxy(device).command_inout("Set", json.dumps(values))


def has(model: Model, name: str, value: float) -> bool:
    return value in model.values(name)


def are_read(model: Model, value: float) -> bool:
    return all(has(model, f"{device}/temperature", value) for device in GOOD)


def are_pushed(deployment: Deployment, model: Model) -> bool:
    """Give each good device another value, and return whether the newest one of each has come by an event.

    Tango's library refuses a subscription now and then; it is made again.
    """
    for device in GOOD:
        set_values(deployment, device, azimuth=time.monotonic())
    found = model.take()
    return all(found[f"{device}/azimuth"][-1].by == "EVENT" for device in GOOD)


def test_devices_that_hang_cost_the_others_no_value(deploy: Deploy) -> None:
    """Each value that a good device pushes, or shows until it is read, is on the topic, while ten bad ones hang."""
    deployment = deploy(nodes=1)
    for device in (*GOOD, SLOW):
        add_dish(deployment, device, "slow" if device == SLOW else "good")
    for instance, devices in STOPPED.items():
        for device in devices:
            add_dish(deployment, device, instance)
    start_dish(deployment, GOOD[0], "good")
    start_dish(deployment, SLOW, "slow")
    stopped = [start_dish(deployment, devices[0], instance) for instance, devices in STOPPED.items()]
    bad = [device for devices in STOPPED.values() for device in devices]
    deployment.server("mirror")
    with others() as (silent, far), closing(Model(deployment)) as model:
        patterns = [f"{device}/{name}" for device in (*GOOD, SLOW, *bad, *far) for name in ("azimuth", "temperature")]
        model.rule("all", *patterns, "mid-dish/*/*/azi*")
        until(lambda: model.connections([*GOOD, SLOW, *bad]) == {"CONNECTED"}, "all are mirrored")
        until(partial(are_pushed, deployment, model), "the good ones are subscribed to")
        set_values(deployment, SLOW, slowness=2.5)
        for one in stopped:
            one.signal(signal.SIGSTOP)
        tried = silent.connections
        for value in range(VALUES):
            for device in GOOD:
                set_values(deployment, device, azimuth=1000.0 + value)
            if value % 50 == 0:
                for device in GOOD:
                    set_values(deployment, device, temperature=float(value))
                until(partial(are_read, model, value), f"each good device is read, which is at {value}")
            model.take()
            time.sleep(PAUSE)
        until(lambda: model.connections([*bad, *far]) == {"DISCONNECTED"}, "the bad ones are said to be away")
        for device in GOOD:
            name, wanted = f"{device}/azimuth", {1000.0 + value for value in range(VALUES)}
            until(partial(has, model, name, max(wanted)), "the newest value is there")
            assert wanted - {*model.values(name)} == set(), name
            assert model.connections(GOOD) == {"CONNECTED"}
        until(lambda: silent.connections > tried, "the bad ones are tried again")
        for one in stopped:
            one.signal(signal.SIGCONT)
        until(lambda: model.connections(bad) == {"CONNECTED"}, "who answers again is mirrored again")
