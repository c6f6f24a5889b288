"""TM in the demo against a subarray whose events are lost: it gets to the end, and gives each command once."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tango

from facade.kernel.clock import ManualClock
from facade.kernel.icd.load import load
from sdp_facade_lab.demo import tm
from sdp_facade_lab.demo.plan import OBSERVATION, JournalWriter, read_journal
from sdp_facade_lab.demo.tm import Commanded

LABELS = load().enums["ObsState"]
COMMANDS = {command.name: command for command in load().classes["SdpSubarray"].commands}


class Server:
    """A subarray that executes each command at once; of those in `silent` no event comes."""

    def __init__(self, *silent: str) -> None:
        self.silent = silent
        self.state, self.obs_state, self.result = "OFF", "EMPTY", ()
        self.taken: list[str] = []
        """Names of the commands that were executed, in order."""
        self.listeners: dict[int, tuple[str, Callable[[Any], None]]] = {}
        self.events_arrive = True

    def call(self, name: str, *arguments: str) -> Any:
        self.events_arrive = name not in self.silent
        self.taken.append(name)
        id = f"{len(self.taken)}_{name}"
        command = COMMANDS[name]
        if command.transitional:
            self.show("obsState", command.transitional)
        self.show("State" if command.reports == "State" else "obsState", command.targets[0])
        self.result = (id, json.dumps([0, "done"]))
        self.tell("longRunningCommandResult")
        self.events_arrive = True
        return [2], [id]

    def show(self, attribute: str, label: str) -> None:
        if attribute == "State":
            self.state = label
        else:
            self.obs_state = label
        self.tell(attribute)

    def tell(self, attribute: str) -> None:
        for name, listener in list(self.listeners.values()):
            if name == attribute and self.events_arrive:
                listener(self.event(attribute))

    def event(self, attribute: str) -> Any:
        values = {
            "State": self.state,
            "obsState": LABELS.index(self.obs_state),
            "longRunningCommandResult": self.result,
        }
        value = values[attribute]
        lines = len(value) if isinstance(value, tuple) else 1
        # As Tango does: the name in lower case, None for an empty spectrum.
        shown = SimpleNamespace(name=attribute.lower(), value=None if value == () else value, dim_x=lines)
        return SimpleNamespace(err=False, attr_value=shown)


class Proxy:
    """What TM uses of a DeviceProxy."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.command_inout = server.call

    def state(self) -> tango.DevState:
        return getattr(tango.DevState, self._server.state)

    def ping(self) -> int:
        return 1

    def get_attribute_config(self, attribute: str) -> Any:
        return SimpleNamespace(enum_labels=LABELS)

    def subscribe_event(self, attribute: str, kind: tango.EventType, listener: Callable[[Any], None]) -> int:
        number = max(self._server.listeners, default=0) + 1
        self._server.listeners[number] = (attribute, listener)
        listener(self._server.event(attribute))
        return number

    def unsubscribe_event(self, number: int) -> None:
        del self._server.listeners[number]

    def GetCommandHistory(self, most: int) -> str:
        newest = list(enumerate(self._server.taken, 1))[::-1]
        return json.dumps([{"id": f"{number}_{name}", "name": name} for number, name in newest[:most]])


def test_events_that_never_come_are_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D29: Tango loses events without a word, of a connection that is being made for example."""
    server = Server("Configure", "Off")
    monkeypatch.setattr(tm, "_LOOK", 0.01)
    monkeypatch.setattr(tm.tango, "DeviceProxy", lambda name: Proxy(server))
    journal = JournalWriter(tmp_path / "journal.json")
    Commanded("host:1", "mid-sdp/subarray/01", journal, ManualClock()).go_through(OBSERVATION, 0.0, {})
    given = read_journal(tmp_path / "journal.json").given
    assert server.taken == [step.command for step in OBSERVATION]
    assert [one.id for one in given if one.id] == [f"{n}_{name}" for n, name in enumerate(server.taken, 1)]
    assert server.state == "OFF"
    assert len(server.listeners) == 3
