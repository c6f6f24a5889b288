"""Runs a controller as a process: its threads, its heartbeats, and its orderly end.

The environment and the settings file give the deployment (KAFKA_BOOTSTRAP, SDP_TOPIC_PREFIX,
SDP_SUBARRAYS, SDP_FACADE_CONFIG).
"""

import logging
import math
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial

from facade.flows.commands.flow import Components
from facade.flows.commands.messages import COMMANDS, HeartbeatMessage
from facade.kernel import tracing
from facade.kernel.bus.kafka.admin import newest_records
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.group import KafkaGroupMember
from facade.kernel.bus.port import Fenced, Record, Writer
from facade.kernel.clock import NEVER, Clock, SystemClock, Time, as_seconds
from facade.kernel.config import Settings, load_client_settings
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load
from facade.kernel.instances import classes_of
from facade.kernel.logs import start_log_export, start_logging
from facade.kernel.runtime.heartbeats import INTERVAL, SILENT, TOPIC, SignOfLife, decode_heartbeat
from facade.kernel.runtime.metrics import serve_metrics
from facade.kernel.runtime.stopping import on_stop
from facade.sdk.controller.api import Controller
from facade.sdk.controller.command_loop import CommandLoop

_log = logging.getLogger(__name__)

_WAIT = 0.1
"""Longest wait for a command before other work is checked [s]."""
_GRACE = 3.0
"""Time for running commands to end after SIGTERM [s]; supervisors kill after about ten."""
_CANCELLED = 1.0
"""The same for commands cancelled then [s]."""
_LOOK = 0.3
"""Time between two checks of the heartbeats before the start [s]."""
_RECENT = 5000
"""Heartbeats to read: more than all components write while one of them falls silent."""


def run(
    controller: Controller,
    settings: Settings | None = None,
    *,
    through: Callable[[Writer], Writer] = lambda writer: writer,
) -> None:
    """Execute the commands of a controller's devices until SIGTERM or SIGINT.

    Parameters
    ----------
    controller
        The controller with its handlers.
    settings
        The deployment. By default the environment and the settings file give it.
    through
        Wraps the writer of all records; for simulated faults.

    Raises
    ------
    ConfigError
        The controller does not fit the ICD, or a setting is wrong.
    Fenced
        A controller of another group executes the commands of these devices, or another process uses this name.
    """
    start_logging(f"component:{controller.component}")
    tracing.start(controller.component)
    stop = threading.Event()
    with on_stop(stop.set):
        icd, clock = load(), SystemClock()
        settings = settings or load_client_settings()
        controller.commands(icd)  # before the bus is opened
        start_log_export(icd, settings, controller.component, clock)
        devices = classes_of(icd, settings, controller.classes)
        connection = Connection(settings, clock=clock)
        bus = KafkaBus(connection, client=controller.component)
        if not await_no_duplicate(controller, devices, connection, stopped=stop.is_set):
            return
        member = KafkaGroupMember(
            connection, COMMANDS, group=controller.group, member=controller.component, health=bus.health
        )
        loop = CommandLoop(
            controller,
            icd,
            devices,
            member,
            # The whole history is needed, and is not urgent afterwards.
            partial(bus.open_reader, together=True),
            through(bus.writer()),
            clock=clock,
            ordered=classes_of(icd, settings, controller.orders),
            signatures=connection.signatures,
        )
        serve_metrics({COMMANDS: loop.account})
        sign = sign_of_life(controller, devices, bus.writer().send, clock)
        Threads(loop, list(devices), sign, stop, clock=clock).run()
        bus.writer().close(1.0)


