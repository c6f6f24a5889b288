"""The Tango device server: the executable `SERVER`, with an instance.

One process serves the devices that the Tango database lists for the instance. One thread reads
the bus and pushes; Tango's own threads only read from memory.
"""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from facade import __version__
from facade.kernel import tracing
from facade.kernel.extras import advice
from facade.kernel.names import PROGRAM, SHORT

if not tracing.enabled():
    # PyTango reads it at its import. Otherwise it imports OpenTelemetry, which takes long, and traces nothing.
    os.environ.setdefault("PYTANGO_DISABLE_TELEMETRY_PATCHING", "1")

try:
    import tango
except ModuleNotFoundError as missing:
    raise SystemExit(f"error: {missing.name} is missing: {advice(missing)}") from None
from tango.server import run

from devices.kernel.base import FacadeDevice, TangoSink, set_limits
from devices.kernel.classes import device_classes
from devices.kernel.databases import Exporting, put_first
from devices.kernel.standby import SERVER as SERVER
from devices.kernel.standby import await_turn, end_when_replaced, is_exported
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.clock import SystemClock
from facade.kernel.config import Settings, load_settings
from facade.kernel.errors import ConfigError, FacadeError
from facade.kernel.icd.load import load
from facade.kernel.icd.model import Icd
from facade.kernel.icd.telescope import instance_of
from facade.kernel.logs import start_log_export, start_logging
from facade.kernel.runtime.composition import Server
from facade.kernel.runtime.heartbeats import Pulse
from facade.kernel.runtime.metrics import serve_metrics
from facade.kernel.runtime.replay import clock_of
from facade.kernel.runtime.steps import run_steps
from facade.kernel.runtime.stopping import end_process

os.environ.pop("PYTANGO_DISABLE_TELEMETRY_PATCHING", None)  # child processes may trace

_log = logging.getLogger(__name__)

