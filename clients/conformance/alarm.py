"""Raises one test alert, does all that an operator can do about it, and sees that it is gone at the end.

The alert is of the condition that is latching, has no delays and the least priority, from a source of its own,
`SOURCE`, and says that nothing is wrong. It is put back whatever happens.
"""

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import tango

from clients.conformance.case import Check, DeviceOf, QueryOf
from clients.conformance.flows import FlowChecks
from clients.conformance.queries import Asked, answer
from clients.conformance.system import System
from clients.conformance.verdicts import Mismatch, NotShown
from facade.bus.kafka.producer import KafkaWriter
from facade.bus.port import BusHealth, Record
from facade.clock import wait_until
from facade.errors import ConfigError
from facade.flows.alerts.messages import PACKETS
from facade.flows.alerts.packets import PacketCodec
from facade.icd.model import Icd
from facade.outcome import Rejected

SOURCE = "conformance/kit"
"""Source of the test alert."""
TEXT = "Test of the conformance kit: nothing is wrong, and it goes by itself."
_OPERATOR = "conformance kit"
_TOPIC = "alerts"
_WITHIN = 10.0
"""Longest wait for the effect of an alert or an action [s]."""
_CONFIRMED = 5.0
_FEW = 5
"""Alerts that are asked for."""
_PRIORITIES = ("LOW", "MEDIUM", "HIGH", "HIGHEST")

ACTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Comment", "UNACK", {}),
    ("Shelve", "SHLVD", {"duration": 60.0}),
    ("Unshelve", "UNACK", {}),
    ("RemoveFromService", "OOSRV", {}),
    ("ReturnToService", "UNACK", {}),
    ("Acknowledge", "ACKED", {}),
)
"""What is done while the condition is there, and the state of the alarm after it."""


def condition_of_test(icd: Icd) -> str:
    """Return the condition that the test alert has; empty if there is none that fits."""
    fitting = [
        name
        for name, one in icd.conditions.items()
        if one.latching and not (one.on_delay or one.off_delay or one.suppressed_by)
    ]
    return min(fitting, key=lambda name: _PRIORITIES.index(icd.conditions[name].priority), default="")


class AlarmAccount:
    """What was seen at each step."""

    def __init__(self) -> None:
        self._found: dict[str, str | Exception] = {}

    def step(self, name: str, body: Callable[[], str]) -> bool:
        """Take a step, and keep what was measured or what was wrong; tells whether it went well."""
        try:
            self._found[name] = body()
        except Exception as error:  # the verdict on the step says what it means
            self._found[name] = error
        return isinstance(self._found[name], str)

    def verdict(self, name: str) -> str:
        """Return what was measured at a step, or raise what was wrong."""
        found = self._found.get(name)
        if found is None:
            raise NotShown("it was not reached, as an earlier step with the test alert failed")
        if isinstance(found, Exception):
            raise found
        return found


@cache
def seen_alarm(system: System, device: str) -> AlarmAccount:
    """Raise the test alert, once, and give what was seen."""
    account = AlarmAccount()
    test = _TestAlarm(system, device)
    try:
        _walk(test, account)
    finally:
        account.step("gone", test.put_back)
        test.close()
    return account


def _walk(test: "_TestAlarm", account: AlarmAccount) -> None:
    if not account.step("raised", lambda: test.send("ACTIVE", "UNACK")):
        return
    account.step("event", lambda: test.event("alert"))
    account.step("since", test.since)
    account.step("condition", lambda: test.shows("UNACK"))
    account.step("RefreshAlerts", test.refresh)
    for name, state, more in ACTIONS:
        account.step(name, lambda name=name, state=state, more=more: test.act(name, state, more))  # type: ignore[misc]
    account.step("cleared", lambda: test.send("CLEARED", "LTACK"))
    account.step("Reset", lambda: test.act("Reset", "NORM", {}))


