"""Heap notifications by node and second with Quix Streams: BOOTSTRAP SOURCE TARGET RECORDS FOLDER."""

import sys
import threading
from typing import Any

from meter import Meter
from quixstreams import Application
from quixstreams.dataframe.windows import Count, Max, Min, Sum

bootstrap, source, target, records, folder = sys.argv[1:]
meter = Meter(int(records))
app = Application(
    broker_address=bootstrap,
    consumer_group=target,
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    commit_interval=0.2,
    state_dir=folder,
    loglevel="WARNING",
)
heaps = app.topic(
    source,
    key_deserializer="str",
    value_deserializer="json",
    timestamp_extractor=lambda value, headers, timestamp, kind: value["time"] // 1000,
)


def counted(value: dict[str, Any]) -> None:
    if meter.count():
        threading.Timer(3.0, app.stop).start()  # after the last commit


def named(window: dict[str, Any], key: str, timestamp: int, headers: Any) -> dict[str, Any]:
    """Give a window the names that all programs in this folder use."""
    return {"node": int(key), "window": window["start"] // 1000, **{name: window[name] for name in FIELDS}}


FIELDS = ("count", "sum", "least", "greatest")
windows = (
    app.dataframe(heaps)
    .update(counted)
    .tumbling_window(1000, grace_ms=2000)
    .agg(count=Count(), sum=Sum("latency"), least=Min("latency"), greatest=Max("latency"))
    .final()
)
windows.apply(named, metadata=True).to_topic(app.topic(target, value_serializer="json"))
app.run()
