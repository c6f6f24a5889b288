"""TM in the fault run: one thread for each subarray gives random commands that its state allows.

Each call is a line of the journal, so that nothing is lost with a process.
"""

import json
import os
import random
import re
import threading
from pathlib import Path
from typing import Any, Literal

import msgspec
import tango

from facade.clock import Clock
from proving.roles import RoleContext

Answer = Literal["given", "refused", "not sent", "unknown", "no answer"]
NOT_GIVEN: tuple[Answer, ...] = ("unknown", "no answer", "refused", "not sent")

CHOICES: dict[str, dict[str, int]] = {
    "OFF": {"On": 1},
    "EMPTY": {"AssignResources": 20, "Off": 1},
    "IDLE": {"Configure": 10, "ReleaseAllResources": 3, "ReleaseResources": 2, "Abort": 1},
    "READY": {"Scan": 10, "Configure": 3, "End": 3, "Abort": 1},
    "SCANNING": {"EndScan": 10, "Abort": 1},
    "ABORTED": {"ObsReset": 1, "Restart": 1},
    "FAULT": {"ObsReset": 1, "Restart": 1},
    "RESOURCING": {"Abort": 1},
    "CONFIGURING": {"Abort": 1},
    "RESETTING": {"Abort": 1},
    "ABORTING": {"Off": 1},
    "RESTARTING": {"Off": 1},
}
"""Commands by what the device shows, with how often each is chosen."""

_PATIENCE = {"RESOURCING": 2.0, "CONFIGURING": 2.0, "RESETTING": 2.0, "ABORTING": 20.0, "RESTARTING": 20.0}
"""For so long TM waits for what passes by itself [s], then aborts it or switches the subarray off. A controller that
writes wrong ids and is killed while it aborts leaves it so: the next one cannot know that it has begun."""
_REPEATS = 30.0
"""For so long TM repeats a call whose outcome it does not know; a killed server is back much sooner."""
_PAUSE = 0.01
_AWAY = 0.1
_ID = re.compile(r"GetCommand\('([^']+)'\)|command (\S+) of this transaction_id never")
"""An id in the text of an error."""


class CallLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a command."""

    device: str
    command: str
    called: float
    """[Unix s]."""
    seconds: float
    """Until there was an answer, or an error instead."""
    answer: Answer
    id: str = ""
    """Where the answer, or the error, has one."""
    text: str = ""
    """The error."""
    transaction_id: str = ""
    """Of the argument, if it has one."""
    again: bool = False
    """Whether the call repeats one whose answer was lost or unknown, with the same transaction_id."""


def read_calls(path: Path) -> list[CallLine]:
    """Return all calls so far; a line that is being written is left for the next time."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=CallLine) for line in lines if line.endswith(b"\n")]