class _TestAlarm:
    """The test alert, and the alarm that it makes."""

    def __init__(self, system: System, device: str) -> None:
        self._icd, self._clock, self._proxy = system.icd, system.clock, system.proxy(device)
        self._condition = condition_of_test(system.icd)
        self._raised_at = round(self._clock.now() * 1e6)
        self._sequence = 0
        self._is_up = False
        """Whether the last that was sent, or tried to be sent, was that it is active."""
        self._mark = int(self._proxy.alertSequence or 0)
        self._writer = KafkaWriter(system.connection, health=BusHealth(), client="conformance")
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._id = self._proxy.subscribe_event("lastAlert", tango.EventType.CHANGE_EVENT, self._on_event)

    def close(self) -> None:
        """Listen no longer."""
        self._proxy.unsubscribe_event(self._id)

    def send(self, state: str, wanted: str) -> str:
        """Put the alert on the bus, and see the alarm's state."""
        begin = self._clock.monotonic()
        self._put(state)
        self._await(lambda: self._state() == wanted, f"the state {wanted} in GetAlarms", self._state)
        return f"{wanted} after {(self._clock.monotonic() - begin) * 1e3:.0f} ms"

    def _put(self, state: str) -> None:
        self._sequence += 1
        content = {
            "schema": "alert/1",
            "condition": self._condition,
            "source": SOURCE,
            "severity": "INFO",
            "state": state,
            "text": TEXT,
            "raised_at": self._raised_at,
            "sequence": self._sequence,
        }
        self._is_up = state == "ACTIVE"
        record = Record(topic=_TOPIC, key=self._condition.encode(), value=json.dumps(content).encode())
        self._writer.send_durably(record, _CONFIRMED)

    def event(self, kind: str) -> str:
        """See an event of the alert."""
        self._await(lambda: bool(self._about(kind)), f"an event of lastAlert with the {kind}", lambda: "none")
        return f"sequence {self._about(kind)[0].get('sequence')}"

    def since(self) -> str:
        """See the alert in what followed the last number before it."""
        found = json.loads(self._proxy.GetAlertsSince(self._mark))
        mine = [one for one in found["entries"] if one.get("alert", {}).get("source") == SOURCE]
        if not mine:
            raise Mismatch(f"the alert in GetAlertsSince({self._mark})", f"{len(found['entries'])} others")
        return f"sequence {mine[0].get('sequence')}"

    def shows(self, state: str) -> str:
        """See the state on the attribute of the condition."""
        labels = self._icd.enums["AlarmState"]

        def label() -> str:
            value = self._proxy.read_attribute(self._condition).value
            return "INVALID" if value is None else labels[value]

        self._await(lambda: label() == state, f"{self._condition} {state}", label)
        return state

    def act(self, name: str, state: str, more: dict[str, Any]) -> str:
        """Do what an operator does, and see the state after it."""
        argument = {"condition": self._condition, "source": SOURCE, "operator": _OPERATOR, "comment": TEXT, **more}
        if name == "Acknowledge":
            argument["occurrence"] = self._alarm().get("occurrence", 0)
        id = self._proxy.command_inout(name, json.dumps(argument))
        self._await(lambda: self._state() == state, f"the state {state} after {name}", self._state)

        def came() -> bool:
            return any(one["action"].get("id") == id for one in self._about("action"))

        self._await(came, f"{name} as an event of lastAlert", lambda: "none")
        return state

    def refresh(self) -> str:
        """Ask for all alarms as events, and see the two marks around them."""
        id = self._proxy.RefreshAlerts()

        def marks() -> list[str]:
            with self._lock:
                return [str(one["mark"]) for one in self._events if one.get("refresh") == id and "mark" in one]

        self._await(lambda: marks() == ["START", "END"], "the marks START and END as events", lambda: str(marks()))
        return "START, END"

    def put_back(self) -> str:
        """Let nothing of the test be left."""
        if self._is_up:
            with suppress(Mismatch):  # it may be on its way
                self._await(lambda: self._state() != "NORM", "the alert", self._state)
            self._put("CLEARED")
        if self._state() != "NORM":
            for name in ("ReturnToService", "Unshelve", "Acknowledge", "Reset"):
                with suppress(tango.DevFailed, Mismatch):  # most of them are not possible, whatever was left
                    self.act(name, self._state(), {})
        self._await(lambda: self._state() == "NORM", "no alarm of the kit in GetAlarms", self._state)
        return "gone"

    def _alarm(self) -> dict[str, Any]:
        alarms = json.loads(self._proxy.GetAlarms())
        mine = (one for one in alarms if (one["condition"], one["source"]) == (self._condition, SOURCE))
        return next(mine, {})

    def _state(self) -> str:
        return str(self._alarm().get("state", "NORM"))

    def _about(self, kind: str) -> list[dict[str, Any]]:
        with self._lock:
            return [one for one in self._events if one.get(kind, {}).get("source") == SOURCE]

    def _await(self, condition: Callable[[], bool], what: str, found: Callable[[], str]) -> None:
        if not wait_until(self._clock, condition, _WITHIN):
            raise Mismatch(f"{what} within {_WITHIN:g} s", found())

    def _on_event(self, event: Any) -> None:
        if event.err or not event.attr_value.value:
            return
        with suppress(ValueError), self._lock:
            self._events.append(json.loads(event.attr_value.value))


