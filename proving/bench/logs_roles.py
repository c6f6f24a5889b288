"""Topics full of logs as shippers write them, and the worker that sums them up, timed."""

import gc
from datetime import UTC, datetime

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from facade.bus.kafka.connection import Connection
from facade.bus.kafka.producer import KafkaStreamWriter
from facade.bus.kafka.transactions import KafkaTransactionalLog
from facade.bus.port import Aborted, BusHealth
from facade.errors import InfraError
from facade.flows.logs.messages import LOGS
from facade.flows.logs.worker import LogWorker
from facade.icd.load import load
from proving.bench.load import Filled
from proving.bench.throughput_roles import Meter, Parts, TimedLog, Timing
from proving.roles import RoleContext

BATCH = 100
"""Records in one of OTLP."""
_AT_ONCE, _MOST_WAITING = 10_000, 200_000
_NODES, _COMPONENTS = 50, 7
_TEXT = "channel {} of 1024 done, flags 17 %, noise 0.31 Jy, next block in 0.4 s; the buffer has 1,733 MB of room"
_GC_THRESHOLD = 100_000
"""As `sdp-facade logs aggregate` sets it."""


def fill(context: RoleContext, *, records: int, form: str) -> Filled:
    """Put logs on the topic: ``syslog``, each a record, or ``otlp``, 100 in a record as protobuf."""
    clock = context.clock
    health = BusHealth()
    writer = KafkaStreamWriter(Connection(context.settings, clock=clock), health=health, client="bench-fill")
    writer.require_topic(LOGS, 10.0)
    begin, value_bytes, made = clock.monotonic(), 0, 0
    sent = 0
    while made < records:
        while writer.backlog > _MOST_WAITING:
            writer.poll(0.005)
        now = clock.now()
        many = min(_AT_ONCE, records - made)
        numbers = range(made, made + many)
        values = (
            [_syslog(one, now) for one in numbers]
            if form == "syslog"
            else [_otlp(first, now) for first in numbers[::BATCH]]
        )
        keys = [b"r01/node-%04d" % (number % _NODES) for number in range(len(values))]
        value_bytes += sum(map(len, values))
        writer.send_many(LOGS, keys, values)
        made, sent = made + many, sent + len(values)
    writer.flush(120.0)
    if writer.delivered != sent:
        raise InfraError(f"{sent - writer.delivered} of {sent} records were not delivered: {health.last_error}")
    return Filled(records=records, value_bytes=value_bytes, seconds=clock.monotonic() - begin)


def flood(context: RoleContext, *, client: str) -> Filled:
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
        while writer.backlog > _MOST_WAITING and not context.called_off:
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


def worker(context: RoleContext, *, group: str, records: int, broker_pid: int) -> Timing:
    """Run a whole worker, as `sdp-facade logs aggregate` does, until it has taken so many records of logs."""
    gc.set_threshold(_GC_THRESHOLD)
    meter, parts = Meter(context.clock, broker_pid), Parts()
    connection = Connection(context.settings, clock=context.clock)
    log = KafkaTransactionalLog(connection, LOGS, group=group, slot="0", health=BusHealth())
    log.commit([])  # makes the producer known to the transaction coordinator, before the time begins
    timed = TimedLog(log, context, meter, parts, gated=False)
    work = LogWorker(timed, load(), slot="0", clock=context.clock)
    account = work.accounts[LOGS]
    while account.consumed + account.uncommitted < records:
        work.step()
    work.finish()
    if account.used + account.late < account.consumed:
        raise Aborted(f"of {account.consumed} records only {account.used} were used")
    return meter.timing(timed.given_up, parts.seconds)
