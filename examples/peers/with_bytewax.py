"""Heap notifications by node and second with Bytewax: BOOTSTRAP SOURCE TARGET RECORDS FOLDER."""

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSourceMessage
from bytewax.connectors.kafka import operators as kafka
from bytewax.dataflow import Dataflow
from bytewax.operators import windowing
from bytewax.testing import run_main
from confluent_kafka import OFFSET_BEGINNING
from meter import Meter

bootstrap, source, target, records, _ = sys.argv[1:]
meter = Meter(int(records))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read(message: KafkaSourceMessage[bytes, bytes]) -> tuple[str, dict[str, Any]]:
    meter.count()
    return str(message.key, "utf-8"), json.loads(message.value)


def time_of(heap: dict[str, Any]) -> datetime:
    return EPOCH + timedelta(microseconds=heap["time"])


def add(window: list[float], heap: dict[str, Any]) -> list[float]:
    count, total, least, greatest = window
    latency = heap["latency"]
    return [count + 1, total + latency, min(least, latency), max(greatest, latency)]


def merged(one: list[float], other: list[float]) -> list[float]:
    return [one[0] + other[0], one[1] + other[1], min(one[2], other[2]), max(one[3], other[3])]


def written(window: tuple[str, tuple[int, list[float]]]) -> KafkaSinkMessage[bytes, bytes]:
    node, (number, (count, total, least, greatest)) = window
    value = {"node": int(node), "window": number, "count": count, "sum": total, "least": least, "greatest": greatest}
    return KafkaSinkMessage(node.encode(), json.dumps(value).encode())


flow = Dataflow("heaps")
taken = kafka.input(
    "take", flow, brokers=[bootstrap], topics=[source], tail=False, starting_offset=OFFSET_BEGINNING, batch_size=10_000
)
# The clock of Bytewax goes on while records wait: with less, a slow run would call most of its records late.
clock = windowing.EventClock(time_of, wait_for_system_duration=timedelta(hours=1))
windower = windowing.TumblingWindower(length=timedelta(seconds=1), align_to=EPOCH)
heaps = op.map("read", taken.oks, read)
windows = windowing.fold_window(
    "sum", heaps, clock, windower, lambda: [0, 0.0, float("inf"), float("-inf")], add, merged
)
kafka.output("write", op.map("written", windows.down, written), brokers=[bootstrap], topic=target)
run_main(flow)