def _verdict(step: str) -> Callable[[System, DeviceOf | QueryOf], str]:
    return lambda system, of: seen_alarm(system, of.device).verdict(step)


ALARM_CHECKS: tuple[Check[DeviceOf], ...] = tuple(
    Check(
        aspect=f"test-alert-{step}",
        claims=("Condition.latching",) if step == "cleared" else (),
        judge=_verdict(step),
    )
    for step in ("raised", "event", "since", "condition", "cleared", "gone")
)
"""What becomes of the test alert."""


ASKED: Mapping[str, Asked] = {
    "GetAlertsSince": Asked(
        argument=lambda system, device: max(int(system.proxy(device).alertSequence or 0) - _FEW, 0),
        kind=dict,
        keys=("newest", "entries"),
    ),
    "GetAlertHistory": Asked(
        argument=lambda system, _: json.dumps({"condition": next(iter(system.icd.conditions)), "most": _FEW}),
        kind=list,
        keys=("sequence",),
    ),
    "GetAlarms": Asked(kind=list, keys=("condition", "source", "state", "severity", "text", "occurrence")),
}
"""Queries that change nothing."""


def _query_checks(system: System, of: QueryOf) -> tuple[Check[QueryOf], ...]:
    if of.entry.name in ASKED:
        return (answer(ASKED[of.entry.name]),)
    if of.entry.name not in {"RefreshAlerts", "Reset", *(name for name, _, _ in ACTIONS)}:
        return ()
    return (Check(aspect="effect", judge=_verdict(of.entry.name) if system.options.active else _only_active),)


def _only_active(_: System, __: QueryOf) -> str:
    raise NotShown("only --active raises a test alert")


def _condition_checks(system: System, _: DeviceOf) -> tuple[tuple[str, Check[DeviceOf]], ...]:
    condition = condition_of_test(system.icd)
    return tuple((condition, check) for check in ALARM_CHECKS) if system.options.active else ()


def refused_packets(icd: Icd, records: list[Record]) -> list[tuple[Record, str]]:
    """Return the alert packets that are none by the Avro schema, or make no alert, and what is wrong with each."""
    try:
        codec = PacketCodec(icd)
    except ConfigError as error:
        raise NotShown(str(error)) from error
    tried = ((record, codec.alert(record.value, f"{record.partition}/{record.offset}")) for record in records)
    return [(record, f"{made.path}: {made.detail}") for record, made in tried if isinstance(made, Rejected)]


CHECKS = FlowChecks(
    query=_query_checks,
    conditions=_condition_checks,
    records={PACKETS: refused_packets},
    takes_any=frozenset({"GetAlertsSince"}),
    every=ALARM_CHECKS,
)
