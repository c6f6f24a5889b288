"""A device server that waits while another process serves its instance, and the end of a server that was replaced.

Theory of operation
-------------------
All processes that may serve the same devices are started as standbys. A standby writes heartbeats under the name of the
server with `STANDBY`, and reads the server's heartbeats. It has its turn after the server's final heartbeat, or when
the log shows that the server is silent: the standby's own heartbeats come back, and the server's do not. The silence
begins again when the standby's own heartbeats come back after a gap, or with a time in the past: the bus was away, or
the broker's clock was set. So an outage of the bus gives no standby a turn.

Before its turn the standby asks the Tango database for the server's address, and asks the server there for its admin
device by CORBA. The answer decides how long the silence has to be:

- GONE: the host refuses connections, or another CORBA server has the port. The server does not exist any more.
- UNEXPORTED: the database has no address of the server, which may still run.
- HANGS: nothing answers in time, or the address has no meaning on this host.
- ANSWERS: the server is busy, or has lost the bus.
- UNKNOWN: no database answers. Without one no server can start, so the standby goes on waiting.

The server's final heartbeat comes before its last events and snapshots. So the standby waits until the server is GONE
or UNEXPORTED, for some seconds at most. A question may take seconds: heartbeats that came meanwhile count.

The first standby on the log has the turn: all standbys read the log in one order, so two that begin at the same time
agree. The standby remains the first until its first heartbeat as the server is on the log, which takes seconds. With a
final heartbeat at its turn, the next standby would find no server and no standby before itself. A standby whose turn it
would be, but that reaches no Tango database, goes behind all others, one of which may reach it: it writes a final
heartbeat and a further one. It has no turn until it has read that heartbeat, because the others may read it earlier.

A server whose host stood still goes on after its silence. It reads a heartbeat of its successor, and ends. Until then
it commands nothing: it has no lease (`facade.flows.commands.lease`). So does every server, with or without standbys:
two that were started for one instance are told apart in the same way. The order of heartbeats does not tell the
successor: those of a server that goes on come after its successor's, too. The server that the Tango database names
stays, as clients find no other. While the database does not answer, the incarnation that began later does. A server
that the database does not name never unexports the devices: it would take those of its successor away.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import cache, partial

import tango

from devices.kernel.databases import FAILURES, address_of, addresses, answering, exported_ior
from facade.kernel.bus.kafka.admin import find_range
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.port import Reader
from facade.kernel.clock import DAY, NEVER, SECOND, Clock, Duration, SystemClock, Time, as_duration
from facade.kernel.config import Settings
from facade.kernel.corba import Located, locate, read_ior
from facade.kernel.errors import BusError
from facade.kernel.names import SERVER as SERVER
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.heartbeats import (
    SERVERS,
    SILENT,
    STANDBY,
    HeartbeatMessage,
    Pulse,
    SignOfLife,
    began,
    decode_heartbeat,
)
from facade.kernel.runtime.steps import run_steps
from facade.kernel.runtime.stopping import end_process, stopping

_log = logging.getLogger(__name__)

INTERVAL = 0.25
"""Time between two heartbeats of a standby [s]: so often it sees that the bus is there."""
SERVER_INTERVAL = 0.5
"""Longest time between two heartbeats of a server that has standbys [s]."""
_BUS_AWAY = SILENT - as_duration(SERVER_INTERVAL)
"""Time between two of the own heartbeats that shows an outage; the server's last one was earlier than the first."""
_ENDS_WITHIN = 5 * SECOND
"""Time of a server for its last events and snapshots, after its final heartbeat."""
_KILLED_WITHIN = 10.0
"""Longest wait for the end of a server that answers [s]: a server blocked in Python answers, and does not end."""
_TAKEN, _WAIT = 1000, 0.05
_ANSWERS_WITHIN = 1.0
"""A process that stands still takes connections and answers nothing [s]."""


class Reachability(Enum):
    """The answer to the question where a server is."""

    ANSWERS = "it has its admin device"
    HANGS = "it takes no connection or gives no answer in time, or its address has no meaning on this host"
    UNEXPORTED = "the Tango database has no address of it"
    GONE = "its address refuses connections, or belongs to another CORBA server"
    UNKNOWN = "the Tango database does not answer"


_NO_END = 366 * DAY
_MISSED = {Reachability.GONE: 1.5, Reachability.UNEXPORTED: 3.0, Reachability.HANGS: 3.0}
"""Heartbeats that a server may miss before it counts as silent, if this is less than `SILENT`."""


