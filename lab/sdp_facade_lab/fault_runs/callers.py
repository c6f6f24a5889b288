"""TM as several clients, which command the subarrays at once and write down the states that they see."""

import json
import os
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tango

from facade.flows.commands.outcomes import FINAL
from facade.kernel.clock import Clock
from sdp_facade_lab.command_account import Answer, CallLine, SeenLine
from sdp_facade_lab.roles import RoleContext

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
"""Time that TM waits for the end of a transitional state [s], before it aborts or switches the subarray off. A
controller that writes wrong ids and is killed while it aborts leaves the state: the next one cannot know of it."""
_RASH = 0.003
"""Part of the looks at which TM does not wait for the end of a transitional state."""
_OUTCOME_WITHIN = 2.0
"""Time that TM waits for an outcome, if it does not rely on obsState alone [s]."""
_LOOKS_BACK = 0.03
"""Part of the looks at which TM also looks at the scan, and again at an outcome that it knows."""
_REPEATS = 30.0
"""Time that TM repeats a call with an unknown outcome [s]; a killed server is back much sooner."""
_PAUSE = 0.01
_AWAY = 0.1
_AGAIN = 0.3
"""Longest time until TM looks again after a refusal [s]: another client was quicker."""
_ID = re.compile(r"GetCommand\('([^']+)'\)|command (\S+) of this transaction_id never")
"""An id in the text of an error."""


JournalLine = TypeVar("JournalLine", CallLine, SeenLine)


def read_calls(path: Path) -> list[CallLine]:
    """Return all calls so far; a line that is being written is left for the next time."""
    return _read(path, CallLine)


def read_seen(path: Path) -> list[SeenLine]:
    return _read(path, SeenLine)


def _read(path: Path, kind: type[JournalLine]) -> list[JournalLine]:
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=kind) for line in lines if line.endswith(b"\n")]