def await_no_duplicate(
    controller: Controller, devices: Collection[str], connection: Connection, *, stopped: Callable[[], bool]
) -> bool:
    """Make sure that no other group executes the commands of these devices; False: the wait was interrupted.

    Controllers of one group need no such check: the group gives each device to one of them, and ends the older of two
    with the same name.

    Raises
    ------
    Fenced
        A controller of another group is alive and executes commands of one of the devices.
    """
    clock, until = connection.clock, math.inf
    heard: dict[str, Time] = {}
    while not stopped():
        try:
            duplicates = _duplicate_controllers(controller, devices, connection)
        except BusError as error:
            _log.warning("waiting for the broker before commands are taken: %s", error)
            clock.sleep(_LOOK)
            continue
        if not duplicates:
            return True
        if not heard:
            until = clock.monotonic() + as_seconds(SILENT)
            _log.info("waiting to see whether others still execute these commands: %s", ", ".join(duplicates))
        for name, (beat, at) in duplicates.items():
            # The last heartbeat of a killed controller is recent too; a second one proves that it is alive.
            if at > heard.setdefault(name, at):
                both = sorted(set(devices) & set(beat.devices))
                raise Fenced(
                    f"controller {controller.component}: expected no other controller of {', '.join(both)}, got {name}"
                    f" (group {beat.group or name}), which is alive: each would execute every command. Stop it, or"
                    " start this one in its group"
                )
        if clock.monotonic() > until:
            return True
        clock.sleep(_LOOK)
    return False


def _duplicate_controllers(
    controller: Controller, devices: Collection[str], connection: Connection
) -> dict[str, tuple[HeartbeatMessage, Time]]:
    components, newest = Components(), NEVER
    for record in newest_records(connection, TOPIC, _RECENT):
        beat = decode_heartbeat(record.value)
        if isinstance(beat, HeartbeatMessage):
            components.fold(beat, record.timestamp_us)
            newest = record.timestamp_us  # the broker's time: the clock of this host may be wrong
    return {
        name: (beat, at)
        for name, (beat, at) in components.newest.items()
        if newest - at <= SILENT
        and (beat.group or name) != controller.group
        and not set(devices).isdisjoint(beat.devices)
    }


def sign_of_life(
    controller: Controller, devices: Collection[str], send: Callable[[Record], None], clock: Clock
) -> SignOfLife:
    """Return the heartbeats of a controller."""
    sign = SignOfLife(controller.component, "controller", send, clock)
    sign.devices, sign.group = [*devices], controller.group
    return sign


class Threads:
    """The threads: one reads commands, one for each device executes them, one writes heartbeats."""

    def __init__(
        self,
        loop: CommandLoop,
        devices: Sequence[str],
        sign: SignOfLife,
        stop: threading.Event,
        *,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._sign = sign
        self._stop = stop
        self._failure: BaseException | None = None
        self._workers = [
            threading.Thread(target=self._guard, args=(self._work, device), name=device, daemon=True)
            for device in devices
        ]

    def run(self) -> None:
        """Run until the stop is set; this thread reads the commands."""
        self._loop.leave_when(self._stop.is_set)
        beating = threading.Thread(target=self._guard, args=(self._live,), name="heartbeats", daemon=True)
        for thread in (beating, *self._workers):
            thread.start()
        try:
            while not self._stop.is_set():
                self._loop.step(_WAIT)
        except Fenced:
            self._loop.interrupt()  # the next process of this name finds its commands interrupted
            raise
        finally:
            self._end()
        if self._failure is not None:
            raise self._failure

    def _end(self) -> None:
        self._loop.stop()
        self._join(_GRACE)
        self._loop.interrupt()
        self._join(_CANCELLED)
        self._loop.close()
        self._stop.set()
        self._sign.end()

    def _work(self, device: str) -> None:
        while self._loop.await_command(device):
            self._loop.execute_next(device)

    def _live(self) -> None:
        self._sign.beat()
        while not self._stop.wait(INTERVAL):
            self._sign.beat()

    def _guard(self, work: Callable[..., None], *arguments: str) -> None:
        """End the process when a thread fails: half a controller is worse than none."""
        try:
            work(*arguments)
        except BaseException as error:
            _log.exception("thread %s failed", threading.current_thread().name)
            self._failure = error
            self._stop.set()

    def _join(self, within: float) -> None:
        """Wait for the workers within a time [s]; meanwhile this thread reads, as they need it to commit."""
        deadline = self._clock.monotonic() + within
        while any(worker.is_alive() for worker in self._workers) and self._clock.monotonic() < deadline:
            self._loop.step(0.01)
