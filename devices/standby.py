"""A device server that waits while another process serves its instance, and the end of one that was replaced.

Theory of operation
-------------------
Processes that may serve the same devices are all started as standbys. Each gives signs of life under the name of the
server with `SUFFIX`, and reads those of the server. It is its turn when the server says goodbye, or when the log shows
that it is silent: the standby's own signs of life come back, and those of the server do not. So a broker that is away
gives nobody a turn. Of several standbys the one that began first has the turn.

A server whose host was suspended resumes, reads its successor's heartbeat, and exits. Until then it commands nothing:
it has no lease (`facade.flows.commands.lease`). A successor is an incarnation that began later. The order of heartbeats
cannot decide: a resumed server also writes heartbeats after its successor's.
"""

import logging
import threading
from collections.abc import Callable

import tango

from facade.bus.kafka.admin import find_range
from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.connection import Connection
from facade.bus.port import Reader
from facade.clock import SystemClock
from facade.config import Settings
from facade.errors import BusError
from facade.runtime.composition import Server
from facade.runtime.heartbeats import SILENT, TOPIC, HeartbeatMessage, SignOfLife, began, decode_heartbeat
from facade.runtime.stopping import end_process, stopping

_log = logging.getLogger(__name__)

SERVER = "SdpFacade"
"""Name of the server in the Tango database, of the executable, and of Starter's entry."""
SUFFIX = "-standby"
INTERVAL = 0.25
"""Time between two signs of life of a standby [s]: so often it sees that the bus is there."""
_MISSED = 3.0
"""Signs of life that a server may miss before it counts as silent."""
_NEWEST, _TAKEN, _WAIT = 500, 1000, 0.05
_AGAIN = 1.0
"""Time between two tries to read signs of life [s]."""
_ANSWERS_WITHIN_MS = 300
"""A process that stands still takes connections and answers nothing."""


class Succession:
    """Decides when it is a standby's turn, by the heartbeats on the log.

    Parameters
    ----------
    component
        Name of the server.
    incarnation
        Of this standby.
    """

    def __init__(self, component: str, incarnation: str) -> None:
        self._component, self._incarnation = component, incarnation
        self._now = self._since = self._newest = 0.0
        self._server: tuple[HeartbeatMessage, float] | None = None
        self._standbys: dict[str, float] = {}
        """Time of the last sign of life of each, by the broker's clock [Unix s]."""

    def fold(self, heartbeat: HeartbeatMessage, appended_us: int) -> None:
        """Take a sign of life from the log, with the broker's time stamp [Unix us]."""
        at = appended_us / 1e6
        if heartbeat.component == self._component:
            self._newest = max(self._newest, began(heartbeat.incarnation))
            # The final heartbeat of a replaced server says nothing of its successor.
            if not heartbeat.stopping or began(heartbeat.incarnation) == self._newest:
                self._server = heartbeat, at
        elif heartbeat.component == self._component + SUFFIX:
            self._standbys[heartbeat.incarnation] = 0.0 if heartbeat.stopping else at
            if heartbeat.incarnation == self._incarnation:
                self._now, self._since = at, self._since or at

    def silence(self) -> float:
        """Return the time that the bus was available without a heartbeat of the server [s]; final one: infinite."""
        if not self._since:
            return 0.0
        if self._server is None:
            return self._now - self._since
        heartbeat, at = self._server
        return float("inf") if heartbeat.stopping else self._now - at

    def is_due(self, answers: Callable[[], bool]) -> bool:
        """Return whether it is the turn of this standby.

        `answers`: whether the server answers clients; asked only when it has missed some signs of life.
        """
        within = SILENT if self._server is None else min(_MISSED * self._server[0].interval, SILENT)
        silence = self.silence()
        if silence <= within or not self._is_first():
            return False
        return silence > SILENT or not answers()

    def _is_first(self) -> bool:
        alive = [one for one, at in self._standbys.items() if self._now - at <= SILENT]
        return min(alive, default="") == self._incarnation


