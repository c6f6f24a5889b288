"""The demo's alerts: sources raise and clear some, an operator deals with them, a client counts whether all came."""

import json
from collections.abc import Callable, Collection

import tango

from clients.alert_subscription import AlertSubscription
from clients.scene import ALERTS
from facade.bus.kafka.producer import KafkaWriter
from facade.bus.port import BusHealth
from facade.flows.alerts import states
from facade.flows.alerts.follower import Entry
from facade.flows.alerts.source import AlertSource
from facade.severities import Severity
from proving.demo.account import Line, disagreeing
from proving.demo.options import FLOWS_WITHIN
from proving.demo.report import AlertLine
from proving.demo.system import Demo

INSTANCE = "alerts"
_OPERATOR = "demo operator"
_SHELVED_FOR = 600.0
_OVER_WITHIN = 100.0
"""Longest time from the end of the story until its alarms are over [s]: dead letters are told of for a minute."""
_TRIES = 10
"""So often the operator gives one command, if no broker confirms it in time."""
_TIMED_OUT, _NOT_ALLOWED = "API_CommandTimedOut", "API_CommandNotAllowed"
_LATCHED = frozenset({states.LTUNK, states.LTACK})
_SOURCES = ("receive/0001", "buffer/0", "cooling/2")
_EXPECTED = {
    ("receiveOverrun", "receive/0001"): "NORM",
    ("storageLow", "buffer/0"): "LTUNK",
    ("coolantWarm", "cooling/2"): "SHLVD",
    ("pipelineFailed", "buffer/0"): "UNACK",
}
"""What the alarms come to in the end."""


