"""The demo's logs and metrics: rsyslog and collectd ship them, and SdpLogs shows each record once."""

import re
import threading
from collections import Counter
from typing import Any, Final

import msgspec

from facade.bus.kafka.bus import KafkaBus
from facade.bus.port import Record
from facade.flows.logs.messages import LOGS, METRICS
from facade.flows.logs.records import SEVERITIES
from proving.demo.account import Line, disagreeing
from proving.demo.options import DRAINS_WITHIN, FLOWS_WITHIN
from proving.demo.system import LOG_WORKER, Demo
from proving.shippers import COLLECTD, RSYSLOG, LogSocket, Shippers

_CLASS = "SdpLogs"
_PROGRAM = "flagger"
_NODE = "r07/node-0007"
_PERIOD = 0.005
"""Time between two records of the log [s]."""
_ERROR, _INFO = 11, 14
"""Priorities of syslog: user.err and user.info."""
_ERRORS_EACH = 100
"""One in so many records is an error."""
_SEVERITY: Final = ("FATAL", "ERROR", "ERROR", "ERROR", "WARN", "INFO", "INFO", "DEBUG")
"""Of SdpLogs, for each severity of syslog."""
_HEADER = re.compile(rb"<(\d{1,3})>1 \S+ \S+ (\S+) ")
_CONFIRMED_WITHIN = 30.0


class LogScenario:
    """Writes a log which rsyslog ships, kills the worker that counts it, and compares what is shown with the topics."""

    def __init__(self, demo: Demo) -> None:
        self._demo, self._progress = demo, demo.progress
        self._device = demo.tango_side.devices[_CLASS][0]
        self._folder = demo.options.folder / "shippers"
        self._written: Counter[int] = Counter()
        """Records of the log, by priority."""
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)

    def begin(self) -> None:
        """Start the shippers, and write the log from now on.

        Raises
        ------
        InfraError
            They cannot be had, or do not start.
        """
        shippers, address = Shippers(self._folder, self._progress.step), self._folder / "log"
        shippers.rsyslog(self._demo.deployment, address)
        shippers.collectd(self._demo.deployment, _NODE)
        self._progress.demand(address.exists, FLOWS_WITHIN, "rsyslog listens")
        self._socket = LogSocket(address)
        self._writer.start()
        nonsense = Record(topic=LOGS, key=_NODE.encode(), value=b"\xff\xfe what is this")
        self._bus().writer().send_durably(nonsense, _CONFIRMED_WITHIN)
        self._progress.demand(lambda: self._shown("records") > 0, FLOWS_WITHIN, "SdpLogs shows records")
        self._progress.step(f"rsyslog and collectd ship: {1 / _PERIOD:.0f} records/s of a log, metrics of this machine")

    def kill(self) -> None:
        """Kill the worker, and start it again; what is written meanwhile is on the bus.

        Raises
        ------
        InfraError
            It counts no more.
        """
        before = self._shown("records")
        self._demo.report.logs_recovery = took = self._demo.restart(
            LOG_WORKER,
            f"{LOG_WORKER}, which counts logs",
            lambda *_: self._shown("records") > before,
            "further records",
        )
        self._progress.step(f"further records are counted {took:.2f} s after the worker's new start")

    def account(self) -> None:
        """Stop the shippers, and put what was written, what came, and what devices show into the report."""
        self._stop.set()
        self._writer.join()
        self._progress.wait_until(lambda: self._came()[_PROGRAM] >= self._written.total(), FLOWS_WITHIN)
        for name in (RSYSLOG, COLLECTD):
            self._demo.processes.stop(name)
        consumed = {"logsConsumed": len(self._read(LOGS)), "metricsConsumed": self._metrics()}
        self._progress.wait_until(
            lambda: all(self._figure(name) == count for name, count in consumed.items()), DRAINS_WITHIN
        )
        self._progress.wait_until(lambda: self._shown("records") == consumed["logsConsumed"] - 1, DRAINS_WITHIN)
        report, came = self._demo.report, self._came()
        expected = {**consumed, "logsDeadLettered": 1, "metricsDeadLettered": 0}
        expected |= dict.fromkeys(("logsBalance", "metricsBalance", "logsSummaryBalance", "logsSkipped"), 0)
        shown = dict(zip(SEVERITIES, self._read_one("severityRecords", ()), strict=False))
        report.log_account = [
            Line(RSYSLOG, "records written to the log that it shipped", self._written.total(), came[_PROGRAM]),
            *(
                Line(self._device, f"records of {name} on the topic", came[name], shown.get(name))
                for name in SEVERITIES
                if came[name] or shown.get(name)
            ),
            Line(self._device, "numbers of rsyslog that are missing", 0, self._read_one("holes", None)),
            *(Line("SdpBus", name, count, self._figure(name)) for name, count in expected.items()),
        ]
        report.failures += disagreeing("logs", report.log_account)
        if not consumed["metricsConsumed"]:
            report.failures.append("logs: expected metrics of collectd, got none")

    def close(self) -> None:
        """Write no more."""
        self._stop.set()

    def _write(self) -> None:
        while not self._stop.wait(_PERIOD):
            number = self._written.total()
            priority = _INFO if number % _ERRORS_EACH else _ERROR
            self._socket.write(priority, _PROGRAM, f"record {number}")
            self._written[priority] += 1
        self._socket.close()

    def _came(self) -> Counter[str]:
        """Return how many records of the log are on the topic: by severity, and those of our program."""
        found: Counter[str] = Counter()
        for record in self._read(LOGS):
            if (header := _HEADER.match(record.value or b"")) is not None:
                found[_SEVERITY[int(header[1]) % 8]] += 1
                found[_PROGRAM] += header[2].decode() == _PROGRAM
        return found

    def _metrics(self) -> int:
        return sum(len(msgspec.json.decode(record.value or b"[]", type=list[Any])) for record in self._read(METRICS))

    def _read(self, topic: str) -> list[Record]:
        return self._bus().read_all(topic)

    def _bus(self) -> KafkaBus:
        return KafkaBus(self._demo.deployment.connection, client="demo-logs")

    def _shown(self, attribute: str) -> int:
        return int(self._read_one(attribute, None) or 0)

    def _read_one(self, attribute: str, default: Any) -> Any:
        shown = self._demo.tango_side.read(self._device, [attribute]).get(attribute)
        if shown is None or shown.value is None:
            return default
        return shown.value if isinstance(shown.value, int) else [int(one) for one in shown.value]

    def _figure(self, name: str) -> int | None:
        shown = self._demo.tango_side.bus(name).get(name)
        return None if shown is None or shown.value is None else int(shown.value)
