"""TM in the demo against a subarray that answers as told: it gets to the end, and gives each command once."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tango

from facade.clock import ManualClock
from facade.icd.load import load
from proving.demo import tm
from proving.demo.plan import OBSERVATION, JournalWriter, read_journal
from proving.demo.tm import Commanded

LABELS = load().enums["ObsState"]
COMMANDS = {command.name: command for command in load().classes["SdpSubarray"].commands}
LEASE = "AssignResources was not sent: another device server of the name subarray is alive"


def failure(reason: str, text: str = "no answer") -> tango.DevFailed:
    try:
        tango.Except.throw_exception(reason, text, "here")
    except tango.DevFailed as failed:
        return failed
    raise AssertionError


class Server:
    """A subarray with a script: what happens to the next calls of a command."""

    def __init__(self, **script: list[str]) -> None:
        self.script = script
        self.state, self.obs_state, self.result = "OFF", "EMPTY", ()
        self.taken: list[str] = []
        """Names of the commands that were executed, in order."""
        self.calls: list[tuple[str, str]] = []
        """Each call with its transaction id."""
        self.ids: dict[str, str] = {}
        """By transaction id."""
        self.listeners: dict[int, tuple[str, Callable[[Any], None]]] = {}
        self.proxies = 0
        self.events_arrive = True

    def call(self, name: str, *arguments: str) -> Any:
        transaction = json.loads(arguments[0])["transaction_id"] if arguments else ""
        self.calls.append((name, transaction))
        planned = self.script.get(name)
        what = planned.pop(0) if planned else "done"
        if what == "away":
            raise failure("API_CantConnectToDevice")
        if what == "lease":
            raise failure("API_CommandFailed", LEASE)
        if what == "refused":
            raise failure("API_CommandNotAllowed", f"Command {name} not allowed")
        self.events_arrive = what != "silent"
        id = self.ids.get(transaction) or self.execute(name, transaction, what)
        self.events_arrive = True
        if what == "lost":
            raise failure("API_CorbaException")
        return [2], [id]

    def execute(self, name: str, transaction: str, what: str) -> str:
        self.taken.append(name)
        id = f"{len(self.taken)}_{name}"
        if transaction:
            self.ids[transaction] = id
        command = COMMANDS[name]
        if command.transitional:
            self.show("obsState", command.transitional)
        if what == "failed":
            self.show("obsState", "FAULT")
        elif what != "expired":
            self.show("State" if command.reports == "State" else "obsState", command.targets[0])
        code = 0 if what in ("done", "lost", "silent") else 5
        self.result = (id, json.dumps([code, what]))
        self.tell("longRunningCommandResult")
        return id

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
        self._server.proxies += 1
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


def observe(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_back: dict[str, str] | None = None
) -> list[str]:
    monkeypatch.setattr(tm.tango, "DeviceProxy", lambda name: Proxy(server))
    journal = JournalWriter(tmp_path / "journal.json")
    Commanded("host:1", "mid-sdp/subarray/01", journal, ManualClock()).go_through(OBSERVATION, 0.0, held_back or {})
    given = read_journal(tmp_path / "journal.json").given
    assert [one.id for one in given if one.id] == [f"{n}_{name}" for n, name in enumerate(server.taken, 1)]
    assert server.state == "OFF"
    assert len(server.listeners) == 3
    return server.taken


PLAN = [step.command for step in OBSERVATION]


@pytest.mark.parametrize(
    "script",
    [
        {},
        {"EndScan": ["lost"], "Off": ["lost"]},
        {"Scan": ["away", "lost", "lease", "lost"]},
    ],
    ids=str,
)
def test_whatever_happens_to_the_calls_each_command_is_given_once(
    script: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(**script)
    assert observe(server, tmp_path, monkeypatch) == PLAN
    given = read_journal(tmp_path / "journal.json").given
    assert [one.name for one in given] == PLAN
    for one in given:
        assert {txn for name, txn in server.calls if name == one.name} == {one.transaction_id}
        assert one.calls == len([name for name, _ in server.calls if name == one.name])
        assert one.reached is not None
    assert given[1].path == ["EMPTY", "RESOURCING", "IDLE"]


def test_events_that_never_come_are_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D29: Tango loses events without a word, of a connection that is being made for example."""
    monkeypatch.setattr(tm, "_LOOK", 0.01)
    assert observe(Server(Configure=["silent"], Off=["silent"]), tmp_path, monkeypatch) == PLAN
