"""Logs and metrics of simulated nodes, in the forms of rsyslog and collectd, for pictures of the operator's page."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event

import msgspec

from facade.flows.logs.messages import LOGS, METRICS
from facade.kernel.bus.kafka.bus import KafkaBus
from facade.kernel.bus.kafka.connection import Connection
from facade.kernel.bus.port import Record
from facade.kernel.clock import SystemClock
from facade.kernel.config import Settings

_NODES = ("r01/node-0001", "r01/node-0002", "r02/node-0051", "r02/node-0052")
"""Rack and host, which are the keys of their records."""
_EVERY = 0.5
"""Time between two rounds, in which each node writes each line and has each metric once [s]."""
_CONFIRMED_WITHIN = 30.0
_DEBUG, _INFO, _WARNING, _ERROR = 15, 14, 12, 11
"""Priorities of syslog."""
_LINES = (
    ("receive", _INFO, 1.0, "heaps of 1.0 s are complete"),
    ("receive", _WARNING, 0.1, "expected 1024 channels, got 1021"),
    ("flagger", _DEBUG, 1.0, "channel 512 of 1024 is done"),
    ("flagger", _ERROR, 0.04, "expected a table of 64 antennas, got 63"),
    ("calibrator", _INFO, 0.5, "solution has converged after 14 iterations"),
)
"""Component, priority, chance in a round, and text."""
_METRICS = (
    ("thermal", "thermal_zone0", "temperature", "", 58.0),
    ("df", "data", "percent_bytes", "used", 63.0),
    ("memory", "", "percent", "used", 41.0),
    ("load", "", "load", "", 11.0),
)
"""Plugin and its instance, type and its instance of collectd, and the mean of the value."""


def ship(settings: Settings, stop: Event) -> None:
    """Send what shippers of the nodes would send, until stopped."""
    writer = KafkaBus(Connection(settings, clock=SystemClock()), client="shippers").writer()
    chance, numbers = random.Random(1), dict.fromkeys(_NODES, 0)
    while not stop.wait(_EVERY):
        for node in _NODES:
            for value in _log(node, numbers, chance):
                writer.send_durably(Record(topic=LOGS, key=node.encode(), value=value), _CONFIRMED_WITHIN)
            metrics = Record(topic=METRICS, key=node.encode(), value=_metrics(node, chance))
            writer.send_durably(metrics, _CONFIRMED_WITHIN)


def _log(node: str, numbers: dict[str, int], chance: random.Random) -> Iterator[bytes]:
    rack, host = node.split("/")
    for component, priority, often, text in _LINES:
        if chance.random() < often:
            numbers[node] += 1
            meta = f'[meta sequenceId="{numbers[node]}" rack="{rack}"]'
            yield f"<{priority}>1 {datetime.now(UTC).isoformat()} {host} {component} 7 - {meta} {text}".encode()


def _metrics(node: str, chance: random.Random) -> bytes:
    common = {"time": datetime.now(UTC).timestamp(), "host": node.split("/")[1]}
    names = ("plugin", "plugin_instance", "type", "type_instance")
    return msgspec.json.encode(
        [
            {**common, **dict(zip(names, what, strict=True)), "values": [chance.gauss(mean, mean / 20)]}
            for *what, mean in _METRICS
        ]
    )
