"""Alerts of a simulated site: components that raise them, and a client that must see each of them once, in order."""

from functools import partial
from typing import TYPE_CHECKING, Any

from facade.bus.kafka.writer import KafkaWriter
from facade.bus.port import BusHealth
from facade.errors import BusError, CommandRefused
from facade.flows.alerts.follower import Follower
from facade.flows.alerts.operator_api import OperatorApi
from facade.flows.alerts.source import AlertSource
from facade.reading import Reading
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.site import Site

DEVICE = "mid-sdp/alerts/0"
SOURCES = 2
_LOST = 0.05
"""Share of the events that get lost on their way, without a word."""
_ASK = 0.5
"""Time between two looks of the client at the newest number [s]."""

AlertKey = tuple[str, str, str, int, int]
"""Source, condition, state, the source's number and when it was raised [Unix us]."""


class Alerting:
    """Who raises alerts, who sees them, and what became of each."""

    def __init__(self) -> None:
        self.is_raising = True
        self.raised: dict[AlertKey, None] = {}
        """Those that the bus has confirmed."""
        self.seen: list[tuple[int, AlertKey | None]] = []
        """What the client got, by number; None: the action of an operator."""
        self.follower = Follower(0)
        self.wrong: list[str] = []

    def source(self, number: int, site: "Site", process: Process) -> None:
        """Be a component that raises and clears alerts."""
        writer = KafkaWriter(site.connection(process), health=BusHealth(), client=process.name)
        alerts, random = AlertSource(writer, f"receive/{number:04d}", process.clock), site.scheduler.random
        while True:
            process.clock.sleep(0.2 + 2.0 * random.random())
            if not self.is_raising:
                continue
            condition = random.choice(("receiveOverrun", "diskFull"))
            try:
                if random.random() < 0.6:
                    alert = alerts.raise_alert(
                        condition, random.choice(("WARNING", "ALARM")), "expected none, got some"
                    )
                else:
                    alert = alerts.clear(condition, "none any more")
            except BusError:
                continue  # it may be there, or not
            key = (alert.source, alert.condition, alert.state, alert.sequence, alert.raised_at)
            self.raised[key] = None

    # The client, which is no process of ours: it outlives all of them

    def event(self, site: "Site", reading: Reading) -> None:
        """Send an event of `lastAlert` to the client; some get lost."""
        random = site.scheduler.random
        if random.random() >= _LOST:
            site.scheduler.at(0.001 + 0.02 * random.random(), self._hear, str(reading.value))

    def _hear(self, text: str) -> None:
        self._give(self.follower.take(text))

    def ask(self, site: "Site") -> None:
        """Look at the newest number, and ask for what is missing."""
        site.scheduler.at(_ASK, self.ask, site)
        server, process = site.servers.get("alerts"), site.processes["alerts"]
        if server is None or process.is_dead or process.stopped_until > site.scheduler.now:
            self.follower.doubt()
            return
        newest = site.readings.get((DEVICE, "alertSequence"))
        if newest is not None and isinstance(newest.value, int):
            self.follower.announce(newest.value)
        asked, api = self.follower.missing(), server.find(OperatorApi)
        if asked is not None and api is not None:
            try:
                self._give(self.follower.add_page(asked, api.since(asked)))
            except CommandRefused as refused:
                site.trace.note("client", f"refused: {refused}")

    def _give(self, entries: Any) -> None:
        for entry in entries:
            if self.seen and entry.sequence <= self.seen[-1][0]:
                self.wrong.append(f"alert {entry.sequence} came after {self.seen[-1][0]}")
            self.seen.append((entry.sequence, None if entry.alert is None else _key(entry.alert)))

    def add(self, site: "Site") -> None:
        """Add the processes to a site, and begin to listen."""
        for number in range(SOURCES):
            site.bodies[f"source-{number}"] = partial(self.source, number, site)
        site.scheduler.at(_ASK, self.ask, site)


def _key(alert: dict[str, Any]) -> AlertKey:
    return (alert["source"], alert["condition"], alert["state"], alert["sequence"], alert["raised_at"])