class Caller:
    """One subarray as one client of TM commands it."""

    def __init__(
        self, tango_host: str, device: str, client: int, journals: tuple[int, int], seed: int, clock: Clock
    ) -> None:
        self._name, self._device, self._client = f"tango://{tango_host}/{device}", device, client
        self._journal, self._seen = journals
        self._clock = clock
        self._chance = random.Random(f"{seed}/{device}/{client}")  # noqa: S311 - a schedule that can be repeated
        self._proxy: Any = None
        self._labels: list[str] = []
        self._count = 0
        self._last: dict[str, SeenLine] = {}
        """The newest line of each device that is not written yet."""
        self._open = self._ended = ""
        """Id of the newest command: its outcome was not seen yet, or was."""

    def drive(self, commands: int, called_off: Callable[[], bool], pause: float) -> None:
        """Give some commands, with a pause [s] before each; one that was surely not sent does not count."""
        given = 0
        while given < commands and not called_off():
            self._clock.sleep(pause)
            shown = self._settled()
            choices = CHOICES[shown]
            (name,) = self._chance.choices([*choices], [*choices.values()])
            given += self._call(name) in ("given", "unknown", "no answer")

    def _settled(self) -> str:
        """Wait until nothing is under way, but not for ever, and give what the device shows."""
        begin = self._clock.monotonic()
        goes_by_outcome = self._chance.random() < 0.5
        while True:
            shown = self._look()
            passes = shown in _PATIENCE or (goes_by_outcome and self._open)
            waited = self._clock.monotonic() - begin
            is_over = waited >= _PATIENCE.get(shown, _OUTCOME_WITHIN) or self._chance.random() < _RASH
            if shown and (is_over or not passes):
                for line in self._last.values():
                    os.write(self._seen, msgspec.json.encode(line) + b"\n")
                self._last.clear()
                return shown
            self._clock.sleep(_PAUSE)

    def _look(self) -> str:
        try:
            if self._proxy is None:
                self._proxy = tango.DeviceProxy(self._name)
                self._labels = list(self._proxy.get_attribute_config("obsState").enum_labels)
            if self._open and self._note(self._open, self._status) in FINAL:
                self._open, self._ended = "", self._open
            state = self._note("State", lambda _: str(self._proxy.state()))
            if state != "ON":
                return "OFF" if state == "OFF" else ""
            if self._chance.random() < _LOOKS_BACK:
                self._note("scanID", lambda name: str(self._proxy.read_attribute(name).value))
                if self._ended:
                    self._note(self._ended, self._status)
            return self._note("obsState", lambda name: self._labels[self._proxy.read_attribute(name).value])
        except tango.DevFailed:
            self._proxy = None  # one that has failed waits before it tries again
            self._clock.sleep(_AWAY)
            return ""

    def _status(self, id: str) -> str:
        try:
            return str(json.loads(self._proxy.command_inout("GetCommand", id))["status"])
        except tango.DevFailed as failed:
            if "expected the id of a command" not in failed.args[0].desc:
                raise
            return ""  # a server that has just started knows none, and one whose caller got no answer perhaps never

    def _note(self, what: str, ask: Callable[[str], str]) -> str:
        """Read a value, and remember it; the last one of each value is written."""
        called, begin = self._clock.now(), self._clock.monotonic()
        value = ask(what)
        seconds = self._clock.monotonic() - begin
        before = self._last.get(what)
        if before is not None and before.value != value:
            os.write(self._seen, msgspec.json.encode(before) + b"\n")
        self._last[what] = SeenLine(
            client=self._client, device=self._device, called=called, seconds=seconds, what=what, value=value
        )
        return value

    def _call(self, name: str) -> Answer:
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
            answer, text = answer_of(error.reason, error.desc), error.desc
            found = _ID.search(text)
            id = (found.group(1) or found.group(2)) if found else ""
        if id and answer in ("given", "unknown"):
            self._open = id
        line = CallLine(
            client=self._client,
            device=self._device,
            command=name,
            called=called,
            seconds=self._clock.monotonic() - begin,
            answer=answer,
            id=id,
            text=text[:300],
            transaction_id="" if argument is None else argument["transaction_id"],
            again=again,
            scan=(argument or {}).get("scan_id", 0),
        )
        os.write(self._journal, msgspec.json.encode(line) + b"\n")
        if answer != "given":
            self._proxy = None if answer == "no answer" else self._proxy
            self._clock.sleep(_AGAIN * self._chance.random() if answer == "refused" else _AWAY)
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
            "Scan": {"interface": schema("scan"), "scan_id": 100 * self._count + self._client},
        }
        if name not in by_name:
            return None
        return {
            **by_name[name],
            "transaction_id": f"txn-faults-20270101-{number:02d}{self._client:02d}{self._count:06d}",
        }


def answer_of(reason: str, text: str) -> Answer:
    """Return the kind of an error of a call, by its reason and description in Tango."""
    if reason == "API_CommandTimedOut" and "outcome unknown" in text:
        return "unknown"
    if reason == "API_CommandNotAllowed":
        return "refused"
    if reason == "API_CommandFailed":
        return "not sent" if "not sent" in text or "still starting" in text else "refused"
    return "no answer"


def call_random_commands(
    context: RoleContext,
    *,
    journal: str,
    seen: str,
    commands: int,
    seed: int,
    devices: list[str],
    clients: int,
    pause: float,
) -> None:
    """Command all subarrays from several clients at once.

    Parameters
    ----------
    journal, seen
        Files for the calls and for the reads.
    commands
        How many are given, by all together.
    pause
        Time before each command of a client [s].
    """
    calls, reads = (os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) for path in (journal, seen))

    def drive(device: str, client: int, share: int) -> None:
        with tango.EnsureOmniThread():
            caller = Caller(context.tango_host, device, client, (calls, reads), seed, context.clock)
            caller.drive(share, lambda: context.called_off, pause)

    pairs = [(device, client) for client in range(clients) for device in devices]
    each, rest = divmod(commands, len(pairs))
    threads = [
        threading.Thread(target=drive, args=(device, client, each + (number < rest)))
        for number, (device, client) in enumerate(pairs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
