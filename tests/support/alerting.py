"""The alert path in one process, on the simulation's brokers, under one clock that tests move."""

import json
from collections import Counter
from typing import Any

from facade.flows.alerts.messages import Action, Alert, action_records, alert_record
from facade.flows.alerts.operator_api import OperatorApi
from facade.kernel.bus.port import Record
from facade.kernel.clock import ManualClock, SystemClock
from tests.support.commanding import SteppedServer
from tests.support.heaps import BASE_US
from tests.support.simulated_bus import MemoryBroker

DEVICE = "mid-sdp/alerts/0"


def alert(sequence: int = 1, **more: Any) -> Record:
    """Return the record of an alert of now; what is not said is as usual."""
    usual = {"condition": "receiveOverrun", "source": "receive/1", "severity": "ALARM", "state": "ACTIVE"}
    usual |= {"text": "too fast", "raised_at": SystemClock().now_us()}
    return alert_record(Alert(sequence=sequence, **{**usual, **more}))


class Bench:
    """A broker, a clock, a device server for alerts, sources and operators."""

    def __init__(self) -> None:
        self.clock = ManualClock(BASE_US / 1e6)
        self.broker = MemoryBroker(self.clock)
        self._sequences: Counter[str] = Counter()

    def server(self, cycles: int = 3) -> "Server":
        """Start a device server, as after a kill of the one before."""
        server = Server(self)
        server.cycle(cycles)
        return server

    @property
    def now_us(self) -> int:
        return self.clock.now_us()

    def alert(self, condition="receiveOverrun", *, state="ACTIVE", source="receive/1", **more: Any) -> Alert:
        """Send an alert; what is not said is as usual."""
        if "sequence" not in more:
            self._sequences[source] += 1
            more["sequence"] = self._sequences[source]
        more = {"severity": "ALARM", "text": "too fast", "raised_at": self.now_us, **more}
        alert = Alert(condition=condition, source=source, state=state, **more)
        self.broker.append(alert_record(alert))
        return alert

    def action(self, action, condition="receiveOverrun", source="receive/1", **more: Any) -> None:
        """Put an operator's action on the log, as another program could."""
        content = {
            "id": str(self.broker.end("alerts", 0)),
            "operator": "o",
            "comment": "",
            "time": self.now_us,
            "origin": "test",
            **more,
        }
        for record in action_records(Action(action=action, condition=condition, source=source, **content)):
            self.broker.append(record)

    def garbage(self, value: bytes | None) -> None:
        self.broker.append(Record(topic="alerts", key=b"x", value=value))

    def letters(self) -> list[str]:
        """Return the reasons of the dead letters, with their details."""
        found = []
        for record in self.broker.read("dead-letters"):
            headers = dict(record.headers)
            found.append(f"{headers['dl.reason'].decode()}: {headers['dl.detail'].decode()}")
        return found


class Server(SteppedServer):
    """One device server with SdpAlerts, driven step by step."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, [DEVICE], "SdpAlerts", "SdpFacade-alerts")
        self.open()

    @property
    def api(self) -> OperatorApi:
        return self.service.find(OperatorApi)

    @property
    def flow(self):
        return self.api.flow

    @property
    def ledger(self):
        return self.flow.ledger

    def cycle(self, times: int = 3, seconds: float = 0.1) -> None:
        """Let the event loop read and publish."""
        for _ in range(times):
            if self.service.event_loop.has_moved(self.reader):
                self.reader = self.service.event_loop._open()
            self.service.event_loop.cycle(self.reader)
            self.bench.clock.sleep(seconds)

    def events(self) -> list[dict[str, Any]]:
        """Return all events of single alerts and actions that were pushed."""
        return [json.loads(reading.value) for _, name, reading in self.sink.pushed if name == "lastAlert"]

    def state(self, condition="receiveOverrun", source="receive/1") -> str:
        """Return the state of an alarm as operators see it."""
        alarm = self.ledger.get((condition, source))
        return "NORM" if alarm is None else self.ledger.shown(alarm)

    def act(self, command, kind, condition="receiveOverrun", **more: Any) -> str:
        """Act as an operator through Tango, and let it come back from the log."""
        id = self.api.act(command, kind, json.dumps({"condition": condition, "operator": "ann", **more}))
        self.cycle()
        return id

    def acknowledge(self, condition="receiveOverrun", source="receive/1", **more: Any) -> str:
        occurrence = self.ledger.get((condition, source)).occurrence
        return self.act("Acknowledge", "ACKNOWLEDGE", condition, source=source, **{"occurrence": occurrence, **more})
