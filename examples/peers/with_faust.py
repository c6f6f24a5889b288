"""Heap notifications by node and second with Faust: BOOTSTRAP SOURCE TARGET RECORDS FOLDER."""

import asyncio
import os
import sys
from typing import Any

import faust
from meter import Meter

bootstrap, source, target, records, folder = sys.argv[1:]
meter = Meter(int(records))
app = faust.App(
    target,
    broker=f"kafka://{bootstrap}",
    store="memory://",
    datadir=folder,
    processing_guarantee="exactly_once",
    broker_commit_interval=0.2,
    topic_partitions=1,
    topic_replication_factor=1,
    web_enabled=False,
)
heaps = app.topic(source, key_type=bytes, value_type=bytes, value_serializer="json")
result = app.topic(target, value_serializer="json", partitions=1)
# A window is a key of the table: Faust's own windowed tables keep no key by which a window could be written.
windows = app.Table("windows", partitions=1, use_partitioner=True)
EMPTY = {"count": 0, "sum": 0.0, "least": float("inf"), "greatest": float("-inf")}


@app.agent(heaps)
async def add(stream: Any) -> None:
    # One by one, each heap would be a record on the changelog of the table.
    async for batch in stream.take(5_000, within=0.2):
        is_last = False
        changed: dict[str, dict[str, Any]] = {}
        for heap in batch:
            node, number, latency = heap["node"], heap["time"] // 1_000_000, heap["latency"]
            key = f"{node}/{number}"
            window = changed.get(key) or dict(windows.get(key) or {"node": node, "window": number, **EMPTY})
            window["count"] += 1
            window["sum"] += latency
            window["least"] = min(window["least"], latency)
            window["greatest"] = max(window["greatest"], latency)
            changed[key] = window
            is_last = meter.count() or is_last
        for key, window in changed.items():
            windows[key] = window
        if is_last:
            for window in windows.values():
                await result.send(value=window)
            asyncio.get_running_loop().call_later(3.0, os._exit, 0)


app.finalize()
faust.Worker(app, loglevel="WARNING", redirect_stdouts=False).execute_from_commandline()
