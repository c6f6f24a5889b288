"""The observation of TM in the demo, and the journal of its commands."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from facade.kernel.config import MOST_SUBARRAYS
from facade.sdp.files import write_whole
from sdp_facade_clients.sample_arguments import VERSION, sample

Argument = dict[str, Any]

OFF, UNKNOWN = "OFF", "UNKNOWN"
"""Shown in the place of obsState while State is this."""
ON, STANDBY = "ON", "STANDBY"
TRANSITIONAL: Final = frozenset({"RESOURCING", "CONFIGURING", "ABORTING", "RESETTING", "RESTARTING", UNKNOWN})
_FAILED: Final = frozenset({"FAULT", "ABORTED"})


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """One command of an observation."""

    command: str
    begins: str
    """obsState in which it is given, or OFF."""
    ends: str
    """obsState that it leads to, or OFF."""
    argument: Callable[[int, int, str], Argument] | None = None
    """Makes the argument, by the numbers of the subarray and of the try, and the day (YYYYMMDD)."""
    stays: bool = False
    """Whether TM lets some time pass in the state reached."""


def receptors_of(subarray: int) -> list[str]:
    """Return the receptors of a subarray; none has two."""
    return [f"SKA{receptor:03d}" for receptor in range(subarray, 64, MOST_SUBARRAYS)]


def assign(subarray: int, number: int, day: str) -> Argument:
    """Return the argument of AssignResources: an execution block with two scan types, and two processing blocks."""
    name = f"demo{subarray:02d}-{day}-{number:05d}"
    content = sample("assignres", name, receptors=receptors_of(subarray))
    script = {"kind": "batch", "name": "vis-average", "version": "1.0.0"}
    content["processing_blocks"].append({"pb_id": f"pb-batch{name}", "script": script, "parameters": {}})
    return _argument("assignres", content)


def configure(subarray: int, number: int, day: str) -> Argument:
    return _argument("configure", sample("configure", ""))


def scan(subarray: int, number: int, day: str) -> Argument:
    return _argument("scan", sample("scan", "", number=number))


def _argument(family: str, content: Argument) -> Argument:
    return {"interface": f"https://schema.skao.int/ska-sdp-{family}/{VERSION}", **content}


OBSERVATION = (
    PlannedCommand("On", OFF, "EMPTY"),
    PlannedCommand("AssignResources", "EMPTY", "IDLE", assign),
    PlannedCommand("Configure", "IDLE", "READY", configure),
    PlannedCommand("Scan", "READY", "SCANNING", scan, stays=True),
    PlannedCommand("EndScan", "SCANNING", "READY"),
    PlannedCommand("End", "READY", "IDLE"),
    PlannedCommand("ReleaseAllResources", "IDLE", "EMPTY"),
    PlannedCommand("Off", "EMPTY", OFF),
)

SWITCHED_ON = OBSERVATION[1:-1]
"""The observation of a subarray that is switched on and off together with SDP as a whole."""
BEFORE = (PlannedCommand("Standby", ON, STANDBY), PlannedCommand("On", STANDBY, ON))
"""Commands for SDP as a whole: its State is ON before anybody has commanded it, in which On is not allowed."""
AFTER = (PlannedCommand("Off", ON, OFF),)


def remedy(shown: str, step: PlannedCommand) -> PlannedCommand | None:
    """Return the command that leads out of a failure of a step; None where nothing is broken."""
    if shown not in _FAILED:
        return None
    if step.begins == "EMPTY":
        return PlannedCommand("Restart", shown, "EMPTY")
    return PlannedCommand("ObsReset", shown, "IDLE")


def place(shown: str, steps: Sequence[PlannedCommand], at: int) -> int | None:
    """Return the step to go on with after one has failed: the last one, up to it, that begins there."""
    return next((i for i in range(at, -1, -1) if steps[i].begins == shown), None)


class Given(msgspec.Struct, kw_only=True):
    """One command as TM gave it and saw it."""

    device: str
    name: str
    transaction_id: str = ""
    """Empty for a command without an argument: there is no place for one."""
    called: float
    """When it was called, for the first time [Unix s]."""
    calls: int = 0
    """How often it had to be called."""
    id: str = ""
    """Empty while the facade has not taken it."""
    took: float | None = None
    """Duration of the call that gave the id, after which the command is durable [s]; None: the answer was lost."""
    refusals: list[str] = []
    """What calls without an id said."""
    path: list[str] = []
    """What events showed from the call until the next one: obsState, or OFF."""
    reached: float | None = None
    """When an event showed the state that it leads to [Unix s]."""
    heard: list[Any] | None = None
    """Result that longRunningCommandResult showed, `[ResultCode, text]`; the next one may have come too soon."""


class Journal(msgspec.Struct, kw_only=True):
    """The commands of one observation, in the order of their calls."""

    given: list[Given] = []
    errors: list[str] = []
    """Why a subarray did not get to the end."""
    finished: bool = False


def read_journal(path: Path) -> Journal:
    """Read the file; before there is one, nothing was given."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Journal)
    except FileNotFoundError:
        return Journal()


class JournalWriter:
    """The journal, written down again with each change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.journal = Journal()

    def note(self, given: Given | None = None, *, error: str = "", finished: bool = False) -> None:
        """Write down what has changed; a command when it is given for the first time."""
        with self._lock:
            if given is not None:
                self.journal.given.append(given)
            if error:
                self.journal.errors.append(error)
            self.journal.finished |= finished
            write_whole(self._path, msgspec.json.encode(self.journal))