class Replacement:
    """Detects that another process has replaced a server: one that began later, with a heartbeat after the server's."""

    def __init__(self, component: str, incarnation: str, act: Callable[[str], None]) -> None:
        self._component, self._incarnation, self._act = component, incarnation, act
        self._is_heard = False
        """Whether an own heartbeat has come back: earlier ones belong to servers that have ended."""

    def fold(self, heartbeat: HeartbeatMessage, appended_us: int) -> None:
        """Process a heartbeat from the log."""
        if heartbeat.component != self._component:
            return
        if heartbeat.incarnation == self._incarnation:
            self._is_heard = True
        elif self._is_heard and began(heartbeat.incarnation) > began(self._incarnation):
            self._act(heartbeat.incarnation)


def await_turn(settings: Settings, instance: str) -> None:
    """Return when no other process serves an instance; SIGTERM ends this process."""
    clock, component = SystemClock(), f"{SERVER}-{instance}"
    bus = KafkaBus(Connection(settings, clock=clock), client=component + SUFFIX)
    sign = SignOfLife(component + SUFFIX, "server", bus.writer().send, clock)
    sign.interval, sign.flush = INTERVAL, bus.writer().close
    succession = Succession(component, sign.incarnation)
    reader = _open(settings, bus)
    _log.info("standing by for %s", component)
    with stopping() as is_told:
        while not succession.is_due(lambda: _answers(instance)):
            if is_told():
                sign.end()
                end_process()
            sign.perform()
            _take(reader, succession.fold)
    _log.warning("taking the place of %s", component)
    _end_server(instance)
    sign.end()
    while _answers(instance):  # one that ends unexports its devices before: later it would unexport ours
        clock.sleep(_WAIT)


def end_when_replaced(server: Server) -> None:
    """Let a server end when another process has replaced it.

    An orderly shutdown would unexport the successor's devices. It sends no final heartbeat: both share a component
    name, so readers would think the successor had stopped.
    """
    bus = KafkaBus(Connection(server.settings, clock=server.clock), client=f"{server.instance}-replacement")

    def end(incarnation: str) -> None:
        _log.error("another process serves %s now (incarnation %s): this one ends", server.instance, incarnation)
        end_process(1)

    def follow(stop: threading.Event) -> None:
        replacement = Replacement(server.instance, server.sign_of_life.incarnation, end)
        reader, is_told = None, False
        while not stop.is_set():
            try:
                reader = reader or _open(server.settings, bus)
            except BusError as error:
                if not is_told:
                    _log.warning("cannot see yet whether another process serves %s: %s", server.instance, error)
                is_told = True
                stop.wait(_AGAIN)
            else:
                _take(reader, replacement.fold)

    server.threads.append(follow)


def _open(settings: Settings, bus: KafkaBus) -> Reader:
    """Open a reader of the newest heartbeats; older ones are useless."""
    ends = find_range(Connection(settings), TOPIC, newest=_NEWEST)
    return bus.open_reader({TOPIC: None}, {TOPIC: {partition: first for partition, (first, _) in ends.items()}})


def _take(reader: Reader, fold: Callable[[HeartbeatMessage, int], None]) -> None:
    for record in reader.take(_TAKEN, _WAIT):
        heartbeat = decode_heartbeat(record.value)
        if isinstance(heartbeat, HeartbeatMessage):
            fold(heartbeat, record.timestamp_us)


def _answers(instance: str) -> bool:
    try:
        _admin(instance).ping()
    except tango.DevFailed:
        return False
    return True


def _end_server(instance: str) -> None:
    """Let a server end that answers clients though the bus does not hear of it."""
    try:
        _admin(instance).command_inout("Kill")
    except tango.DevFailed:
        _log.info("%s/%s does not answer", SERVER, instance)


def _admin(instance: str) -> tango.DeviceProxy:
    """Return a proxy of its own each time: one that has failed waits before it tries again."""
    proxy = tango.DeviceProxy(f"dserver/{SERVER}/{instance}")
    proxy.set_timeout_millis(_ANSWERS_WITHIN_MS)
    return proxy
