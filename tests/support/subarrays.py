"""The subarrays of a deployment as a test commands them: real processes, calls through Tango, records on the bus."""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tango

from tests.support import topics
from tests.support.deployment import ICD, Deployment, subarray_device
from tests.support.processes import Running
from tests.support.waiting import until

FINAL = {"COMPLETED", "FAILED", "ABORTED", "REJECTED", "TIMED_OUT", "UNDELIVERED"}
ARGUMENTS = {"Configure": {"scan_type": "target:a"}, "Scan": {"scan_id": 7}}
ORDER = {"partitioner": "murmur2_random"}
"""Producers of the bus choose partitions as Java clients do."""
_OBS_STATES = ICD.enums["ObsState"]


class Subarrays:
    """All subarrays of a deployment, in obsState READY at first: each test takes some that no other one uses."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.devices = [subarray_device(number) for number in range(1, deployment.subarrays + 1)]
        self._unused = list(self.devices)
        ready = {"State": "ON", "scanTypes": '["target:a"]', "scanType": "target:a", "obsState": "READY"}
        self.write("state", *(record for device in self.devices for record in states(device, ready)))
        self.server: Running = deployment.server("subarray")
        self._controller: Running | None = None
        self.until_ready(self.devices[-1])

    def take(self) -> str:
        """Return a subarray that is READY and on which nothing was done yet."""
        return self._unused.pop(1)

    def controller(self, *faults: str) -> Running:
        """Have the reference controller run with these faults, and no other."""
        self.kill_controller()
        options = [text for fault in faults for text in ("--fault", fault)]
        self._controller = self.deployment.controller(*options)
        return self._controller

    def kill_controller(self) -> None:
        if self._controller is not None:
            self._controller.kill()

    def until_ready(self, device: str) -> None:
        """Wait until the state is known and this server may command."""

        def ready() -> bool:
            info = self.read(device, "healthInfo")
            if info is None:
                return False  # the state may be known a moment before it is said who may command
            known = str(self.deployment.proxy(device).state()) != "UNKNOWN"
            return known and not any("commands are refused" in line or "no Kafka broker" in line for line in info)

        until(ready, "the device server may command")

    def call(self, device: str, name: str, argument: Any = None) -> str:
        """Give a command, as TM does; return its id."""
        argument = ARGUMENTS.get(name) if argument is None else argument
        _, (id,) = self.deployment.proxy(device).command_inout(name, *([json.dumps(argument)] if argument else []))
        return id

    def give(self, device: str, name: str, argument: Any = None) -> str:
        """Give a command as soon as the server may command; return its id.

        It may not until a server that was killed has been silent for long enough, nor after a process has stood still.
        While the broker stands still the outcome is unknown, and the error has the id.
        """

        def taken() -> str | None:
            try:
                return self.call(device, name, argument)
            except tango.DevFailed as failed:
                why = failed.args[0].desc
                if "was not sent" not in why and "outcome unknown" not in why:
                    raise
                return id_in(why)

        return until(taken, f"{name} is taken")

    def told(self, device: str, id: str) -> dict[str, Any]:
        """Return what the device says of a command; it raises where it does not know it."""
        return json.loads(self.deployment.proxy(device).GetCommand(id))

    def outcome(self, device: str, id: str) -> dict[str, Any]:

        def final() -> dict[str, Any] | None:
            told = self.told(device, id)
            return told if told["status"] in FINAL else None

        return until(final, f"an outcome of {id}")

    def read(self, device: str, name: str) -> Any:
        return self.deployment.read_one(device, name)

    def obs_state(self, device: str) -> str:
        value = self.read(device, "obsState")
        return "unknown" if value is None else _OBS_STATES[value]

    def becomes(self, device: str, obs_state: str) -> None:
        until(lambda: self.obs_state(device) == obs_state, f"{device} is {obs_state}")

    def executions(self, id: str) -> int:
        return sum(line["id"] == id for line in self.deployment.executions())

    # The bus.

    def write(self, topic: str, *records: tuple[bytes | None, bytes | None]) -> None:
        topics.send(self.deployment.bootstrap, self.deployment.topic(topic), records, settings=ORDER)


def id_in(why: str) -> str:
    """Return the id of the command in an error; an empty text: it was not sent."""
    return why.partition("GetCommand('")[2].partition("'")[0]


def states(device: str, values: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the records with which a controller reports attributes of a device."""
    fields = {"schema": "state/1", "device": device, "time": time.time_ns() // 1000, "origin": "test"}
    return [
        (f"{device}/{name}".encode(), json.dumps({**fields, "attribute": name, "value": value}).encode())
        for name, value in values.items()
    ]


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Let a process hang: it keeps its connections and answers nobody."""
    os.kill(pid, signal.SIGSTOP)
    stat = Path(f"/proc/{pid}/stat")
    try:
        # Its other threads go on for a moment.
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the process stands still")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
