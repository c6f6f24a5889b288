"""The log lines of this process on the bus, as batches of OTLP in its JSON form, beside those on its own output.

Logging only puts a line into a queue. A separate thread sends batches, one at a time. Lines logged in that thread are
not exported: otherwise the export would log about itself without end. Lines beyond the capacity of the queue are
dropped and counted; gaps in the numbers of the lines show it, and so does a line when the bus is back.
"""

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from facade import __version__
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth, QueueingWriter, Record
from facade.kernel.clock import Clock
from facade.kernel.config import Settings
from facade.kernel.errors import ConfigError
from facade.kernel.icd.model import Icd
from facade.kernel.names import PROGRAM, SHORT, VARIABLES
from facade.kernel.printable import printable

NAMESPACE: Final = PROGRAM
"""`service.namespace` of all processes that export their logs here. All of them also write heartbeats."""
SEQUENCE: Final = f"{SHORT}.sequence"
"""Attribute of a line: its number since the start of the process, from 1."""
RESOURCE_VARIABLE: Final = "OTEL_RESOURCE_ATTRIBUTES"
"""OpenTelemetry's variable that describes where a process runs."""

_MOST_LINES, _MOST_CHARACTERS = 10_000, 4_000_000
"""Capacity of the queue; later lines are dropped, so that the beginning of a trouble is kept."""
_LONGEST: Final = 8000
"""Longest text sent [characters]."""
_BATCH_LINES, _BATCH_CHARACTERS = 1000, 100_000
"""Limits of one record: its size stays below any topic's limit."""
_PATIENCE: Final = 400.0
"""Time after which the result of a batch is unknown [s]; the client gives up before."""
_IDLE, _BUSY = 0.25, 0.02
"""Time between two steps, while nothing is under way and while something is [s]."""
_LAST: Final = 1.0
"""Longest time for the rest when the process ends [s]."""
_SEVERITIES: Final = ((50, 21), (40, 17), (30, 13), (20, 9), (10, 5))
"""Level of Python's logging to OpenTelemetry's severity number."""
_PLACE: Final = ("host.name", "rack", "eb_id")
"""Attributes of `RESOURCE_VARIABLE` that are used."""

_log = logging.getLogger(__name__)


class Line(NamedTuple):
    """A queued log line."""

    number: int
    time: int
    """[Unix ns]."""
    level: int
    logger: str
    text: str
    thread: str = ""
    observation: str = ""
    """Id of the execution block, if the line was logged with ``extra={"eb_id": ...}``."""
    traceback: str = ""

    @property
    def size(self) -> int:
        """Return the number of characters that count."""
        return len(self.text) + len(self.traceback)


