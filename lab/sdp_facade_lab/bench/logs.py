"""Logs: the rate of one worker, and what a flood of them does to commands and alerts."""

import statistics
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from facade.admin import quotas
from facade.flows.logs.messages import LOGS
from facade.flows.logs.worker import log_worker
from facade.infra.kafka import configure
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.kafka.producer import KafkaStreamWriter
from facade.kernel.bus.port import BusHealth, TransactionalLog
from facade.kernel.icd.load import load
from facade.kernel.runtime.worker import TransactionalWorker
from sdp_facade_lab.bench.hops import WARM_UP, Measured, commands_and_alerts
from sdp_facade_lab.bench.load import MOST_WAITING, Filled, KeyedValues, pour
from sdp_facade_lab.bench.report import MEGA, BarVerdict, BenchOutcome, at_least, quantiles, ratios
from sdp_facade_lab.bench.throughput_roles import RoleTiming, time_worker
from sdp_facade_lab.deployment import Deployment
from sdp_facade_lab.roles import RoleContext
from sdp_facade_lab.testbed import Testbed

BATCH = 100
"""Records in one of OTLP."""
_AT_ONCE = 10_000
_NODES, _COMPONENTS = 50, 7
_TEXT = "channel {} of 1024 done, flags 17 %, noise 0.31 Jy, next block in 0.4 s; the buffer has 1,733 MB of room"


def fill(context: RoleContext, *, records: int, form: str) -> Filled:
    """Put logs on the topic: ``syslog``, each a record, or ``otlp``, 100 in a record as protobuf."""

    def batches() -> Iterator[KeyedValues]:
        for first in range(0, records, _AT_ONCE):
            now, numbers = context.clock.now(), range(first, min(first + _AT_ONCE, records))
            values = [_syslog(one, now) for one in numbers] if form == "syslog" else []
            values = values or [_otlp(one, now) for one in numbers[::BATCH]]
            yield [b"r01/node-%04d" % (number % _NODES) for number in range(len(values))], values

    return pour(context, LOGS, batches(), records)


def write_flood(context: RoleContext, *, client: str) -> Filled:
    """Write the log of one node as fast as the broker takes it, until called off."""
    clock = context.clock
    writer = KafkaStreamWriter(Connection(context.settings, clock=clock), health=BusHealth(), client=client)
    writer.require_topic(LOGS, 10.0)
    begin, value_bytes, made = clock.monotonic(), 0, 0
    values = [_syslog(number * _NODES, clock.now()) for number in range(_AT_ONCE)]
    keys = [b"r01/node-0000"] * len(values)
    each = sum(map(len, values))
    context.announce()
    while not context.called_off:
        while writer.backlog > MOST_WAITING and not context.called_off:
            writer.poll(0.005)
        writer.send_many(LOGS, keys, values)
        made, value_bytes = made + len(values), value_bytes + each
    seconds, waiting = clock.monotonic() - begin, writer.backlog
    writer.abandon()
    return Filled(records=made - waiting, value_bytes=round(value_bytes * (1 - waiting / made)), seconds=seconds)


def _syslog(number: int, now: float) -> bytes:
    time = datetime.fromtimestamp(now, UTC).isoformat()
    host, component = f"node-{number % _NODES:04d}", f"flagger-{number % _COMPONENTS}"
    data = f'[meta sequenceId="{number // _NODES + 1}" rack="r01"]'
    return f"<134>1 {time} {host} {component} 4711 - {data} {_TEXT.format(number)}".encode()


def _otlp(first: int, now: float) -> bytes:
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    for key, text in (("service.name", f"flagger-{first % _COMPONENTS}"), ("host.name", f"node-{first % _NODES:04d}")):
        group.resource.attributes.add(key=key).value.string_value = text
    scope = group.scope_logs.add()
    for number in range(first, first + BATCH):
        one = scope.log_records.add(time_unix_nano=round(now * 1e9), severity_number=9)
        one.body.string_value = _TEXT.format(number)
    return request.SerializeToString()