STANDBY = "--standby"
"""Option of a process that waits while another one serves its instance."""
EVENT_LOOP = "event-loop"
"""Name of the thread that reads and pushes."""
USAGE = 2
"""Exit code of a wrong call."""
_GATHER = 0.05
"""Time that snapshots, states and dead letters gather before they leave together [s]."""
_LIBRARIES = {"pytango": "tango", "confluent-kafka": "confluent_kafka", "msgspec": "msgspec", "numpy": "numpy"}
"""Packages with shown versions, by the modules that have them: reading the metadata takes longer."""
HIGH_WATER_MARK = "20000"
"""Events that ZMQ keeps for a slow client, at either end; Tango's default of 1000 is one burst of a rack."""
GIL_SHARE = 0.0005
"""Longest time that a thread runs while another one waits for Python's lock [s]. A read of a whole device takes the
lock for each attribute: with Python's default it waits 5 ms for each, while the event loop works."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the device server; arguments are Tango's: the instance, then options such as ``-v4``.

    With ``--standby`` it waits until no other process serves the instance.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    is_standby = STANDBY in arguments
    arguments = [argument for argument in arguments if argument != STANDBY]
    if not arguments or arguments[0].startswith("-"):
        os.write(2, f"usage: {SERVER} INSTANCE [{STANDBY}] [Tango options]\nfor example: {SERVER} control\n".encode())
        sys.exit(USAGE)
    for name in ("TANGO_DS_EVENT_BUFFER_HWM", "TANGO_EVENT_BUFFER_HWM"):
        os.environ.setdefault(name, HIGH_WATER_MARK)
    sys.setswitchinterval(GIL_SHARE)
    try:
        start_logging(f"tango-server:{SERVER}/{arguments[0]}")
        put_first()
        icd, settings = load(), load_settings()
        arguments[0] = instance_of(icd.telescope, arguments[0])
        start_log_export(icd, settings, f"{SERVER}-{arguments[0]}", SystemClock())
        tracing.start(f"{SERVER}-{arguments[0]}")
        pulse = None
        if is_standby:
            device_classes(icd, _wanted(icd, arguments))  # imports the modules for the start ahead of time
            pulse = await_turn(settings, arguments[0])
            put_first()  # it may have waited for days
        _serve(icd, settings, arguments, pulse)
        _leave()
    except FacadeError as error:
        sys.exit(f"{SERVER} {arguments[0]}: {error}")
    except tango.DevFailed as failed:
        sys.exit(f"{SERVER} {arguments[0]}: Tango: {failed.args[0].desc} (TANGO_HOST={os.environ.get('TANGO_HOST')})")


def _serve(icd: Icd, settings: Settings, arguments: list[str], pulse: Pulse | None = None) -> None:
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def start() -> None:
        try:
            service = _assemble(icd, settings, arguments[0])
            end_when_replaced(service, pulse)
            if tango.Util.instance()._UseDb:  # noqa: SLF001 - Tango has no other name for it
                service.threads.append(Exporting().run)
            serve_metrics(service.event_loop.accounts, service.metrics)
        except Exception as error:  # Tango would swallow it, and continue without an event loop
            if not isinstance(error, FacadeError):
                _log.exception("server cannot start instance=%s", arguments[0])
            tango.Util.instance().unregister_server()
            os.write(2, f"{SERVER} {arguments[0]}: {error}\n".encode())
            logging.shutdown()
            os._exit(1)
        FacadeDevice.service, FacadeDevice.begin_anew = service, service.publisher.begin_anew
        threads.append(threading.Thread(target=_run_event_loop, args=(service, stop), name=EVENT_LOOP, daemon=True))
        threads.extend(threading.Thread(target=run, args=(stop,), daemon=True) for run in service.threads)
        levels = LogLevels(_loggers)
        levels.start(arguments[1:])
        threads.append(threading.Thread(target=levels.run, args=(stop,), name="log-level", daemon=True))
        # Tango deletes the devices at once when it is asked to end: pushing threads must end before.
        FacadeDevice.before_end = end_by_signal
        for device in [*FacadeDevice.present.values()][:1]:
            for number in (signal.SIGTERM, signal.SIGINT):
                device.register_signal(number)
        for thread in threads:
            thread.start()

    def end() -> None:
        stop.set()
        for thread in threads:
            thread.join(4.0 if thread.name == EVENT_LOOP else 0.5)  # the other threads write nothing

    def end_by_signal() -> None:
        end()
        if is_exported() is False:  # Tango would unexport the devices of the process that serves them
            _log.error("another process serves %s now: this one ends", arguments[0])
            end_process(1)

    classes = tuple(device_classes(icd, _wanted(icd, arguments)))
    # Otherwise Tango would end with exit code 0, whatever has failed.
    run(classes, args=[SERVER, *arguments], post_init_callback=start, raises=True)
    end()


def _leave() -> None:
    """End the process.

    Otherwise an answer for the Kafka client may end the process with SIGSEGV while Python finalizes: its thread calls
    Python.
    """
    if not tracing.enabled():  # its spans are sent while Python finalizes
        end_process()


def _wanted(icd: Icd, arguments: Sequence[str]) -> list[str]:
    """Return the device classes of this instance: a server loads no others.

    Raises
    ------
    ConfigError
        The database has no such instance, or none of its devices has a class of the interface.
    """
    if any(argument.startswith(("-nodb", "-file")) for argument in arguments):
        # Without a database Tango gives a class without a device on the command line one called NoName, and fails for
        # two.
        text = " ".join(arguments).lower()
        return [name for name in icd.classes if f"{name.lower()}::" in text] or list(icd.classes)
    # Otherwise Tango would end the process itself, without naming the address.
    database = tango.Database()
    # Tango's names are case-insensitive; its own administration device remains after all others have been deleted.
    names = database.get_device_class_list(f"{SERVER}/{arguments[0]}").value_string[1::2]
    listed = {name.lower() for name in names} - {"dserver"}
    if not listed:
        known = ", ".join(name.partition("/")[2] for name in database.get_server_list(f"{SERVER}/*")) or "none"
        raise ConfigError(
            f"expected an instance of the Tango database {database.get_db_host()}:{database.get_db_port()}, which are: "
            f"{known}; register it: {PROGRAM} register"
        )
    wanted = [name for name in icd.classes if name.lower() in listed]
    if odd := ", ".join(sorted(listed - {name.lower() for name in wanted})):
        what = f"device classes of {arguments[0]}: expected some of {', '.join(icd.classes)}, got {odd}"
        if not wanted:
            raise ConfigError(what)
        _log.warning("%s", what)
    _mend_export(database, arguments[0])
    return wanted


def _mend_export(database: tango.Database, instance: str) -> None:
    """Unexport an instance whose admin device has no address: Tango ends with an unknown exception there.

    Astor exports it in this form for a moment before a first start, and pytango-db does not unexport it.
    """
    server = f"{SERVER}/{instance}"
    try:
        found = database.get_device_info(f"dserver/{server}")
    except tango.DevFailed:  # it was never started
        return
    if found.exported and not found.ior.upper().startswith("IOR:"):
        _log.warning("server=%s was exported with the unusable address %r; it is unexported now", server, found.ior)
        database.unexport_server(server)


def _assemble(icd: Icd, settings: Settings, instance: str) -> Server:
    devices: dict[str, list[str]] = {}
    for device in FacadeDevice.present.values():
        devices.setdefault(type(device).__name__, []).append(device.get_name().lower())
    FacadeDevice.clock = clock = clock_of(settings)
    bus = KafkaBus(Connection(settings, clock=clock), client=f"{SERVER}-{instance}", linger=_GATHER)
    return Server(
        icd,
        settings,
        {name: sorted(names) for name, names in devices.items()},
        TangoSink(),
        bus,
        instance=f"{SERVER}-{instance}",
        clock=clock,
        versions=_versions(icd),
        limits=set_limits,
    )


# --- Log levels: Tango's SetLoggingLevel ---
#
# Tango keeps a level per device; the Python loggers of the process have one. So the process logs as its most talkative
# device. At the start each device has the level of the process, unless Tango's option -v says another.

_LOOK = 0.5
"""Time between two checks of the levels [s]."""

_LEVELS = {
    0: logging.CRITICAL + 1,
    100: logging.CRITICAL + 1,
    200: logging.CRITICAL,
    300: logging.ERROR,
    400: logging.WARNING,
    500: logging.INFO,
    600: logging.DEBUG,
}
"""Level of Tango's logger to level of Python's; above CRITICAL is off."""


class TangoLogger(Protocol):
    """The logger that Tango keeps for a device."""

    def get_level(self) -> int:
        """Return the level."""

    def set_level(self, level: int) -> None:
        """Set the level."""


class LogLevels:
    """Follows the levels of some devices with the level of the process.

    Parameters
    ----------
    loggers
        Returns the loggers of the present devices.
    """

    def __init__(self, loggers: Callable[[], Iterable[TangoLogger]]) -> None:
        self._loggers = loggers
        self._seen = logging.root.level

    def start(self, arguments: Sequence[str]) -> None:
        """Synchronize both sides: Tango follows the process, unless the server was started with -v."""
        if any(argument.startswith("-v") for argument in arguments):
            return
        wanted = max(tango for tango, level in _LEVELS.items() if level >= self._seen)
        for logger in self._loggers():
            logger.set_level(wanted)

    def step(self) -> None:
        """Adopt the levels set in Tango."""
        found = min((_LEVELS[logger.get_level()] for logger in self._loggers()), default=self._seen)
        if found != self._seen:
            self._seen = found
            off = found > logging.CRITICAL
            logging.root.setLevel(min(found, logging.CRITICAL))
            said = min(max(found, logging.WARNING), logging.CRITICAL)
            _log.log(said, "log level is now %s, as Tango says", "OFF" if off else logging.getLevelName(found))
            logging.root.setLevel(found)

    def run(self, stop: threading.Event) -> None:
        """Follow the levels until `stop` is set."""
        run_steps(self.step, stop, "looking at the log levels", each=_LOOK)


def _loggers() -> Iterator[TangoLogger]:
    with FacadeDevice.at_hand:  # Tango deletes the logger with its device
        yield from (device.get_logger() for device in FacadeDevice.present.values())


def _run_event_loop(service: Server, stop: threading.Event) -> None:
    with tango.EnsureOmniThread():
        service.event_loop.run(stop)


def _versions(icd: Icd) -> dict[str, str]:
    libraries = {name: sys.modules[module].__version__ for name, module in _LIBRARIES.items()}
    versions = {"facade": __version__, "icd": icd.version, "libraries": libraries}
    return {"versionId": __version__, f"{SHORT}Version": json.dumps(versions)}


if __name__ == "__main__":
    main()
