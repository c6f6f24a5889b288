"""Quality metrics of a simulated site: pipelines that send them, and what a device must show of them."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from facade.flows.quality.flow import CLASS, QualityFlow, axes, is_metric
from facade.flows.quality.records import QUALITY, encode_metric, read_header
from facade.kernel.bus.kafka.producer import KafkaWriter
from facade.kernel.bus.port import BusHealth, Record
from facade.kernel.errors import BusError
from facade.kernel.icd.load import load
from facade.kernel.icd.units import unit_of
from facade.sdp.messages import Metric
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.site import Site

ICD = load()
PIPELINES = 2
_METRICS = [one for one in ICD.classes[CLASS].attributes if is_metric(one) and one.type != "DevString"]
_LENGTH = 3
"""Elements of each axis."""
_PAUSE, _PATIENCE = 2.0, 3.0
"""Longest pause between two metrics, and longest wait for the bus [s]."""


class Measuring:
    """Who sends metrics; each element of one is its number."""

    def __init__(self) -> None:
        self.is_sending = True
        self.sent = 0

    def add(self, site: "Site") -> None:
        for number in range(PIPELINES):
            site.bodies[f"pipeline-{number}"] = partial(self._measure, number + 1, site)

    def _measure(self, subarray: int, site: "Site", process: Process) -> None:
        writer = KafkaWriter(site.connection(process), health=BusHealth(), client=process.name)
        random = site.scheduler.random
        while True:
            process.clock.sleep(random.random() * _PAUSE)
            if not self.is_sending:
                continue
            self.sent += 1
            metric = random.choice(_METRICS)
            record = encode_metric(
                np.full((_LENGTH,) * len(axes(metric)), float(self.sent)),
                subarray=subarray,
                metric=metric.name,
                time=process.clock.now_us(),
                unit=unit_of(ICD, metric),
                sequence=self.sent,
            )
            try:
                writer.send_durably(record, _PATIENCE)
            except BusError as error:
                site.trace.note(process.name, f"{metric.name} is perhaps lost: {error}")


def differences(site: "Site") -> Iterator[str]:
    """Say where a device server has something else than the newest metric of its name on the log."""
    (flow,) = (one for one in site.servers["quality"].flows if isinstance(one, QualityFlow))
    newest: dict[tuple[int, str], Metric] = {}
    for entry in site.entries(QUALITY):
        header = read_header(Record(topic=QUALITY, key=entry.key, value=entry.value, headers=entry.headers))
        assert isinstance(header, Metric)
        newest[header.subarray, header.metric] = header
    for (subarray, name), header in newest.items():
        shown = flow.measured[subarray].newest.get(name)
        if shown is None or shown.header != header or not np.all(shown.array == header.sequence):
            got = None if shown is None else (shown.header.sequence, shown.array.tolist())
            yield f"{name} of subarray {subarray}: number {header.sequence} is the newest, shown is {got}"
