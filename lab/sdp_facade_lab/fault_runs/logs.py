"""Logs through kills: they are shipped while workers, device server and broker are killed, and the group is reset.

Sent: records of twenty nodes, some of them not readable, some left out. Expected: each record once, by its severity,
and each hole and dead letter that was made. Observed: SdpLogs, and the account of the topic on SdpBus.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import tango

from facade.flows.logs.messages import LOGS
from facade.flows.logs.records import LOG_SEVERITIES
from facade.infra.processes import Process
from facade.kernel.bus.kafka.producer import KafkaStreamWriter
from facade.kernel.bus.port import BusHealth
from sdp_facade_lab.balance import Balance
from sdp_facade_lab.fault_runs.frame import BROKER, READY_WITHIN, RESET, SERVER, FaultRun, Size, process_name

_BURST = 1000
_WORKERS = ("worker 0", "worker 1")
_PRIORITIES = {11: "ERROR", 12: "WARN", 14: "INFO", 15: "DEBUG"}
"""Of syslog, and how SdpLogs calls them."""
_NODES = 20
_GARBAGE, _LOST = 0.001, 0.002
"""Parts of the records that are none, and that a shipper numbers and does not send."""


class LogFaultRun(FaultRun):
    """One run of the logs."""

    unit, all_is_well = "records", "each record is counted once; holes and dead letters are those that were made"
    full, short = Size(2_000_000, 10), Size(100_000, 1)
    settings: ClassVar = {"nodes": 1, "without": "mirror"}
    faults = (*_WORKERS, SERVER, BROKER, RESET)
    group, members = "logs-aggregate", _WORKERS
    between = (1.0, 4.0)

    def prepare(self) -> None:
        (self._device,) = self.deployment.devices("SdpLogs")
        (self._bus,) = self.deployment.devices("SdpBus")
        self._sent: Counter[str] = Counter()
        """By severity, and ``garbage``."""
        self._numbers: Counter[int] = Counter()
        """By node, how many numbers it has given."""
        self._lost = 0
        """How many of them are on no record that can be read."""
        self._shown = 0.0

    def parts(self) -> Mapping[str, Callable[[], Process]]:
        made = self.deployment
        words = ("logs", "aggregate", "--slot")
        return {
            **{name: partial(made.launch, process_name(name), *words, name[-1]) for name in _WORKERS},
            SERVER: partial(made.server, "logs", name=process_name(SERVER)),
            "control": partial(made.server, "control"),
        }

    def begin(self) -> None:
        self.demand(lambda: self._read() is not None, READY_WITHIN, SERVER)
        self._writer = KafkaStreamWriter(self.deployment.connection, health=BusHealth(), client="shipper")

    def step(self) -> bool:
        self._writer.poll()
        if self._numbers.total() < self.count:
            if self._writer.backlog < 10 * _BURST:
                self._send(min(_BURST, self.count - self._numbers.total()))
            self.moved = self.clock.monotonic()
            return True
        self._shown = sum((self._read() or {}).values())
        is_stuck = self.is_stuck(self._shown)
        return bool(self.left) or (self._shown < self._good and not is_stuck)

    def in_words(self) -> str:
        return f"{self._sent.total():,} sent, {self._shown:,.0f} shown"

    def account(self) -> Balance:
        self._writer.flush(READY_WITHIN)
        made = Balance()
        shown: dict[str, int] = {}
        figures: dict[str, Any] = {}
        expected = {"logsDeadLettered": self._sent["garbage"], "logsBalance": 0, "logsOverlap": 0, "logsSkipped": 0}
        wanted = {**expected, "holes": self._lost}

        def is_whole() -> bool:
            nonlocal shown, figures
            shown = self._read() or {}
            figures = {**self.deployment.values(self._bus, *expected), **self.deployment.values(self._device, "holes")}
            return sum(shown.values()) >= self._good and figures == wanted

        self.progress.wait_until(is_whole, READY_WITHIN, "the account is whole")
        for severity in _PRIORITIES.values():
            if shown.get(severity) != self._sent[severity]:
                found = f"expected {self._sent[severity]:,} records, got {shown.get(severity, 0):,}"
                made.wrong.append(f"{severity}: {found}")
        for name, number in wanted.items():
            if figures.get(name) != number:
                made.wrong.append(f"{name}: expected {number:,}, got {figures.get(name)}")
        made.rows += [
            ("records sent", self._sent.total()),
            ("of them no logs", self._sent["garbage"]),
            ("numbers that shippers left out", self._lost),
        ]
        return made

    @property
    def _good(self) -> int:
        return self._sent.total() - self._sent["garbage"]

    def _send(self, count: int) -> None:
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        for _ in range(count):
            node = self.chance.randrange(_NODES)
            self._numbers[node] += 1
            number, chance = self._numbers[node], self.chance.random()
            # The first one begins the numbers; the last ones are sent, as a hole at the end cannot be seen.
            may_lose = number > 1 and self._numbers.total() < self.count - 50 * _NODES
            if may_lose and chance < _LOST:
                self._lost += 1
                continue
            if may_lose and chance < _LOST + _GARBAGE:
                self._lost += 1
                self._sent["garbage"] += 1
                values.append(b"\x00 not a record of a log")
            else:
                priority = self.chance.choice(list(_PRIORITIES))
                self._sent[_PRIORITIES[priority]] += 1
                data = f'[meta sequenceId="{number}" rack="r01"]'
                values.append(f"<{priority}>1 - node-{node:02d} flagger 1 - {data} record {number}".encode())
            keys.append(b"r01/node-%02d" % node)
        self._writer.send_many(LOGS, keys, values)

    def _read(self) -> dict[str, int] | None:
        """Return the records that SdpLogs shows, by severity; None: it does not answer, or knows nothing yet."""
        shown = self.deployment.values(self._device, "severityRecords", "State")
        if shown.get("State") in (None, tango.DevState.UNKNOWN) or shown.get("severityRecords") is None:
            return None
        return dict(zip(LOG_SEVERITIES, map(int, shown["severityRecords"]), strict=True))
