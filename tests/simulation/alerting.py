"""Alerts of a simulated site: components that raise them, operators, and a client that must see all once, in order."""

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from facade.flows.alerts.follower import Follower
from facade.flows.alerts.messages import PACKETS, ActionKind, Alarm
from facade.flows.alerts.operator_api import OperatorApi
from facade.flows.alerts.packets import PacketCodec, intake_worker
from facade.flows.alerts.source import AlertSource
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.port import BusHealth
from facade.kernel.errors import BusError, CommandRefused, NotSent, OutcomeUnknown
from facade.kernel.icd.load import load
from facade.kernel.reading import Reading
from facade.kernel.runtime.composition import Server
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.site import Site

ICD = load()
DEVICE = "mid-sdp/alerts/0"
SOURCES = 2
PACKET_SOURCES = 1
_LOST = 0.05
"""Share of the events that get lost on their way, without a word."""
_ASK = 0.5
"""Time between two looks of the client at the newest number [s]."""

_UNSUBSCRIBED = 0.02
"""Share of its looks at which the client finds its subscription gone."""
_SILENCE = 10.0
"""Longest time until a client that hears nothing more of a server subscribes again [s], as Tango's library does."""
_PATIENCE = 3.0
"""Longest pause of an operator between two actions [s]."""

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
        self.actions: Counter[str] = Counter()
        """How often the client got each action of an operator, by id."""
        self.acted: dict[str, str] = {}
        """What operators did, and was confirmed, by id."""
        self._subscribed: Process | None = None
        """The device server whose events the client gets."""
        self._subscribes_at = 0.0
        self.follower = Follower(0)
        self.wrong: list[str] = []

    def source(self, number: int, site: "Site", process: Process) -> None:
        """Be a component that raises and clears alerts; the last ones send packets."""
        writer = KafkaWriter(site.connection(process), health=BusHealth(), client=process.name)
        packets = PacketCodec(ICD) if number >= SOURCES else None
        alerts = AlertSource(f"receive/{number:04d}", writer, process.clock, packets=packets, icd=ICD)
        random = site.scheduler.random
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

    def intake(self, slot: str, site: "Site", process: Process) -> None:
        connection, name = site.connection(process), f"alerts-intake-{slot}"
        log = KafkaTransactionalLog(
            connection,
            PACKETS,
            group="alerts-intake",
            slot=slot,
            health=BusHealth(),
            outputs=ICD.outputs("alerts-intake"),
        )
        worker = intake_worker(log, ICD, slot=slot, clock=process.clock)
        site.give_signs(process, name, connection)
        while True:
            worker.step()

    def operate(self, site: "Site", process: Process, server: Server) -> None:
        """Let an operator deal with alarms, by Tango calls into the process of a server."""
        api = server.find(OperatorApi)
        if api is not None:
            process.spawn(lambda: self._act(site, process, api))

    def _act(self, site: "Site", process: Process, api: OperatorApi) -> None:
        random = site.scheduler.random
        while True:
            process.clock.sleep(random.random() * _PATIENCE)
            alarms = sorted(api.flow.ledger.alarms(), key=lambda one: one.key)
            if not (self.is_raising and alarms):
                continue
            alarm, kind = random.choice(alarms), random.choice(_KINDS)
            what = f"{kind} of {alarm.condition} of {alarm.source}"
            try:
                id = api.act(kind, kind, _request(alarm, kind))
            except CommandRefused:
                continue
            except (NotSent, OutcomeUnknown) as error:
                site.trace.note(process.name, f"{what}: {type(error).__name__}")
                continue
            if not process.is_dead:
                self.acted[id] = what

    # The client, which is no process of ours: it outlives all of them

    def event(self, site: "Site", reading: Reading) -> None:
        """Send an event of `lastAlert` to the client: some get lost, and all of a server without its subscription."""
        random = site.scheduler.random
        if self._subscribed is site.processes["alerts"] and random.random() >= _LOST:
            site.scheduler.at(0.001 + 0.02 * random.random(), self._hear, str(reading.value))

    def _hear(self, text: str) -> None:
        self._give(self.follower.take(text))

    def ask(self, site: "Site") -> None:
        """Look at the newest number, and ask for what is missing."""
        site.scheduler.at(_ASK, self.ask, site)
        server, process = site.servers.get("alerts"), site.processes["alerts"]
        self._subscribe(site, process)
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

    def _subscribe(self, site: "Site", process: Process) -> None:
        """Subscribe to a server that has been started again, or that the client has lost: gives the current value."""
        now, random = site.scheduler.now, site.scheduler.random
        if self._subscribed is process and random.random() >= _UNSUBSCRIBED:
            return
        if self._subscribed is not None:
            self._subscribed, self._subscribes_at = None, now + _SILENCE * random.random()
        if now >= self._subscribes_at and not process.is_dead and process.stopped_until <= now:
            self._subscribed = process
            if (current := site.readings.get((DEVICE, "lastAlert"))) is not None:
                self._hear(str(current.value))

    def _give(self, entries: Any) -> None:
        for entry in entries:
            if self.seen and entry.sequence <= self.seen[-1][0]:
                self.wrong.append(f"alert {entry.sequence} came after {self.seen[-1][0]}")
            self.seen.append((entry.sequence, None if entry.alert is None else _key(entry.alert)))
            if entry.action is not None:
                self.actions[entry.action["id"]] += 1

    def add(self, site: "Site") -> None:
        """Add the processes to a site, and begin to listen."""
        for number in range(SOURCES + PACKET_SOURCES):
            site.bodies[f"source-{number}"] = partial(self.source, number, site)
        site.bodies["intake-0"] = partial(self.intake, "0", site)
        site.scheduler.at(_ASK, self.ask, site)


_KINDS: tuple[ActionKind, ...] = (
    "ACKNOWLEDGE", "ACKNOWLEDGE", "ACKNOWLEDGE", "COMMENT", "SHELVE", "UNSHELVE", "RESET",
    "REMOVE_FROM_SERVICE", "RETURN_TO_SERVICE",
)  # fmt: skip


def _request(alarm: Alarm, kind: ActionKind) -> str:
    """Return the argument of an operator's command."""
    more: dict[str, object] = {}
    if kind == "ACKNOWLEDGE":
        more["occurrence"] = alarm.occurrence
    if kind == "SHELVE":
        more["duration"] = 20.0
    if kind in ("COMMENT", "SHELVE", "REMOVE_FROM_SERVICE"):
        more["comment"] = "seen"
    asked = {"condition": alarm.condition, "source": alarm.source, "operator": "anna", **more}
    return msgspec.json.encode(asked).decode()


def _key(alert: dict[str, Any]) -> AlertKey:
    return (alert["source"], alert["condition"], alert["state"], alert["sequence"], alert["raised_at"])