class Succession:
    """Tells a standby when it has its turn, by the heartbeats on the log.

    Parameters
    ----------
    component
        Name of the server.
    incarnation
        Of this standby.
    """

    def __init__(self, component: str, incarnation: str) -> None:
        self._component, self._incarnation = component, incarnation
        self._now = self._silent_from = NEVER
        self._newest = 0.0
        self._server: HeartbeatMessage | None = None
        self._standbys: dict[str, Time] = {}
        """Time of the last heartbeat of each, by the broker's clock, in the order on the log."""
        self._gives_place = False
        """Whether others may have read a final heartbeat of this standby that it has not read itself."""

    def fold(self, heartbeat: HeartbeatMessage, at: Time) -> None:
        """Process a heartbeat from the log, with the broker's timestamp."""
        if heartbeat.component == self._component:
            self._newest = max(self._newest, began(heartbeat.incarnation))
            # The final heartbeat of a server that was replaced says nothing of its successor.
            if not heartbeat.stopping or began(heartbeat.incarnation) == self._newest:
                # It stands behind the own heartbeat on the log: with an earlier time, the clock was set back.
                self._server, self._silent_from = heartbeat, max(at, self._now)
        elif heartbeat.component == self._component + STANDBY:
            last = self._standbys.get(heartbeat.incarnation, at)
            if heartbeat.stopping or abs(at - last) > SILENT:  # others that came meanwhile stand before it
                self._standbys.pop(heartbeat.incarnation, None)
                self._gives_place &= heartbeat.incarnation != self._incarnation
            if not heartbeat.stopping:
                self._standbys[heartbeat.incarnation] = at
            if heartbeat.incarnation == self._incarnation:
                if abs(at - self._now) > _BUS_AWAY:  # the bus was away, or its clock was set
                    self._silent_from = at
                self._now = at

    def silence(self) -> Duration:
        """Return for how long the bus has been there without a heartbeat of the server."""
        return self._now - self._silent_from

    def is_due(self, ask: Callable[[], Reachability]) -> bool:
        """Return whether this standby has its turn.

        `ask`: returns where the server is, and folds heartbeats that came meanwhile; called only if it can matter.
        """
        return self._is_due(Reachability.GONE) and self._is_due(ask())

    def give_place(self) -> None:
        """Have no turn until a final heartbeat that this standby has just written is on the log."""
        self._gives_place = True

    def _is_due(self, server: Reachability) -> bool:
        return self._is_first() and self.silence() > self._patience(server)

    def _patience(self, server: Reachability) -> Duration:
        if server is Reachability.UNKNOWN:
            return _NO_END
        if self._server is None:
            return SILENT
        if self._server.stopping:
            return -_NO_END if server in {Reachability.GONE, Reachability.UNEXPORTED} else _ENDS_WITHIN
        return min(SILENT, as_duration(_MISSED[server] * self._server.interval)) if server in _MISSED else SILENT

    def _is_first(self) -> bool:
        if self._gives_place:
            return False
        alive = (one for one, at in self._standbys.items() if abs(self._now - at) <= SILENT)
        return next(alive, "") == self._incarnation


class Replacement:
    """Tells a server that another process has taken its place: a process heard after the server.

    Parameters
    ----------
    act
        Takes the incarnation of the other process.
    heard
        Is called once, when all processes that follow the log know the server.
    is_exported
        Asks the Tango database whether clients find this server; None: the database does not say.
    """

    def __init__(
        self,
        component: str,
        incarnation: str,
        act: Callable[[str], None],
        heard: Callable[[], None] = lambda: None,
        is_exported: Callable[[], bool | None] = lambda: None,
    ) -> None:
        self._component, self._incarnation, self._act, self._heard = component, incarnation, act, heard
        self._is_exported = is_exported
        self._is_heard = False
        """Whether an own heartbeat came back: those before it on the log are of servers that have ended."""

    def fold(self, heartbeat: HeartbeatMessage, appended_us: Time) -> None:
        """Process a heartbeat from the log."""
        if heartbeat.component != self._component:
            return
        if heartbeat.incarnation == self._incarnation:
            if not self._is_heard:
                self._is_heard = True
                self._heard()
        elif self._is_heard:
            is_found = self._is_exported()
            if began(heartbeat.incarnation) > began(self._incarnation) if is_found is None else not is_found:
                self._act(heartbeat.incarnation)


def await_turn(settings: Settings, instance: str) -> Pulse:
    """Return when no other process serves an instance; a signal to end ends this process.

    Returns
    -------
    Pulse
        Heartbeats of the standby, by which other standbys wait for the server that it becomes.
    """
    clock, component = SystemClock(), f"{SERVER}-{instance}"
    bus = KafkaBus(Connection(settings, clock=clock), client=component + STANDBY)
    sign = SignOfLife(component + STANDBY, "server", bus.writer().send, clock)
    sign.interval, sign.flush = INTERVAL, bus.writer().close
    succession = Succession(component, sign.incarnation)
    reader = _open(settings, bus)

    def ask() -> Reachability:
        answer = _presence(instance)
        _take(reader, succession.fold)
        if answer is Reachability.UNKNOWN:
            with suppress(BusError):
                sign.go_behind()
                succession.give_place()
            clock.sleep(INTERVAL)
        return answer

    _log.info("standing by for %s", component)
    pulse = Pulse(sign, clock)  # a question may take seconds
    pulse.start()
    with stopping() as is_told:
        while not is_told() and not succession.is_due(ask):
            pulse.came_round()
            _take(reader, succession.fold)
    if is_told():  # asked again: the signal may have come with the end of the server
        pulse.end()
        end_process()
    _log.warning("taking the place of %s", component)
    _end_server(instance, clock)
    return pulse


