"""A device server that waits while another process serves its instance; see `facade.runtime.standby`."""

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
from facade.runtime.heartbeats import TOPIC, HeartbeatMessage, SignOfLife, decode_heartbeat
from facade.runtime.standby import INTERVAL, SUFFIX, Replacement, Succession
from facade.runtime.stopping import end_process, stopping

_log = logging.getLogger(__name__)

SERVER = "SdpFacade"
"""Name of the server in the Tango database, of the executable, and of Starter's entry."""
_NEWEST, _TAKEN, _WAIT = 500, 1000, 0.05
_AGAIN = 1.0
"""Time between two tries to read signs of life [s]."""
_ANSWERS_WITHIN_MS = 300
"""A process that stands still takes connections and answers nothing."""


def await_turn(settings: Settings, instance: str) -> None:
    """Return when no other process serves an instance; a signal to end ends this process."""
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
    """Let a server end when another process has taken its place.

    It ends at once: in order it would unexport the devices of the other one. It says no goodbye, which would be one of
    the other one too: they have the same name.
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
    """Open a reader of the newest signs of life; those of earlier hours tell nothing."""
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
