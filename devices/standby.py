"""A device server that waits while another process serves its instance, and the end of one that was replaced.

Theory of operation
-------------------
Processes that may serve the same devices are all started as standbys. Each gives signs of life under the name of the
server with `STANDBY`, and reads those of the server. It is its turn when the server says goodbye, or when the log shows
that it is silent: the standby's own signs of life come back, and those of the server do not. So a broker that is away
gives nobody a turn. A server whose address refuses connections needs to be silent for less time: it is surely gone.

Of several standbys the first one on the log has the turn: all read it in one order, so two that
begin at once agree. It stands first until it is heard as the server, which takes seconds. If it said goodbye at its
turn, the next one would find no server and nobody before itself.

A server that was silent and goes on, as its host stood still, reads a sign of life of its successor, and ends. Until
then it commands nothing: it has no lease (`facade.flows.commands.lease`). A successor is an incarnation that began
later. The order of the signs of life does not tell: those of a server that goes on come after its successor's, too.
"""

import logging
import socket
import struct
import threading
from collections.abc import Callable
from enum import Enum

import tango

from facade.bus.kafka.admin import find_range
from facade.bus.kafka.bus import KafkaBus
from facade.bus.kafka.connection import Connection
from facade.bus.port import Reader
from facade.clock import SystemClock
from facade.config import Settings
from facade.errors import BusError
from facade.runtime.composition import Server
from facade.runtime.heartbeats import (
    SILENT,
    STANDBY,
    TOPIC,
    HeartbeatMessage,
    Pulse,
    SignOfLife,
    began,
    decode_heartbeat,
)
from facade.runtime.stopping import end_process, stopping

_log = logging.getLogger(__name__)

SERVER = "SdpFacade"
"""Name of the server in the Tango database, of the executable, and of Starter's entry."""
INTERVAL = 0.25
"""Time between two signs of life of a standby [s]: so often it sees that the bus is there."""
SERVER_INTERVAL = 0.5
"""Most time between two signs of life of a server that has standbys [s]."""
_MISSED, _MISSED_IF_GONE = 3.0, 1.5
"""Signs of life that a server may miss before it counts as silent, and before one that is gone does."""
_NEWEST, _TAKEN, _WAIT = 500, 1000, 0.05
_AGAIN = 1.0
"""Time between two tries to read signs of life [s]."""
_ANSWERS_WITHIN = 1.0
"""A process that stands still takes connections and answers nothing [s]."""


class Reachability(Enum):
    """How a server treats clients."""

    ANSWERS = "answers"
    HANGS = "takes no connection or gives no answer, in the time that it has"
    GONE = "its address refuses connections"


class Succession:
    """Tells a standby when it is its turn, by the signs of life on the log.

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
        """Time of the last sign of life of each, by the broker's clock [Unix s], in the order on the log."""

    def fold(self, heartbeat: HeartbeatMessage, appended_us: int) -> None:
        """Take a sign of life from the log, with the broker's time stamp [Unix us]."""
        at = appended_us / 1e6
        if heartbeat.component == self._component:
            self._newest = max(self._newest, began(heartbeat.incarnation))
            # The goodbye of a server that was replaced says nothing of its successor.
            if not heartbeat.stopping or began(heartbeat.incarnation) == self._newest:
                self._server = heartbeat, at
        elif heartbeat.component == self._component + STANDBY:
            last = self._standbys.get(heartbeat.incarnation, at)
            if heartbeat.stopping or at - last > SILENT:  # others that came meanwhile stand before it
                self._standbys.pop(heartbeat.incarnation, None)
            if not heartbeat.stopping:
                self._standbys[heartbeat.incarnation] = at
            if heartbeat.incarnation == self._incarnation:
                self._now, self._since = at, self._since or at

    def silence(self) -> float:
        """Return for how long the bus has been there without a sign of life of the server [s]; goodbye: for ever."""
        if not self._since:
            return 0.0
        if self._server is None:
            return self._now - self._since
        heartbeat, at = self._server
        return float("inf") if heartbeat.stopping else self._now - at

    def is_due(self, ask: Callable[[], Reachability]) -> bool:
        """Return whether it is the turn of this standby.

        `ask`: says how the server treats clients; called only when the server has missed some signs of life.
        """
        silence = self.silence()
        if silence > SILENT or self._server is None:
            return silence > SILENT and self._is_first()
        missed = silence / self._server[0].interval
        if missed <= _MISSED_IF_GONE or not self._is_first():
            return False
        presence = ask()
        return presence is Reachability.GONE or (presence is Reachability.HANGS and missed > _MISSED)

    def _is_first(self) -> bool:
        alive = (one for one, at in self._standbys.items() if self._now - at <= SILENT)
        return next(alive, "") == self._incarnation


class Replacement:
    """Tells a server that another process has taken its place: one that began later, and is heard after the server.

    Parameters
    ----------
    act
        Takes the incarnation of the other process.
    heard
        Is called once, when all who follow the log know the server.
    """

    def __init__(
        self, component: str, incarnation: str, act: Callable[[str], None], heard: Callable[[], None] = lambda: None
    ) -> None:
        self._component, self._incarnation, self._act, self._heard = component, incarnation, act, heard
        self._is_heard = False
        """Whether an own sign of life came back: before it stand those of servers that have ended."""

    def fold(self, heartbeat: HeartbeatMessage, appended_us: int) -> None:
        """Take a sign of life from the log."""
        if heartbeat.component != self._component:
            return
        if heartbeat.incarnation == self._incarnation:
            if not self._is_heard:
                self._is_heard = True
                self._heard()
        elif self._is_heard and began(heartbeat.incarnation) > began(self._incarnation):
            self._act(heartbeat.incarnation)