def worker(context: RoleContext, *, group: str, records: int, broker_pid: int) -> RoleTiming:
    def make(log: TransactionalLog) -> TransactionalWorker:
        return log_worker(log, load(), slot="0", clock=context.clock)

    return time_worker(context, LOGS, make, records, group=group, slot="0", broker_pid=broker_pid)


BAR = 0.5
"""Small records that one worker has to take [M/s]."""
_FORMS = {"syslog": 1, "otlp": BATCH}
"""Records in one of the bus."""


def logs(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    records, runs = (1_500_000, 2) if quick else (2_000_000, 3)
    verdicts: list[BarVerdict] = []
    for form, each in _FORMS.items():
        with testbed.deployment(f"logs-{form}", without="") as made:
            testbed.progress.step(f"  filling {LOGS} with {records:,} records as {form}")
            made.result(made.play(fill, ends=True, records=records, form=form), Filled, 1800.0)
            found = [_timed(made, records, number) for number in range(runs)]
        if each == 1:
            rates = ratios((one.rate / MEGA, 1.0) for one in found)
            verdicts.append(at_least(f"{form}: one worker, M records/s", rates, BAR))
        else:
            rate = statistics.median(one.rate * each for one in found) / MEGA
            verdicts.append(BarVerdict(f"{form}, {each} in each: one worker", f"{rate:.2f} M/s"))
    return BenchOutcome(
        what="one worker of logs (decoding, sums, numbers of shippers, transactions), M records/s",
        verdicts=tuple(verdicts),
    )


def _timed(made: Deployment, records: int, number: int) -> RoleTiming:
    task: dict[str, Any] = {"broker_pid": made.broker.pid, "records": records}
    return made.result(made.play(worker, ends=True, group=f"worker-{number}", **task), RoleTiming)


_QUOTA_BAR = 1.10
"""Times the p99 of quiet."""
_ROLE = "shipper"
_SETTLE = 5.0
_QUIET, _FREE, _LIMITED = "quiet", "flood without quotas", "flood with quotas"


def flood(testbed: Testbed, *, quick: bool) -> BenchOutcome:
    found: dict[str, Measured] = {}
    rates: dict[str, float] = {}
    with commands_and_alerts(testbed, "flood", quick=quick) as (system, measure):
        found[_QUIET] = measure(_QUIET, WARM_UP)
        for label in (_FREE, _LIMITED):
            if label == _LIMITED:
                _limit(system)
            client = quotas.name_of(_ROLE)
            flooding = system.play(write_flood, client=client)
            system.await_ready(flooding)
            testbed.progress.wait(_SETTLE, "warm-up")
            found[label] = measure(label)
            flooding.call_off()
            filled = system.result(flooding, Filled)
            rates[label] = filled.value_bytes / filled.seconds / MEGA
    return BenchOutcome(
        what="alerts and commands beside one node that writes logs as fast as the broker takes them",
        verdicts=tuple(_verdicts(found)),
        notes=(*(f"{label}: {rate:.1f} MB/s of logs" for label, rate in rates.items()),),
    )


def _limit(system: Deployment) -> None:
    """Give the flooding client the quota of its role; its id has the prefix of this deployment."""
    client = quotas.name_of(_ROLE)
    rate = quotas.planned(system.icd)[client]
    name = f"{system.settings.prefix}{client}"
    configure(quotas.alter(system.settings.bootstrap, "clients", name, rate), None, system.progress.step)


def _verdicts(found: dict[str, Measured]) -> list[BarVerdict]:
    verdicts = []
    for name in found[_QUIET]:
        p99 = {label: made.p99 for label, one in found.items() if (made := quantiles([s.whole for s in one[name]]))}
        for label in (_FREE, _LIMITED):
            if _QUIET not in p99 or label not in p99:
                continue
            ratio = p99[label] / p99[_QUIET]
            text = f"{ratio:.2f} ({p99[label] * 1e3:.1f} ms beside {p99[_QUIET] * 1e3:.1f} ms)"
            bar, reached = (f"<= {_QUOTA_BAR:.2f}", ratio <= _QUOTA_BAR) if label == _LIMITED else ("", None)
            verdicts.append(BarVerdict(f"{name}: p99 / p99 quiet, {label}", text, bar=bar, reached=reached))
    return verdicts
