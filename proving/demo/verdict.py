"""Limits of time in the demo, and the speed of the machine by which they are scaled."""

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from clients.events import DeviceEvent, EventRecords
from clients.scene import MASTER, NODE
from clients.timing import LASTING, RATE_SLACK
from facade.icd.model import Icd
from facade.infra.ports import HOST, choose_port
from facade.reading import Quality
from proving.demo.bare import DEVICE
from proving.demo.options import (
    BASELINE,
    DRAINS_WITHIN,
    INVALID_SLACK,
    DemoOptions,
)
from proving.demo.report import RECOVERIES, DemoReport
from proving.demo.system import Demo
from proving.demo.timing import (
    Interval,
    event_rates,
    longest_delay,
    notification_latency,
    window_latency,
    without_rereads,
)
from proving.deployment import answers

NAME: Final = "baseline"
_ANSWERS_WITHIN: Final = 120.0
"""Longest wait for the bare server [s]: how slow the machine is, is not known before."""


def slowness(baselines: Iterable[float]) -> float:
    """Return the factor on limits of time; a machine that is faster than need be has no shorter ones.

    Parameters
    ----------
    baselines
        How long the bare server took each time [s]. The longest counts: the load of a machine changes.
    """
    return max([1.0, *(one / BASELINE for one in baselines)])


def measure_baseline(demo: Demo, *, judges: bool = True) -> None:
    """Start the bare server, wait for its first answer, and end it; waits last the longer, the longer that took.

    Parameters
    ----------
    judges
        Whether limits are judged by it as well. While all else starts, the machine is slower than later on.
    """
    port, report = choose_port(), demo.report
    address, device = f"{HOST}:{port}", f"{DEVICE}#dbase=no"
    began = demo.clock.monotonic()
    demo.deployment.start(NAME, [sys.executable, "-m", "proving.demo.bare", str(port)])
    what = "baseline: a device server with nothing in it answers"
    demo.progress.demand(lambda: answers(address, device), _ANSWERS_WITHIN, what)
    took = demo.clock.monotonic() - began
    demo.processes.kill(NAME)
    if judges:
        report.baselines.append(took)
        report.slowness = slowness(report.baselines)
    demo.progress.patience = max(demo.progress.patience, slowness([took]))
    demo.progress.step(f"{what} {took:.2f} s after its start")


def measure(demo: Demo, records: EventRecords) -> None:
    report = demo.report
    events = {
        (device, attribute): without_rereads(record.events)
        for device, attributes in records.items()
        for attribute, record in attributes.items()
    }
    nodes = set(demo.tango_side.nodes.values())
    rates = [
        event
        for (device, attribute), of_one in events.items()
        if device in nodes and attribute == "heapRate"
        for event in of_one
        if event.quality is not Quality.INVALID
    ]
    report.notification_latency = notification_latency(rates)
    report.window_latency = window_latency(rates)
    report.window_latency_undisturbed = window_latency(_outside(rates, report.restarts))
    report.pace = event_rates(events, _shortest(demo), report.restarts)


def passed_limits(options: DemoOptions, icd: Icd, report: DemoReport) -> list[str]:
    patience = max(options.patience, report.slowness)
    stale_after = max(icd.classes[name].stale_after for name in (NODE, MASTER)) + INVALID_SLACK
    if report.drained_after is not None:
        stale_after += max(report.drained_after - INVALID_SLACK, 0.0)  # until then the values were fresh
    limits: list[tuple[str, float | None, float]] = []
    if report.sent is not None or report.drained_after is not None:
        limits += [
            ("everything sent is accounted for", report.drained_after, DRAINS_WITHIN),
            ("silent attributes are ATTR_INVALID", report.invalid_after, stale_after),
        ]
    recoveries = ((what, getattr(report, name), limit) for name, (what, limit) in RECOVERIES.items())
    limits += [one for one in recoveries if one[1] is not None]
    times = f" ({patience:.2f} times the limit)" if patience > 1 else ""
    failures = [
        f"{what}: expected within {limit * patience:.1f} s{times}, got {'never' if value is None else f'{value:.2f} s'}"
        for what, value, limit in limits
        if value is None or value > limit * patience
    ]
    return failures + _timing_limits(report, patience, options.patience)


def _timing_limits(report: DemoReport, patience: float, rate_patience: float) -> list[str]:
    found = report.pace
    if report.notification_latency is None:
        return ["events: expected some of heapRate, got none"]
    if found is None:
        return []
    failures = []
    held_up = longest_delay(found, report.window_latency_undisturbed, patience)
    if found.bunch.is_too_close(held_up / found.bunch.shortest):
        failures.append(
            f"events of {found.closest}: expected at least {found.bunch.shortest:g} s from one to the next"
            f" (one may be held up on its way, by {held_up:.2f} s), got {found.bunch}"
        )
    if found.busiest_gaps >= LASTING and found.busiest_rate > found.busiest_limit * RATE_SLACK * rate_patience:
        failures.append(
            f"events of {found.busiest}: expected at most {found.busiest_limit:g}/s, got {found.busiest_rate:.2f}/s"
        )
    return failures


def _shortest(demo: Demo) -> dict[tuple[str, str], float]:
    return {
        (device, entry.name): (entry.sampling or device_class.sampling).shortest
        for name, device_class in demo.icd.classes.items()
        for device in demo.tango_side.devices.get(name, ())
        for entry in device_class.attributes
    }


def _outside(events: Sequence[DeviceEvent], intervals: Sequence[Interval]) -> list[DeviceEvent]:
    return [event for event in events if not any(a <= event.received <= b for a, b in intervals)]
