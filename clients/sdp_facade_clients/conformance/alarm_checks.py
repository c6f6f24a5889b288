"""Checks of alarms: one test alert, every action of an operator on it, and its end.

The alert has the latching condition with the least priority and without delays, a source of its own (`SOURCE`), and a
text that says so. It is put back whatever happens.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import tango

from facade.flows.alerts.messages import PACKETS
from facade.flows.alerts.packets import PacketCodec
from facade.flows.alerts.source import AlertSource
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.clock import wait_until
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import Icd
from facade.kernel.outcome import RecordRejected
from sdp_facade_clients.conformance.checks import FlowChecks, Judge, LiveCheck, Mismatch, NotShown, Subject, not_shown
from sdp_facade_clients.conformance.devices import QueryAnswer, answer_checks
from sdp_facade_clients.conformance.live_system import EventStreams, LiveSystem

SOURCE = "conformance/kit"
TEXT = "Test of the conformance kit: nothing is wrong, and it goes by itself."
_WITHIN = 10.0
"""Longest wait for the effect of an alert or an action [s]."""
_FEW = 5
_PRIORITIES = ("LOW", "MEDIUM", "HIGH", "HIGHEST")
_RAISED, _GONE = "raised", "gone"
_STEPS: Mapping[str, Callable[["_TestAlert"], str]] = {
    _RAISED: lambda test: test.send("ACTIVE", "UNACK"),
    "event": lambda test: test.event(),
    "since": lambda test: test.since(),
    "condition": lambda test: test.shows("UNACK"),
    "RefreshAlerts": lambda test: test.refresh(),
    "Comment": lambda test: test.act("Comment", "UNACK"),
    "Shelve": lambda test: test.act("Shelve", "SHLVD", duration=60.0),
    "Unshelve": lambda test: test.act("Unshelve", "UNACK"),
    "RemoveFromService": lambda test: test.act("RemoveFromService", "OOSRV"),
    "ReturnToService": lambda test: test.act("ReturnToService", "UNACK"),
    "Acknowledge": lambda test: test.act("Acknowledge", "ACKED"),
    "cleared": lambda test: test.send("CLEARED", "LTACK"),
    "Reset": lambda test: test.act("Reset", "NORM"),
}
"""Steps with the test alert, and those of queries by their names; in the end it is `_GONE`, whatever has failed."""


def condition_of_test(icd: Icd) -> str:
    """Return the condition of the test alert; empty if none fits."""
    fitting = [
        name
        for name, one in icd.conditions.items()
        if one.latching and not (one.on_delay or one.off_delay or one.suppressed_by)
    ]
    return min(fitting, key=lambda name: _PRIORITIES.index(icd.conditions[name].priority), default="")


@cache
def run_test_alert(system: LiveSystem, device: str) -> dict[str, str | Exception]:
    """Raise the test alert, once, and return the measurement or the error of each step."""
    test, found = _TestAlert(system, device), dict[str, str | Exception]()

    def take(name: str, step: Callable[["_TestAlert"], str]) -> None:
        try:
            found[name] = step(test)
        except Exception as error:
            found[name] = error

    try:
        for name, step in _STEPS.items():
            if not isinstance(found.get(_RAISED), Exception):
                take(name, step)
    finally:
        take(_GONE, _TestAlert.put_back)
        test.events.close()
    return found


class _TestAlert:
    """The test alert, and its alarm."""

    def __init__(self, system: LiveSystem, device: str) -> None:
        self._icd, self._clock, self._proxy = system.icd, system.clock, system.proxy(device)
        self._condition = condition_of_test(system.icd)
        self._is_up = False
        """Whether the last alert, sent or not, was ACTIVE."""
        self._mark = int(self._proxy.alertSequence or 0)
        writer = KafkaWriter(system.connection, health=BusHealth(), client="conformance")
        self._source = AlertSource(SOURCE, writer, self._clock)
        self.events = EventStreams(self._clock)
        self._stream = self.events.add(self._proxy, "lastAlert")

    def send(self, state: str, wanted: str) -> str:
        begin = self._clock.monotonic()
        self._put(state)
        self._await_state(wanted, "in GetAlarms")
        return f"{wanted} after {(self._clock.monotonic() - begin) * 1e3:.0f} ms"

    def _put(self, state: str) -> None:
        self._is_up = state == "ACTIVE"
        if self._is_up:
            self._source.raise_alert(self._condition, "INFO", TEXT)
        else:
            self._source.clear(self._condition, TEXT)

    def event(self) -> str:
        self._await(lambda: bool(self._about("alert")), "an event of lastAlert with the alert", lambda: "none")
        return f"sequence {self._about('alert')[0].get('sequence')}"

    def since(self) -> str:
        found = json.loads(self._proxy.GetAlertsSince(self._mark))
        mine = [one for one in found["entries"] if one.get("alert", {}).get("source") == SOURCE]
        if not mine:
            raise Mismatch(f"the alert in GetAlertsSince({self._mark})", f"{len(found['entries'])} others")
        return f"sequence {mine[0].get('sequence')}"

    def shows(self, state: str) -> str:
        def label() -> str:
            value = self._proxy.read_attribute(self._condition).value
            return "INVALID" if value is None else self._icd.enums["AlarmState"][value]

        self._await(lambda: label() == state, f"{self._condition} {state}", label)
        return state

    def act(self, name: str, state: str, **more: Any) -> str:
        operator = {"operator": "conformance kit", "comment": TEXT}
        argument = {"condition": self._condition, "source": SOURCE, **operator, **more}
        if name == "Acknowledge":
            argument["occurrence"] = self._alarm().get("occurrence", 0)
        id = self._proxy.command_inout(name, json.dumps(argument))
        self._await_state(state, f"after {name}")
        self._await(
            lambda: any(one["action"].get("id") == id for one in self._about("action")),
            f"{name} as an event of lastAlert",
            lambda: "none",
        )
        return state

    def refresh(self) -> str:
        id = self._proxy.RefreshAlerts()

        def marks() -> list[str]:
            return [str(one["mark"]) for one in self._entries() if one.get("refresh") == id and "mark" in one]

        self._await(lambda: marks() == ["START", "END"], "the marks START and END as events", lambda: str(marks()))
        return "START, END"

    def put_back(self) -> str:
        if self._is_up:
            with suppress(Mismatch):  # the alert may be on its way
                self._await(lambda: self._state() != "NORM", "the alert", self._state)
            self._put("CLEARED")
        if self._state() != "NORM":
            for name in ("ReturnToService", "Unshelve", "Acknowledge", "Reset"):
                with suppress(tango.DevFailed, Mismatch):  # most of them are impossible
                    self.act(name, self._state())
        self._await(lambda: self._state() == "NORM", "no alarm of the kit in GetAlarms", self._state)
        return "gone"

    def _alarm(self) -> dict[str, Any]:
        alarms = json.loads(self._proxy.GetAlarms())
        mine = (one for one in alarms if (one["condition"], one["source"]) == (self._condition, SOURCE))
        return next(mine, {})

    def _state(self) -> str:
        return str(self._alarm().get("state", "NORM"))

    def _entries(self) -> list[dict[str, Any]]:
        return [json.loads(event.value) for event in tuple(self._stream.pushed) if event.value]

    def _about(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self._entries() if one.get(kind, {}).get("source") == SOURCE]

    def _await_state(self, state: str, where: str) -> None:
        self._await(lambda: self._state() == state, f"the state {state} {where}", self._state)

    def _await(self, condition: Callable[[], bool], what: str, found: Callable[[], str]) -> None:
        if not wait_until(self._clock, condition, _WITHIN):
            raise Mismatch(f"{what} within {_WITHIN:g} s", found())


def _step(name: str) -> Judge:
    def judge(system: LiveSystem, of: Subject) -> str:
        found = run_test_alert(system, of.device).get(name)
        if found is None:
            raise NotShown("it was not reached, as an earlier step with the test alert failed")
        if isinstance(found, Exception):
            raise found
        return found

    return judge


QUERIES = {
    "GetAlertsSince": QueryAnswer(
        dict, ("newest", "entries"), lambda system, device: max((system.proxy(device).alertSequence or 0) - _FEW, 0)
    ),
    "GetAlertHistory": QueryAnswer(
        list,
        ("sequence",),
        lambda system, _: json.dumps({"condition": next(iter(system.icd.conditions)), "most": _FEW}),
    ),
    "GetAlarms": QueryAnswer(list, ("condition", "source", "state", "severity", "text", "occurrence")),
}


def _query_checks(system: LiveSystem, of: Subject) -> Iterable[LiveCheck]:
    if of.entry.name not in _STEPS:
        return answer_checks(QUERIES, of)
    judge = _step(of.entry.name) if system.options.active else not_shown("only --active raises a test alert")
    return [LiveCheck("effect", judge)]


def _device_checks(system: LiveSystem, of: Subject) -> Iterable[LiveCheck]:
    is_asked = system.options.active and of.device_class.conditions
    steps = [name for name in (*_STEPS, _GONE) if name.islower()] if is_asked else ()
    return [LiveCheck(f"test-alert-{step}", _step(step)) for step in steps]


def find_invalid_packets(icd: Icd, records: list[Record]) -> list[tuple[Record, str]]:
    """Return the alert packets that the Avro schema or the alert schema refuses, each with its mistake."""
    try:
        codec = PacketCodec(icd)
    except ConfigError as error:
        raise NotShown(str(error)) from error
    tried = ((record, codec.alert(record.value, f"{record.partition}/{record.offset}")) for record in records)
    return [(record, f"{made.path}: {made.detail}") for record, made in tried if isinstance(made, RecordRejected)]


ALARMS = FlowChecks(
    commands=_query_checks,
    device=_device_checks,
    records={PACKETS: find_invalid_packets},
    takes_any=frozenset({"GetAlertsSince"}),
)
