"""Logs and metrics of a simulated site: shippers that write them, two workers, and sums that must be what was sent."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from facade.flows.logs.flow import LogFlow
from facade.flows.logs.messages import LOGS, METRICS, TOPICS
from facade.flows.logs.records import LOG_SEVERITIES
from facade.flows.logs.worker import log_worker
from facade.kernel.bus.kafka.producer import KafkaStreamWriter
from facade.kernel.bus.kafka.transactions import KafkaTransactionalLog
from facade.kernel.bus.port import BusHealth
from facade.kernel.icd.load import load
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.site import Site

ICD = load()
GROUP = "logs-aggregate"
SLOTS = SHIPPERS = 2
_PAUSE = 0.8
"""Longest pause of a shipper between two records [s]."""
_PRIORITIES = {131: "ERROR", 132: "WARN", 134: "INFO"}
"""Severity by the priority of syslog (facility local0)."""
_COMPONENTS = ("flagger", "receiver")


class Shipping:
    """Who writes logs and metrics, and how many."""

    def __init__(self) -> None:
        self.is_sending = True
        self.severities: Counter[str] = Counter()
        self.components: Counter[str] = Counter()
        self.metrics = 0

    def add(self, site: "Site") -> None:
        for number in range(SHIPPERS):
            site.bodies[f"node-{number}-shipper"] = partial(self._ship, f"n{number}", site)
        for slot in range(SLOTS):
            site.bodies[f"{GROUP}-{slot}"] = partial(self._aggregate, str(slot), site)

    def sent(self, topic: str) -> int:
        """Return how many records of a topic were sent."""
        return self.metrics if topic == METRICS else self.severities.total()

    def _ship(self, host: str, site: "Site", process: Process) -> None:
        writer = KafkaStreamWriter(site.connection(process), health=BusHealth(), client=process.name, linger=0.005)
        random, number, key = site.scheduler.random, 0, [f"r0/{host}".encode()]
        while True:
            process.clock.sleep(random.random() * _PAUSE)
            if not self.is_sending:
                continue
            now = process.clock.now()
            if random.random() < 0.2:
                value = {"values": [now % 100.0], "time": now, "host": host, "plugin": "load", "type": "load"}
                writer.send_many(METRICS, key, [msgspec.json.encode([value])])
                self.metrics += 1
            else:
                number += 1
                priority, component = random.choice([*_PRIORITIES]), random.choice(_COMPONENTS)
                time = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
                numbered = f'[meta sequenceId="{number}"]'
                line = f"<{priority}>1 {time} {host} {component} - - {numbered} {number} of {host}"
                writer.send_many(LOGS, key, [line.encode()])
                self.severities[_PRIORITIES[priority]] += 1
                self.components[component] += 1
            writer.poll()

    def _aggregate(self, slot: str, site: "Site", process: Process) -> None:
        """Be a worker; see `facade.flows.logs.cli`."""
        connection = site.connection(process)
        log = KafkaTransactionalLog(
            connection, *TOPICS, group=GROUP, slot=slot, health=BusHealth(), outputs=ICD.outputs(GROUP)
        )
        site.work(process, log_worker(log, ICD, slot=slot, clock=process.clock), connection)

    def differences(self, site: "Site") -> Iterator[str]:
        """Say where sums are not what was sent."""
        (flow,) = (one for one in site.servers["logs"].flows if isinstance(one, LogFlow))
        state = flow.state
        shown = site.value("mid-sdp/logs/0", "severityRecords") or ()
        found = {name: count for name, count in zip(LOG_SEVERITIES, shown, strict=False) if count}
        if found != +self.severities:
            yield f"logs by severity: sent {dict(self.severities)}, shown {found}"
        by_component = {name: one.records for name, one in state.components.items() if one.records}
        if by_component != +self.components:
            yield f"logs by component: sent {dict(self.components)}, counted {by_component}"
        if state.late or state.merged or state.numbers.holes:
            yield f"logs: {state.late} late, {state.merged} merged, {state.numbers.holes} numbers missing"
