"""Logs and metrics in the demo: rsyslog and collectd as Debian has them, and the account of their records."""

import ctypes
import os
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from facade.admin.quotas import name_of
from facade.flows.logs.export import NAMESPACE
from facade.flows.logs.messages import LOGS, METRICS
from facade.flows.logs.records import LOG_SEVERITIES
from facade.infra.processes import Process
from facade.infra.tools import Notify
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.port import Record
from facade.kernel.errors import InfraError
from facade.kernel.names import SERVER
from facade.kernel.resources import resource
from sdp_facade_clients.terminal import BUS
from sdp_facade_lab.debian import SHIPPERS, unpacked_packages
from sdp_facade_lab.demo.options import FLOWS_WITHIN
from sdp_facade_lab.demo.system import LOG_WORKER, Demo, controller_components
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.heap_account import DRAINS_WITHIN, BalanceLine

RSYSLOG, COLLECTD = "rsyslog", "collectd"
_ROLE = "shipper"
_SCRAM_SINCE = 0x020601FF
"""Version of librdkafka 2.6.1. Earlier ones repeat the client's nonce, and Kafka 4 refuses them."""
_LONGEST_WRITE = 60.0
"""Longest wait for a daemon to take a record [s]."""
_LONGEST_PATH = 107
"""Of a Unix socket [bytes]."""


class Shippers:
    """The programs, unpacked into a folder of the user; nothing is installed.

    Parameters
    ----------
    folder
        For their configurations and what waits to be sent.

    Raises
    ------
    InfraError
        Debian's packages cannot be had; the message says why, and how to do without.
    """

    def __init__(self, folder: Path, report: Notify) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._unpacked = folder, unpacked_packages(SHIPPERS, report)
        self._root = self._unpacked.path

    def rsyslog(self, deployment: Deployment, address: Path) -> Process:
        """Start rsyslog, which takes what programs write to a socket."""
        if len(os.fsencode(address)) > _LONGEST_PATH:
            raise InfraError(f"{address}: expected a path of at most {_LONGEST_PATH} bytes for a Unix socket")
        address.unlink(missing_ok=True)
        changes = {
            "/var/spool/rsyslog": str(self._folder),
            'module(load="imuxsock")': 'module(load="imuxsock" SysSock.Use="off")\n'
            f'input(type="imuxsock" Socket="{address}")',
            "localhost:9092": deployment.settings.bootstrap,
            "sdp.logs": deployment.connection.topic("logs"),
            '"client.id=sdp-shipper"': ", ".join(f'"{name}={value}"' for name, value in self._login(deployment)),
        }
        modules = next(path for one in self._unpacked.libraries if (path := one / "rsyslog").is_dir())
        argv = [f"{self._root}/usr/sbin/rsyslogd", "-n", "-i", "NONE", "-M", str(modules), "-f"]
        return self._start(deployment, RSYSLOG, argv, changes)

    def collectd(self, deployment: Deployment, key: str) -> Process:
        changes = {
            "Interval 10": f'Interval 1\nBaseDir "{self._folder}"\nPIDFile "{self._folder}/collectd.pid"\n'
            f'PluginDir "{self._root}/usr/lib/collectd"\nHostname "{key.rpartition("/")[2]}"\nFQDNLookup false',
            "/usr/share/collectd": f"{self._root}/usr/share/collectd",
            "localhost:9092": deployment.settings.bootstrap,
            "sdp.metrics": deployment.connection.topic("metrics"),
            "r01/node-0001": key,
            'Property "client.id" "sdp-shipper"': "\n    ".join(
                f'Property "{name}" "{value}"' for name, value in self._login(deployment)
            ),
        }
        return self._start(deployment, COLLECTD, [f"{self._root}/usr/sbin/collectd", "-f", "-C"], changes)

    def _login(self, deployment: Deployment) -> Iterable[tuple[str, str]]:
        return {"client.id": name_of(_ROLE), **deployment.login(_ROLE)}.items()

    def _start(self, deployment: Deployment, name: str, argv: list[str], changes: Mapping[str, str]) -> Process:
        text = (resource("packaging", "shippers") / f"{name}.conf").read_text()
        for old, new in changes.items():
            if old not in text:
                raise InfraError(f"{name}.conf: expected {old!r} in it, which is changed here")
            text = text.replace(old, new)
        file = self._folder / f"{name}.conf"
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)  # it has the password, if there is one
        file.write_text(text)
        libraries = self._unpacked.environment()["LD_LIBRARY_PATH"]
        inherited = filter(None, (libraries, os.environ.get("LD_LIBRARY_PATH")))
        return deployment.start(name, [*argv, str(file)], login=None, LD_LIBRARY_PATH=os.pathsep.join(inherited))