class AlertScenario:
    """Raises, acknowledges, shelves and clears; a client with a subscription of its own listens all the time.

    Everything is compared at the end: what was sent and done beside what the client was given.
    """

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress = demo, demo.progress
        self._name = demo.tango_side.devices[ALERTS][0]
        writer = KafkaWriter(demo.deployment.connection, health=BusHealth(), client="demo-source")
        self._sources = {name: AlertSource(name, writer, demo.clock) for name in _SOURCES}
        self._actions: set[tuple[str, str, str]] = set()
        """Action, condition and source. One that was tried again may have been done at the first try, whose id nobody
        was told: the second is then a dead letter."""
        self._sent: dict[str, int] = dict.fromkeys(_SOURCES, 0)
        self.entries: list[Entry] = []
        self._lost: list[str] = []
        self._client = AlertSubscription(
            f"tango://{demo.deployment.tango_host}/{self._name}",
            self.entries.append,
            start=0,
            on_lost=self._lost.append,
        )

    def close(self) -> None:
        """End the client."""
        self._client.close()

    def play(self) -> None:
        """Play the whole scenario.

        Raises
        ------
        InfraError
            A state did not come.
        """
        self._raise("receiveOverrun", "receive/0001", "ALARM", "expected no drops, got 312 heaps/s")
        self._raise("storageLow", "buffer/0", "WARNING", "expected 40 TB free, got 31 TB")
        self._raise("coolantWarm", "cooling/2", "WARNING", "expected at most 18 C, got 19.5 C")
        self._progress.step("alerts: three conditions raised, one of them unknown to the ICD")
        self._until("receiveOverrun", "receive/0001", "UNACK")
        self._act("Acknowledge", "receiveOverrun", "receive/0001", comment="asked the receive team")
        self._act("Shelve", "coolantWarm", "cooling/2", duration=_SHELVED_FOR, comment="pump is being changed")
        self._until("receiveOverrun", "receive/0001", "ACKED")
        self._progress.step(f"the {_OPERATOR} has acknowledged one and shelved another")
        if self._demo.options.kills:
            self._kill()
        else:
            self._raise("pipelineFailed", "buffer/0", "ALARM", "processing block pb-7 ended with exit code 1")
        self._clear("receiveOverrun", "receive/0001", "no drops for 10 s")
        self._clear("storageLow", "buffer/0", "45 TB free")
        for (condition, source), state in _EXPECTED.items():
            self._until(condition, source, state)
        self._progress.step("alerts: the acknowledged one is gone, the latching one waits for the operator")

    def account(self) -> None:
        """Put what was sent, and what the client was given, into the report."""
        report, where = self._demo.report, self._name
        numbers = [entry.sequence for entry in self.entries]
        seen = dict.fromkeys(_SOURCES, 0)
        for entry in self.entries:
            if entry.alert is not None and entry.alert["source"] in seen:
                seen[entry.alert["source"]] += 1
        acted = {
            (str(one["action"]), str(one["condition"]), str(one["source"]))
            for one in (entry.action for entry in self.entries)
            if one is not None and one["operator"] == _OPERATOR
        }
        right = sum(self._state(*key) == state for key, state in _EXPECTED.items())
        report.alert_account = [
            *(Line(where, f"alerts of {name} that a client got", self._sent[name], seen[name]) for name in _SOURCES),
            Line(where, "actions of the operator that it got", len(self._actions), len(self._actions & acted)),
            Line(where, "numbers that came twice or out of order", 0, len(numbers) - len(_rising(numbers))),
            Line(where, "alarms whose state is right", len(_EXPECTED), right),
        ]
        report.alerts = [_line(entry) for entry in self.entries]
        report.failures += [f"alerts: {text}" for text in self._lost]
        report.failures += disagreeing("alerts", report.alert_account)

    def tidy_up(self) -> None:
        """End what the story has left, as an operator does: a demo that stays begins without an alarm."""
        self._clear("coolantWarm", "cooling/2", "18 C")
        self._clear("pipelineFailed", "buffer/0", "processing block pb-7 was started again")
        if self._state("coolantWarm", "cooling/2") == states.SHLVD:
            self._act("Unshelve", "coolantWarm", "cooling/2", comment="pump has been changed")
        over = self._progress.wait_until(lambda: not self._in(states.ACTIVE), _OVER_WITHIN, "the alarms are over")
        for alarm in self._in(states.UNACKNOWLEDGED | _LATCHED):
            command = "Reset" if alarm["state"] in _LATCHED else "Acknowledge"
            self._act(command, str(alarm["condition"]), str(alarm["source"]), comment="seen; it is over")
        left = [f"{alarm['condition']} of {alarm['source']}" for alarm in self._in(states.ACTIVE)]
        self._progress.step("alerts: no alarm is left" if over is not None else f"alerts: left: {', '.join(left)}")

    def settled(self) -> bool:
        """Return whether the client has everything that was sent and done."""
        found = sum(entry.alert is not None and entry.alert["source"] in self._sent for entry in self.entries)
        return found >= sum(self._sent.values())

    def _kill(self) -> None:
        """Kill the device server, raise an alert while it is away, and start it again."""
        expected = {**_EXPECTED, ("receiveOverrun", "receive/0001"): "ACKED"}
        del expected["storageLow", "buffer/0"]

        def raise_one() -> None:
            self._raise("pipelineFailed", "buffer/0", "ALARM", "processing block pb-7 ended with exit code 1")

        self._demo.report.alerts_recovery = took = self._demo.restart(
            INSTANCE,
            f"the device server {INSTANCE}",
            lambda *_: all(self._state(*key) == state for key, state in expected.items()),
            "alarms, with one raised meanwhile,",
            meanwhile=raise_one,
        )
        self._demo.recorder.renew([self._name])
        self._progress.step(f"its alarms are back, with the one raised meanwhile, {took:.2f} s after the start")

    def _raise(self, condition: str, source: str, severity: Severity, text: str) -> None:
        self._sources[source].raise_alert(condition, severity, text)
        self._sent[source] += 1

    def _clear(self, condition: str, source: str, text: str) -> None:
        self._sources[source].clear(condition, text)
        self._sent[source] += 1

    def _act(self, command: str, condition: str, source: str, **more: object) -> None:
        if command == "Acknowledge":
            more["occurrence"] = self._alarm(condition, source)["occurrence"]
        argument = json.dumps({"condition": condition, "source": source, "operator": _OPERATOR, **more})
        self._actions.add((command.upper(), condition, source))
        for again in range(_TRIES):
            try:
                self._ask(lambda proxy: proxy.command_inout(command, argument))
                return
            except tango.DevFailed as failed:
                # On a busy machine the broker may take longer than a call may; nothing says that it has not been done.
                if again and failed.args[0].reason == _NOT_ALLOWED:
                    self._progress.step(f"{command} had been done all the same")
                    return
                unsent = "was not sent" in failed.args[0].desc
                if not (unsent or failed.args[0].reason == _TIMED_OUT) or again == _TRIES - 1:
                    raise
                self._progress.step(f"{command} was not confirmed in time; the {_OPERATOR} tries again")

    def _until(self, condition: str, source: str, state: str) -> None:
        what = f"the alarm {condition} of {source} in the state {state}"
        self._progress.demand(lambda: self._state(condition, source) == state, FLOWS_WITHIN, what)

    def _state(self, condition: str, source: str) -> str:
        try:
            return str(self._alarm(condition, source).get("state", "NORM"))
        except tango.DevFailed:
            return "no answer"

    def _in(self, wanted: Collection[str]) -> list[dict[str, object]]:
        return [alarm for alarm in self._alarms() if alarm["state"] in wanted]

    def _alarm(self, condition: str, source: str) -> dict[str, object]:
        return next((one for one in self._alarms() if (one["condition"], one["source"]) == (condition, source)), {})

    def _alarms(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(self._ask(lambda proxy: proxy.command_inout("GetAlarms")))
        return found

    def _ask(self, what: Callable[[tango.DeviceProxy], str]) -> str:
        return str(what(self._demo.deployment.proxy(self._name)))


def _rising(numbers: list[int]) -> list[int]:
    """Return those that are higher than all before them."""
    kept: list[int] = []
    for number in numbers:
        if not kept or number > kept[-1]:
            kept.append(number)
    return kept


def _line(entry: Entry) -> AlertLine:
    about = entry.alert or entry.action or {}
    if entry.alert is not None:
        what, text = f"{about['severity']} {about['state']}", about["text"]
    else:
        what, text = about["action"], f"{about['operator']}: {about['comment']}"
    alarm = f"{about['condition']}@{about['source']}"
    return AlertLine(sequence=entry.sequence, time=entry.time, alarm=alarm, what=what, text=text)