class Caller:
    """One subarray as TM commands it."""

    def __init__(self, tango_host: str, device: str, journal: int, seed: int, clock: Clock) -> None:
        self._name, self._device = f"tango://{tango_host}/{device}", device
        self._journal, self._clock = journal, clock
        self._chance = random.Random(f"{seed}/{device}")  # noqa: S311 - a schedule that can be repeated
        self._proxy: Any = None
        self._labels: list[str] = []
        self._count = 0

    def drive(self, commands: int) -> None:
        """Return so many commands, not counting those that surely were not sent."""
        given = 0
        while given < commands:
            shown = self._settled()
            choices = CHOICES[shown]
            (name,) = self._chance.choices([*choices], [*choices.values()])
            given += self._call(name) in ("given", "unknown", "no answer")

    def _settled(self) -> str:
        """Wait until nothing is under way, but not for ever, and give what the device shows."""
        begin = self._clock.monotonic()
        while True:
            shown = self._look()
            if shown and self._clock.monotonic() - begin >= _PATIENCE.get(shown, 0.0):
                return shown
            self._clock.sleep(_PAUSE)

    def _look(self) -> str:
        try:
            if self._proxy is None:
                self._proxy = tango.DeviceProxy(self._name)
                self._labels = list(self._proxy.get_attribute_config("obsState").enum_labels)
            state = str(self._proxy.state())
            return self._labels[self._proxy.obsState] if state == "ON" else "OFF" if state == "OFF" else ""
        except tango.DevFailed:
            self._proxy = None  # one that has failed waits before it tries again
            self._clock.sleep(_AWAY)
            return ""

    def _call(self, name: str) -> Answer:
        """Return a command; where nobody knows whether it was taken, again with the same transaction_id."""
        argument = self._argument(name)
        answer = last = self._try(name, argument)
        until = self._clock.monotonic() + _REPEATS
        while argument is not None and last in ("unknown", "no answer") and self._clock.monotonic() < until:
            while self._proxy is None and self._clock.monotonic() < until:
                self._look()
            if self._proxy is None:
                break
            last = self._try(name, argument, again=True)
            if last == "not sent":  # it says nothing of the call before
                last = "unknown"
        return answer

    def _try(self, name: str, argument: dict[str, Any] | None, *, again: bool = False) -> Answer:
        called, begin = self._clock.now(), self._clock.monotonic()
        answer: Answer
        try:
            _, (id,) = self._proxy.command_inout(name, *([] if argument is None else [json.dumps(argument)]))
            answer, text = "given", ""
        except tango.DevFailed as failed:
            error = failed.args[0]
            answer, text = _judge(error.reason, error.desc), error.desc
            found = _ID.search(text)
            id = (found.group(1) or found.group(2)) if found else ""
        line = CallLine(
            device=self._device,
            command=name,
            called=called,
            seconds=self._clock.monotonic() - begin,
            answer=answer,
            id=id,
            text=text[:300],
            transaction_id="" if argument is None else argument["transaction_id"],
            again=again,
        )
        os.write(self._journal, msgspec.json.encode(line) + b"\n")
        if answer != "given":
            self._proxy = None if answer == "no answer" else self._proxy
            self._clock.sleep(_AWAY)
        return answer

    def _argument(self, name: str) -> dict[str, Any] | None:
        self._count += 1
        number = int(self._device.rsplit("/", 1)[-1])
        schema = "https://schema.skao.int/ska-sdp-{}/0.4".format
        first, second = f"SKA{2 * number - 1:03d}", f"SKA{2 * number:03d}"  # no two subarrays reserve the same
        by_name: dict[str, dict[str, Any]] = {
            "AssignResources": {"interface": schema("assignres"), "resources": {"receptors": [first, second]}},
            "ReleaseResources": {"interface": schema("releaseres"), "resources": {"receptors": [first]}},
            "Configure": {
                "interface": schema("configure"),
                "scan_type": "science",
                "new_scan_types": [{"scan_type_id": "science", "beams": {}}],
            },
            "Scan": {"interface": schema("scan"), "scan_id": self._count},
        }
        if name not in by_name:
            return None
        return {**by_name[name], "transaction_id": f"txn-faults-20270101-{number:02d}{self._count:06d}"}


def _judge(reason: str, text: str) -> Answer:
    """Tell what an error says of the command."""
    if reason == "API_CommandTimedOut" and "outcome unknown" in text:
        return "unknown"
    if reason == "API_CommandNotAllowed":
        return "refused"
    if reason == "API_CommandFailed":
        return "not sent" if "not sent" in text or "still starting" in text else "refused"
    return "no answer"


def call_random_commands(context: RoleContext, *, journal: str, commands: int, seed: int, devices: list[str]) -> None:
    """Drive all subarrays at the same time."""
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def drive(device: str, share: int) -> None:
        with tango.EnsureOmniThread():
            Caller(context.tango_host, device, file, seed, context.clock).drive(share)

    each, rest = divmod(commands, len(devices))
    threads = [
        threading.Thread(target=drive, args=(device, each + (number < rest)), name=device)
        for number, device in enumerate(devices)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