def require_scram(report: Notify) -> None:
    """Make sure that the shippers of this distribution can log in at a secured broker.

    Raises
    ------
    InfraError
        They cannot, or cannot be had.
    """
    folders = unpacked_packages(SHIPPERS, report).libraries
    library = ctypes.CDLL(next(str(path) for one in folders if (path := one / "librdkafka.so.1").exists()))
    if library.rd_kafka_version() < _SCRAM_SINCE:
        raise InfraError(
            "logs: rsyslog and collectd of this distribution have a librdkafka before 2.6.1, which Kafka lets log in by"
            " SCRAM no more; do without `--logs`, with `--all --no-logs`, or without `--secure`"
        )


class LogSocket:
    """Writes to a log as the C library does; a daemon that cannot keep up holds the writer up, but not for ever."""

    def __init__(self, address: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_LONGEST_WRITE)
        self._socket.connect(str(address))

    def write(self, priority: int, program: str, text: str) -> None:
        self._socket.send(f"<{priority}>Nov 23 10:00:00 {program}[7]: {text}".encode())

    def close(self) -> None:
        self._socket.close()


_CLASS = "SdpLogs"
_PROGRAM = "flagger"
_NODE = "r07/node-0007"
_PERIOD = 0.005
"""Time between two records of the log [s]."""
_ERROR, _INFO = 11, 14
"""Priorities of syslog: user.err and user.info."""
_ERRORS_EACH = 100
"""Number of records for each error among them."""
_SEVERITY: Final = ("FATAL", "ERROR", "ERROR", "ERROR", "WARN", "INFO", "INFO", "DEBUG")
"""Of SdpLogs, for each severity of syslog."""
_HEADER = re.compile(rb"<(\d{1,3})>1 \S+ \S+ (\S+) ")
_CONFIRMED_WITHIN = 30.0
_WRITES_WITHIN = 70.0
"""Longest wait for the writer of the log to end [s]: it gives up a write after a minute."""
_BY_NUMBER: Final = ((21, "FATAL"), (17, "ERROR"), (13, "WARN"), (9, "INFO"), (5, "DEBUG"))
"""Severity of SdpLogs from which number of OpenTelemetry's on."""


class Came:
    """Counts of the records on the topic: lines of rsyslog, batches of our own processes, and unreadable records."""

    def __init__(self) -> None:
        self.lines = 0
        """A batch has several."""
        self.nonsense = 0
        """Unreadable records."""
        self.severities: Counter[str] = Counter()
        """Lines by severity, as SdpLogs names it."""
        self.programs: Counter[str] = Counter()
        """Lines by program or component."""

    def add(self, value: bytes) -> None:
        if (header := _HEADER.match(value)) is not None:
            self._count(header[2].decode(), _SEVERITY[int(header[1]) % 8])
        elif value.startswith(b"{"):
            for resource in msgspec.json.decode(value)["resourceLogs"]:
                names = {one["key"]: one["value"]["stringValue"] for one in resource["resource"]["attributes"]}
                for scope in resource["scopeLogs"]:
                    for one in scope["logRecords"]:
                        severity = next(name for least, name in _BY_NUMBER if one["severityNumber"] >= least)
                        self._count(names["service.name"], severity)
        else:
            self.lines += 1
            self.nonsense += 1

    def _count(self, program: str, severity: str) -> None:
        self.lines += 1
        self.programs[program] += 1
        self.severities[severity] += 1


def _own_components(demo: Demo) -> set[str]:
    """Return under which names device servers and controllers log; a worker to which nothing happens says nothing."""
    servers = {f"{SERVER}-{instance}" for instance in demo.deployment.instances}
    return {*servers, *(controller_components(demo.options) if demo.options.controller else ())}