def end_when_replaced(server: Server, pulse: Pulse | None = None) -> None:
    """Let a server end when another process has taken its place; end its heartbeats as a standby when it is heard.

    It ends at once: in order it would unexport the devices of its successor. It writes no final heartbeat, which would
    be one of its successor, too: they have the same name.
    """
    bus = KafkaBus(Connection(server.settings, clock=server.clock), client=f"{server.instance}-replacement")
    heard: Callable[[], None] = lambda: None  # noqa: E731
    if pulse is not None:
        heard, server.sign_of_life.interval = pulse.end, min(server.sign_of_life.interval, SERVER_INTERVAL)

    def end(incarnation: str) -> None:
        _log.error("another process serves %s now (incarnation %s): this one ends", server.instance, incarnation)
        end_process(1)

    replacement = Replacement(server.instance, server.sign_of_life.incarnation, end, heard, is_exported)
    opened = cache(partial(_open, server.settings, bus))

    def step() -> bool:
        _take(opened(), replacement.fold)
        return True

    server.threads.append(partial(run_steps, step, what=f"following who serves {server.instance}"))


def is_exported() -> bool | None:
    """Return whether the Tango database names this process for its instance; None: it does not say."""
    try:
        util = tango.Util.instance(False)
        if not util._UseDb:  # noqa: SLF001 - Tango has no other name for it
            return None
        own, database = util.get_dserver_device(), next(answering(), None)
        ior = None if database is None else exported_ior(database, own.get_name())
        return bool(ior == util.get_dserver_ior(own)) if ior else None
    except FAILURES:
        return None


def _open(settings: Settings, bus: KafkaBus) -> Reader:
    """Open a reader of the servers' heartbeats of the last seconds: each living one is among them."""
    connection, since = Connection(settings), SystemClock().now_us() - 2 * SILENT
    ranges = find_range(connection, SERVERS, newest=1) | find_range(connection, SERVERS, since=since)
    places = {SERVERS: {partition: first for partition, (first, _) in ranges.items()}}
    # All servers read the heartbeats of all: an answer for each one would cost a site of 30 servers most of its broker.
    return bus.open_reader({SERVERS: None}, places, together=True)


def _take(reader: Reader, fold: Callable[[HeartbeatMessage, Time], None]) -> None:
    for record in reader.take(_TAKEN, _WAIT):
        heartbeat = decode_heartbeat(record.value)
        if isinstance(heartbeat, HeartbeatMessage):
            fold(heartbeat, record.timestamp_us)


def _end_server(instance: str, clock: Clock) -> None:
    """End a server that answers clients though it is silent on the bus; forget its address.

    Otherwise Tango would ask that address before it starts, for up to 9 s.
    """
    until = clock.monotonic() + _KILLED_WITHIN
    database = next(answering(), None)
    if database is not None and _presence(instance) is Reachability.ANSWERS:
        with suppress(*FAILURES):  # it has ended meanwhile, or is blocked
            # Without an address Tango would choose its database here, before `put_first` at the start of the server.
            tango.DeviceProxy(f"tango://{address_of(database)}/{_admin(instance)}").command_inout("Kill")
    # It unexports its devices: later it would unexport those of this process.
    while _presence(instance) is Reachability.ANSWERS and clock.monotonic() < until:
        clock.sleep(_WAIT)
    for database in answering():
        with suppress(*FAILURES):  # Tango reports it at the start
            database.command_inout("DbUnExportServer", f"{SERVER}/{instance}")  # pytango-db unexports no single device


def _presence(instance: str) -> Reachability:
    database = next(answering(), None)
    ior = None if database is None else exported_ior(database, _admin(instance))
    if ior is None:
        return Reachability.UNKNOWN
    if not ior:
        return Reachability.UNEXPORTED
    return ask_locator(ior, _ANSWERS_WITHIN, is_one_host=all(map(_is_loopback, addresses())))


def _admin(instance: str) -> str:
    return f"dserver/{SERVER}/{instance}"


def ask_locator(ior: str, within: float, *, is_one_host: bool) -> Reachability:
    """Ask the server of a CORBA object whether it has the object.

    Parameters
    ----------
    within
        Longest time of each step [s].
    is_one_host
        Whether all servers run on this host: elsewhere a loopback address tells nothing of a server.
    """
    address = read_ior(ior)
    if address is None or address.port == 0 or (_is_loopback(address.host) and not is_one_host):
        return Reachability.HANGS
    return _FOUND[locate(address, within)]


_FOUND = {
    Located.HERE: Reachability.ANSWERS,
    Located.GONE: Reachability.GONE,
    Located.SILENT: Reachability.HANGS,
}


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "localhost", "::1"))