def await_turn(settings: Settings, instance: str) -> Pulse:
    """Return when no other process serves an instance; a signal to end ends this process.

    Returns
    -------
    Pulse
        Signs of life of the standby, by which the others wait for the server that it becomes.
    """
    clock, component = SystemClock(), f"{SERVER}-{instance}"
    bus = KafkaBus(Connection(settings, clock=clock), client=component + STANDBY)
    sign = SignOfLife(component + STANDBY, "server", bus.writer().send, clock)
    sign.interval, sign.flush = INTERVAL, bus.writer().close
    succession = Succession(component, sign.incarnation)
    reader, database = _open(settings, bus), tango.Database()
    _log.info("standing by for %s", component)
    with stopping() as is_told:
        while not is_told() and not succession.is_due(lambda: _presence(database, instance)):
            sign.perform()
            _take(reader, succession.fold)
    if is_told():  # looked at once more: the server may have been told at the same time, and said goodbye
        sign.end()
        end_process()
    _log.warning("taking the place of %s", component)
    pulse = Pulse(sign, clock)
    pulse.start()
    _end_server(database, instance)
    return pulse


def end_when_replaced(server: Server, pulse: Pulse) -> None:
    """Let a server end when another process has taken its place, and the standby that it was when it is heard itself.

    It ends at once: in order it would unexport the devices of the other one. It says no goodbye, which would be one of
    the other one too: they have the same name.
    """
    bus = KafkaBus(Connection(server.settings, clock=server.clock), client=f"{server.instance}-replacement")
    server.sign_of_life.interval = min(server.sign_of_life.interval, SERVER_INTERVAL)

    def end(incarnation: str) -> None:
        _log.error("another process serves %s now (incarnation %s): this one ends", server.instance, incarnation)
        end_process(1)

    def follow(stop: threading.Event) -> None:
        replacement = Replacement(server.instance, server.sign_of_life.incarnation, end, pulse.end)
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
    """Open a reader of the newest signs of life; those of earlier hours tell nothing."""
    ends = find_range(Connection(settings), TOPIC, newest=_NEWEST)
    return bus.open_reader({TOPIC: None}, {TOPIC: {partition: first for partition, (first, _) in ends.items()}})


def _take(reader: Reader, fold: Callable[[HeartbeatMessage, int], None]) -> None:
    for record in reader.take(_TAKEN, _WAIT):
        heartbeat = decode_heartbeat(record.value)
        if isinstance(heartbeat, HeartbeatMessage):
            fold(heartbeat, record.timestamp_us)


def _end_server(database: tango.Database, instance: str) -> None:
    """Let a server end that answers clients though the bus does not hear of it; forget the address of one that hangs.

    Else Tango would ask that address before it starts, for up to 9 s.
    """
    name = _admin(instance)
    try:
        if _presence(database, instance) is not Reachability.ANSWERS:
            database.unexport_device(name)
            return
        proxy = tango.DeviceProxy(name)
        proxy.command_inout("Kill")
    except tango.DevFailed:
        _log.info("%s/%s does not answer", SERVER, instance)
    while (
        _presence(database, instance) is Reachability.ANSWERS
    ):  # it unexports its devices: later it would unexport ours
        SystemClock().sleep(_WAIT)


def _presence(database: tango.Database, instance: str) -> Reachability:
    try:
        found = database.get_device_info(_admin(instance))
    except tango.DevFailed:  # the database is away, or does not know it yet
        return Reachability.HANGS
    return ask_locator(found.ior, _ANSWERS_WITHIN) if found.exported else Reachability.GONE


def _admin(instance: str) -> str:
    return f"dserver/{SERVER}/{instance}"


# --- Whether a CORBA object is there: Tango's own question takes up to 9 s ---

_INTERNET = 0
"""Tag of a profile with a host and a port."""
_LOCATE_REQUEST = b"GIOP\x01\x00\x01\x03"
"""GIOP 1.0, little-endian, message 3."""


class Encapsulation:
    """Reads CORBA's encoding of a structure: its first byte tells the order of bytes, and numbers are aligned."""

    def __init__(self, data: bytes, skipped: int = 0) -> None:
        self._data, self._at, self._order = data, 1 + skipped, "<" if data[0] else ">"

    def number(self, form: str = "I") -> int:
        """Read a number; `form`: see `struct`."""
        size = struct.calcsize(form)
        self._at += -self._at % size
        (value,) = struct.unpack_from(self._order + form, self._data, self._at)
        self._at += size
        return int(value)

    def octets(self) -> bytes:
        """Read a sequence of octets or a string with its final zero."""
        size = self.number()
        self._at += size
        return self._data[self._at - size : self._at]


def ask_locator(ior: str, within: float) -> Reachability:
    """Ask the server of a CORBA object whether it has it; each step takes at most some time [s]."""
    try:
        whole = Encapsulation(bytes.fromhex(ior[4:]))
        whole.octets()  # the type
        profiles = [(whole.number(), whole.octets()) for _ in range(whole.number())]
        profile = Encapsulation(next(body for tag, body in profiles if tag == _INTERNET), skipped=2)  # its version
        host, port, key = profile.octets()[:-1].decode(), profile.number("H"), profile.octets()
        question = struct.pack("<II", 1, len(key)) + key
        with socket.create_connection((host, port), timeout=within) as connection:
            connection.sendall(_LOCATE_REQUEST + struct.pack("<I", len(question)) + question)
            return Reachability.ANSWERS if connection.recv(4) == _LOCATE_REQUEST[:4] else Reachability.HANGS
    except ConnectionRefusedError:
        return Reachability.GONE
    except (OSError, ValueError, IndexError, struct.error, StopIteration):
        return Reachability.HANGS