class LogExport(logging.Handler):
    """Queues log lines, and sends them in batches with `step`.

    Parameters
    ----------
    resource
        Attributes of this process, see `resource_of`.
    """

    def __init__(self, bus: QueueingWriter, topic: str, resource: Mapping[str, str], clock: Clock) -> None:
        super().__init__()
        self._bus, self._topic, self._resource, self._clock = bus, topic, dict(resource), clock
        rack, host = resource.get("rack", ""), resource.get("host.name", "")
        self._key = "/".join(part for part in (rack, host) if part).encode()
        self._lines: deque[Line] = deque()
        self._size = self._number = self._new_drops = 0
        # A signal handler may run, and log, in the middle of `emit`.
        self._guard = threading.RLock()
        self._under_way: tuple[int, int, int, float] | None = None
        """Mark after a batch, number of failures before it, its lines, and the time of queueing."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Lines that are known to be lost."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle a line without the lock of `logging.Handler`, which is held for the whole of `close`."""
        found = self.filter(record)
        if found:
            self.emit(record)
        return bool(found)

    def emit(self, record: logging.LogRecord) -> None:
        """Put a line into the queue, or count it as dropped; never waits, never raises."""
        if threading.current_thread() is self._thread:
            return
        try:
            traceback = record.exc_text or ""
            if not traceback and record.exc_info:
                traceback = logging.Formatter().formatException(record.exc_info)
            text, observation = record.getMessage()[:_LONGEST], str(getattr(record, "eb_id", ""))[:_LONGEST]
        except Exception:  # the other handlers have reported the fault
            text, observation, traceback = f"(cannot be formatted) {record.msg!s:.200}", "", ""
        self._put(record, text, observation, traceback[-_LONGEST:])

    def _put(self, record: logging.LogRecord, text: str, observation: str, traceback: str) -> None:
        time, thread = round(record.created * 1e9), record.threadName or ""
        with self._guard:
            self._number += 1
            line = Line(self._number, time, record.levelno, record.name, text, thread, observation, traceback)
            if len(self._lines) >= _MOST_LINES or self._size + line.size > _MOST_CHARACTERS:
                self._drop(1)
            else:
                self._lines.append(line)
                self._size += line.size

    def _drop(self, count: int) -> None:
        with self._guard:
            self.dropped += count
            self._new_drops += count

    def start(self) -> None:
        """Send from a separate thread until `close`."""
        self._thread = threading.Thread(target=self._run, name="log-export", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the rest, at most for a second; `logging.shutdown` calls it at the end of a process."""
        self._stop.set()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(_LAST)
        super().close()

    def _run(self) -> None:
        while not self._stop.wait(_BUSY if self._under_way else _IDLE):
            self._try()
        deadline = self._clock.monotonic() + _LAST
        while (self._lines or self._under_way) and self._clock.monotonic() < deadline:
            self._try()
            self._clock.sleep(_BUSY)

    def _try(self) -> None:
        try:
            self.step()
        except Exception:
            _log.exception("log export failed")
            self._clock.sleep(1.0)

    def step(self) -> None:
        """Check the result of the batch under way, then send the next one."""
        if self._under_way is not None and not self._learn(*self._under_way):
            return
        lines = self._next()
        if not lines:
            return
        before = self._bus.failures(self._topic)
        self._bus.send(Record(topic=self._topic, key=self._key, value=encode(lines, self._resource)))
        self._under_way = self._bus.mark(), before, len(lines), self._clock.monotonic()

    def _learn(self, mark: int, failures: int, lines: int, since: float) -> bool:
        if not self._bus.settled(mark):
            if self._clock.monotonic() - since < _PATIENCE:
                return False
            self._drop(lines)
        elif self._bus.failures(self._topic) > failures:
            self._drop(lines)
        elif self._new_drops:  # there is room for lines again
            self._tell()
        self._under_way = None
        return True

    def _tell(self) -> None:
        with self._guard:
            count, self._new_drops = self._new_drops, 0
            text = f"log lines dropped, as the bus did not take them: {count}"
            self._number += 1
            time = int(self._clock.now_us()) * 1000
            self._lines.append(Line(self._number, time, logging.WARNING, __name__, text))
            self._size += len(text)
        _log.warning("%s", text)

    def _next(self) -> list[Line]:
        found: list[Line] = []
        left = _BATCH_CHARACTERS
        with self._guard:
            while self._lines and len(found) < _BATCH_LINES and (left := left - self._lines[0].size) > 0:
                found.append(self._lines.popleft())
                self._size -= found[-1].size
        return found


def encode(lines: Sequence[Line], resource: Mapping[str, str]) -> bytes:
    """Return lines as an export request of OTLP in JSON. A scope is a logger, and the lines keep their order."""
    scopes = [
        {"scope": {"name": printable(name)}, "logRecords": [_record(one) for one in found]}
        for name, found in groupby(lines, lambda one: one.logger)
    ]
    own = [_attribute(name, text) for name, text in resource.items()]
    return msgspec.json.encode({"resourceLogs": [{"resource": {"attributes": own}, "scopeLogs": scopes}]})


def _record(line: Line) -> dict[str, Any]:
    texts = {"thread.name": line.thread, "eb_id": line.observation, "exception.stacktrace": line.traceback}
    number = {"key": SEQUENCE, "value": {"intValue": str(line.number)}}
    severity = next((found for level, found in _SEVERITIES if line.level >= level), 0)
    return {
        "timeUnixNano": str(line.time),
        "severityNumber": severity,
        "severityText": logging.getLevelName(line.level),
        "body": {"stringValue": printable(line.text, keep="\n")},
        "attributes": [number, *(_attribute(name, text) for name, text in texts.items() if text)],
    }


def _attribute(name: str, text: str) -> dict[str, Any]:
    return {"key": name, "value": {"stringValue": printable(text, keep="\n")}}


def resource_of(component: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the identity and the place of a process, as attributes of OpenTelemetry.

    Raises
    ------
    ConfigError
        `RESOURCE_VARIABLE` has another form than ``name=text,name=text``.
    """
    given = {}
    for part in filter(None, environment.get(RESOURCE_VARIABLE, "").split(",")):
        name, is_there, text = part.partition("=")
        if not is_there:
            raise ConfigError(f"{RESOURCE_VARIABLE}: expected name=text,name=text, got a part without =")
        given[name.strip()] = unquote(text.strip())
    place = {"host.name": socket.gethostname()} | {name: given[name] for name in _PLACE if given.get(name)}
    return {"service.namespace": NAMESPACE, "service.name": component, "service.version": __version__} | place


def start(icd: Icd, settings: Settings, component: str, clock: Clock) -> None:
    """Send the log of this process to the topic of the settings; see `facade.kernel.logs.start_log_export`.

    Raises
    ------
    ConfigError
        There is no such topic, or its records have a form of their own.
    """
    name = settings.log_export
    topic = icd.topics.get(name)
    if topic is None or topic.message is not None or topic.cleanup != "delete":
        what = f"expected a topic that takes logs, such as logs, got {name!r:.100}"
        raise ConfigError(f"log_export ({VARIABLES}LOG_EXPORT): {what}")
    writer = KafkaWriter(Connection(settings, clock=clock), health=BusHealth(), client=f"{component}-log")
    export = LogExport(writer, name, resource_of(component), clock)
    export.start()
    logging.getLogger().addHandler(export)