class LogChapter:
    """Writes a log that rsyslog ships, kills the worker that counts it, and compares SdpLogs with the topics."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress = demo, demo.progress
        self._device = demo.tango_side.devices[_CLASS][0]
        self._folder = demo.options.folder / "shippers"
        self._written: Counter[int] = Counter()
        """Records of the log, by priority."""
        self._failure = ""
        """Why no more could be written."""
        self._lines: list[BalanceLine] = []
        """The account at the last comparison."""
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)

    def begin(self) -> None:
        """Start the shippers, and write the log from now on."""
        shippers, address = Shippers(self._folder, self._progress.step), self._folder / "log"
        shippers.rsyslog(self._demo.deployment, address)
        shippers.collectd(self._demo.deployment, _NODE)
        self._progress.demand(address.exists, FLOWS_WITHIN, "rsyslog listens")
        self._socket = LogSocket(address)
        self._writer.start()
        nonsense = Record(topic=LOGS, key=_NODE.encode(), value=b"\xff\xfe what is this")
        shipper = KafkaBus(self._demo.deployment.connection_of(_ROLE), client="demo-logs")
        shipper.writer().send_durably(nonsense, _CONFIRMED_WITHIN)
        self._progress.demand(lambda: self._shown("records") > 0, FLOWS_WITHIN, "SdpLogs shows records")
        self._progress.step(
            f"rsyslog and collectd ship: {1 / _PERIOD:.0f} records/s of a log, metrics of this machine; the demo's own"
            " processes send their logs"
        )

    def kill(self) -> None:
        before = self._shown("records")
        self._demo.crash(
            "logs", LOG_WORKER, f"{LOG_WORKER}, which counts logs", lambda *_: self._shown("records") > before
        )

    def account(self) -> None:
        report = self._demo.report
        self._stop.set()
        self._writer.join(_WRITES_WITHIN)
        if self._failure or self._writer.is_alive():
            report.failures.append(
                f"logs: {RSYSLOG} took no more of the log: {self._failure or 'it holds the writer up'}"
            )
        self._progress.wait_until(
            lambda: self._came().programs[_PROGRAM] >= self._written.total(), FLOWS_WITHIN, f"{RSYSLOG} has sent all"
        )
        for name in (RSYSLOG, COLLECTD):
            self._demo.processes.stop(name)
        # Our own processes go on, and may log at any time: at some moment all figures are those of the topic.
        self._progress.wait_until(self._agree, DRAINS_WITHIN, "SdpLogs shows what is on the topics")
        self._demo.balance("logs", self._lines)
        if not any(line.what == "metricsConsumed" and line.expected for line in self._lines):
            report.failures.append("logs: expected metrics of collectd, got none")

    def _agree(self) -> bool:
        came = self._came()
        consumed = {"logsConsumed": came.lines, "metricsConsumed": self._metrics()}
        expected = {**consumed, "logsDeadLettered": came.nonsense, "metricsDeadLettered": 0}
        expected |= dict.fromkeys(("logsBalance", "metricsBalance", "logsSummaryBalance", "logsSkipped"), 0)
        shown = dict(zip(LOG_SEVERITIES, self._read_one("severityRecords", ()), strict=False))
        bus = self._demo.deployment.values(self._demo.tango_side.devices[BUS][0], *expected)
        own, found = _own_components(self._demo), came.programs.keys()
        self._lines = [
            BalanceLine(
                RSYSLOG, "records written to the log that it shipped", self._written.total(), came.programs[_PROGRAM]
            ),
            BalanceLine(NAMESPACE, "servers and controllers whose log is on the topic", len(own), len(own & found)),
            BalanceLine(self._device, "records", came.lines - came.nonsense, self._read_one("records", None)),
            *(
                BalanceLine(self._device, f"records of {name} on the topic", came.severities[name], shown.get(name))
                for name in LOG_SEVERITIES
                if came.severities[name] or shown.get(name)
            ),
            BalanceLine(self._device, "numbers that are missing", 0, self._read_one("holes", None)),
            *(BalanceLine("SdpBus", name, count, bus.get(name)) for name, count in expected.items()),
        ]
        return all(line.agrees for line in self._lines)

    def close(self) -> None:
        self._stop.set()

    def _write(self) -> None:
        try:
            while not self._stop.wait(_PERIOD):
                number = self._written.total()
                priority = _INFO if number % _ERRORS_EACH else _ERROR
                self._socket.write(priority, _PROGRAM, f"record {number}")
                self._written[priority] += 1
        except OSError as error:
            self._failure = str(error)
        finally:
            self._socket.close()

    def _came(self) -> Came:
        came = Came()
        for record in self._read(LOGS):
            came.add(record.value or b"")
        return came

    def _metrics(self) -> int:
        return sum(len(msgspec.json.decode(record.value or b"[]", type=list[Any])) for record in self._read(METRICS))

    def _read(self, topic: str) -> list[Record]:
        return self._demo.look("demo-logs").read_all(topic)

    def _shown(self, attribute: str) -> int:
        return int(self._read_one(attribute, None) or 0)

    def _read_one(self, attribute: str, default: Any) -> Any:
        shown = self._demo.deployment.value(self._device, attribute)
        if shown is None:
            return default
        return shown if isinstance(shown, int) else [int(one) for one in shown]
